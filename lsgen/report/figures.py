"""Figures of a suite as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lsgen.suite import Suite


def failure_gallery(suite: Suite, file: str | Path, per_class: int = 4, classes: int = 12) -> Path:
    """Draws, for each class, its first failures beside the seeds they come from; captions say what the SUT read.

    Args:
        suite: Any suite with at least one block.
        file: PNG or SVG to write.
        per_class: Pairs for each class.
        classes: At most so many classes, spread evenly over those that the suite has.
    """
    from matplotlib.figure import Figure

    table, images, seeds = suite.table, suite.images, suite.array("seed_image")
    labels = sorted(int(k) for k in table["label"].unique())
    labels = [labels[i] for i in np.linspace(0, len(labels) - 1, min(classes, len(labels))).astype(int)]
    figure = Figure(figsize=(per_class * 2.1, len(labels) * 1.15), layout="constrained")
    axes = figure.subplots(len(labels), 2 * per_class, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for row, label in enumerate(labels):
        failures = np.flatnonzero((table["label"] == label) & table["failed"])[:per_class]
        for column, case in enumerate(failures):
            read, p = int(table["predicted"].iloc[case]), float(table["p_true"].iloc[case])
            for offset, picture, caption in (
                (0, seeds[case], f"seed {label}"),
                (1, images[case], f"→ {read} ({p:.0%})"),
            ):
                axis = axes[row, 2 * column + offset]
                axis.imshow(np.squeeze(picture.transpose(1, 2, 0)), cmap="gray", vmin=0, vmax=255)
                axis.set_title(caption, fontsize=7, pad=2)
    figure.suptitle("seed and failure: what the SUT read (probability of the true class)", fontsize=9)
    file = Path(file)
    figure.savefig(file, dpi=130)
    return file
