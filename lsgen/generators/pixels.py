"""The space of all images: with it, every searcher is its own pixel-space baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators.base import Generator
from lsgen.types import LatentSpec, cut


class PixelSpace(Generator):
    """A generator whose latent is the image, so that a search changes pixels directly.

    There is nothing to learn: name it in a search config as it is, without a checkpoint.

    Args:
        image_shape: Channels, height, width of the images.
        num_classes: Number of classes of the data; labels are ignored.

    Raises:
        InputError: A size below 1.
    """

    conditional = False
    encodes = True
    has_prior = False

    def __init__(self, *, image_shape: tuple[int, int, int] = (1, 28, 28), num_classes: int = 10) -> None:
        super().__init__()
        if min(*image_shape, num_classes) < 1:
            raise InputError(f"image_shape and num_classes must be at least 1, got {tuple(image_shape)}, {num_classes}")
        channels, height, wide = image_shape
        self.image_shape, self.num_classes = (channels, height, wide), num_classes
        self.latent_bounds.copy_(torch.tensor([0.0, 1.0]))

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return self.image_shape

    @property
    def latent(self) -> LatentSpec:
        """Images in [0, 1]."""
        return LatentSpec(shape=self.latent_shape, kind="pixels", bounds=(0.0, 1.0))

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents [N, C, H, W] -> the same as images, cut to [0, 1]; labels [N] are ignored."""
        return cut(z)

    def encode(self, x: Tensor, y: Tensor) -> Tensor:
        """Images [N, C, H, W] -> the same as latents; labels [N] are ignored."""
        return x

    def sample_prior(self, n: int, y: Tensor, rng: torch.Generator) -> Tensor:
        """Refuses.

        Raises:
            InputError: Always, since random pixels are no image that a person could name.
        """
        raise InputError("PixelSpace has no prior, and pixel noise is no image: take seeds from data with DataSeeds")

    def measure_bounds(self, data: ImageData) -> None:
        """Leaves [0, 1]: these bounds hold for all images, whatever the first thousand reach."""
