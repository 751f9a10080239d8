"""A running average of a network's weights, whose images are better than those of any single step."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, decay: float, steps: int) -> None:
    """Moves weights and batch-norm statistics of ``average`` towards ``network``.

    Written by hand because torch's AveragedModel keeps one decay from the first step on, so that a short training
    would still remember its random start.

    Args:
        average: What follows.
        network: What is followed; of the same structure.
        decay: Share of the average that stays, in the long run.
        steps: Training steps so far; after n of them about the last tenth counts, until ``decay`` is reached.
    """
    keep = min(decay, steps / (steps + 9))
    for mean, new in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(new, 1 - keep)
        else:
            mean.copy_(new)  # counters
