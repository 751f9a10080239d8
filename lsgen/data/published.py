"""Published data sets through torchvision: a copy that is already there, or a download."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lsgen.data.arrays import Arrays, Source, checked
from lsgen.errors import InputError

Reader = Callable[[Path, bool, bool], tuple[Arrays, list[str] | None]]


@dataclass(frozen=True)
class Published:
    """How torchvision stores a data set.

    Attributes:
        read: Takes root folder, training part or not, download or not; gives arrays and class names where it has them.
        traces: Any of these files or folders in a root folder shows that there is a copy.
        downloads: Whether torchvision can fetch it.
    """

    read: Reader
    traces: tuple[str, ...]
    downloads: bool = True


def load(name: str, cache: Path, download: bool) -> Source | None:
    """The copy of ``name`` in ``cache`` or ``cache/<name>``, downloaded where that is asked for; None if there is none.

    Raises:
        InputError: The copy is damaged, the download fails, or the folder for it cannot be written.
    """
    kind = PUBLISHED.get(name)
    if kind is None:
        return None
    fetch = download and kind.downloads
    roots = [root for root in (cache, cache / name) if any((root / trace).exists() for trace in kind.traces)]
    if roots:
        try:
            return _read(name, kind, roots[0])
        except InputError:
            if not fetch:  # torchvision's download completes what is missing
                raise
    return _download(name, kind, roots[0] if roots else cache / name) if fetch else None


def _read(name: str, kind: Published, root: Path) -> Source:
    try:
        return _parts(kind, root, download=False)
    except Exception as error:  # torchvision has no error of its own for a file that is cut off or tampered with
        remedy = ", or set download: true" if kind.downloads else ""
        raise InputError(
            f"data set {name}: the torchvision copy in {root} is incomplete or damaged ({_short(error)}); "
            f"complete or remove it{remedy}"
        ) from error


def _download(name: str, kind: Published, root: Path) -> Source:
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / ".lsgen").touch()
        (root / ".lsgen").unlink()
    except OSError as error:
        raise InputError(
            f"data set {name} cannot be downloaded to {root} ({_short(error)}); "
            f"let LSGEN_DATA name a folder that you may write to"
        ) from error
    try:
        return _parts(kind, root, download=True)
    except Exception as error:  # no network, a server's refusal, a full disk, a damaged file: torchvision raises many
        raise InputError(
            f"data set {name} could not be downloaded to {root} ({_short(error)}); check the network, or put "
            f"train.npz and test.npz or a torchvision copy there"
        ) from error


def _parts(kind: Published, root: Path, download: bool) -> Source:
    train, names = kind.read(root, True, download)
    test, _ = kind.read(root, False, download)
    return Source(train, test, f"torchvision copy in {root}", names)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def _mnist(root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    from torchvision.datasets import MNIST

    data = MNIST(root=root, train=train, download=download)
    return checked(data.data.numpy(), data.targets.numpy(), str(root)), None


def _fashion_mnist(root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    from torchvision.datasets import FashionMNIST

    data = FashionMNIST(root=root, train=train, download=download)
    return checked(data.data.numpy(), data.targets.numpy(), str(root)), None


def _emnist_letters(root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    from torchvision.datasets import EMNIST

    data = EMNIST(root=root, split="letters", train=train, download=download)
    # EMNIST stores images column by column, and counts letters from 1
    return checked(data.data.numpy().transpose(0, 2, 1), data.targets.numpy() - 1, str(root)), None


def _svhn(root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    from torchvision.datasets import SVHN

    data = SVHN(root=root, split="train" if train else "test", download=download)
    return checked(data.data.transpose(0, 2, 3, 1), data.labels, str(root)), None


def _cifar(kind: str, root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    from torchvision import datasets

    # CIFAR's files are pickles, which can run code: torchvision compares each with the published MD5 sum (no second
    # file with the same sum can be made) before it unpickles, and refuses any other. lsgen itself never unpickles.
    data = getattr(datasets, kind)(root=root, train=train, download=download)
    return checked(data.data, np.array(data.targets), str(root)), list(data.classes)


def _cifar10(root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    return _cifar("CIFAR10", root, train, download)


def _cifar100(root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    return _cifar("CIFAR100", root, train, download)


def _gtsrb(root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    from torchvision.datasets import GTSRB

    files = _files(GTSRB(root=root, split="train" if train else "test", download=download)._samples)
    if not train:
        return files, None
    # training files are called <physical sign>_<frame>.ppm, in a folder for each class
    signs = [f"{Path(f).parent.name}/{Path(f).name.split('_')[0]}" for f in files.images]
    return Arrays(files.images, files.labels, np.unique(signs, return_inverse=True)[1]), None


def _imagenet(root: Path, train: bool, download: bool) -> tuple[Arrays, list[str] | None]:
    from torchvision.datasets import ImageNet

    data = ImageNet(root=root, split="train" if train else "val")
    return _files(data.samples), [synonyms[0] for synonyms in data.classes]


def _files(samples: list[tuple[str, int]]) -> Arrays:
    names: Any = np.array([file for file, _ in samples])
    return Arrays(names, np.array([label for _, label in samples], dtype=np.int64))


PUBLISHED = {
    "mnist": Published(_mnist, ("MNIST",)),
    "fashion_mnist": Published(_fashion_mnist, ("FashionMNIST",)),
    "emnist_letters": Published(_emnist_letters, ("EMNIST",)),
    "svhn": Published(_svhn, ("train_32x32.mat", "test_32x32.mat")),
    "cifar10": Published(_cifar10, ("cifar-10-batches-py",)),
    "cifar100": Published(_cifar100, ("cifar-100-python",)),
    "gtsrb": Published(_gtsrb, ("gtsrb/GTSRB",)),
    "imagenet": Published(_imagenet, ("meta.bin", "ILSVRC2012_devkit_t12.tar.gz"), downloads=False),
}

# digits need no table: a class without a name is called by its number
CLASS_NAMES = {
    "fashion_mnist": [
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ],
    "emnist_letters": list(string.ascii_lowercase),
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    "gtsrb": [
        *(f"Speed limit ({v} km/h)" for v in (20, 30, 50, 60, 70, 80)),
        "End of speed limit (80 km/h)",
        *(f"Speed limit ({v} km/h)" for v in (100, 120)),
        *("No passing", "No passing for vehicles over 3.5 t", "Right-of-way at the next intersection"),
        *("Priority road", "Yield", "Stop", "No vehicles", "Vehicles over 3.5 t prohibited", "No entry"),
        *("General caution", "Dangerous curve to the left", "Dangerous curve to the right", "Double curve"),
        *("Bumpy road", "Slippery road", "Road narrows on the right", "Road work", "Traffic signals", "Pedestrians"),
        *("Children crossing", "Bicycles crossing", "Beware of ice/snow", "Wild animals crossing"),
        *("End of all speed and passing limits", "Turn right ahead", "Turn left ahead", "Ahead only"),
        *("Go straight or right", "Go straight or left", "Keep right", "Keep left", "Roundabout mandatory"),
        *("End of no passing", "End of no passing by vehicles over 3.5 t"),
    ],
}


def class_names(name: str, classes: int) -> list[str]:
    """What the classes of a data set are called: from the table for its name (``gtsrb32`` is ``gtsrb``), or numbers.

    Example:
        >>> class_names("gtsrb32", 43)[14], class_names("mnist", 10)[7]
        ('Stop', '7')
    """
    known = CLASS_NAMES.get(name) or CLASS_NAMES.get(name.rstrip(string.digits)) or []
    return list(known) if len(known) == classes else [str(k) for k in range(classes)]
