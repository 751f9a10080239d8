"""How often, and how surely, the SUT is wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lsgen.metrics.functional import true_probability


class FailureRate(Metric):
    """Share of cases that the SUT predicts as another class than their label (FR).

    Example:
        >>> metric = FailureRate()
        >>> metric.update(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = True  # for the tester: more failures found
    full_state_update = False
    failed: Tensor
    total: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("failed", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Adds cases: logits [N, K], label [N]."""
        self.failed += (logits.argmax(1) != label).sum()
        self.total += len(label)

    def compute(self) -> Tensor:
        """The share, NaN before the first case."""
        return self.failed / self.total


class MeanTrueProbability(Metric):
    """Mean softmax probability of the label (mP_t).

    Example:
        >>> metric = MeanTrueProbability()
        >>> metric.update(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = False  # for the tester: the SUT is less sure of the truth
    full_state_update = False
    summed: Tensor
    total: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("summed", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Adds cases: logits [N, K], label [N]."""
        self.summed += true_probability(logits, label).double().sum()
        self.total += len(label)

    def compute(self) -> Tensor:
        """The mean, NaN before the first case."""
        return self.summed / self.total
