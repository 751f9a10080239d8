"""Generative models of the data: one family, one file."""

from lsgen.generators.base import Generator, pretrained
from lsgen.generators.cvae import CVAE
from lsgen.generators.quality import GeneratorQuality

__all__ = ["CVAE", "Generator", "GeneratorQuality", "pretrained"]
