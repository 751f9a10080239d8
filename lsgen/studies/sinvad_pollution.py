"""SINVAD, Fig. 14 and 15: how early a targeted search notices that the labels of two classes were mixed."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from lsgen.studies import common
from lsgen.studies.base import Claim, Findings, Lab, Row, Study, repeated
from lsgen.studies.speth_faults import faulty, sound

if TYPE_CHECKING:
    from torch import Tensor

    from lsgen.suite import Suite

PAIRS = ((0, 1), (2, 5), (6, 7))
ALPHAS = (0.0, 0.01, 0.02, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5)
WEAK, STRONG = "α ≤ 0.1", "α ≥ 0.2"
PUBLISHED = {(WEAK, "escape"): 0.877, (WEAK, "error"): 0.525, (STRONG, "escape"): 0.977, (STRONG, "error"): 0.952}
SIGNALS = {"escape": "detection rate of the search, s_α − s_0", "error": "test images of the pair read as each other"}
ENOUGH = 15  # generations; mutations of a search without any success are too small by then, so that none comes later
Pair = tuple[int, int]
Measured = dict[tuple[Pair, float], float]


def run(lab: Lab) -> Findings:
    """A SUT for each pair and α, searches between the two classes, and both matrices of the unpolluted SUT."""
    pairs = PAIRS[: lab.pick(smoke=1, laptop=2, paper=3)]
    alphas = lab.pick(smoke=(0.0, 0.1, 0.5), laptop=tuple(a for a in ALPHAS if a != 0.02), paper=ALPHAS)
    files = {(pair, a): _sut(lab, pair, a) for pair in pairs for a in alphas}
    matrices = {"error": _errors(lab, sound(lab)), "escape": _matrix(lab)}
    escaped = {(pair, a): _escaped(lab, pair, a, file) for (pair, a), file in files.items()}
    measured = {"escape": _detection(escaped), "error": {key: _confused(lab, key[0], f) for key, f in files.items()}}
    correlations = {
        (stage, signal): [_correlation(measured[signal], pair, stage) for pair in pairs] for stage, signal in PUBLISHED
    }
    chance = _chance(escaped)
    found = Findings(rows=_rows(measured, correlations, chance), claims=_claims(measured, correlations, matrices))
    found.claims += [_noticed(a, p, measured["escape"]) for a, p in chance.items() if a <= 0.1]
    found.figures = [_lines(lab, measured), _heatmaps(lab, matrices)]
    found.reduced = lab.pick(
        smoke=["one pair, 3 values of α, 5 seeds a class, a LeNet-5 on embedded digits"],
        laptop=["2 pairs, 8 values of α", "100 attempts for each, 450 for the matrix, in place of 1,000", "a LeNet-5"],
        paper=["no ImageNet-32"],
    )
    found.remarks = [
        "An attempt starts at an encoded test image that the SUT reads rightly; others, of which a polluted SUT has "
        "many, do not count, which lowers the detection rate of high α.",
        f"Searches end after {ENOUGH} generations: whether they reach the class is decided by then, only the distance "
        "would still fall.",
        "A correlation over three values of α, as beyond 0.2, says little; and that of weak pollution leans on α = 0, "
        "where the detection rate is 0 by definition.",
        "p is of all attempts together and of these SUTs: one was trained for each α, and another one might differ.",
    ]
    return found


def _sut(lab: Lab, pair: Pair, alpha: float) -> Path:
    if alpha == 0:
        return sound(lab)
    mixed = (f"--data.fault.pair={list(pair)}", f"--data.fault.alpha={alpha}")
    return faulty(lab, "mnist/faults/mixed", f"mixed-{pair[0]}{pair[1]}-{alpha}", *mixed)


def _search(lab: Lab, name: str, sut: Path, *more: str) -> Suite:
    return lab.search(
        name,
        "mnist/search/escape",
        f"--model.generator.path={common.vae(lab)}",
        f"--model.sut.path={sut}",
        f"--data.name={lab.data()}",
        f"--model.searcher.generations={ENOUGH}",
        *lab.pick(smoke=("--model.searcher.population=10", "--model.searcher.elites=4"), laptop=(), paper=()),
        *more,
    )


def _escaped(lab: Lab, pair: Pair, alpha: float, sut: Path) -> Tensor:
    """Whether each attempt from either class of a pair reached the other, [N] bool."""
    import torch

    n, reached = lab.pick(smoke=5, laptop=50, paper=500), []
    for own, other in (pair, pair[::-1]):
        aim = (f"--model.seeds.classes=[{own}]", f"--model.seeds.target={other}", f"--model.seeds.per_class={n}")
        cases = _search(lab, f"{own}-{other}-{alpha}", sut, *aim).table
        cases = cases[cases["viable"]]
        reached.append(torch.tensor((cases["predicted"] == cases["target"]).to_numpy(bool)))
    return torch.cat(reached)


def _detection(escaped: dict[tuple[Pair, float], Tensor]) -> Measured:
    """s_α − s_0 of each pair."""
    from lsgen.metrics.functional import detection_rate

    return {(pair, a): detection_rate(own, escaped[pair, 0.0]).item() for (pair, a), own in escaped.items()}


def _errors(lab: Lab, sut: Path) -> np.ndarray:
    """Share of the test images of each class that are read as each other, [K, K]."""
    from lsgen import suts
    from lsgen.analysis.faults import error_matrix
    from lsgen.data import ImageData

    test = ImageData(name=lab.data())["test"]
    return error_matrix(suts.pretrained(sut), test.images, test.labels).numpy()


def _confused(lab: Lab, pair: Pair, sut: Path) -> float:
    """Share of a pair's test images that are read as the other class."""
    errors = _errors(lab, sut)
    return float(errors[pair] + errors[pair[::-1]]) / 2


