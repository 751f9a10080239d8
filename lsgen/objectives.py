"""What a search minimises (objectives, a number per candidate) and when it has succeeded (criteria, a boolean)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor
from torch.nn import functional as F

from lsgen.types import Candidates


class Objective(ABC):
    """A number per candidate; lower is closer to failure."""

    @abstractmethod
    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N], differentiable where the SUT is."""


class Criterion(ABC):
    """A boolean per candidate: has the search succeeded?"""

    @abstractmethod
    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""

    def __and__(self, other: Criterion) -> Criterion:
        return Both(self, other)


class Both(Criterion):
    """Two criteria at once; what ``a & b`` gives.

    Args:
        first: One.
        second: The other.
    """

    def __init__(self, first: Criterion, second: Criterion) -> None:
        self.first, self.second = first, second

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""
        return self.first(candidates) & self.second(candidates)


class CrossEntropy(Objective):
    """The negative cross entropy of the true label: minimising it climbs the SUT's loss (Speth, Alg. 1)."""

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N]."""
        return -F.cross_entropy(candidates.logits, candidates.label, reduction="none")


class Misclassified(Criterion):
    """The SUT predicts another class than the label."""

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""
        return candidates.logits.argmax(1) != candidates.label
