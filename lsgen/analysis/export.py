"""``lsgen export``: failures as PNG folders and as one npz: all of them, a diverse few for triage, or given cases."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np

from lsgen.errors import InputError
from lsgen.suite import Suite, load_suite


def main(args: list[str]) -> None:
    """Runs the command.

    Args:
        args: Command line after ``export``.
    """
    parser = argparse.ArgumentParser(
        prog="lsgen export",
        description="Writes the failures of a suite as PNG files, one folder a class, and as failures.npz (images, "
        "labels, predicted, ids, latents). With --ids, the given cases, failed or not, and cases.npz.",
    )
    parser.add_argument("suite", help="folder that `lsgen search` wrote, finished or not")
    parser.add_argument("--out", required=True, help="folder to write; must be new or empty")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--per-class",
        type=int,
        metavar="K",
        help="only K failures a class: no two the same image, chosen to lie far apart in the latent space",
    )
    choice.add_argument("--ids", type=int, nargs="+", metavar="ID", help="these cases, by their id, failed or not")
    options = parser.parse_args(args)
    if options.per_class is not None and options.per_class < 1:
        raise InputError(f"--per-class must be at least 1, got {options.per_class}")
    suite = load_suite(options.suite)
    note = "" if suite.finished else " (the suite is unfinished)"
    if options.ids is not None:
        rows = export_cases(suite, Path(options.out), options.ids)
        print(f"{len(rows):,} of {len(suite.table):,} cases written to {options.out}{note}")
        return
    rows = export(suite, Path(options.out), options.per_class)
    failed = suite.summary["failed"]
    print(f"{len(rows):,} of {failed:,} failures written to {options.out}{note}" if failed else f"no failures{note}")


def export_cases(suite: Suite, out: Path, ids: list[int]) -> np.ndarray:
    """Writes given cases below ``out`` and gives their rows, [M].

    Args:
        suite: Where they come from.
        out: A new or empty folder.
        ids: Numbers of the cases, as in the column ``id``.

    Raises:
        InputError: There is no such case, ``out`` holds something already, or cannot be written.
    """
    known = suite.table["id"].to_numpy("int64")
    if missing := sorted(set(ids) - set(known.tolist())):
        there = f"it has {known.min()} to {known.max()}" if len(known) else "it is empty"
        raise InputError(f"--ids: the suite {suite.path} has no case {missing[0]}; {there}")
    rows = np.flatnonzero(np.isin(known, ids))
    _write(suite, rows, out, "cases.npz")
    return rows


def export(suite: Suite, out: Path, per_class: int | None = None) -> np.ndarray:
    """Writes failures below ``out`` and gives the rows of the suite that were written, [M].

    Args:
        suite: Where they come from.
        out: A new or empty folder.
        per_class: How many of each class; all by default.

    Raises:
        InputError: ``out`` holds something already, or cannot be written.
    """
    failed = suite.failures
    if not len(failed):
        return failed
    if per_class is not None:
        labels = suite.table["label"].to_numpy("int64")[failed]
        groups = [failed[labels == k] for k in np.unique(labels)]
        few = [g[diverse(suite.take("image", g), suite.take("latent", g), per_class)] for g in groups]
        failed = np.sort(np.concatenate(few))
    _write(suite, failed, out, "failures.npz")
    return failed


def _write(suite: Suite, rows: np.ndarray, out: Path, arrays: str) -> None:
    """Rows of a suite as PNG files in one folder a class, and as one npz file of that name."""
    table, images, names = suite.table.iloc[rows], suite.take("image", rows), suite.class_names
    labels, predicted, ids = (table[name].to_numpy("int64") for name in ("label", "predicted", "id"))
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} exists and is not an empty folder: choose another --out")
        for i, image in enumerate(images):
            folder = out / class_folder(int(labels[i]), names)
            folder.mkdir(parents=True, exist_ok=True)
            _save_png(image, folder / f"case-{ids[i]:06d}_read-as-{predicted[i]}.png")
        np.savez_compressed(
            out / arrays,
            images=_channels_last(images),
            labels=labels,
            predicted=predicted,
            ids=ids,
            latents=suite.take("latent", rows),
        )
    except (PermissionError, NotADirectoryError, FileNotFoundError) as error:
        raise InputError(f"cannot write to {out} ({error.strerror}): choose another --out") from error


def diverse(images: np.ndarray, latents: np.ndarray, k: int) -> np.ndarray:
    """Rows of up to ``k`` different images whose latents lie far apart, [≤ k].

    Starts at the one nearest the mean, the most typical, and then takes again and again the one that is farthest from
    all taken (the usual 2-approximation of the k-centre problem).

    Args:
        images: uint8 [N, C, H, W]; of equal ones only the first counts.
        latents: [N, *L].
        k: How many.

    Example:
        >>> pixels = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1)
        >>> diverse(pixels, np.array([[0.0], [0.1], [5.0], [9.0]]), 3).tolist()
        [2, 0, 3]
    """
    _, first = np.unique(images.reshape(len(images), -1), axis=0, return_index=True)
    rows = np.sort(first)
    points = latents[rows].reshape(len(rows), -1).astype(np.float64)
    chosen = [int(np.linalg.norm(points - points.mean(0), axis=1).argmin())]
    distance = np.linalg.norm(points - points[chosen[0]], axis=1)
    while len(chosen) < min(k, len(rows)):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return rows[chosen]


def class_folder(label: int, names: list[str] | None) -> str:
    """A folder name that sorts by class and is safe on every file system.

    Example:
        >>> class_folder(3, ["a", "b", "c", "No entry / ../x"]), class_folder(3, None)
        ('003_No-entry-x', '003')
    """
    slug = re.sub(r"[^\w]+", "-", names[label]).strip("-")[:40] if names else ""
    return f"{label:03d}_{slug}" if slug and slug != str(label) else f"{label:03d}"


def _channels_last(array: np.ndarray) -> np.ndarray:
    """Images [N, C, H, W] as people and data folders keep them, [N, H, W] or [N, H, W, 3]."""
    return array[:, 0] if array.shape[1] == 1 else array.transpose(0, 2, 3, 1)


def _save_png(image: np.ndarray, file: Path) -> None:
    from PIL import Image

    Image.fromarray(_channels_last(image[None])[0]).save(file)
