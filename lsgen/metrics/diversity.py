"""How different failures are from each other, in the feature space of a SUT."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lsgen.metrics import functional as F
from lsgen.metrics.base import Collected


class FeatureDistance(Collected):
    """Mean Euclidean distance between any two failures in the features of the SUT.

    Example:
        >>> import torch
        >>> metric = FeatureDistance()
        >>> metric.update(torch.tensor([[0.0], [0.0], [3.0]]))
        >>> metric.compute()
        tensor(2., dtype=torch.float64)
    """

    key, source, higher_is_better = "feature_distance", "lsgen", True
    plot_upper_bound = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("features", **kwargs)

    def update(self, features: Tensor) -> None:
        """Adds failures: features [N, F]."""
        self._keep(features)

    def compute(self) -> Tensor:
        """The mean, NaN below two failures."""
        return F.mean_pairwise_distance(*self._kept())


class FeatureCoverage(Collected):
    """Share of real images with a failure nearer, in the features of the SUT, than their k-th real neighbour.

    Args:
        k: Which neighbour.
        **kwargs: Those of torchmetrics.

    Example:
        >>> import torch
        >>> metric, line = FeatureCoverage(k=1), torch.arange(8.0)[:, None]
        >>> metric.update(line, line[:4])
        >>> metric.compute()
        tensor(0.6250)
    """

    key, source, higher_is_better = "feature_coverage", "Naeem et al. 2020", True

    def __init__(self, *, k: int = 5, **kwargs: Any) -> None:
        super().__init__("real", "failures", **kwargs)
        self.k = k

    def update(self, real: Tensor, failures: Tensor) -> None:
        """Adds features of real images [N, F] and of failures [M, F]; either may be empty."""
        self._keep(real, failures)

    def compute(self) -> Tensor:
        """The share."""
        real, failures = self._kept()
        return F.density_coverage(real, failures, self.k)[1]
