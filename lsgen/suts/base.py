"""What every system under test offers."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError
from torchmetrics.wrappers import ClasswiseWrapper

from lsgen import checkpoints
from lsgen.data import Fault, ImageData, check_fits
from lsgen.types import from_uint8

TOP = 5  # classes among which the right one may be
CHUNK = 256  # images classified at once when accuracy is measured


class SUT(checkpoints.SavedModule):
    """A classifier under test. It takes images in [0, 1] and owns its normalisation.

    Attributes:
        num_classes: K.
        image_shape: (C, H, W) that it takes.
        differentiable: Whether gradients flow from logits to the image; False for a black box.
        fault: What was wrong with the data it was trained on, as plain data for
            :func:`lsgen.data.faults.from_description`; None if nothing was put there.
    """

    role = "SUT"
    fault: dict[str, Any] | None = None
    measures: MetricCollection  # of the validation or test that is under way
    groups: nn.ModuleDict  # accuracy on test images that a fault of the data concerns, and on others
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
        self.groups = nn.ModuleDict()
        fault = self._data_fault
        if fault is not None and stage == "fit":
            self.fault = fault.about()

    @property
    def _data_fault(self) -> Fault | None:
        data = getattr(self.trainer, "datamodule", None)
        return data.fault if isinstance(data, ImageData) else None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the class, its arguments and the fault in its training data to the file."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[checkpoints.KEY]["fault"] = self.fault

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes over the fault of the training that goes on, unless the data bring their own."""
        self.fault = self.fault or checkpoint.get(checkpoints.KEY, {}).get("fault")

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Collects the metrics of one batch."""
        self._measure(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Collects the metrics of one batch, and accuracy on the groups of images that a fault of the data makes."""
        self._measure(batch, "test")
        if self._data_fault is not None:
            self._measure_groups(self._data_fault.groups(*batch))

    def on_validation_epoch_end(self) -> None:
        """Logs accuracy overall (top-1, top-5) and per class, and calibration error."""
        self._log_measures("val")

    def on_test_epoch_end(self) -> None:
        """Logs accuracy overall (top-1, top-5), per class and per group of the data's fault, and calibration error."""
        self._log_measures("test")
        for name, right in self.groups.items():
            share = right.compute()  # type: ignore[operator]
            if not share.isnan():  # no test image is in the group
                self.log(f"test/accuracy_{name}", share)

    def _measure(self, batch: tuple[Tensor, Tensor], stage: str) -> None:
        x, y = batch
        logits = self.logits(x)
        self.measures.update(logits.softmax(-1), y)
        self.log(f"{stage}/loss", F.cross_entropy(logits, y), on_epoch=True, batch_size=len(y), sync_dist=True)

    def _measure_groups(self, groups: dict[str, tuple[Tensor, Tensor]]) -> None:
        for name, (x, y) in groups.items():
            right = self.logits(x).argmax(1) == y if len(y) else y.bool()
            if name not in self.groups:
                self.groups[name] = MeanMetric().to(self.device)
            self.groups[name].update(right.float())  # type: ignore[operator]
            self.log(f"test/images_{name}", float(len(y)), reduce_fx="sum", sync_dist=True)

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
def predictions(sut: SUT, images: Tensor, batch_size: int = CHUNK) -> Tensor:
    """What ``sut`` takes stored images [N, C, H, W] (uint8) for, [N] on the CPU."""
    return torch.cat([sut.logits(from_uint8(x.to(sut.device))).argmax(1).cpu() for x in images.split(batch_size)])


def accuracy(sut: SUT, images: Tensor, labels: Tensor, batch_size: int = CHUNK) -> float:
    """Share of stored images [N, C, H, W] (uint8) that ``sut`` classifies as their label [N]."""
    return (predictions(sut, images, batch_size) == labels.cpu()).double().mean().item()


def pretrained(path: str | Path) -> SUT:
    """A SUT that ``lsgen fit`` left.

    Args:
        path: Its checkpoint.
    """
    return checkpoints.load(path, SUT)  # type: ignore[type-abstract]
