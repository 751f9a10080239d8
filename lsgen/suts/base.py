"""What every system under test offers."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import torch
from torch import Tensor

from lsgen import checkpoints
from lsgen.types import from_uint8

CHUNK = 256  # images classified at once when accuracy is measured


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
