"""SINVAD, Tab. 3 and Fig. 13: images that a search left at the decision boundary, and how near to it they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lsgen.analysis.statistics import cliffs_delta, magnitude, welch
from lsgen.studies import common
from lsgen.studies.base import Claim, Findings, Lab, Row, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import Tensor

    from lsgen.data import InMemory
    from lsgen.suite import Suite
    from lsgen.suts import SUT

# Tab. 3: mean gap of boundary images and of test images, and Cliff's delta between them
PUBLISHED = {common.DIGITS: (0.0638, 0.9957, -0.98), common.FASHION: (0.1330, 0.9186, -0.92)}
PAIRS = 3  # of classes in the picture


def run(lab: Lab) -> Findings:
    """Boundary images of each data set against all of its test images."""
    chosen = lab.pick(smoke=(common.DIGITS,), laptop=(common.DIGITS,), paper=tuple(PUBLISHED))
    # all models first: a data set that is not there shows before the first long search
    models = {data: (common.vae(lab, data), common.classifier(lab, data)) for data in chosen}
    found = Findings(rows=[])
    for data, (vae, sut) in models.items():
        _one_set(lab, found, data, _search(lab, data, vae, sut), sut)
    found.reduced = lab.pick(
        smoke=["2 seeds a class, 40 generations"],
        laptop=["500 boundary images in place of 10,000", "MNIST only"],
        paper=["892 boundary images a class, as many as the smallest has, in place of 10,000 in all", "no ImageNet-32"],
    )
    found.remarks = [
        "Seeds are encoded test images. From test images to their reconstructions is what the VAE changes, from "
        "reconstructions to boundary images what the search does.",
        "Seeds whose reconstruction the SUT misreads are left out: they have no boundary between them and their label.",
    ]
    return found


def _search(lab: Lab, data: str, vae: Path, sut: Path) -> Suite:
    return lab.search(
        f"{data}-boundary",
        "mnist/search/boundary_ga",
        f"--model.generator.path={vae}",
        f"--model.sut.path={sut}",
        f"--data.name={lab.data(data)}",
        f"--model.seeds.per_class={lab.pick(smoke=2, laptop=50, paper=892)}",
        f"--model.searcher.generations={lab.pick(smoke=40, laptop=500, paper=500)}",
        "--model.block_size=100",
    )


def _one_set(lab: Lab, found: Findings, data: str, suite: Suite, checkpoint: Path) -> None:
    """Adds what was found on one data set."""
    from lsgen import suts
    from lsgen.data import ImageData

    sut, test = suts.pretrained(checkpoint), ImageData(name=lab.data(data))["test"]
    viable, failed = (suite.table[name].to_numpy(bool) for name in ("viable", "failed"))
    boundary = suite.table["boundary_gap"].to_numpy(float)[viable & failed]
    groups = {
        "boundary images": boundary,
        "test images": gaps(sut, test.images),
        "reconstructed seeds": gaps(sut, suite.array("seed_image")[viable]),
    }
    for (name, values), published in zip(groups.items(), (*PUBLISHED[data][:2], None), strict=True):
        gap = float(values.mean()) if len(values) else None
        found.rows.append(Row(f"{data}, {name}", "gap U between the two likeliest classes", gap, published))
    reached = len(boundary) / max(int(viable.sum()), 1)
    found.rows.append(Row(f"{data}, seeds", "another class reached", reached, unit="%"))
    _compare(found, data, boundary, groups["test images"])
    _picture(lab, found, data, suite, sut, test)


def gaps(sut: SUT, images: Tensor | np.ndarray) -> np.ndarray:
    """U of stored images, uint8 [N, C, H, W] -> [N]."""
    from lsgen.metrics.functional import boundary_gap

    return common.mapped(lambda x: boundary_gap(sut.logits(x)), images).numpy()


def _compare(found: Findings, data: str, boundary: np.ndarray, real: np.ndarray) -> None:
    """Adds the statistics of two groups of gaps."""
    delta, p = cliffs_delta(boundary, real), welch(boundary, real).p_value
    case = f"{data}, boundary against test images"
    found.rows += [Row(case, "Cliff's delta", delta, PUBLISHED[data][2]), Row(case, "p of Welch's test", p)]
    found.claims += [
        Claim(f"{data}: boundary images have a smaller gap than test images", delta is not None and delta < 0),
        Claim(f"{data}: the difference is significant (Welch, p < 0.0001)", p is not None and p < 1e-4),
        Claim(f"{data}: the effect is large", delta is not None and magnitude(delta) == "large"),
    ]


def _picture(lab: Lab, found: Findings, data: str, suite: Suite, sut: SUT, test: InMemory) -> None:
    """Adds Fig. 13, for the pairs of classes that most boundary images lie between."""
    from matplotlib.figure import Figure

    pairs = _pairs(suite.table.iloc[suite.failures])
    figure = Figure(figsize=(3.2 * max(len(pairs), 1), 3.2), layout="constrained")
    for i, ((a, b), rows) in enumerate(pairs.items()):
        axes = figure.add_subplot(1, len(pairs), i + 1)
        between = _draw_pair(axes, sut, test, (a, b), suite.take("image", np.array(rows)))
        text = f"{data}: in the mean, boundary images of {a} and {b} lie between the two along the first component"
        found.claims.append(Claim(text, between))
    caption = f"{data}: activations of the SUT on the two components in which test images of both classes vary most"
    found.figures.append((common.save(lab, figure, f"activations_{data}"), caption))


def _pairs(cases: pd.DataFrame) -> dict[tuple[int, int], list[int]]:
    """The pairs of classes with most boundary images, which these cases are, and their rows."""
    pairs = [(min(a, b), max(a, b)) for a, b in zip(cases["label"], cases["predicted"], strict=True)]
    return {
        pair: [row for row, own in zip(cases.index, pairs, strict=True) if own == pair]
        for pair, _ in Counter(pairs).most_common(PAIRS)
    }


def _draw_pair(axes: Axes, sut: SUT, test: InMemory, pair: tuple[int, int], boundary: np.ndarray) -> bool:
    """Draws two classes and what lies between; whether its mean does."""
    from sklearn.decomposition import PCA

    images = {f"test images of {k}": test.images[test.labels == k] for k in pair} | {"boundary images": boundary}
    groups = {name: common.mapped(sut.features, some).numpy() for name, some in images.items()}
    plane = PCA(2).fit(np.concatenate(list(groups.values())[:2]))
    centres = []
    for (name, group), color in zip(groups.items(), (*common.COLORS[:2], "black"), strict=True):
        x, y = plane.transform(group).T
        size, marker = (16, "x") if color == "black" else (6, ".")
        axes.scatter(x, y, size, color=color, marker=marker, label=name)
        centres.append(float(x.mean()))
    axes.set(xticks=[], yticks=[], xlabel="first component", ylabel="second component")
    axes.legend(fontsize=7)
    return min(centres[:2]) <= centres[2] <= max(centres[:2])


STUDY = Study(
    name="sinvad-boundary",
    shows="how near to the decision boundary a latent search ends",
    source="SINVAD, Tab. 3 and Fig. 13",
    cost={"smoke": "15 seconds", "laptop": "10 minutes", "paper": "5 hours"},
    run=run,
)
