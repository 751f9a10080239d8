"""What every system under test offers."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from torch import Tensor

from lsgen import checkpoints


class SUT(checkpoints.SavedModule):
    """A classifier under test. It takes images in [0, 1] and owns its normalisation.

    Attributes:
        num_classes: K.
        image_shape: (C, H, W) that it takes.
        differentiable: Whether gradients flow from logits to the image; False for a black box.
    """

    role = "SUT"
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


def pretrained(path: str | Path) -> SUT:
    """A SUT that ``lsgen fit`` left.

    Args:
        path: Its checkpoint.
    """
    return checkpoints.load(path, SUT)  # type: ignore[type-abstract]
