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
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import safe_open

from lsgen.analysis.regions import (
    CONTROL_CASES,
    MIN_SAMPLES,
    MIN_SHARE,
    MIN_SIZE,
    Region,
    Scope,
    default_size,
    distances,
    find_regions,
)
from lsgen.errors import InputError
from lsgen.suite import Suite, load_suite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FORMAT_VERSION = 1
FOLDER = "clusters"
THRESHOLD = 0.05  # Speth's challenging cases give less than this to their true class
PASSING = 10_000  # at most so many passing cases are compared with
DIRECTIONS = 5  # latent coordinates told of each region
FAR = 0.8  # standard deviations from which Cohen calls a difference large
TOLD = 3  # differences that a sentence names
DRAWN, STRIP = 6, 6  # regions a picture shows, and members of each
SHOWN = 30  # regions a table in the terminal has
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")  # Okabe and Ito, told apart by all
NOISE = "#BBBBBB"
EFFECTS = (
    "properties: Cliff's delta; directions: standardised mean difference; both against passing cases of the same class"
)
Projection = Literal["pca", "umap"]


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
    projection: Projection = "pca",
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
    project = _projection(projection)
    with _progress() as step:
        found = find(suite, threshold=threshold, min_cluster_size=min_cluster_size, step=step)
        step("projecting to two dimensions")
        points, axes = project(found.challenging.flat)
        found.settings["projection"] = {"kind": projection, "axes": axes}
        step("decoding centroids")
        images = _centroid_images(suite, found)
        step("writing")
        content = describe(suite, found)
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
    seeds = _seeds(suite, labels)
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
    found.notes += _notes(suite, found, min_cluster_size)
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
    for number, images in enumerate(_blocks(suite, "image", rows)):
        step(f"measuring images, block {number + 1} of {len(suite.blocks)}")
        measured.append(measure(images))
    properties = {name: np.concatenate([m[name] for m in measured]) for name in measured[0]}
    labels, predicted = (table[name].to_numpy(int)[rows] for name in ("label", "predicted"))
    if "hue" in properties:
        properties["hue"] = turns(properties["hue"], labels, np.isin(rows, passing))
    latents = _take(suite, "latent", rows)

    def part(own: np.ndarray) -> Cases:
        at = np.searchsorted(rows, own)
        values = {name: value[at] for name, value in properties.items()}
        return Cases(row=own, label=labels[at], predicted=predicted[at], latent=latents[at], properties=values)

    nowhere = np.full((2, len(challenging)), -1)
    settings = {"threshold": threshold, "metric": "l1", "min_samples": MIN_SAMPLES, "effects": EFFECTS}
    return Found(part(challenging), part(passing), cluster=nowhere[0], class_cluster=nowhere[1], settings=settings)


def _seeds(suite: Suite, labels: np.ndarray) -> dict[int, np.ndarray]:
    """Latents [S, D] of random seeds of each class, some more than the challenging cases that ``labels`` [N] are of."""
    table, rng = suite.table, np.random.default_rng(0)
    viable, own = table["viable"].to_numpy(bool), table["label"].to_numpy(int)
    chosen = [np.zeros(0, int)]
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        if count <= CONTROL_CASES:  # more are not drawn
            chosen.append(rng.permutation(np.flatnonzero(viable & (own == label)))[: 2 * count + 100])
    rows = np.sort(np.concatenate(chosen))
    latents = _take(suite, "seed_latent", rows)
    latents = latents.reshape(len(rows), math.prod(latents.shape[1:]))
    return {int(k): latents[own[rows] == k] for k in np.unique(own[rows])}


def _take(suite: Suite, name: str, rows: np.ndarray) -> np.ndarray:
    """Some rows [N], ascending, of one of the suite's arrays; the rest is not kept in memory."""
    return np.concatenate(list(_blocks(suite, name, rows)))


