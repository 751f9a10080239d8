"""Generative models of the data: one family, one file."""

from lsgen.generators.base import Generator, pretrained
from lsgen.generators.cvae import CVAE
from lsgen.generators.pixels import PixelSpace
from lsgen.generators.quality import GeneratorQuality
from lsgen.generators.vae import VAE

__all__ = ["CVAE", "VAE", "Generator", "GeneratorQuality", "PixelSpace", "pretrained"]
