"""How often, how surely and how cheaply the SUT is made to fail."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lsgen.metrics import functional as F
from lsgen.metrics.base import CaseMean, CaseMetric, Collected


class FailureRate(CaseMean):
    """Share of cases that the SUT predicts as another class than their label.

    ARGUS's error rate is the same number; summaries have it as `error_rate` too.

    Example:
        >>> metric = FailureRate()
        >>> metric.update(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
        >>> by_class = FailureRate(num_classes=2)
        >>> by_class.update(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
        >>> by_class.compute()
        tensor([   nan, 0.5000], dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "failure_rate", "FR, ER", "Speth V-A; ARGUS 4.3", True

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Adds cases: logits [N, K], label [N]."""
        self._add(logits.argmax(1) != label, label)


class MeanTrueProbability(CaseMean):
    """Mean softmax probability P_t that the SUT gives to the label.

    Example:
        >>> metric = MeanTrueProbability()
        >>> metric.update(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "mean_p_true", "mP_t", "Speth V-A", False

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Adds cases: logits [N, K], label [N]."""
        self._add(F.true_probability(logits, label), label)


class ConfidentFailureRate(CaseMean):
    """Share of cases where the likeliest class leads the label by more than a margin c in probability.

    Summaries and loggers have it at c = 0.5.

    Args:
        margin: c, between 0 and 1.
        **kwargs: Those of torchmetrics.

    Example:
        >>> metric = ConfidentFailureRate(margin=0.5)
        >>> metric.update(torch.tensor([[0.0, 3.0], [0.0, 0.1]]), torch.tensor([0, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, source, higher_is_better = "confident_failure_rate", "Dunn Def. 3.4", True

    def __init__(self, *, margin: float = F.CONFIDENT, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.margin = margin

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Adds cases: logits [N, K], label [N]."""
        self._add(F.confident_failure(logits, label, self.margin))


class BoundaryGap(CaseMean):
    """Mean difference p₁ − p₂ of the two largest probabilities; 0 on the decision boundary.

    Example:
        >>> metric = BoundaryGap()
        >>> metric.update(torch.tensor([[3.0, 3.0, 0.0]]))
        >>> metric.compute()
        tensor(0., dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "boundary_gap", "U", "SINVAD Eq. 3", False

    def update(self, logits: Tensor) -> None:
        """Adds cases: logits [N, K]."""
        self._add(F.boundary_gap(logits))


class SuccessRate(Collected):
    """Share of distinct seeds with at least one failed case.

    Example:
        >>> metric = SuccessRate()
        >>> metric.update(torch.tensor([True, False, False]), torch.tensor([0, 0, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "success_rate", "SR", "ARGUS 4.3", True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("failed", "seed_id", **kwargs)

    def update(self, failed: Tensor, seed_id: Tensor) -> None:
        """Adds cases: failed [N] bool, seed_id [N]."""
        self._keep(failed, seed_id)

    def compute(self) -> Tensor:
        """The share."""
        return F.success_rate(*self._kept())


class MisclassificationRate(Collected):
    """Share of viable seeds, those that the SUT gets right at first, with at least one failed case.

    Example:
        >>> metric = MisclassificationRate()
        >>> predicted, at_first, label = torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0])
        >>> metric.update(predicted, at_first, label, torch.tensor([7, 8, 9]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, source, higher_is_better = "misclassification_rate", "ICST25 Tab. III", True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("predicted", "seed_predicted", "label", "seed_id", **kwargs)

    def update(self, predicted: Tensor, seed_predicted: Tensor, label: Tensor, seed_id: Tensor) -> None:
        """Adds cases: what was predicted of the found image and of the seed, label, seed_id, each [N]."""
        self._keep(predicted, seed_predicted, label, seed_id)

    def compute(self) -> Tensor:
        """The share."""
        return F.misclassification_rate(*self._kept())


class SeedViability(Collected):
    """Share of distinct seeds whose own image the SUT classifies as its label.

    Example:
        >>> metric = SeedViability()
        >>> metric.update(torch.tensor([0, 0, 2]), torch.tensor([0, 0, 1]), torch.tensor([7, 7, 8]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, source, higher_is_better = "seed_viability", "ICST25 Tab. III", True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("seed_predicted", "label", "seed_id", **kwargs)

    def update(self, seed_predicted: Tensor, label: Tensor, seed_id: Tensor) -> None:
        """Adds cases: what was predicted of the seed, label, seed_id, each [N]."""
        self._keep(seed_predicted, label, seed_id)

    def compute(self) -> Tensor:
        """The share."""
        return F.seed_viability(*self._kept())


class LabelDiversity(Collected):
    """Mean number of distinct wrong classes in each group of cases that has a failure.

    ARGUS's groups are seeds; the cases of a method with one case a seed are grouped by label.

    Example:
        >>> metric = LabelDiversity()
        >>> metric.update(torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3]), torch.tensor([7, 7, 8]))
        >>> metric.compute()
        tensor(2., dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "label_diversity", "LD", "ARGUS 4.3", True
    plot_lower_bound, plot_upper_bound = 1.0, None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("predicted", "label", "group", **kwargs)

    def update(self, predicted: Tensor, label: Tensor, group: Tensor) -> None:
        """Adds cases: predicted, label and group, each [N]."""
        self._keep(predicted, label, group)

    def compute(self) -> Tensor:
        """The mean, NaN where nothing failed."""
        return F.label_diversity(*self._kept())


class EscapeRate(CaseMetric):
    """Matrix [source, target]: share of the attempts to get from source to target that end predicted as target.

    Without targets, an attempt is every case of the source class.

    Args:
        num_classes: K.
        **kwargs: Those of torchmetrics.

    Example:
        >>> metric = EscapeRate(num_classes=2)
        >>> metric.update(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]], dtype=torch.float64)
    """

    key, source, higher_is_better = "escape_rate", "SINVAD 5.4", True
    reached: Tensor
    attempts: Tensor

    def __init__(self, *, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        for name in ("reached", "attempts"):
            self.add_state(name, torch.zeros(num_classes, num_classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, label: Tensor, target: Tensor | None = None) -> None:
        """Adds cases: predicted, label and, where they have one, target, each [N]."""
        reached, attempts = F.escapes(predicted, label, self.num_classes, target)
        self.reached += reached
        self.attempts += attempts

    def compute(self) -> Tensor:
        """The shares [K, K], NaN where nothing was tried."""
        return self.reached / self.attempts


class DistinctPairs(CaseMetric):
    """Number of different (label → predicted) pairs among the failures.

    Args:
        num_classes: K; there can be K (K − 1) pairs.
        **kwargs: Those of torchmetrics.

    Example:
        >>> metric = DistinctPairs(num_classes=3)
        >>> metric.update(torch.tensor([1, 1, 2, 0]), torch.tensor([0, 0, 0, 0]))
        >>> metric.compute()
        tensor(2)
    """

    key, source, higher_is_better = "distinct_pairs", "lsgen", True
    plot_upper_bound = None
    counts: Tensor

    def __init__(self, *, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.add_state("counts", torch.zeros(num_classes, num_classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, label: Tensor) -> None:
        """Adds cases: predicted and label, each [N]."""
        self.counts += F.escapes(predicted, label, self.num_classes)[0]

    def compute(self) -> Tensor:
        """The number."""
        return (self.counts > 0).fill_diagonal_(False).sum()


class Effectiveness(CaseMean):
    """Share of cases that fail, are valid inputs, and still show their label; needs oracles for the last two.

    lsgen ships no oracle yet: until the columns ``valid`` and ``preserved`` are filled in, this is null.

    Example:
        >>> metric = Effectiveness()
        >>> metric.update(torch.tensor([True, True]), torch.tensor([True, False]), torch.tensor([True, True]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, source, higher_is_better = "effectiveness", "ICST25", True

    def update(self, failed: Tensor, valid: Tensor, preserved: Tensor) -> None:
        """Adds cases: three columns [N] bool."""
        self._add(failed & valid & preserved)


class MeanIterations(CaseMean):
    """Mean number of steps to the first success; a seed without one counts the whole budget.

    Args:
        budget: Steps of a seed that never succeeds.
        **kwargs: Those of torchmetrics.

    Example:
        >>> metric = MeanIterations(budget=250)
        >>> metric.update(torch.tensor([3, 99]), torch.tensor([True, False]))
        >>> metric.compute()
        tensor(126.5000, dtype=torch.float64)
    """

    key, source, higher_is_better = "iterations_mean", "ICST25 Tab. III", False
    plot_upper_bound = None

    def __init__(self, *, budget: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.budget = budget

    def update(self, iterations: Tensor, success: Tensor) -> None:
        """Adds cases: iterations [N], and whether there was a success, [N] bool."""
        self._add(iterations.where(success, self.budget))


class _CostPerFailure(CaseMetric):
    higher_is_better = False
    plot_upper_bound = None
    cost: Tensor
    failures: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("cost", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("failures", torch.tensor(0), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """The cost, NaN where nothing failed."""
        return (self.cost / self.failures).where(self.failures > 0, torch.nan)


class QueriesPerFailure(_CostPerFailure):
    """SUT forward passes spent on all cases, divided by the number of failures.

    Example:
        >>> metric = QueriesPerFailure()
        >>> metric.update(torch.tensor([20, 20, 20]), torch.tensor([True, False, False]))
        >>> metric.compute()
        tensor(60., dtype=torch.float64)
    """

    key, source = "queries_per_failure", "lsgen"

    def update(self, queries: Tensor, failed: Tensor) -> None:
        """Adds cases: queries [N], failed [N] bool."""
        self.cost += queries.double().sum()
        self.failures += failed.sum()


class SecondsPerFailure(_CostPerFailure):
    """Time spent searching, added up over blocks, divided by the number of failures.

    Example:
        >>> metric = SecondsPerFailure()
        >>> metric.update(9.0, torch.tensor([True, True, True, False]))
        >>> metric.compute()
        tensor(3., dtype=torch.float64)
    """

    key, source = "seconds_per_failure", "lsgen"

    def update(self, seconds: float, failed: Tensor) -> None:
        """Adds a block of cases: its time and failed [N] bool."""
        self.cost += seconds
        self.failures += failed.sum()
