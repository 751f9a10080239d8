"""The DataModule: in-memory images, three splits, no worker processes."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities import rank_zero_only
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from lsgen.data import sources
from lsgen.data.arrays import Arrays, check_labels, chosen, limit, select, split
from lsgen.data.faults import Fault
from lsgen.data.pixels import tensors
from lsgen.data.published import class_names
from lsgen.errors import InputError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


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

    def spread(self, n: int) -> tuple[Tensor, Tensor]:
        """At most ``n`` images (uint8) and labels, spread evenly over the data, which may be sorted by class."""
        index = torch.linspace(0, len(self) - 1, min(n, len(self))).long()
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """The batch at ``indices``: floats in [0, 1] [N, C, H, W] and labels [N]."""
        index = torch.as_tensor(indices)
        return self.images[index].float() / 255, self.labels[index]


def as_is(batch: Any) -> Any:
    """For a DataLoader over :class:`InMemory`, which makes batches by itself."""
    return batch


@rank_zero_only
def _announce(line: str) -> None:
    print(line)


def _height_width(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(size) != 2 or min(size) < 1:
        raise InputError(f"image_size must be a side or [height, width], at least 1, got {image_size}")
    return size[0], size[1]


class ImageData(LightningDataModule):
    """Images in memory, by name, split into train, val and test.

    A name is looked for as ``$LSGEN_DATA/<name>/{train,test}.npz``, then as a torchvision copy below ``$LSGEN_DATA``
    (default: ``~/.cache/lsgen``), then downloaded if that is allowed.

    Args:
        name: ``mnist5k`` (5,000 real digits that come with lsgen), ``mnist``, ``fashion_mnist``, ``emnist_letters``,
            ``svhn``, ``cifar10``, ``cifar100``, ``gtsrb``, ``imagenet``, ``imagenet32``, any other folder in
            ``$LSGEN_DATA``, or your own: ``npz`` (arrays), ``folder`` (image files).
        path: For ``npz``: a folder with train.npz and test.npz, each with ``images`` (uint8, N×H×W or N×H×W×3),
            ``labels`` (integers from 0) and, if you like, ``class_names`` (K strings) and, in train.npz, ``groups``
            (N, equal for images that must stay on one side of the validation split).
            For ``folder``: a folder with train/<class>/<image> and test/<class>/<image>, or just <class>/<image>, of
            which a fifth is then the test part, chosen by the names of the files, so that a file more moves at most one
            other of its class. Images that cannot be read are skipped and counted.
        image_size: Side, or height and width, to which all images are resized (not cropped); as stored by default.
        channels: 1 (grey) or 3; as stored by default.
        classes: Numbers or names of the classes to keep, which are then called 0, 1, … in this order; all by default.
        limit_per_class: At most so many images of each class, the first ones, in each of the three splits; applied
            after splitting, so that no image changes sides.
        val_share: Share of each class of the training part that is kept for validation.
        batch_size: Images per training step.
        balanced: Whether training batches hold all classes alike, rare ones repeated: what a generator needs that is
            to give good images of each class. An epoch has as many images as before.
        download: Whether a data set that is not there may be downloaded to ``$LSGEN_DATA``.
        fault: What is to be wrong with training and validation data, e.g. ``StrokeThickness``; nothing by default. The
            test part stays as it is.
    """

    name: str

    def __init__(
        self,
        *,
        name: str = "mnist5k",
        path: str | None = None,
        image_size: int | tuple[int, int] | None = None,
        channels: int | None = None,
        classes: list[int | str] | None = None,
        limit_per_class: int | None = None,
        val_share: float = 0.125,
        batch_size: int = 128,
        balanced: bool = False,
        download: bool = False,
        fault: Fault | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 < val_share < 1:
            raise InputError(f"val_share must lie between 0 and 1, got {val_share}")
        if channels not in (None, 1, 3):
            raise InputError(f"channels must be 1 or 3, got {channels}")
        if limit_per_class is not None and limit_per_class < 1:
            raise InputError(f"limit_per_class must be at least 1, got {limit_per_class}")
        self._size = _height_width(image_size)
        self.name, self.path, self.batch_size, self.val_share = name, path, batch_size, val_share
        self.image_size, self.channels, self.classes = image_size, channels, classes
        self.limit_per_class, self.balanced, self.download, self.fault = limit_per_class, balanced, download, fault
        self._parts: dict[str, InMemory] | None = None
        self._class_names: list[str] = []
        self._fingerprint: str | None = None

    def __getitem__(self, split: Split) -> InMemory:
        """The data of one split, loaded at first use."""
        if self._parts is None:
            self._load()
        assert self._parts is not None
        return self._parts[split]

    def _load(self) -> None:
        source = sources.load(self.name, self.path, self.download)
        known = check_labels(source, self.name)
        names = source.class_names or class_names(self.name, known)
        wanted = chosen(self.classes, names)
        self._class_names = [names[k] for k in wanted]
        # splits come first and are made of all classes: an image is on the same side whatever else is asked for
        fit, val = split(source.train, self.val_share)
        rows = {
            k: limit(select(a, wanted), self.limit_per_class)
            for k, a in {"train": fit, "val": val, "test": source.test}.items()
        }
        self._check_classes(rows["train"].labels, rows["test"].labels)
        filled = {k: a for k, a in rows.items() if len(a.labels)}
        parts = {k: InMemory(*both) for k, both in tensors(filled, self._size, self.channels).items()}
        self._check_read(rows, parts)
        empty = InMemory(parts["train"].images[:0], parts["train"].labels[:0])
        self._parts = self._spoilt({"val": empty, **parts})
        skipped = sum(len(rows[k].labels) - len(part) for k, part in parts.items())
        _announce(self._summary(source.where, skipped))

    def _check_classes(self, train: NDArray[np.int64], test: NDArray[np.int64]) -> None:
        """Refuses classes that have nothing to train on once validation images are taken, and an empty test part."""
        if missing := set(range(len(self._class_names))) - set(train.tolist()):
            raise InputError(
                f"data set {self.name}: class {self._class_names[min(missing)]!r} has no training images left when "
                f"val_share {self.val_share} of it is kept for validation; give it more images"
            )
        if not len(test):
            raise InputError(f"data set {self.name}: the test part has no images of {', '.join(self._class_names)}")

    def _check_read(self, rows: dict[str, Arrays], parts: dict[str, InMemory]) -> None:
        """Refuses a class all of whose files are corrupt, and parts that differ in shape."""
        for k in ("train", "test"):
            if lost := set(rows[k].labels.tolist()) - set(parts[k].labels.tolist()):
                called = self._class_names[min(lost)]
                raise InputError(f"data set {self.name}: none of the {k} images of class {called!r} can be read")
        shapes = {k: tuple(part.images.shape[1:]) for k, part in parts.items()}
        if odd := [k for k in shapes if shapes[k] != shapes["train"]]:
            raise InputError(
                f"data set {self.name}: training images are {shapes['train']}, {odd[0]} images {shapes[odd[0]]} "
                f"(channels, height, width); they must be alike: set image_size and channels"
            )

    def _spoilt(self, parts: dict[str, InMemory]) -> dict[str, InMemory]:
        """The parts with the fault in those that are trained on."""
        if self.fault is None:
            return parts
        clean = {k: (parts[k].images, parts[k].labels) for k in ("train", "val")}
        spoilt = self.fault.inject(clean, len(self._class_names))
        return parts | {k: InMemory(*part) for k, part in spoilt.items()}

    def _summary(self, where: str, skipped: int) -> str:
        counts = ", ".join(f"{len(self[k]):,} {k}" for k in SPLITS)
        shape, classes = "×".join(map(str, self.image_shape)), self.num_classes
        return (
            f"data {self.name} ({where}): {counts} images of {shape}, {classes} classes, "
            f"fingerprint {self.fingerprint[:8]}"
            + (f", {skipped} unreadable images skipped" if skipped else "")
            + (f", with a fault: {self.fault}" if self.fault else "")
        )

    @property
    def class_names(self) -> list[str]:
        """What the classes are called, [K]; their numbers where nothing better is known."""
        self["train"]
        return self._class_names

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        c, h, w = self["train"].images.shape[1:]
        return int(c), int(h), int(w)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the arrays of all three splits."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for name in SPLITS:
                part = self[name]
                digest.update(f"{name} {tuple(part.images.shape)}".encode())
                digest.update(np.ascontiguousarray(part.images.numpy()).reshape(-1).data)
                digest.update(part.labels.numpy().tobytes())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def prepare_data(self) -> None:
        """Downloads in one process, while the others wait."""
        if self.download:
            self["train"]

    def setup(self, stage: str) -> None:
        """Loads the arrays."""
        self["train"]

    def _loader(self, split: Split, **order: Any) -> DataLoader[tuple[Tensor, Tensor]]:
        return DataLoader(dataset=self[split], batch_size=self.batch_size, collate_fn=as_is, **order)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Shuffled training batches, or balanced ones; never a last one of a single image."""
        labels = self["train"].labels
        each = math.ceil(len(labels) / (self.trainer.world_size if self.trainer else 1))  # images of one process
        # batch normalisation has no variance of one image; the epoch does without it
        drop_last = each > self.batch_size and each % self.batch_size == 1
        if not self.balanced:
            return self._loader("train", shuffle=True, drop_last=drop_last)
        weights = 1.0 / torch.bincount(labels, minlength=self.num_classes).double()
        sampler = WeightedRandomSampler(weights[labels].tolist(), len(labels))
        return self._loader("train", sampler=sampler, drop_last=drop_last)

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
            f"{data.image_shape}: set data.image_size and data.channels to what it takes, or its image_shape to these"
        )
    if classes != data.num_classes:
        raise InputError(
            f"{name} has {classes} classes, the data set {data.name} has {data.num_classes}: "
            f"set model.num_classes, or choose other data"
        )
