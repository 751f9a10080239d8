"""Generative models of the data: one family, one file."""

from lsgen.generators.base import Generator, pretrained
from lsgen.generators.cvae import CVAE
from lsgen.generators.diffusion import Diffusion
from lsgen.generators.gan import GAN
from lsgen.generators.pixels import PixelSpace
from lsgen.generators.quality import GeneratorQuality
from lsgen.generators.stable_diffusion import StableDiffusion
from lsgen.generators.vae import VAE
from lsgen.generators.vqvae import VQVAE

__all__ = [
    "CVAE",
    "GAN",
    "VAE",
    "VQVAE",
    "Diffusion",
    "Generator",
    "GeneratorQuality",
    "PixelSpace",
    "StableDiffusion",
    "pretrained",
]
