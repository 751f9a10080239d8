"""What every system under test offers."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError
from torchmetrics.wrappers import ClasswiseWrapper

from lsgen import checkpoints
from lsgen.data import check_fits
from lsgen.types import from_uint8

TOP = 5  # classes among which the right one may be
CHUNK = 256  # images classified at once when accuracy is measured


class SUT(checkpoints.SavedModule):
    """A classifier under test. It takes images in [0, 1] and owns its normalisation.

    Attributes:
        num_classes: K.
        image_shape: (C, H, W) that it takes.
        differentiable: Whether gradients flow from logits to the image; False for a black box.
    """

    role = "SUT"
    measures: MetricCollection  # of the validation or test that is under way
    num_classes: int
    image_shape: tuple[int, int, int]
    differentiable: bool = True

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Class scores before softmax, [N, C, H, W] in [0, 1] -> [N, K]."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Penultimate activations, [N, C, H, W] -> [N, F]."""

    def forward(self, x: Tensor) -> Tensor:
        """The same as :meth:`logits`."""
        return self.logits(x)

    def setup(self, stage: str) -> None:
        """Refuses data of another shape before the first batch does."""
        check_fits(self, self.trainer)
        self.measures = classification_metrics(self.num_classes)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Collects the metrics of one batch."""
        self._measure(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Collects the metrics of one batch."""
        self._measure(batch, "test")

    def on_validation_epoch_end(self) -> None:
        """Logs accuracy overall (top-1, top-5) and per class, and calibration error."""
        self._log_measures("val")

    def on_test_epoch_end(self) -> None:
        """Logs accuracy overall (top-1, top-5) and per class, and calibration error."""
        self._log_measures("test")

    def _measure(self, batch: tuple[Tensor, Tensor], stage: str) -> None:
        x, y = batch
        logits = self.logits(x)
        self.measures.update(logits.softmax(-1), y)
        self.log(f"{stage}/loss", F.cross_entropy(logits, y), on_epoch=True, batch_size=len(y))

    def _log_measures(self, stage: str) -> None:
        values = self.measures.compute()
        self.log(f"{stage}/accuracy", values.pop("accuracy"), prog_bar=True)
        self.log_dict({f"{stage}/{name}": value for name, value in values.items()})
        self.measures.reset()


def classification_metrics(num_classes: int) -> MetricCollection:
    """Accuracy overall, per class and, where there are more than five, among the five likeliest; calibration error."""
    metrics: dict[str, Any] = {
        "accuracy": MulticlassAccuracy(num_classes, average="micro"),
        "per_class": ClasswiseWrapper(MulticlassAccuracy(num_classes, average=None), prefix="accuracy_class_"),
        "calibration_error": MulticlassCalibrationError(num_classes, n_bins=15),
    }
    if num_classes > TOP:
        metrics[f"accuracy_top{TOP}"] = MulticlassAccuracy(num_classes, average="micro", top_k=TOP)
    # no compute groups: top-1 and top-5 would be taken for one metric when their first batches agree
    return MetricCollection(metrics, compute_groups=False)


@torch.no_grad()
def accuracy(sut: SUT, images: Tensor, labels: Tensor) -> float:
    """Share of stored images [N, C, H, W] (uint8) that ``sut`` classifies as their label [N]."""
    pairs = zip(images.split(CHUNK), labels.split(CHUNK), strict=True)
    right = sum(int((sut.logits(from_uint8(x.to(sut.device))).argmax(1).cpu() == y.cpu()).sum()) for x, y in pairs)
    return right / len(labels)


def pretrained(path: str | Path) -> SUT:
    """A SUT that ``lsgen fit`` left.

    Args:
        path: Its checkpoint.
    """
    return checkpoints.load(path, SUT)  # type: ignore[type-abstract]
