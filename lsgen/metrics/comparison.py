"""One SUT, or one set of images, against another."""

from __future__ import annotations

from torch import Tensor

from lsgen.metrics.base import RateDifference


class Robustness(RateDifference):
    """Accuracy on clean images minus accuracy on perturbed ones; 0 where a perturbation does no harm.

    In a summary, seeds are the clean images and found images the perturbed ones.

    Example:
        >>> import torch
        >>> metric = Robustness()
        >>> clean, perturbed = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> metric.update(clean, perturbed, torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "robustness", "r", "Speth I", True

    def update(self, clean: Tensor, perturbed: Tensor, label: Tensor) -> None:
        """Adds images: logits [N, K] before and after the perturbation, label [N]."""
        self._add(0, clean.argmax(1) == label)
        self._add(1, perturbed.argmax(1) == label)


class ImprovedAccuracy(RateDifference):
    """Accuracy after retraining minus accuracy before, on the same images.

    Example:
        >>> import torch
        >>> metric = ImprovedAccuracy()
        >>> before, after = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> metric.update(before, after, torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "improved_accuracy", "ICA", "ARGUS 4.3", True

    def update(self, before: Tensor, after: Tensor, label: Tensor) -> None:
        """Adds images: logits [N, K] of the SUT before and after, label [N]."""
        self._add(0, after.argmax(1) == label)
        self._add(1, before.argmax(1) == label)


class DetectionRate(RateDifference):
    """s_α − s_0: escape rate of a SUT trained with a share α of polluted labels minus that of one trained without.

    Example:
        >>> import torch
        >>> metric = DetectionRate()
        >>> metric.update(torch.tensor([True, True, False]), torch.tensor([False, False, False]))
        >>> metric.compute()
        tensor(0.6667, dtype=torch.float64)
    """

    key, source, higher_is_better = "detection_rate", "SINVAD 5.4", True

    def update(self, escaped: Tensor, escaped_clean: Tensor) -> None:
        """Adds attempts, bool [N] and [M]: whether they reached the target with the polluted and the clean SUT."""
        self._add(0, escaped)
        self._add(1, escaped_clean)