def _matrix(lab: Lab) -> np.ndarray:
    """Escape rate from each class to each other one, of the unpolluted SUT, [K, K]."""
    suite = _search(lab, "matrix", sound(lab), f"--model.seeds.per_class={lab.pick(smoke=1, laptop=5, paper=112)}")
    rates = np.array(suite.summary["escape_rate"], dtype=float)
    np.fill_diagonal(rates, np.nan)
    return rates


def _correlation(measured: Measured, pair: Pair, stage: str) -> float | None:
    """Pearson's r of a signal with α; None where the signal does not change."""
    from scipy.stats import pearsonr

    points = [(a, v) for (own, a), v in measured.items() if own == pair and (a <= 0.1) == (stage == WEAK)]
    alphas, values = zip(*points, strict=True)
    return float(pearsonr(alphas, values).statistic) if len(points) > 1 and len(set(values)) > 1 else None


def _chance(escaped: dict[tuple[Pair, float], Tensor]) -> dict[float, float | None]:
    """P that as many attempts, of all pairs together, reach the other class as without pollution; corrected (Holm)."""
    from lsgen.analysis.statistics import fisher, holm

    counts: dict[float, tuple[int, int]] = {}
    for (_, a), own in escaped.items():
        reached, tried = counts.get(a, (0, 0))
        counts[a] = reached + int(own.sum()), tried + len(own)
    alphas = [a for a in counts if a]
    return dict(zip(alphas, holm([fisher(counts[a], counts[0.0]) for a in alphas]), strict=True))


def _noticed(alpha: float, p: float | None, detection: Measured) -> Claim:
    rises = mean(_at(detection, alpha)) > 0
    return Claim(
        f"α = {alpha}: the search notices it (Fisher, Holm, p < 0.05)", None if p is None else rises and p < 0.05
    )


