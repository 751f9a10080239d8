"""``lsgen cluster``: the failure regions of a suite, with pictures and a sentence on what sets each apart.

Speth et al., step 3: cases whose true class gets little probability are clustered by HDBSCAN with the L1 metric on
their latents, over all classes and within each.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lsgen.analysis import region_pictures, region_words
from lsgen.analysis.regions import (
    CONTROL_CASES,
    MIN_SAMPLES,
    MIN_SHARE,
    MIN_SIZE,
    Region,
    Scope,
    default_size,
    find_regions,
)
from lsgen.errors import InputError
from lsgen.suite import WRONG_PLACE, Suite, load_suite

FOLDER = "clusters"
THRESHOLD = 0.05  # Speth's challenging cases give less than this to their true class
PASSING = 10_000  # at most so many passing cases are compared with
SHOWN = 30  # regions a table in the terminal has
EFFECTS = (
    "properties: Cliff's delta; directions: standardised mean difference; both against passing cases of the same class"
)


@dataclass(frozen=True)
class Cases:
    """Cases of a suite, row by row."""

    row: np.ndarray  # [N] in the suite
    label: np.ndarray  # [N]
    predicted: np.ndarray  # [N]
    latent: np.ndarray  # [N, *L] float32
    properties: dict[str, np.ndarray]  # [N] each

    def __len__(self) -> int:
        return len(self.row)

    @property
    def flat(self) -> np.ndarray:
        """Latents as vectors, [N, D]."""
        return self.latent.reshape(len(self), math.prod(self.latent.shape[1:]))


@dataclass
class Found:
    """All that was found in a suite.

    Attributes:
        challenging: The cases that were clustered.
        passing: Passing cases, or a random part of them, which the regions are compared with.
        cluster: Region over all classes of each challenging case, [N]; -1 is noise.
        class_cluster: Region within its class of each, [N].
        settings: What they were found with.
        regions: Those over all classes first, then class by class; large before small.
        notes: Sentences on what a reader should know.
    """

    challenging: Cases
    passing: Cases
    cluster: np.ndarray
    class_cluster: np.ndarray
    settings: dict[str, Any]
    regions: list[Region] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# --- the command ---------------------------------------------------------------------------------------------------


def main(args: list[str]) -> None:
    """Runs the command.

    Args:
        args: Command line after ``cluster``.
    """
    parser = argparse.ArgumentParser(
        prog="lsgen cluster",
        description="Groups the challenging cases of a suite by their latents (HDBSCAN, L1), says what sets each group "
        "apart from passing cases, and writes the folder `clusters` into the suite.",
    )
    parser.add_argument("suite", help="folder that `lsgen search` wrote, finished or not")
    parser.add_argument(
        "--threshold",
        type=float,
        default=THRESHOLD,
        metavar="P",
        help="cases are challenging that give their true class less probability than this (default: %(default)s)",
    )
    parser.add_argument(
        "--min-cluster-size",
        type=int,
        metavar="N",
        help=f"cases that a region has at least (default: {MIN_SHARE * 100:.0f} in 100 of those clustered, and "
        f"{MIN_SIZE})",
    )
    parser.add_argument(
        "--projection",
        choices=("pca", "umap"),
        default="pca",
        help="how latents are drawn in two dimensions; umap needs `pip install 'lsgen[umap]'` (default: %(default)s)",
    )
    options = parser.parse_args(args)
    suite = load_suite(options.suite)
    cluster(
        suite,
        threshold=options.threshold,
        min_cluster_size=options.min_cluster_size,
        projection=options.projection,
    )


def cluster(
    suite: Suite,
    *,
    threshold: float = THRESHOLD,
    min_cluster_size: int | None = None,
    projection: region_pictures.Projection = "pca",
) -> Found:
    """Finds the failure regions of a suite, writes its folder ``clusters`` anew, and prints a table.

    Args:
        suite: Finished or not; of an unfinished one, the blocks so far.
        threshold: Cases with ``p_true`` below it are challenging.
        min_cluster_size: Cases a region has at least; by default 1 % of those that are clustered, and at least 5.
        projection: How latents are drawn in two dimensions.

    Raises:
        InputError: A setting is out of range, UMAP is wanted and not installed, or the suite has no case yet or cannot
            be written to.
    """
    project = region_pictures.projection(projection)
    with _progress() as step:
        found = find(suite, threshold=threshold, min_cluster_size=min_cluster_size, step=step)
        step("projecting to two dimensions")
        points, axes = project(found.challenging.flat)
        found.settings["projection"] = {"kind": projection, "axes": axes}
        step("decoding centroids")
        images = _centroid_images(suite, found)
        step("writing")
        content = region_words.describe(suite, found)
        _write(suite, found, content, points, images)
    _print(suite, content)
    return found


def find(
    suite: Suite,
    *,
    threshold: float = THRESHOLD,
    min_cluster_size: int | None = None,
    step: Callable[[str], None] = lambda what: None,
) -> Found:
    """The failure regions of a suite; nothing is written.

    Args:
        suite: Finished or not.
        threshold: Cases with ``p_true`` below it are challenging.
        min_cluster_size: Cases a region has at least; by default 1 % of those that are clustered, and at least 5.
        step: Is told what is being done.

    Raises:
        InputError: A setting is out of range, or the suite has no case yet.
    """
    if not 0 < threshold <= 1:
        raise InputError(f"--threshold must be a probability above 0, got {threshold}")
    if min_cluster_size is not None and min_cluster_size < 2:
        raise InputError(f"--min-cluster-size must be at least 2, got {min_cluster_size}")
    found = _read(suite, threshold, step)
    labels = found.challenging.label
    found.settings["min_cluster_size"] = min_cluster_size or default_size(len(labels))
    shared = bool(suite.table["seed_id"].iloc[found.challenging.row].duplicated().any())
    seeds = {} if shared else _seeds(suite, labels)
    if shared:
        found.notes.append(
            "several challenging cases grew from one seed and lie close together: a region may be little more than one "
            "seed, and no chance level is given"
        )
    scopes: list[tuple[Scope, np.ndarray]] = [("all", np.arange(len(labels)))]
    scopes += [("class", np.flatnonzero(labels == k)) for k in np.unique(labels)]
    for scope, rows in scopes:
        what = "all classes" if scope == "all" else f"class {labels[rows[0]]}"
        step(f"clustering {len(rows):,} cases of {what}")
        regions, groups = find_regions(
            found.challenging.latent, labels, rows, scope, min_cluster_size=min_cluster_size, seeds=seeds
        )
        found.regions += regions
        (found.cluster if scope == "all" else found.class_cluster)[rows] = groups.labels
        if groups.seen < len(rows):
            found.notes.append(
                f"{what}: HDBSCAN saw {groups.seen:,} random cases of {len(rows):,}, which bounds its time; the others "
                f"were assigned to the regions it found"
            )
    found.notes += region_words.notes(suite, found, min_cluster_size)
    return found


# --- reading -------------------------------------------------------------------------------------------------------


def _read(suite: Suite, threshold: float, step: Callable[[str], None]) -> Found:
    """The challenging cases and what they are compared with, not yet clustered; images are measured and not kept."""
    from lsgen.analysis.properties import measure, turns

    table = suite.table
    viable = table["viable"].to_numpy(bool)
    challenging = np.flatnonzero(viable & (table["p_true"] < threshold).to_numpy(bool))
    passing = np.setdiff1d(np.flatnonzero(viable & ~table["failed"].to_numpy(bool)), challenging)
    passing = np.sort(np.random.default_rng(0).permutation(passing)[:PASSING])
    rows = np.union1d(challenging, passing)
    measured = []
    for number, images in enumerate(suite.pieces("image", rows)):
        step(f"measuring images, block {number + 1} of {len(suite.blocks)}")
        measured.append(measure(images))
    properties = {name: np.concatenate([m[name] for m in measured]) for name in measured[0]}
    labels, predicted = (table[name].to_numpy(int)[rows] for name in ("label", "predicted"))
    if "hue" in properties:
        properties["hue"] = turns(properties["hue"], labels, np.isin(rows, passing))
    latents = suite.take("latent", rows)

    def part(own: np.ndarray) -> Cases:
        at = np.searchsorted(rows, own)
        values = {name: value[at] for name, value in properties.items()}
        return Cases(row=own, label=labels[at], predicted=predicted[at], latent=latents[at], properties=values)

    nowhere = np.full((2, len(challenging)), -1)
    settings = {"threshold": threshold, "metric": "l1", "min_samples": MIN_SAMPLES, "effects": EFFECTS}
    return Found(part(challenging), part(passing), cluster=nowhere[0], class_cluster=nowhere[1], settings=settings)


def _seeds(suite: Suite, labels: np.ndarray) -> dict[int, np.ndarray]:
    """Latents [S, D] of random seeds of each class, some more than the challenging cases that ``labels`` [N] are of.

    No seed is taken twice, however many cases it has: points in one place would be the most persistent group of all.
    """
    table, rng = suite.table, np.random.default_rng(0)
    viable, own = (table["viable"] & ~table["seed_id"].duplicated()).to_numpy(bool), table["label"].to_numpy(int)
    chosen = [np.zeros(0, int)]
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        if count <= CONTROL_CASES:  # more are not drawn
            chosen.append(rng.permutation(np.flatnonzero(viable & (own == label)))[: 2 * count + 100])
    rows = np.sort(np.concatenate(chosen))
    latents = suite.take("seed_latent", rows)
    latents = latents.reshape(len(rows), math.prod(latents.shape[1:]))
    return {int(k): latents[own[rows] == k] for k in np.unique(own[rows])}


def _centroid_images(suite: Suite, found: Found) -> np.ndarray:
    """Decoded centroids, uint8 [C, c, h, w]; [0, c, h, w] and a note where the generator cannot be loaded any more."""
    nothing = np.zeros((0, *suite.image_shape), np.uint8)
    if not found.regions:
        return nothing
    import torch

    from lsgen.analysis.parts import load_generator
    from lsgen.types import to_uint8

    try:
        generator = load_generator(suite)
    except InputError as error:
        found.notes.append(f"centroids are not decoded: {error}")
        return nothing
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = generator.to(device)
    z = torch.from_numpy(np.stack([region.centroid for region in found.regions])).to(device)
    y = torch.tensor([region.label for region in found.regions], device=device)
    with torch.no_grad():
        images = [to_uint8(generator.decode(a, b)).cpu() for a, b in zip(z.split(32), y.split(32), strict=True)]
    return torch.cat(images).numpy()


# --- writing -------------------------------------------------------------------------------------------------------


def _write(suite: Suite, found: Found, content: dict[str, Any], points: np.ndarray, images: np.ndarray) -> None:
    """Writes everything beside the old folder, and then swaps them.

    Raises:
        InputError: The suite's folder cannot be written to.
    """
    new, old = suite.path / f".{FOLDER}-{os.getpid()}", suite.path / f".{FOLDER}-{os.getpid()}-old"
    try:
        new.mkdir()
        _write_files(new, suite, found, content, points, images)
        if (suite.path / FOLDER).exists():
            (suite.path / FOLDER).rename(old)
        new.rename(suite.path / FOLDER)
    except OSError as error:
        if error.errno not in WRONG_PLACE:
            raise
        raise InputError(
            f"cannot write to {suite.path} ({error.strerror}): copy the suite to a place of your own"
        ) from error
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)


def _write_files(
    folder: Path, suite: Suite, found: Found, content: dict[str, Any], points: np.ndarray, images: np.ndarray
) -> None:
    import pandas as pd
    from safetensors.numpy import save_file

    cases = found.challenging
    table = pd.DataFrame(
        {
            "id": suite.table["id"].to_numpy(int)[cases.row],
            "label": cases.label,
            "cluster": found.cluster,
            "class_cluster": found.class_cluster,
            "x": points[:, 0],
            "y": points[:, 1],
        }
    )
    table.to_parquet(folder / "cases.parquet", index=False)
    (folder / "clusters.json").write_text(_json(content), encoding="utf-8")
    centroids = [region.centroid for region in found.regions]
    medoids = cases.row[[region.medoid for region in found.regions]]
    arrays = {
        "latent": np.stack(centroids) if centroids else np.zeros((0, *cases.latent.shape[1:]), np.float32),
        "image": images,
        "medoid_image": suite.take("image", medoids),
    }
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "centroids.safetensors")
    region_pictures.draw(suite, found, content, points, images).savefig(folder / "clusters.png", dpi=110)


def _json(content: dict[str, Any]) -> str:
    """Indented, but for the matrices: a number a line would be no help to anybody."""
    matrices = json.dumps(content["distances"], allow_nan=False)
    text = json.dumps({**content, "distances": None}, indent=2, allow_nan=False)
    return text.removesuffix("null\n}") + matrices + "\n}\n"


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being done and for how long."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading")
        yield lambda what: progress.update(task, description=what)


def _print(suite: Suite, content: dict[str, Any]) -> None:
    """The regions as a table, and the notes."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=140)
    threshold = content["settings"]["threshold"]
    clusters = content["clusters"]
    over_all = sum(c["scope"] == "all" for c in clusters)
    console.print(
        f"{content['challenging']:,} challenging cases (p_true < {threshold:g}): {over_all} failure regions over all "
        f"classes, {content['noise']:,} cases in none; {len(clusters) - over_all} regions within classes"
    )
    if clusters:
        table = Table(box=None, pad_edge=False)
        table.add_column("region")
        table.add_column("cases", justify="right")
        table.add_column("persistence", justify="right")
        table.add_column("what sets it apart")
        for c in clusters[:SHOWN]:
            scope = f"all {c['number']}" if c["scope"] == "all" else f"class {c['label']}·{c['number']}"
            table.add_row(scope, f"{c['size']:,}", f"{c['persistence']:.3f}", escape(c["sentence"]))
        console.print(table)
        if len(clusters) > SHOWN:
            console.print(f"and {len(clusters) - SHOWN} more in clusters.json")
    elif content["overall"]:
        console.print(f"As a whole: {escape(content['overall']['sentence'])}")
    for note in content["notes"]:
        console.print(f"- {escape(note)}")
    console.print(f"written to {escape(str(suite.path / FOLDER))}", soft_wrap=True)
