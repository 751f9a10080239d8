"""Failure regions drawn: a map of the challenging cases, and the largest regions with pictures and sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lsgen.analysis.regions import Region, Scope
from lsgen.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from lsgen.analysis.clusters import Found
    from lsgen.suite import Suite

DRAWN, STRIP = 6, 6  # regions a picture shows, and members of each
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")  # Okabe and Ito, told apart by all
NOISE = "#BBBBBB"
Projection = Literal["pca", "umap"]


def projection(kind: Projection) -> Callable[[np.ndarray], tuple[np.ndarray, list[str]]]:
    """A function from latents [N, D] to points [N, 2] and names of the two axes.

    Raises:
        InputError: UMAP is not installed.
    """
    if kind == "pca":
        return pca
    try:
        umap = import_module("umap")
    except ImportError as error:
        raise InputError("--projection umap needs the package umap-learn: pip install 'lsgen[umap]'") from error

    def project(latents: np.ndarray) -> tuple[np.ndarray, list[str]]:
        if len(latents) < 4:  # it needs neighbours
            return pca(latents)
        neighbours = min(15, len(latents) - 1)
        points = umap.UMAP(n_neighbors=neighbours, metric="manhattan", init="pca", random_state=0).fit_transform(
            latents
        )
        return np.asarray(points, dtype=np.float64), ["UMAP 1", "UMAP 2"]

    return project


def pca(latents: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The two directions in which latents [N, D] vary most; axes say how much of the variance they show."""
    from sklearn.decomposition import PCA

    points, shares, parts = np.zeros((len(latents), 2)), np.zeros(2), min(2, *latents.shape)
    if len(latents) > 1 and np.ptp(latents, axis=0).any():
        model = PCA(parts, random_state=0)
        points[:, :parts] = model.fit_transform(latents)
        shares[:parts] = model.explained_variance_ratio_
    return points, [f"principal component {i + 1} ({share:.0%})" for i, share in enumerate(shares)]


def draw(suite: Suite, found: Found, content: dict[str, Any], points: np.ndarray, images: np.ndarray) -> Figure:
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
        pictures = [images[index] if len(images) else None, *suite.take("image", members)]
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