def _rows(
    measured: dict[str, Measured],
    correlations: dict[tuple[str, str], list[float | None]],
    chance: dict[float, float | None],
) -> list[Row]:
    rows = []
    for stage, signal in PUBLISHED:
        values = correlations[stage, signal]
        rows.append(repeated(stage, f"correlation with α: {SIGNALS[signal]}", values, PUBLISHED[stage, signal]))
    for alpha in sorted({a for _, a in measured["escape"]}):
        rows += [repeated(f"α = {alpha}", SIGNALS[s], _at(measured[s], alpha), unit="%") for s in SIGNALS]
        if alpha in chance:
            rows.append(Row(f"α = {alpha}", "p of the search's attempts against α = 0 (Fisher, Holm)", chance[alpha]))
    return rows


def _at(measured: Measured, alpha: float) -> list[float]:
    return [value for (_, a), value in measured.items() if a == alpha]


def _claims(
    measured: dict[str, Measured],
    correlations: dict[tuple[str, str], list[float | None]],
    matrices: dict[str, np.ndarray],
) -> list[Claim]:
    r = {key: None if None in values else mean(v or 0.0 for v in values) for key, values in correlations.items()}
    gains = {s: mean(_at(measured[s], 0.1)) - mean(_at(measured[s], 0.0)) for s in SIGNALS}
    spread = {s: float(np.nanstd(matrix)) for s, matrix in matrices.items()}
    claims = [
        Claim("weak pollution: the search follows α more closely than test images do", _above(*_both(r, WEAK))),
        Claim("at α = 0.1 the search has risen by more than the test error", gains["escape"] > gains["error"]),
        Claim("pairs of classes differ more in escape rate than in test error", spread["escape"] > spread["error"]),
    ]
    found, seen = _both(r, STRONG)
    if found is not None and seen is not None:
        close = abs(found - seen) < 0.1
        claims.append(Claim("strong pollution: both follow it about as closely, less than 0.1 apart", close))
    return claims


def _both(r: dict[tuple[str, str], float | None], stage: str) -> tuple[float | None, float | None]:
    """Correlations of the search and of test images."""
    return r[stage, "escape"], r[stage, "error"]


def _above(one: float | None, other: float | None) -> bool | None:
    """None where one of them is undefined: a signal that never changes has no correlation."""
    return None if one is None or other is None else one > other


def _lines(lab: Lab, measured: dict[str, Measured]) -> tuple[Path, str]:
    """Fig. 15."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for (signal, words), style in zip(SIGNALS.items(), ("-", "--"), strict=True):
        pairs = dict.fromkeys(pair for pair, _ in measured[signal])
        for pair, color in zip(pairs, common.COLORS, strict=False):
            points = sorted((a, 100 * v) for (own, a), v in measured[signal].items() if own == pair)
            label = f"{pair}: {words}"
            axes.plot(*zip(*points, strict=True), style, color=color, marker="o", markersize=3, label=label)
    axes.set(xlabel="α, share of labels mixed", ylabel="%")
    axes.set_xscale("symlog", linthresh=0.01)
    alphas = sorted({a for _, a in measured["escape"]})
    axes.set_xticks(alphas, [f"{a:g}" for a in alphas], minor=False)
    axes.legend(fontsize=6)
    return common.save(lab, figure, "pollution"), "what a targeted search and test images say of mixed labels"


def _heatmaps(lab: Lab, matrices: dict[str, np.ndarray]) -> tuple[Path, str]:
    """Fig. 14."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    titles = {"error": "test images", "escape": "targeted search"}
    for axes, (signal, matrix) in zip(figure.subplots(1, 2), matrices.items(), strict=True):
        image = axes.imshow(100 * matrix, cmap="cividis", vmin=0)
        axes.set(title=titles[signal], xlabel="read as", ylabel="class", xticks=range(10), yticks=range(10))
        figure.colorbar(image, ax=axes, label="%")
    return common.save(lab, figure, "matrices"), "share of each class that the unpolluted SUT reads as each other one"


STUDY = Study(
    name="sinvad-pollution",
    shows="how early a targeted search notices mixed labels",
    source="SINVAD, Fig. 14 and 15",
    cost={"smoke": "15 seconds", "laptop": "25 minutes, of which 15 for polluted SUTs", "paper": "a day"},
    run=run,
)
