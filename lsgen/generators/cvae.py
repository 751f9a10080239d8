"""Conditional variational autoencoder (Speth et al.): a class embedding joins a small latent in the decoder."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from lsgen.errors import InputError
from lsgen.generators.autoencoder import Autoencoder

SMALLEST = 7  # the encoder halves images until no side is longer
HIDDEN = 256  # units between latent and the bottom of the decoder


class CVAE(Autoencoder):
    """Conditional VAE with convolutions that scale with the image size.

    Args:
        image_shape: Channels, height, width of the images.
        num_classes: Number of classes.
        latent_dim: Size of the latent vector.
        embedding_dim: Size of the class embedding.
        width: Channels of the first convolution; each halving of the image doubles them, up to four times this.
        beta: Weight of the KL term.
        lr: Learning rate of Adam, which falls to zero along a cosine over the epochs.
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        num_classes: int = 10,
        latent_dim: int = 16,
        embedding_dim: int = 10,
        width: int = 32,
        beta: float = 1.0,
        lr: float = 1e-3,
    ) -> None:
        super().__init__()
        if min(latent_dim, embedding_dim, width, num_classes) < 1:
            raise InputError("latent_dim, embedding_dim, width and num_classes must be at least 1")
        if not (0 < lr < math.inf and 0 <= beta < math.inf):
            raise InputError(f"lr must be above 0, beta not negative, both finite, got lr={lr}, beta={beta}")
        if min(image_shape[1:]) <= SMALLEST:
            raise InputError(f"CVAE needs images larger than {SMALLEST}×{SMALLEST} pixels, got {tuple(image_shape)}")
        channels_, height, wide = image_shape
        self.image_shape, self.num_classes = (channels_, height, wide), num_classes
        self.latent_dim, self.embedding_dim, self.width = latent_dim, embedding_dim, width
        self.beta, self.lr = beta, lr
        self.embedding = nn.Embedding(num_classes, embedding_dim)
        sizes, channels = _pyramid(self.image_shape, width)
        bottom = (channels[-1], *sizes[-1])
        flat = bottom[0] * bottom[1] * bottom[2]
        self.encoder = _encoder(channels)
        self.posterior = nn.Linear(flat + embedding_dim, 2 * latent_dim)
        self.decoder = _decoder(sizes, channels, latent_dim + embedding_dim, bottom)

    def posterior_of(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Images [N, C, H, W] and labels [N] -> mean and log variance, [N, latent_dim] each."""
        hidden = torch.cat([self.encoder(x).flatten(1), self.embedding(y)], dim=1)
        mean, log_var = self.posterior(hidden).chunk(2, dim=1)
        return mean, log_var

    def pixel_logits(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents [N, latent_dim] and labels [N] -> pixels before the sigmoid, [N, C, H, W].

        The first stage of the decoder takes latent and class embedding joined.
        """
        pixels: Tensor = self.decoder(torch.cat([z, self.embedding(y)], dim=1))
        return pixels


def _pyramid(image_shape: tuple[int, ...], width: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Image sizes and channels from the full image down to the bottom."""
    channels, height, wide = image_shape
    sizes, depths = [(height, wide)], [channels]
    while max(sizes[-1]) > SMALLEST:
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
        depths.append(min(width * 2 ** (len(depths) - 1), 4 * width))
    return sizes, depths


def _encoder(channels: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers)


def _decoder(
    sizes: list[tuple[int, int]], channels: list[int], inputs: int, bottom: tuple[int, int, int]
) -> nn.Sequential:
    """Two linear stages to the bottom, then one stage for each doubling; the last one gives pixel logits."""
    stages: list[nn.Module] = [
        nn.Sequential(nn.Linear(inputs, HIDDEN), nn.LeakyReLU(0.1)),
        nn.Sequential(nn.Linear(HIDDEN, bottom[0] * bottom[1] * bottom[2]), nn.LeakyReLU(0.1), nn.Unflatten(1, bottom)),
    ]
    for level in range(len(channels) - 1, 0, -1):
        stage: list[nn.Module] = [nn.Upsample(size=sizes[level - 1])]
        if level > 1:
            outputs = channels[level - 1]
            stage += [nn.Conv2d(channels[level], outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)]
        else:
            stage += [nn.Conv2d(channels[1], channels[0], 3, padding=1)]
        stages.append(nn.Sequential(*stage))
    return nn.Sequential(*stages)
