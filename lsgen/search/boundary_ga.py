"""SINVAD's genetic algorithm: the smallest latent change that makes the SUT change its mind."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from lsgen.errors import InputError
from lsgen.objectives import LatentDistance, Objective
from lsgen.search.base import SeedRandom
from lsgen.search.genetic import Genetic, GeneticState, per_seed

GROWTH = 1.2  # of the mutations while no individual counts; in the published code, this branch is never reached


class BoundaryGA(Genetic):
    """Evolves a population of changed images towards the seed, down to the decision boundary (SINVAD, Fig. 3).

    Individuals that do not satisfy the objective's condition have infinite fitness, the others their distance from the
    seed. Children mutate in coordinates that differ from the seed's, as in the published code (the figure says in those
    that are equal), and some coordinates return to it. Mutations shrink while the best stays the best, and a seed is
    done when they are tiny. While no individual counts they grow instead, by a fifth a round and no further than the
    first population, to look further out. Every seed begins with mutations of its own; in the published code, their
    size carries over from one seed to the next.

    Args:
        population: Individuals of a seed.
        elites: How many of them live on and have children (the paper's text says 10, its code 20).
        generations: Most rounds.
        start: Standard deviation of the first population around the seed.
        mutation: Standard deviation of mutations.
        shrink: Factor on it in a round without progress.
        smallest: A seed is done when its mutations are smaller than this.
        reset: Probability that a coordinate of a child returns to the seed's.
        as_published: Whether mutations shrink also while no individual counts, so that such a search ends soon.
    """

    revision = 1
    stops_at_success = False
    viable_seeds_only: ClassVar[bool] = True  # a seed that is wrong already would count as a boundary at no distance

    def __init__(
        self,
        *,
        population: int = 50,
        elites: int = 20,
        generations: int = 500,
        start: float = 0.7,
        mutation: float = 0.1,
        shrink: float = 0.7,
        smallest: float = 1e-3,
        reset: float = 0.5,
        as_published: bool = False,
    ) -> None:
        super().__init__(population=population, elites=elites, generations=generations, as_published=as_published)
        if not (0 < start < math.inf and 0 < mutation < math.inf and 0 < shrink < 1 and 0 <= smallest < math.inf):
            raise InputError(
                f"{type(self).__name__} needs start and mutation above 0, shrink between 0 and 1 and smallest not "
                f"negative, got start={start}, mutation={mutation}, shrink={shrink}, smallest={smallest}"
            )
        if mutation < smallest:
            raise InputError(
                f"{type(self).__name__}: a seed is done when its mutations are below smallest, {smallest:g}, and "
                f"mutation, {mutation:g}, is so from the start"
            )
        if not 0 <= reset < 1:
            raise InputError(f"reset must be at least 0 and below 1, got {reset}")
        self.start, self.mutation, self.shrink, self.smallest, self.reset = start, mutation, shrink, smallest, reset

    def objective(self, *, targeted: bool) -> Objective:
        """Distance from the seed where the class has changed."""
        return LatentDistance(targeted=targeted)

    @property
    def first_size(self) -> float:
        """``start``."""
        return self.start

    @property
    def first_mutation(self) -> float:
        """``mutation``."""
        return self.mutation

    def next_size(self, size: Tensor, best: Tensor, before: Tensor) -> Tensor:
        """Smaller without progress, larger while nothing counts, else back to the start."""
        smaller, larger = self.shrink * size, (GROWTH * size).clamp(max=max(self.start, self.mutation))
        without = smaller if self.as_published else smaller.where(best.isfinite(), larger)
        return without.where(self.stagnates(best, before), self.mutation)

    def stagnates(self, best: Tensor, before: Tensor) -> Tensor:
        """Whether a round brought no progress, [S] bool."""
        return best == before

    def vary(self, child: Tensor, origin: Tensor, size: Tensor, rng: SeedRandom) -> Tensor:
        """Noise on the genes that differ from the seed's; some return to it."""
        seed = origin[:, None]
        moved = rng.normal(*child.shape[1:]).mul_(per_seed(size, child)).add_(child)
        return seed.where(rng.coins(self.reset, *child.shape[1:]) | (child == seed), moved)

    def bar(self, state: GeneticState) -> Tensor | None:
        """The worst elite's fitness: who does not beat it dies at once. Most children of later rounds do not.

        They are copies of the seed, in which all genes have returned, or further from it than every elite.
        """
        return state.elite_fitness[:, -1] if state.elite.shape[1] else None

    def done(self, state: GeneticState) -> Tensor:
        """Where mutations have become tiny."""
        return state.size < self.smallest
