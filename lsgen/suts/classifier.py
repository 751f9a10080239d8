"""A trainable classifier over any named network."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError
from torchmetrics.wrappers import ClasswiseWrapper

from lsgen.data import check_fits
from lsgen.suts.augment import random_affine
from lsgen.suts.base import SUT
from lsgen.suts.networks import build

TOP = 5  # accuracy among the five likeliest classes is reported where there are more than five


class Classifier(SUT):
    """Trains a named network as the system under test and reports accuracy and calibration.

    Args:
        network: Name of the architecture, e.g. ``mnist_cnn``; :data:`lsgen.suts.networks.NETWORKS` has them all.
        image_shape: Channels, height, width of the images.
        num_classes: Number of classes.
        mean: What is subtracted from each channel, in [0, 1]; one value for all channels or one for each.
        std: What each channel is then divided by.
        lr: Learning rate of Adam, which falls to zero along a cosine over the epochs.
        augment: Turns, scales and shifts each training image a little. Worth it where many images show few objects,
            as in GTSRB, whose photos come in series of 30 of the same sign.
    """

    def __init__(
        self,
        *,
        network: str = "mnist_cnn",
        image_shape: tuple[int, int, int] = (1, 28, 28),
        num_classes: int = 10,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        lr: float = 1e-3,
        augment: bool = False,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape  # a list, when it comes from a checkpoint
        self.network, self.image_shape, self.num_classes = network, (channels, height, width), num_classes
        self.mean, self.std, self.lr = mean or [0.0], std or [1.0], lr
        self.augment = augment
        self.net = build(network, self.image_shape, num_classes)
        self.register_buffer("_mean", torch.tensor(self.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(self.std).view(-1, 1, 1), persistent=False)
        self.val_metrics = self._metrics("val/")
        self.test_metrics = self._metrics("test/")

    def _metrics(self, prefix: str) -> MetricCollection:
        k = self.num_classes
        per_class = ClasswiseWrapper(MulticlassAccuracy(k, average=None), prefix="accuracy_class_")
        metrics: dict[str, Any] = {
            "accuracy": MulticlassAccuracy(k, average="micro"),
            "per_class": per_class,
            "calibration_error": MulticlassCalibrationError(k, n_bins=15),
        }
        if k > TOP:
            metrics[f"accuracy_top{TOP}"] = MulticlassAccuracy(k, average="micro", top_k=TOP)
        # no compute groups: top-1 and top-5 would be taken for one metric when their first batches agree
        return MetricCollection(metrics, prefix=prefix, compute_groups=False)

    def _normalised(self, x: Tensor) -> Tensor:
        return (x - self._mean) / self._std  # type: ignore[operator]

    def logits(self, x: Tensor) -> Tensor:
        """Class scores, [N, C, H, W] in [0, 1] -> [N, K]."""
        logits: Tensor = self.net(self._normalised(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Penultimate activations, [N, C, H, W] -> [N, F]."""
        features: Tensor = self.net.body(self._normalised(x))
        return features

    def setup(self, stage: str) -> None:
        """Refuses data of another shape before the first batch does."""
        check_fits(self, self.trainer)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross entropy of one batch."""
        x, y = batch
        x = random_affine(x) if self.augment else x
        loss = nn.functional.cross_entropy(self.logits(x), y)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def _evaluate(self, batch: tuple[Tensor, Tensor], stage: str, metrics: MetricCollection) -> None:
        x, y = batch
        logits = self.logits(x)
        metrics.update(logits.softmax(-1), y)
        self.log(f"{stage}/loss", nn.functional.cross_entropy(logits, y), on_epoch=True, batch_size=len(y))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Collects the metrics of one batch."""
        self._evaluate(batch, "val", self.val_metrics)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Collects the metrics of one batch."""
        self._evaluate(batch, "test", self.test_metrics)

    def on_validation_epoch_end(self) -> None:
        """Logs accuracy overall (top-1, top-5) and per class, and calibration error."""
        self._log_metrics(self.val_metrics, "val/accuracy")

    def on_test_epoch_end(self) -> None:
        """Logs accuracy overall (top-1, top-5) and per class, and calibration error."""
        self._log_metrics(self.test_metrics, "test/accuracy")

    def _log_metrics(self, metrics: MetricCollection, headline: str) -> None:
        values = metrics.compute()
        self.log(headline, values.pop(headline), prog_bar=True)
        self.log_dict(values)
        metrics.reset()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam with a cosine to zero."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        epochs = self.trainer.max_epochs or 1
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(epochs, 1))
        return {"optimizer": optimizer, "lr_scheduler": schedule}
