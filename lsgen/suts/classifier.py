"""A trainable classifier over any named network."""

from __future__ import annotations

import math
from typing import get_args

import torch
from torch import Tensor, nn

from lsgen.checkpoints import cosine_rate
from lsgen.errors import InputError
from lsgen.suts import adversarial as attacks
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
        adversarial: Trains on images that are changed against the classifier: ``l2`` takes gradient steps in a
            Euclidean ball, each the cost of a training step; ``fast_linf`` one step in a box. Validation stays clean.
        radius: Of that ball or box; usual are 1.5 (l2) and 0.3 (fast_linf) for digits, 0.5 and 8/255 for small photos.
        attack_steps: Gradient steps of ``l2``.
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
        adversarial: attacks.Adversary = "none",
        radius: float = 0.0,
        attack_steps: int = 7,
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
        if adversarial not in get_args(attacks.Adversary):
            raise InputError(
                f"adversarial must be one of {', '.join(get_args(attacks.Adversary))}, got {adversarial!r}"
            )
        if (adversarial == "none") != (radius == 0) or not 0 <= radius < math.inf or attack_steps < 1:
            raise InputError(
                f"adversarial training needs a radius above 0 and attack_steps of at least 1, training without it a "
                f"radius of 0, got adversarial={adversarial}, radius={radius}, attack_steps={attack_steps}"
            )
        self.augment, self.adversarial, self.radius, self.attack_steps = augment, adversarial, radius, attack_steps
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
        x = self._attacked(x, y)
        loss = nn.functional.cross_entropy(self.logits(x), y)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def _attacked(self, x: Tensor, y: Tensor) -> Tensor:
        """Training images as the adversary leaves them; it sees the network as it will be used, without dropout."""
        if self.adversarial == "none":
            return x
        self.net.eval()
        if self.adversarial == "l2":
            x = attacks.l2(self.logits, x, y, self.radius, self.attack_steps)
        else:
            x = attacks.fast_linf(self.logits, x, y, self.radius)
        self.net.train()
        return x

    def on_train_epoch_start(self) -> None:
        """Sets the learning rate of this epoch."""
        self.set_rates(cosine_rate(self.lr, self.current_epoch, self.epochs()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam; each epoch sets its learning rate."""
        self.epochs()  # refuses a training without an end
        return torch.optim.Adam(self.parameters(), lr=self.lr)
