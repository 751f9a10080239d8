"""Stored images in rows that have a name each, as one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Images = Sequence[Any] | np.ndarray  # each uint8 [C, H, W]


def labelled_rows(rows: Mapping[str, Images], columns: Sequence[str] = ()) -> Figure:
    """One line of images for each name, with titles above the first where there are any."""
    from matplotlib.figure import Figure

    wide = max(map(len, rows.values()))
    titles = 0.3 + 0.08 * max(map(len, rows))  # inches
    figure = Figure(figsize=(titles + 0.7 * wide, 0.75 * len(rows) + 0.3), layout="constrained")
    grid = figure.subplots(len(rows), wide, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[], frame_on=False)
    for line, (title, images) in zip(grid, rows.items(), strict=True):
        line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
        for axes, image in zip(line, images, strict=False):
            axes.imshow(np.moveaxis(np.asarray(image), 0, -1), cmap="gray", vmin=0, vmax=255)
    for axes, title in zip(grid[0], columns, strict=False):
        axes.set_title(title, fontsize=8)
    return figure
