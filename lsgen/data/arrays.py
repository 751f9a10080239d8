"""Labelled images before they become tensors: checks, and the choice of rows that makes up a split."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgen.errors import InputError

SPLIT_SEED = 20250331  # one fixed split for everyone: a search must never start from what somebody trained on


@dataclass(frozen=True)
class Arrays:
    """One part of a data set.

    Attributes:
        images: uint8, [N, C, H, W]; or names of image files, [N], which are read once it is known which are wanted.
        labels: int64, [N].
        groups: [N], what belongs together (frames of one traffic sign, say); None where every image stands alone.
        names: [N], what the images are called, e.g. cat/01.png; None where they are known by their position only.
    """

    images: NDArray[Any]
    labels: NDArray[np.int64]
    groups: NDArray[Any] | None = None
    names: NDArray[Any] | None = None

    def take(self, index: NDArray[np.intp]) -> Arrays:
        """The rows at ``index``."""
        groups, names = (None if a is None else a[index] for a in (self.groups, self.names))
        return Arrays(self.images[index], self.labels[index], groups, names)


@dataclass(frozen=True)
class Source:
    """A data set as it was found.

    Attributes:
        train: What is there to train on; validation images are split off it.
        test: What is there to test on.
        where: Where it was found, for people.
        class_names: One for each class; None where they are not known.
    """

    train: Arrays
    test: Arrays
    where: str
    class_names: list[str] | None = None


def checked(images: NDArray[Any], labels: NDArray[Any], where: str, groups: NDArray[Any] | None = None) -> Arrays:
    """Arrays in lsgen's order from images [N, H, W], [N, H, W, 1] or [N, H, W, 3].

    Raises:
        InputError: dtype, shape or length are not what they should be, or a label is negative.
    """
    wrong = images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape[1:]
    if wrong or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        raise InputError(
            f"{where}: images must be uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), "
            f"got {images.dtype} {images.shape}"
        )
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{where}: labels must be integers of shape (N,), got {labels.dtype} {labels.shape}")
    if len(images) != len(labels) or not len(labels):
        raise InputError(f"{where}: {len(images)} images and {len(labels)} labels; there must be as many, and some")
    if labels.min() < 0:
        raise InputError(f"{where}: labels count from 0, got {labels.min()}")
    if groups is not None and groups.shape != labels.shape:
        raise InputError(f"{where}: groups must have one number for each of {len(labels)} images, got {groups.shape}")
    images = images[..., None] if images.ndim == 3 else images
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return Arrays(channels_first, labels.astype(np.int64), groups)


def check_labels(source: Source, name: str) -> int:
    """Number of classes K of a source whose training labels are 0 to K - 1, none of them missing.

    Raises:
        InputError: A class has no training images, or a label is none of the classes.
    """
    present = set(source.train.labels.tolist())
    names = source.class_names
    classes = 1 + max(present) if names is None else len(names)
    if max(present) >= classes:
        raise InputError(f"data set {name}: there is a label {max(present)}, but only {classes} class names")
    if len(present) < classes:
        gap = next(k for k in range(classes) if k not in present)
        called = "" if names is None else f" ({names[gap]})"
        raise InputError(
            f"data set {name}: class {gap}{called} has no training images; labels must run from 0 to {classes - 1} "
            f"without a gap"
        )
    if unknown := set(source.test.labels.tolist()) - present:
        raise InputError(
            f"data set {name}: label {min(unknown)} occurs in the test part, but the training part has only "
            f"0 to {classes - 1}"
        )
    return classes


def chosen(classes: list[int | str] | None, names: list[str]) -> list[int]:
    """Indices of the wanted classes, in the given order; all where none are named.

    Raises:
        InputError: There is no such class, it is named twice, or its name stands for several.
    """
    if classes is None:
        return list(range(len(names)))
    wanted = [_class_index(item, names) for item in classes]
    if not wanted or len(set(wanted)) < len(wanted):
        raise InputError(f"classes must name at least one class, each once, got {classes}")
    return wanted


def _class_index(item: int | str, names: list[str]) -> int:
    if isinstance(item, int):
        if not 0 <= item < len(names):
            raise InputError(f"classes: there is no class {item}; classes are 0 to {len(names) - 1}")
        return item
    found = [k for k, name in enumerate(names) if name == item]
    if not found:
        some = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        raise InputError(f"classes: there is no class {item!r}; there are {some}")
    if len(found) > 1:
        raise InputError(f"classes: {item!r} is the name of classes {found}; give the number instead")
    return found[0]


def select(arrays: Arrays, wanted: list[int]) -> Arrays:
    """The images of the ``wanted`` classes, which are then called 0, 1, … in that order."""
    number = np.full(1 + max(*wanted, int(arrays.labels.max(initial=0))), -1, dtype=np.int64)
    number[wanted] = np.arange(len(wanted))
    index = np.flatnonzero(number[arrays.labels] >= 0)
    rows = arrays if len(index) == len(arrays.labels) else arrays.take(index)
    return replace(rows, labels=number[rows.labels])


def limit(arrays: Arrays, per_class: int | None) -> Arrays:
    """The first ``per_class`` images of each class; all where it is None."""
    if per_class is None:
        return arrays
    first = [np.flatnonzero(arrays.labels == label)[:per_class] for label in np.unique(arrays.labels)]
    return arrays.take(np.sort(np.concatenate(first))) if first else arrays


def split(arrays: Arrays, share: float) -> tuple[Arrays, Arrays]:
    """Splits off ``share`` of every class, the same way each time; groups stay together.

    Without groups at least one image of each class is split off. With groups ``share`` is met as closely as whole
    groups allow, and a class that is a single group stays with the first part. Images with names are chosen by these
    alone, so that one more of a class moves at most one other from side to side.
    """
    taken = _take_images(arrays, share) if arrays.groups is None else _take_groups(arrays, arrays.groups, share)
    return arrays.take(np.flatnonzero(~taken)), arrays.take(np.flatnonzero(taken))


def _take_images(arrays: Arrays, share: float) -> NDArray[np.bool_]:
    """Takes the first images of each class in a shuffled order, [N]; that of names is by their hash."""
    rng = np.random.default_rng(SPLIT_SEED)
    taken = np.zeros(len(arrays.labels), dtype=bool)
    for label in np.unique(arrays.labels):
        index = np.flatnonzero(arrays.labels == label)
        index = rng.permutation(index) if arrays.names is None else index[_hashed_order(arrays.names[index])]
        taken[index[: max(1, round(share * len(index)))]] = True
    return taken


def _hashed_order(names: NDArray[Any]) -> NDArray[np.intp]:
    """Indices that sort names by their SHA-256, [N]: where one stands to another does not depend on the rest."""
    return np.argsort([hashlib.sha256(os.fsencode(name)).hexdigest() for name in names])


def _take_groups(arrays: Arrays, groups: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """Takes a group wherever that brings its class nearer to ``share``, [N]."""
    rng = np.random.default_rng(SPLIT_SEED)
    taken = np.zeros(len(groups), dtype=bool)
    for label in np.unique(arrays.labels):
        rows = arrays.labels == label
        have, goal = int((rows & taken).sum()), share * rows.sum()  # a group may hold other classes as well
        names, sizes = np.unique(groups[rows & ~taken], return_counts=True)
        for k in rng.permutation(len(names)):
            if abs(have + sizes[k] - goal) < abs(have - goal):
                taken |= groups == names[k]
                have += sizes[k]
        if not have and len(names) > 1:  # even the smallest group is more than twice the share
            taken |= groups == names[sizes.argmin()]
    return taken
