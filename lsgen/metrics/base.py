"""What the metric classes share: an entry in docs/metrics.md, and three ways to keep a state."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


class CaseMetric(Metric):
    """A metric of test cases.

    The first paragraph of a subclass's docstring is its definition in docs/metrics.md. ``higher_is_better`` is meant
    for the tester: True where a higher value means a better test, None where neither direction does.

    Attributes:
        key: Name in summaries and loggers.
        symbol: Short name in the papers, if there is one.
        source: Where it is defined.
        plot_lower_bound: Smallest possible value, None for none.
        plot_upper_bound: Largest possible value, None for none.
    """

    key: ClassVar[str]
    symbol: ClassVar[str] = ""
    source: ClassVar[str] = ""
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound: float | None = 1.0


class CaseMean(CaseMetric):
    """Mean of one value a case; NaN before the first case.

    Args:
        num_classes: Where given, the mean of each class instead, [K].
        **kwargs: Those of torchmetrics.
    """

    summed: Tensor
    total: Tensor

    def __init__(self, *, num_classes: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        shape = () if num_classes is None else (num_classes,)
        self.add_state("summed", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(shape, dtype=torch.long), dist_reduce_fx="sum")

    def _add(self, values: Tensor, label: Tensor | None = None) -> None:
        """Adds values [N]; ``label`` [N] says whose they are where classes are told apart."""
        if self.num_classes is None:
            self.summed += values.double().sum()
            self.total += len(values)
        else:
            assert label is not None
            self.summed.index_add_(0, label, values.double())
            self.total += label.bincount(minlength=self.num_classes)

    def compute(self) -> Tensor:
        """The mean."""
        return self.summed / self.total


class Collected(CaseMetric):
    """Keeps columns of all cases, for what cannot be said case by case.

    Args:
        *columns: Their names.
        **kwargs: Those of torchmetrics.
    """

    def __init__(self, *columns: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.columns = columns
        for name in columns:
            self.add_state(name, [], dist_reduce_fx="cat")

    def _keep(self, *values: Tensor) -> None:
        for name, value in zip(self.columns, values, strict=True):
            getattr(self, name).append(value)

    def _kept(self) -> list[Tensor]:
        return [dim_zero_cat(getattr(self, name)) for name in self.columns]


class RateDifference(CaseMetric):
    """One rate minus another, each of its own cases; NaN before both have one.

    Args:
        **kwargs: Those of torchmetrics.
    """

    plot_lower_bound = -1.0
    hits: Tensor
    total: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("hits", "total"):
            self.add_state(name, torch.zeros(2, dtype=torch.long), dist_reduce_fx="sum")

    def _add(self, side: int, hits: Tensor) -> None:
        """Adds cases, bool [N], to the first rate (0) or to the one that is taken off (1)."""
        self.hits[side] += hits.sum()
        self.total[side] += len(hits)

    def compute(self) -> Tensor:
        """The difference."""
        rate = self.hits.double() / self.total
        return rate[0] - rate[1]
