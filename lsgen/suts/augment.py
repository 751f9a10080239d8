"""Small random changes of training images that leave their class alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

ANGLE = math.radians(10)  # largest turn either way; signs and digits keep their meaning
SCALE = 0.1  # largest change of size, a share
SHIFT = 0.1  # largest shift, a share of the image's side


def random_affine(x: Tensor) -> Tensor:
    """Each image [N, C, H, W] turned, scaled and shifted by amounts of its own; never mirrored.

    Done here and not with torchvision's transforms, which draw one set of amounts for a whole batch.

    Example:
        >>> random_affine(torch.ones(2, 3, 8, 8)).mean()
        tensor(1.)
    """
    draw = 2 * torch.rand(4, len(x), device=x.device) - 1  # [4, N] in [-1, 1]
    angle, scale = ANGLE * draw[0], 1 + SCALE * draw[1]
    shift = 2 * SHIFT * draw[2:]  # an image's side is 2 long in the coordinates of the grid
    cos, sin = scale * angle.cos(), scale * angle.sin()
    aspect = x.shape[2] / x.shape[3]  # those coordinates stretch images that are not square
    rows = [cos, -sin * aspect, shift[0], sin / aspect, cos, shift[1]]
    grid = F.affine_grid(torch.stack(rows, dim=1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid.to(x.dtype), padding_mode="border", align_corners=False)
