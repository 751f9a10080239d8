"""Networks for traffic signs and other small colour photos, cheap enough to be trained on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgen.suts.networks.base import ImageShape, Network, check_size

GRID = 4  # largest side of the feature map that the hidden layer sees, whatever the image size
HIDDEN = 256


def gtsrb_cnn(image_shape: ImageShape, num_classes: int) -> Network:
    """Conv-bn-relu blocks 32-pool-64-pool-128-pool-128 and one hidden layer of 256, with dropout."""
    check_size("gtsrb_cnn", image_shape, 8)
    return Network(nn.Sequential(*_body(image_shape)), _head(num_classes))


def gtsrb_stn(image_shape: ImageShape, num_classes: int) -> Network:
    """A spatial transformer that may turn, shift and scale the image, in front of ``gtsrb_cnn``."""
    check_size("gtsrb_stn", image_shape, 16)
    return Network(nn.Sequential(SpatialTransformer(image_shape[0]), *_body(image_shape)), _head(num_classes))


def _body(image_shape: ImageShape) -> list[nn.Module]:
    channels, height, width = image_shape
    grid = (min(GRID, height // 8), min(GRID, width // 8))
    return [
        *_conv(channels, 32, nn.MaxPool2d(2)),
        *_conv(32, 64, nn.MaxPool2d(2)),
        *_conv(64, 128, nn.MaxPool2d(2)),
        *_conv(128, 128),
        nn.AdaptiveAvgPool2d(grid),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(128 * grid[0] * grid[1], HIDDEN),
        nn.ReLU(),
    ]


def _conv(inputs: int, outputs: int, *pool: nn.Module) -> list[nn.Module]:
    """Convolution, pooling where there is some, normalisation, ReLU: pooled first, the rest costs a quarter."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), *pool, nn.BatchNorm2d(outputs), nn.ReLU()]


def _head(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(HIDDEN, num_classes))


class SpatialTransformer(nn.Module):
    """Resamples each image along an affine map that a small network reads off it (Jaderberg et al.).

    Args:
        channels: Channels of the images.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.localisation = nn.Sequential(
            nn.AvgPool2d(2),  # where a sign lies can be seen at half the resolution, at a quarter of the cost
            *(nn.Conv2d(channels, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, 32),
            nn.ReLU(),
        )
        self.affine = nn.Linear(32, 6)
        # training starts from the identity map, or most images would be moved out of sight at once
        nn.init.zeros_(self.affine.weight)
        self.affine.bias.data.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        theta = self.affine(self.localisation(x)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        # what comes in from outside repeats the border: black corners would be a new, sharp edge
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)
