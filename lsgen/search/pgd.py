"""Projected gradient descent in the latent space (Speth et al., Alg. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lsgen.errors import InputError
from lsgen.search.base import Searcher, SeedRandom
from lsgen.types import Evaluation, SearchState, Seeds


@dataclass(frozen=True)
class PGDState(SearchState):
    """Where each seed lies and how far it has moved."""

    origin: Tensor  # [S, *L]
    delta: Tensor  # [S, *L]


class LatentPGD(Searcher):
    """Signed gradient steps inside an L∞ ball around each seed; defaults of Speth's Tab. I.

    As everywhere in lsgen, the SUT sees the image rounded to 8 bits; gradients pass the rounding unchanged. The paper
    does not round, a difference of at most 1/510 in a pixel.

    Args:
        steps: Number of gradient steps, n.
        step_size: How far each coordinate moves in a step, α.
        radius: How far a coordinate may get from the seed, ε.
        early_stop: Whether a seed stops at its first success; the published method takes all steps and returns the
            last iterate, whatever lay between.
    """

    needs_grad: ClassVar[bool] = True

    def __init__(
        self, *, steps: int = 20, step_size: float = 0.05, radius: float = 0.5, early_stop: bool = False
    ) -> None:
        if not (steps >= 0 and 0 < step_size < math.inf and 0 <= radius < math.inf):
            raise InputError(
                f"LatentPGD needs steps >= 0, step_size > 0 and radius >= 0, all finite, "
                f"got steps={steps}, step_size={step_size}, radius={radius}"
            )
        self.steps, self.step_size, self.radius, self.early_stop = steps, step_size, radius, early_stop
        self.stops_at_success = early_stop

    def init(self, seeds: Seeds, rng: SeedRandom) -> PGDState:
        """Starts at the seeds."""
        return PGDState(origin=seeds.latent, delta=torch.zeros_like(seeds.latent))

    def ask(self, state: PGDState) -> Tensor:
        """The current iterates, [S, 1, *L]."""
        return (state.origin + state.delta).unsqueeze(1)

    def tell(self, state: PGDState, evaluation: Evaluation, rng: SeedRandom) -> PGDState:
        """One step down the fitness, then back into the ball."""
        assert evaluation.grad is not None
        delta = state.delta - self.step_size * evaluation.grad.squeeze(1).sign()
        return replace(state, delta=delta.clamp(-self.radius, self.radius))

    def result(self, state: PGDState) -> Tensor:
        """The last iterates, [S, *L]."""
        return state.origin + state.delta
