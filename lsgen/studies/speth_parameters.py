"""Speth et al., Tab. III and V: how attack strength ε, iterations n and sample range s shape latent PGD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lsgen.studies import common
from lsgen.studies.base import Claim, Findings, Lab, Row, Study
from lsgen.studies.speth_baseline import METRICS, models

EPSILON = (0.0, 0.25, 0.5, 0.75, 1.0)
STEPS = (0, 10, 20, 30, 40)
SCALE = (0.0, 0.5, 1.0, 1.5, 2.0)
Table = tuple[tuple[float, ...], ...]  # percent, a row for each ε
# failure rates and mean probabilities of the true class; the paper's are of GTSRB and its CNN
PUBLISHED_STEPS: dict[str, Table] = {
    "failure_rate": (
        (8.05, 7.07, 7.90, 7.79, 8.02),
        (7.71, 46.55, 49.07, 48.87, 48.97),
        (7.90, 67.26, 75.93, 77.92, 78.38),
        (7.64, 67.22, 87.50, 91.12, 91.80),
        (7.98, 67.47, 90.88, 95.48, 96.58),
    ),
    "mean_p_true": (
        (90.76, 91.54, 91.04, 90.95, 90.71),
        (90.97, 53.04, 50.49, 50.97, 51.08),
        (90.86, 32.67, 24.32, 22.49, 21.79),
        (91.04, 32.73, 12.88, 9.41, 8.65),
        (90.76, 32.40, 9.43, 4.78, 3.64),
    ),
}
PUBLISHED_SCALE: dict[str, Table] = {
    "failure_rate": (
        (0.00, 2.15, 7.86, 18.10, 32.77),
        (32.56, 38.10, 48.28, 60.79, 71.72),
        (65.12, 68.49, 75.87, 84.06, 89.48),
        (83.72, 83.13, 87.10, 91.91, 95.20),
        (86.05, 87.19, 90.79, 94.74, 96.57),
    ),
    "mean_p_true": (
        (98.73, 96.97, 90.83, 80.43, 65.99),
        (66.38, 61.54, 51.20, 39.17, 28.11),
        (32.91, 31.22, 24.47, 16.22, 10.64),
        (19.64, 17.47, 13.18, 8.50, 5.01),
        (15.35, 13.37, 9.72, 5.49, 3.53),
    ),
}
Summaries = dict[tuple[float, float], dict[str, Any]]  # by ε and n or s
Rates = dict[tuple[float, float], float]


def run(lab: Lab) -> Findings:
    """The two grids; all cells start from the same seeds, which the paper draws anew for each."""
    chosen = lab.pick(smoke=(0.0, 0.5, 1.0), laptop=EPSILON, paper=EPSILON)
    steps = lab.pick(smoke=(0, 10), laptop=STEPS, paper=STEPS)
    scales = lab.pick(smoke=(0.5, 1.0), laptop=SCALE, paper=SCALE)
    by_steps: Summaries = {(e, n): _cell(lab, e, n, 1.0) for e in chosen for n in steps}
    by_scale: Summaries = {
        (e, s): _cell(lab, e, lab.pick(smoke=10, laptop=20, paper=20), s) for e in chosen for s in scales
    }
    of = lab.pick(smoke="GTSRB", laptop="GTSRB", paper="")
    found = Findings(rows=_rows("n", by_steps, STEPS, PUBLISHED_STEPS, of))
    found.rows += _rows("s", by_scale, SCALE, PUBLISHED_SCALE, of)
    rates = [{key: float(one["failure_rate"]) for key, one in grid.items()} for grid in (by_steps, by_scale)]
    found.claims = [*_step_claims(rates[0]), *_scale_claims(rates[1])]
    found.reduced = lab.pick(
        smoke=["2 cases a class, few values"],
        laptop=["50 cases a class in place of 200", "MNIST and its CNN in place of GTSRB"],
        paper=["32×32 pixels in place of 64×64"],
    )
    found.remarks = ["Cells share their seeds, so that cells of n = 0 or ε = 0 are equal: they are random sampling."]
    found.figures = [_picture(lab, *rates)]
    return found


def _cell(lab: Lab, epsilon: float, steps: int, scale: float) -> dict[str, Any]:
    """Summary of one search."""
    data = lab.pick(smoke="mnist", laptop="mnist", paper="gtsrb32")
    generator, sut = models(lab, data)
    suite = lab.search(
        f"e{epsilon}-n{steps}-s{scale}",
        f"{lab.data(data)}/search/pgd",
        f"--model.generator.path={generator}",
        f"--model.sut.path={sut}",
        f"--model.seeds.per_class={lab.pick(smoke=2, laptop=50, paper=200)}",
        f"--model.seeds.scale={scale}",
        f"--model.searcher.radius={epsilon}",
        f"--model.searcher.steps={steps}",
        "--model.eval_batch_size=64",  # one size for all, so that equal cells are equal bit for bit
    )
    return suite.summary


def _rows(name: str, grid: Summaries, values: tuple[float, ...], published: dict[str, Table], of: str) -> list[Row]:
    rows = []
    for key, table in published.items():
        for (e, v), one in grid.items():
            figure = table[EPSILON.index(e)][values.index(v)] / 100
            rows.append(Row(f"ε = {e}, {name} = {v}", METRICS[key], one[key], figure, unit="%", elsewhere=of))
    return rows


def _step_claims(rates: Rates) -> list[Claim]:
    baseline = {r for (e, n), r in rates.items() if e == 0 or n == 0}
    grown = [rates[e, max(n for _, n in rates)] for e in sorted({e for e, _ in rates})]
    return [
        Claim("no strength or no iteration is random sampling: those cells are equal", len(baseline) == 1),
        Claim("the failure rate grows with the attack strength", grown == sorted(grown)),
        Claim(
            "a strength that n steps of 0.05 cannot reach changes nothing: ε = 0.5 and above are equal at n = 10",
            len({r for (e, n), r in rates.items() if n == 10 and e >= 0.5}) == 1,
        ),
    ]


def _scale_claims(rates: Rates) -> list[Claim]:
    by_strength = [[r for (e, s), r in sorted(rates.items()) if e == strength and s >= 0.5] for strength, _ in rates]
    return [
        Claim(
            "the further from the origin seeds are drawn, the higher the failure rate (s from 0.5 on, every ε)",
            all(row == sorted(row) for row in by_strength),
        )
    ]


def _picture(lab: Lab, by_steps: Rates, by_scale: Rates) -> tuple[Path, str]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, rates, label in zip(figure.subplots(1, 2, sharey=True), (by_steps, by_scale), "ns", strict=True):
        for epsilon in sorted({e for e, _ in rates}):
            points = sorted((v, 100 * r) for (e, v), r in rates.items() if e == epsilon)
            axes.plot(*zip(*points, strict=True), marker="o", label=f"ε = {epsilon}")
        axes.set(xlabel={"n": "iterations n (s = 1)", "s": "sample range s (n = 20)"}[label])
    figure.axes[0].set(ylabel="failure rate, %")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    words = "failure rate against iterations and sample range, for each attack strength"
    return common.save(lab, figure, "parameters"), words


STUDY = Study(
    name="speth-parameters",
    shows="what attack strength, iterations and sample range do",
    source="Speth et al., Tab. III and V",
    cost={"smoke": "a minute", "laptop": "10 minutes", "paper": "an hour"},
    run=run,
)
