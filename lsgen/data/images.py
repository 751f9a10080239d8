"""The DataModule: in-memory images, three splits, no worker processes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lsgen.data import sources
from lsgen.errors import InputError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Split = Literal["train", "val", "test"]


class InMemory(Dataset[tuple[Tensor, Tensor]]):
    """Images and labels as two tensors; a whole batch is one indexing operation.

    Args:
        images: uint8, [N, C, H, W].
        labels: int64, [N].
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index].float() / 255, self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """The batch at ``indices``: floats in [0, 1] [N, C, H, W] and labels [N]."""
        index = torch.as_tensor(indices)
        return self.images[index].float() / 255, self.labels[index]


def _as_is(batch: Any) -> Any:
    return batch


class ImageData(LightningDataModule):
    """Images in memory, by name, split into train, val and test.

    Args:
        name: ``mnist5k`` (5,000 real digits that come with lsgen) or ``npz`` (your own arrays).
        path: For ``npz``: a folder with train.npz and test.npz, each with ``images`` (uint8, N×H×W or N×H×W×3) and
            ``labels`` (integers from 0).
        batch_size: Images per training step.
        val_share: Share of each class of the training part that is kept for validation.
    """

    def __init__(
        self, *, name: str = "mnist5k", path: str | None = None, batch_size: int = 128, val_share: float = 0.125
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 < val_share < 1:
            raise InputError(f"val_share must lie between 0 and 1, got {val_share}")
        self.name, self.path, self.batch_size, self.val_share = name, path, batch_size, val_share
        self._parts: dict[str, InMemory] | None = None
        self._fingerprint: str | None = None

    def __getitem__(self, split: Split) -> InMemory:
        """The data of one split, loaded at first use."""
        if self._parts is None:
            train, test = sources.load(self.name, self.path)
            if train.images.shape[1:] != test.images.shape[1:]:
                raise InputError(
                    f"data set {self.name}: training images are {train.images.shape[1:]}, test images "
                    f"{test.images.shape[1:]} (channels, height, width); they must be alike"
                )
            fit, val = sources.split(train, self.val_share)
            parts = {"train": fit, "val": val, "test": test}
            self._parts = {
                k: InMemory(torch.from_numpy(a.images), torch.from_numpy(a.labels)) for k, a in parts.items()
            }
        return self._parts[split]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        c, h, w = self["train"].images.shape[1:]
        return int(c), int(h), int(w)

    @property
    def num_classes(self) -> int:
        """K: one more than the largest label."""
        return 1 + int(max(self[s].labels.max() for s in ("train", "val", "test")))  # type: ignore[index]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the arrays of all three splits."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for split in ("train", "val", "test"):
                part = self[split]  # type: ignore[index]
                digest.update(f"{split} {tuple(part.images.shape)}".encode())
                digest.update(np.ascontiguousarray(part.images.numpy()).tobytes())
                digest.update(part.labels.numpy().tobytes())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def setup(self, stage: str) -> None:
        """Loads the arrays."""
        self["train"]

    def _loader(self, split: Split, shuffle: bool = False) -> DataLoader[tuple[Tensor, Tensor]]:
        return DataLoader(dataset=self[split], batch_size=self.batch_size, shuffle=shuffle, collate_fn=_as_is)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Shuffled training batches."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Validation batches."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Test batches."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The model's own: a search brings blocks of seeds."""
        assert self.trainer is not None
        loader: DataLoader[Any] = self.trainer.lightning_module.predict_dataloader()
        return loader


def check_fits(module: LightningModule, trainer: Trainer) -> None:
    """Refuses a model whose image shape or number of classes is not that of the data.

    Raises:
        InputError: They differ.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, ImageData):
        return
    shape, classes = tuple(module.image_shape), module.num_classes  # type: ignore[arg-type]
    name = type(module).__name__
    if shape != data.image_shape:
        raise InputError(
            f"{name} takes images of {shape} (channels, height, width), the data set {data.name} has "
            f"{data.image_shape}: set model.image_shape, or choose other data"
        )
    if classes != data.num_classes:
        raise InputError(
            f"{name} has {classes} classes, the data set {data.name} has {data.num_classes}: "
            f"set model.num_classes, or choose other data"
        )
