"""SINVAD's hill climbing: one coordinate at a time, keeping what helps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lsgen.errors import InputError
from lsgen.generators import Generator
from lsgen.search.base import Searcher, SeedRandom
from lsgen.types import Evaluation, SearchState, Seeds


@dataclass(frozen=True)
class HillState(SearchState):
    """Where each seed stands, and the step it is about to try."""

    latent: Tensor  # [S, *L]
    fitness: Tensor  # [S]
    tried: Tensor  # [S, *L]
    turn: Tensor  # [S] coordinate of the next step


class HillClimb(Searcher):
    """Adds noise to one coordinate after the other and keeps it where the fitness falls (SINVAD, Fig. 2).

    The published use is ``objective: SurpriseDistance``, an image of a wanted surprise.

    Args:
        passes: How often to go through all coordinates.
        step: Standard deviation of the noise (1 in the paper, 5 in its code).
        early_stop: Whether a seed stops at its first success.
    """

    def __init__(self, *, passes: int = 3, step: float = 1.0, early_stop: bool = False) -> None:
        if not (passes >= 0 and 0 < step < math.inf):
            raise InputError(f"HillClimb needs passes >= 0 and a finite step above 0, got {passes} and {step}")
        self.passes, self.step, self.early_stop = passes, step, early_stop
        self.stops_at_success = early_stop
        self.steps = 0  # one for each coordinate, known when the generator is

    def bind(self, generator: Generator) -> Generator:
        """Counts the coordinates: one step looks at the seed, then each coordinate has one in every pass."""
        self.steps = 1 + self.passes * math.prod(generator.latent_shape) if self.passes else 0
        return super().bind(generator)

    def init(self, seeds: Seeds, rng: SeedRandom) -> HillState:
        """Looks at the seeds first."""
        best = torch.full_like(seeds.latent.flatten(1)[:, 0], torch.inf)
        return HillState(seeds.latent, best, seeds.latent, torch.zeros_like(seeds.label))

    def ask(self, state: HillState) -> Tensor:
        """The step to try, [S, 1, *L]."""
        return state.tried[:, None]

    def tell(self, state: HillState, evaluation: Evaluation, rng: SeedRandom) -> HillState:
        """Keeps the step where it is better, and prepares the next."""
        fitness = evaluation.fitness[:, 0]
        better = fitness < state.fitness
        latent = state.tried.where(better.view(-1, *[1] * (state.latent.dim() - 1)), state.latent)
        tried = latent.flatten(1).clone()
        rows = torch.arange(len(tried), device=tried.device)
        tried[rows, state.turn % tried.shape[1]] += self.step * rng.normal()
        return replace(
            state,
            latent=latent,
            fitness=fitness.where(better, state.fitness),
            tried=self.inside(tried.view_as(latent)),
            turn=state.turn + 1,
        )

    def result(self, state: HillState) -> Tensor:
        """The best found, [S, *L]."""
        return state.latent