def _blocks(suite: Suite, name: str, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Some rows [N], ascending, of one of the suite's arrays, block by block.

    Raises:
        InputError: The suite has no block yet.
    """
    if not suite.blocks:
        raise InputError(f"the suite {suite.path} has no finished block yet")
    first = 0
    for number in suite.blocks:
        with safe_open(suite.path / "arrays" / f"block-{number:05d}.safetensors", framework="np") as file:
            last = first + file.get_slice(name).get_shape()[0]
            own = rows[(rows >= first) & (rows < last)] - first
            yield file.get_tensor(name)[own]
        first = last


# --- telling -------------------------------------------------------------------------------------------------------


def describe(suite: Suite, found: Found) -> dict[str, Any]:
    """What ``clusters.json`` holds: settings, regions with their sentences, and the distances between them."""
    ids = suite.table["id"].to_numpy(int)[found.challenging.row]
    names = suite.manifest.get("data", {}).get("class_names")
    clusters = []
    for region in found.regions:
        text = _about(found, region.members, names)
        if region.chance is not None and region.chance > 0.05:
            text["sentence"] += f" Random seeds form groups as persistent (chance {region.chance:.2f})."
        head = {"scope": region.scope, "label": region.label, "number": region.number, "size": len(region.members)}
        found_by = {"persistence": round(region.persistence, 4), "chance": region.chance}
        clusters.append({**head, **found_by, "medoid_id": int(ids[region.medoid]), **text})
    return {
        "format_version": FORMAT_VERSION,
        "settings": found.settings,
        "challenging": len(ids),
        "noise": int((found.cluster < 0).sum()),
        "notes": found.notes,
        "overall": _about(found, np.arange(len(ids)), names) if len(ids) else None,
        "clusters": clusters,
        "distances": distances(found.regions, found.challenging.latent),
    }


def _about(found: Found, members: np.ndarray, names: list[str] | None) -> dict[str, Any]:
    """What some challenging cases, rows [M], are, and what sets them apart from passing cases of their classes."""
    from lsgen.analysis.properties import shifts

    cases, passing = found.challenging, found.passing
    labels = cases.label[members]
    properties, words = _properties(found, members)
    shifted = shifts(cases.flat[members], labels, passing.flat, passing.label)
    directions = []
    if shifted is not None:
        directions = _directions(shifted[0], cases.latent.shape[1:])
        far = [d for d in directions if abs(d["difference"]) > max(FAR, shifted[1])]
        words += [f"latent {d['index']} {d['difference']:+.1f} sd" for d in far[:TOLD]]
    classes, read = _shares(labels), _shares(cases.predicted[members])
    who = f"{'Class' if len(classes) == 1 else 'Classes'} {_listed(classes, names)}, read as {_listed(read, names)}. "
    if not properties and shifted is None:
        what = "There are too few passing cases of these classes to compare with."
    elif not words:
        what = "Nothing measured sets them clearly apart from passing cases."
    else:
        what = f"Compared with passing cases: {', '.join(words)}."
    return {
        "sentence": who + what,
        "classes": classes,
        "predicted": read,
        "compared_with": int(np.isin(passing.label, labels).sum()),
        "properties": properties,
        "directions": directions,
    }


def _properties(found: Found, members: np.ndarray) -> tuple[list[dict[str, Any]], list[str]]:
    """Image properties of some challenging cases against passing ones, largest effect first, and words on the clear."""
    from lsgen.analysis.properties import PROPERTIES, compare

    cases, passing, told = found.challenging, found.passing, []
    for p in (p for p in PROPERTIES if p.name in cases.properties):
        own, usual = cases.properties[p.name][members], passing.properties[p.name]
        difference = compare(own, cases.label[members], usual, passing.label)
        if difference is not None:
            told.append((p, difference))
    told.sort(key=lambda pair: -abs(pair[1].effect))
    entries = [
        {
            "name": p.name,
            "delta": round(d.effect, 4),
            "chance": round(d.chance, 4),
            "cluster": round(d.group, 4),
            "passing": round(d.others, 4),
        }
        for p, d in told
    ]
    words = [
        f"{p.more if d.effect > 0 else p.less} ({d.group:.2g}{p.unit} against {d.others:.2g}, δ {d.effect:+.2f})"
        for p, d in told
        if d.clear
    ]
    return entries, words[:TOLD]


def _directions(differences: np.ndarray, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """The latent coordinates with the largest differences [D], in standard deviations of passing cases."""
    order = np.argsort(-np.abs(np.nan_to_num(differences)), kind="stable")[:DIRECTIONS]
    places = [[int(i) for i in np.unravel_index(flat, shape)] for flat in order]
    return [
        {"index": place[0] if len(place) == 1 else place, "difference": round(float(differences[flat]), 4)}
        for flat, place in zip(order, places, strict=True)
        if np.isfinite(differences[flat])
    ]


def _shares(labels: np.ndarray) -> dict[str, int]:
    """How many of each class, the most frequent first."""
    classes, counts = np.unique(labels, return_counts=True)
    return {str(classes[i]): int(counts[i]) for i in np.argsort(-counts, kind="stable")}


def _listed(counts: dict[str, int], names: list[str] | None) -> str:
    """Classes in words.

    Example:
        >>> _listed({"3": 6, "5": 3, "8": 1}, None), _listed({"1": 4}, ["no entry", "stop"])
        ('3 (60 %), 5 (30 %) and others', '1 “stop”')
    """
    total, shown = sum(counts.values()), list(counts.items())[:TOLD]
    shown = [(k, n) for k, n in shown if n >= 0.15 * total] or shown[:1]
    words = []
    for label, count in shown:
        name = f" “{names[int(label)]}”" if names and names[int(label)] != label else ""
        words.append(f"{label}{name}" + (f" ({count / total:.0%})".replace("%", " %") if count < total else ""))
    return ", ".join(words) + (" and others" if len(shown) < len(counts) else "")


def _notes(suite: Suite, found: Found, min_cluster_size: int | None) -> list[str]:
    """Sentences on what is missing, and why."""
    labels, threshold = found.challenging.label, found.settings["threshold"]
    notes = []
    if not suite.finished:
        notes.append(f"the suite is unfinished: {len(suite.blocks)} of {suite.manifest['blocks']} blocks are there")
    if not len(labels):
        return [*notes, f"no challenging case: none gives its true class less than {threshold:g}"]
    if right := int((found.challenging.predicted == labels).sum()):
        notes.append(f"{right:,} of the {len(labels):,} challenging cases are read rightly all the same")
    smallest = found.settings["min_cluster_size"]
    if len(labels) < smallest:
        notes.append(f"{len(labels)} challenging cases are fewer than a region must have, {smallest}: all are noise")
    elif (found.cluster < 0).all():
        notes.append(
            "over all classes, all challenging cases are noise: no group of them is denser than its surroundings"
        )
    counts = {int(k): int((labels == k).sum()) for k in np.unique(suite.table["label"].to_numpy(int))}
    few = {k: n for k, n in counts.items() if 0 < n < (min_cluster_size or default_size(n))}
    if few:
        listed = ", ".join(f"{k} ({n})" for k, n in few.items())
        notes.append(f"classes with too few challenging cases for a region of their own: {listed}")
    if none := [str(k) for k, n in counts.items() if not n]:
        notes.append(f"classes without a challenging case: {', '.join(none)}")
    if not len(found.passing):
        notes.append("the suite has no passing case, so nothing says what sets a region apart")
    return notes


# --- pictures ------------------------------------------------------------------------------------------------------


def _projection(kind: Projection) -> Callable[[np.ndarray], tuple[np.ndarray, list[str]]]:
    """A function from latents [N, D] to points [N, 2] and names of the two axes.

    Raises:
        InputError: UMAP is not installed.
    """
    if kind == "pca":
        return _pca
    try:
        umap = import_module("umap")
    except ImportError as error:
        raise InputError("--projection umap needs the package umap-learn: pip install 'lsgen[umap]'") from error

    def project(latents: np.ndarray) -> tuple[np.ndarray, list[str]]:
        if len(latents) < 4:  # it needs neighbours
            return _pca(latents)
        neighbours = min(15, len(latents) - 1)
        points = umap.UMAP(n_neighbors=neighbours, metric="manhattan", init="pca", random_state=0).fit_transform(
            latents
        )
        return np.asarray(points, dtype=np.float64), ["UMAP 1", "UMAP 2"]

    return project


def _pca(latents: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The two directions in which latents [N, D] vary most; axes say how much of the variance they show."""
    from sklearn.decomposition import PCA

    points, shares, parts = np.zeros((len(latents), 2)), np.zeros(2), min(2, *latents.shape)
    if len(latents) > 1 and np.ptp(latents, axis=0).any():
        model = PCA(parts, random_state=0)
        points[:, :parts] = model.fit_transform(latents)
        shares[:parts] = model.explained_variance_ratio_
    return points, [f"principal component {i + 1} ({share:.0%})" for i, share in enumerate(shares)]


def _centroid_images(suite: Suite, found: Found) -> np.ndarray:
    """Decoded centroids, uint8 [C, c, h, w]; [0, c, h, w] and a note where the generator cannot be loaded any more."""
    with safe_open(suite.path / "arrays" / f"block-{suite.blocks[0]:05d}.safetensors", framework="np") as file:
        shape = tuple(file.get_slice("image").get_shape()[1:])
    if not found.regions:
        return np.zeros((0, *shape), np.uint8)
    import torch

    from lsgen.analysis.parts import load_generator
    from lsgen.types import to_uint8

    try:
        generator = load_generator(suite)
    except InputError as error:
        found.notes.append(f"centroids are not decoded: {error}")
        return np.zeros((0, *shape), np.uint8)
    z = torch.from_numpy(np.stack([region.centroid for region in found.regions]))
    y = torch.tensor([region.label for region in found.regions])
    with torch.no_grad():
        images = [to_uint8(generator.decode(a, b)) for a, b in zip(z.split(32), y.split(32), strict=True)]
    return torch.cat(images).numpy()


def _draw(suite: Suite, found: Found, content: dict[str, Any], points: np.ndarray, images: np.ndarray) -> Figure:
    """Two bands, over all classes and within classes: a map, and the largest regions with pictures and sentences."""
    from matplotlib.figure import Figure

    bands: list[tuple[Scope, str]] = [("all", "over all classes"), ("class", "within classes")]
    figure = Figure(figsize=(13, 14), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.4))
    for band, (scope, title) in enumerate(bands):
        own = [i for i, region in enumerate(found.regions) if region.scope == scope]
        own.sort(key=lambda i: -len(found.regions[i].members))
        left, right = (figure.add_subfigure(grid[band, column]) for column in (0, 1))
        drawn = f", the {DRAWN} largest" if len(own) > DRAWN else ""
        left.suptitle(f"Failure regions {title}: {len(own)}{drawn}", fontsize=11, x=0.02, ha="left")
        _map(left.subplots(), found, points, own[:DRAWN])
        _strips(right, suite, found, content, own[:DRAWN], images)
    return figure


