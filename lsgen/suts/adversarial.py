"""Training images changed within a small ball so that the classifier under training does worse on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Adversary = Literal["none", "l2", "fast_linf"]
OVERSHOOT = 1.25  # Wong et al.: one step of 1.25 radii, cut back to the ball
REACH = 2.5  # Madry et al.: all steps together are 2.5 radii long, enough to reach and follow the edge of the ball


def l2(logits: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, radius: float, steps: int) -> Tensor:
    """Projected gradient steps on cross entropy inside a Euclidean ball (Madry et al.; Engstrom et al.).

    Args:
        logits: The classifier, [N, C, H, W] -> [N, K].
        x: Images in [0, 1], [N, C, H, W].
        y: Their labels, [N].
        radius: Of the ball.
        steps: Number of steps.

    Returns:
        Images in [0, 1] at most ``radius`` from ``x``, detached.
    """
    moved = x
    for _ in range(steps):
        ahead = _gradient(logits, moved, y).flatten(1)
        moved = moved + (REACH * radius / steps * F.normalize(ahead, dim=1)).view_as(x)
        delta = (moved - x).flatten(1)
        delta = delta * (radius / delta.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
        moved = (x + delta.view_as(x)).clamp(0, 1)  # brings no pixel farther from x, which lies in [0, 1]
    return moved


def fast_linf(logits: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, radius: float) -> Tensor:
    """One signed gradient step from a random point of the box around each image (Wong et al., "fast" training).

    Args:
        logits: The classifier, [N, C, H, W] -> [N, K].
        x: Images in [0, 1], [N, C, H, W].
        y: Their labels, [N].
        radius: Largest change of a pixel.

    Returns:
        Images in [0, 1] at most ``radius`` from ``x`` in every pixel, detached.
    """
    start = (x + radius * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    moved = start + OVERSHOOT * radius * _gradient(logits, start, y).sign()
    return moved.clamp(x - radius, x + radius).clamp(0, 1)


def _gradient(logits: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits(x), y, reduction="sum"), x)
    return gradient
