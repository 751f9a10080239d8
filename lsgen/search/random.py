"""Random sampling: the baseline that every search has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lsgen.search.base import Searcher, SeedRandom
from lsgen.types import Evaluation, SearchState, Seeds


@dataclass(frozen=True)
class RandomState(SearchState):
    """Nothing but the seeds."""

    latent: Tensor  # [S, *L]


class RandomSampling(Searcher):
    """Takes the seeds as they are: what plain sampling of the generator finds."""

    minimises: ClassVar[bool] = False
    has_seed: ClassVar[bool] = False
    steps = 0

    def __init__(self) -> None:
        pass

    def init(self, seeds: Seeds, rng: SeedRandom) -> RandomState:
        """Remembers the seeds."""
        return RandomState(seeds.latent)

    def ask(self, state: RandomState) -> Tensor:
        """The seeds, [S, 1, *L]."""
        return state.latent.unsqueeze(1)

    def tell(self, state: RandomState, evaluation: Evaluation, rng: SeedRandom) -> RandomState:
        """Learns nothing."""
        return state

    def result(self, state: RandomState) -> Tensor:
        """The seeds, [S, *L]."""
        return state.latent