def _map(axes: Axes, found: Found, points: np.ndarray, shown: list[int]) -> None:
    """Challenging cases in two dimensions: gray, those of the regions at ``shown`` in their colours and numbered."""
    small = len(points) > 5000
    axes.scatter(points[:, 0], points[:, 1], s=3 if small else 10, color=NOISE, linewidths=0, label="in none of these")
    for colour, index in zip(COLOURS, shown, strict=False):
        members = points[found.regions[index].members]
        axes.scatter(members[:, 0], members[:, 1], s=4 if small else 16, color=colour, linewidths=0)
    for colour, index in zip(COLOURS, shown, strict=False):  # above all points
        x, y = np.median(points[found.regions[index].members], axis=0)
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": colour}
        axes.annotate(_name(found.regions[index]), (x, y), fontsize=9, ha="center", va="center", bbox=box)
    first, second = found.settings["projection"]["axes"]
    axes.set(xticks=[], yticks=[], xlabel=first, ylabel=second)
    if len(points):
        axes.legend(fontsize=8, frameon=False)


def _strips(
    part: SubFigure, suite: Suite, found: Found, content: dict[str, Any], shown: list[int], images: np.ndarray
) -> None:
    """For each region at ``shown`` its sentence, the decoded centroid, the medoid, and members."""
    part.supxlabel(
        "left to right: decoded centroid, medoid, members from the centre of the region outwards", fontsize=8
    )
    if not shown:
        why = "none: all challenging cases are noise" if len(found.cluster) else "none: there is no challenging case"
        part.text(0.05, 0.5, why, fontsize=10)
    rows = part.add_gridspec(DRAWN, 1)
    for place, colour, index in zip(range(DRAWN), COLOURS, shown, strict=False):
        region, row = found.regions[index], part.add_subfigure(rows[place])
        head = f"{_name(region)}: {len(region.members):,} cases. {content['clusters'][index]['sentence']}"
        row.suptitle(textwrap.fill(head, 115), fontsize=8, x=0.01, ha="left")
        members = found.challenging.row[[region.medoid, *_spread(region, found.challenging.flat)]]
        pictures = [images[index] if len(images) else None, *_pictures(suite, members)]
        for axes, picture in zip(row.subplots(1, STRIP + 2), pictures + [None] * STRIP, strict=False):
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(color=colour, linewidth=2, visible=picture is not None)
            if picture is not None:
                axes.imshow(np.squeeze(picture.transpose(1, 2, 0)), cmap="gray", vmin=0, vmax=255)


def _name(region: Region) -> str:
    """What tables and pictures call a region: its number, after its class where it is one of a class."""
    return str(region.number) if region.scope == "all" else f"{region.label}·{region.number}"


def _spread(region: Region, latents: np.ndarray) -> np.ndarray:
    """Members of a region but its medoid, rows [≤ STRIP], from the nearest to the centroid to the farthest."""
    others = region.members[region.members != region.medoid]
    order = others[np.abs(latents[others] - region.centroid.ravel()).sum(1).argsort(kind="stable")]
    return order[np.linspace(0, len(order) - 1, min(STRIP, len(order))).astype(int)]


def _pictures(suite: Suite, rows: np.ndarray) -> np.ndarray:
    """Images [N, C, H, W] at rows of the suite in any order."""
    ascending, back = np.unique(rows, return_inverse=True)
    return _take(suite, "image", ascending)[back]


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
    except PermissionError as error:
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
        "medoid_image": _pictures(suite, medoids),
    }
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "centroids.safetensors")
    _draw(suite, found, content, points, images).savefig(folder / "clusters.png", dpi=110)


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
