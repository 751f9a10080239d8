"""A trainable classifier over any named network."""

from __future__ import annotations

import math

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from lsgen.errors import InputError
from lsgen.suts.augment import random_affine
from lsgen.suts.base import SUT
from lsgen.suts.networks import build


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
        if {len(self.mean), len(self.std)} - {1, channels} or min(self.std) <= 0:
            raise InputError(
                f"mean and std need one value, or one for each of {channels} channels, and std must be above 0, "
                f"got mean={self.mean}, std={self.std}"
            )
        if not 0 < lr < math.inf:
            raise InputError(f"lr must be above 0 and finite, got {lr}")
        self.augment = augment
        self.net = build(network, self.image_shape, num_classes)
        self.register_buffer("_mean", torch.tensor(self.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(self.std).view(-1, 1, 1), persistent=False)

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

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross entropy of one batch."""
        x, y = batch
        x = random_affine(x) if self.augment else x
        loss = nn.functional.cross_entropy(self.logits(x), y)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam with a cosine to zero."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        epochs = self.trainer.max_epochs or 1
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(epochs, 1))
        return {"optimizer": optimizer, "lr_scheduler": schedule}
