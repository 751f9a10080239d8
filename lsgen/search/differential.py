"""SINVAD's differential testing: images near a seed on which two SUTs disagree."""

from __future__ import annotations

import math

from torch import Tensor

from lsgen.errors import InputError
from lsgen.objectives import Criterion, DifferentialDistance, Disagree, Objective
from lsgen.search.boundary_ga import BoundaryGA
from lsgen.suts import SUT

PUBLISHED_THRESHOLD = 0.5  # of the probability that the SUT gives the label


class Differential(BoundaryGA):
    """Evolves images that the SUT gets wrong and another SUT reads otherwise, as near to the seed as it can.

    The surer the other SUT is of the label, the better. Seeds on which the two disagree already are not searched.

    In the published code an image counts as soon as the SUT gives the label at most half of its belief. With more than
    two classes, most searches then end where the label still leads and nobody disagrees.

    Args:
        other: The second SUT, e.g. ``lsgen.suts.pretrained`` with its checkpoint.
        population: Individuals of a seed.
        elites: How many of them live on and have children.
        generations: Most rounds.
        start: Standard deviation of the first population around the seed.
        mutation: Standard deviation of mutations.
        shrink: Factor on it in a round whose best fitness changes by less than ``progress``.
        progress: See above.
        smallest: A seed is done when its mutations are smaller than this.
        reset: Probability that a coordinate of a child returns to the seed's.
        as_published: Whether images count by that rule, and mutations shrink also while none does.
    """

    def __init__(
        self,
        *,
        other: SUT,
        population: int = 50,
        elites: int = 20,
        generations: int = 5000,
        start: float = 1.2,
        mutation: float = 0.1,
        shrink: float = 0.5,
        progress: float = 1e-3,
        smallest: float = 1e-3,
        reset: float = 0.2,
        as_published: bool = False,
    ) -> None:
        super().__init__(
            population=population,
            elites=elites,
            generations=generations,
            start=start,
            mutation=mutation,
            shrink=shrink,
            smallest=smallest,
            reset=reset,
            as_published=as_published,
        )
        if not 0 <= progress < math.inf:
            raise InputError(f"progress must be finite and not negative, got {progress}")
        self.other, self.progress = other, progress

    def objective(self, *, targeted: bool) -> Objective:
        """Distance times how much more the first SUT believes in the label than the second."""
        return DifferentialDistance(other=self.other, threshold=PUBLISHED_THRESHOLD if self.as_published else None)

    def criterion(self, *, targeted: bool) -> Criterion:
        """The two predict different classes."""
        return Disagree(other=self.other)

    def stagnates(self, best: Tensor, before: Tensor) -> Tensor:
        """Whether the best fitness hardly changed, [S] bool."""
        return (best == before) | ((before - best).abs() < self.progress)
