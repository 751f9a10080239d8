"""Generative models of the data: one family, one file."""

from lsgen.generators.base import Generator, pretrained
from lsgen.generators.quality import GeneratorQuality
from lsgen.generators.cvae import CVAE

__all__ = ["CVAE", "Generator", "GeneratorQuality", "pretrained"]
