"""Speth et al., Tab. II and IV: latent PGD against random sampling of the same latent space, overall and per class."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from lsgen.studies.base import Claim, Findings, Lab, Row, Study, repeated
from lsgen.suite import Suite

SUTS = {"mnist": ("sut_cnn", "sut_spinalnet"), "gtsrb32": ("sut_cnn", "sut_stn")}
# Tab. IV: failure rate and mean true-class probability, of random sampling and of PGD
PUBLISHED = {
    ("mnist", "sut_cnn"): (0.0021, 0.9977, 0.1473, 0.8387),
    ("mnist", "sut_spinalnet"): (0.0032, 0.9960, 0.2386, 0.7457),
    ("gtsrb32", "sut_cnn"): (0.0778, 0.9096, 0.7587, 0.2439),
    ("gtsrb32", "sut_stn"): (0.0174, 0.9807, 0.4417, 0.5577),
}
# Tab. II: failure rate and mean true-class probability of PGD for each class of GTSRB, in percent
GTSRB_CLASSES = (
    *(99.7, 84.9, 88.6, 94.3, 90.8, 94.2, 95.7, 94.7, 98.4, 41.8, 35.6, 70.5, 26.3, 32.4, 15.8, 98.1, 54.4, 2.6, 93.2),
    *(99.6, 94.5, 99.7, 73.9, 99.7, 99.8, 46.0, 98.7, 98.9, 91.4, 99.9, 99.7, 97.4, 99.6, 52.2, 54.6, 60.0, 83.9, 56.8),
    *(42.3, 49.3, 86.3, 97.0, 67.0),
)
GTSRB_P_TRUE = (
    *(0.3, 16.5, 12.9, 7.0, 9.6, 7.4, 5.7, 6.0, 2.1, 56.6, 63.9, 30.6, 72.0, 64.8, 82.4, 2.4, 45.4, 96.8, 8.9, 0.7),
    *(6.1, 0.9, 26.4, 0.8, 0.5, 52.6, 2.1, 1.9, 9.8, 0.4, 0.7, 3.2, 1.1, 47.2, 44.0, 39.7, 17.7, 44.1, 56.5, 49.8),
    *(14.4, 3.8, 32.7),
)
IN_TABLE_2 = ("gtsrb32", "sut_cnn")
METRICS = {"failure_rate": "failure rate", "mean_p_true": "mean probability of the true class"}


def run(lab: Lab) -> Findings:
    """Both methods on each SUT, uniform and normal seeds, over repeats."""
    found, factors = Findings(rows=[]), {}
    for data in lab.pick(smoke=("mnist",), laptop=("mnist", "gtsrb32"), paper=("mnist", "gtsrb32")):
        for sut in SUTS[data][: lab.pick(smoke=1, laptop=2, paper=2)]:
            factors[data, sut] = _one_sut(lab, found, data, sut)
    signs = "GTSRB at 32×32 in place of 64×64"
    found.reduced = lab.pick(
        smoke=["2 PGD cases a class in place of 2,000", "embedded digits"],
        laptop=[
            "200 (mnist) or 12 (gtsrb32) PGD cases a class in place of 2,000",
            "200 random ones on gtsrb32",
            "3 repeats in place of 9",
            signs,
        ],
        paper=[signs],
    )
    if lab.scale != "smoke":
        known = {key: factor for key, factor in factors.items() if factor is not None}
        gains = {data: [factor for (of, _), factor in known.items() if of == data] for data in SUTS}
        larger = min(gains["mnist"]) > max(gains["gtsrb32"]) if len(known) == len(factors) else None
        found.claims.append(
            Claim(
                "the gain over random sampling is larger on MNIST, whose SUTs are better trained, than on GTSRB", larger
            )
        )
    return found


def _one_sut(lab: Lab, found: Findings, data: str, sut: str) -> float | None:
    """Adds the rows of one SUT; gives how many times as often PGD with uniform seeds fails it, None for never."""
    rates: dict[tuple[str, str], float] = {}
    for seeds in ("uniform", "normal"):
        for i, method in enumerate(("random", "pgd")):
            suites = [
                _search(lab, data, sut, method, seeds, seed) for seed in range(lab.pick(smoke=1, laptop=3, paper=9))
            ]
            for j, (key, words) in enumerate(METRICS.items()):
                published = PUBLISHED[data, sut][2 * i + j] if seeds == "uniform" else None
                values = [s.summary[key] for s in suites]
                found.rows.append(repeated(f"{data} {sut}, {method}, {seeds}", words, values, published, "%"))
            rates[method, seeds] = mean(s.summary["failure_rate"] for s in suites)
            if (method, seeds) == ("pgd", "uniform"):
                found.figures.append(_per_class(lab, data, sut, suites))
                found.rows += _agreement(data, sut, suites)
    pgd, random = rates["pgd", "uniform"], rates["random", "uniform"]
    factor = pgd / random if random else None  # of nothing, no number of times is more
    by_paper = PUBLISHED[data, sut][2] / PUBLISHED[data, sut][0]
    found.rows.append(Row(f"{data} {sut}, PGD over random, uniform", "factor", factor, by_paper))
    found.claims += [
        Claim(f"{data} {sut}: PGD fails the SUT more often than random sampling", pgd > random),
        Claim(
            f"{data} {sut}: normal seeds fail more often than uniform ones",
            rates["pgd", "normal"] > rates["pgd", "uniform"] and rates["random", "normal"] > rates["random", "uniform"],
        ),
    ]
    return factor


def _search(lab: Lab, data: str, sut: str, method: str, seeds: str, seed: int) -> Suite:
    few = {"mnist": 200, "gtsrb32": 12}[data]
    per_class = lab.pick(smoke=2, laptop=few if method == "pgd" else {"mnist": 2000, "gtsrb32": 200}[data], paper=2000)
    generator, judge = models(lab, data, sut)
    return lab.search(
        f"{data}-{sut}-{method}-{seeds}-{seed}",
        f"{lab.data(data)}/search/{method}",
        f"--model.generator.path={generator}",
        f"--model.sut.path={judge}",
        f"--model.seeds.per_class={per_class}",
        f"--model.seeds.distribution={seeds}",
        f"--seed_everything={seed}",
    )


def models(lab: Lab, data: str, sut: str = "sut_cnn") -> tuple[Path, Path]:
    """Checkpoints of the CVAE and of a SUT of a data set."""
    smoke = lab.scale == "smoke"
    judge = lab.model("mnist5k/sut" if smoke else f"{data}/{sut}")  # first: it also judges the CVAE's samples
    return lab.model("mnist5k/cvae" if smoke else f"{data}/cvae", smoke=["--model.width=4"]), judge


def _per_class(lab: Lab, data: str, sut: str, suites: list[Suite]) -> tuple[Path, str]:
    """A picture of Tab. II: the failure rate of each class."""
    from matplotlib.figure import Figure

    rates = _of_classes(suites, "failure_rate")
    figure = Figure(figsize=(max(5, 0.25 * len(rates)), 2.6), layout="constrained")
    axes = figure.subplots()
    axes.bar(range(len(rates)), [100 * r for r in rates], color="#0072b2", label="measured")
    if (data, sut) == IN_TABLE_2:
        axes.scatter(range(len(rates)), GTSRB_CLASSES, color="#d55e00", marker="_", label="published", zorder=3)
        figure.legend(loc="outside right upper")
    axes.set(xlabel="class", ylabel="failure rate, %", ylim=(0, 105), xticks=range(len(rates)))
    axes.tick_params("x", labelsize=7)
    file = lab.out / f"per_class_{data}_{sut}.png"
    figure.savefig(file, dpi=130)
    return file, f"{data} {sut}: failure rate of latent PGD by class"


def _of_classes(suites: list[Suite], key: str) -> list[float]:
    """A number of each class, in the mean over repeats."""
    tables = [s.summary["per_class"] for s in suites]
    return [mean(t[k][key] or 0.0 for t in tables) for k in tables[0]]


def _agreement(data: str, sut: str, suites: list[Suite]) -> list[Row]:
    """Tab. II where it was published: every class, and how alike the order of the classes is."""
    from scipy.stats import spearmanr

    if (data, sut) != IN_TABLE_2:
        return []
    case, rows = f"{data} {sut}, PGD, uniform", []
    for (key, words), published in zip(METRICS.items(), (GTSRB_CLASSES, GTSRB_P_TRUE), strict=True):
        measured = _of_classes(suites, key)
        rank = float(spearmanr(measured, published).statistic)
        rows.append(Row(case, f"rank correlation with Tab. II, by class: {words}", rank))
        rows += [
            Row(f"{case}, class {k}", words, value, figure / 100, unit="%")
            for k, (value, figure) in enumerate(zip(measured, published, strict=True))
        ]
    return rows


STUDY = Study(
    name="speth-baseline",
    shows="latent PGD against random sampling, overall and per class",
    source="Speth et al., Tab. II and IV",
    cost={"smoke": "half a minute", "laptop": "20 minutes", "paper": "a day"},
    run=run,
)
