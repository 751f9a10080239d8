"""ARGUS, Tab. 2: how much a SUT gains when it is trained on mixtures that it got wrong."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lsgen.analysis import retrain
from lsgen.analysis.statistics import holm, welch
from lsgen.studies import common
from lsgen.studies.argus_similarity import SHARES, SHORT, mix, vqvae
from lsgen.studies.base import Claim, Findings, Lab, Row, Study, repeated

# Tab. 2: accuracy before, with 1,000 real images more, and with 1,000 mixtures of each λ
PUBLISHED = {"lenet5": (0.9812, 0.9821, 0.9843, 0.9928, 0.9918), "resnet18": (0.8524, 0.8572, 0.8629, 0.8746, 0.8802)}
ADDED = 1000
LEVEL = 0.05  # of tests
NOTHING, REAL, FAILURES = "none", "real", "failures"  # what `lsgen retrain` calls them
Repairs = dict[float, dict[str, Any]]  # what it wrote, by λ


def run(lab: Lab) -> Findings:
    """Mixtures of validation images at each λ, then a repair with those that fail, and its controls."""
    networks = {"lenet5": "mnist"} | lab.pick(smoke={}, laptop={}, paper={"resnet18": "cifar10"})
    found, done = Findings(rows=[]), {}
    for network, data in networks.items():
        shares = lab.pick(smoke=SHARES[-1:], laptop=SHARES, paper=SHARES)
        repairs = done[network] = {share: _repair(lab, data, network, share) for share in shares}
        found.rows += _rows(f"{data} {network}", repairs, PUBLISHED[network])
        found.claims += _claims(f"{data} {network}", repairs)
        found.figures.append(_picture(lab, network, repairs))
    found.reduced = lab.pick(
        smoke=["one λ, 1 epoch, 40 images a class"],
        laptop=["5 epochs in place of 10", "MNIST only", SHORT],
        paper=["no ImageNet"],
    )
    found.remarks = [
        f"A difference is told where it is more than chance over repeats: Welch's test, Holm, p < {LEVEL}.",
        "Extra real images are validation images. The paper takes them out of its test set.",
        "There is no control with random samples: a VQ-VAE has no prior to draw them from.",
        "Training on with nothing added is a control that the paper lacks: what it gains, no added image explains.",
        "Originals are validation images here and training images in the paper. Where a suite has fewer failures than "
        f"{ADDED:,} that can be matched with real images of their class, all variants get as many as it has.",
        *(line for network, repairs in done.items() for line in _closed(network, repairs)),
    ]
    return found


def _repair(lab: Lab, data: str, network: str, share: float) -> dict[str, Any]:
    """Searches, runs ``lsgen retrain``, and gives what that wrote."""
    per_class, others = lab.pick(smoke=(2, 1), laptop=(100, 2), paper=(100, 10))
    settings = [f"--model.seeds.per_class={per_class}", f"--model.seeds.others_per_class={others}"]
    settings += ["--model.seeds.split=val", *lab.pick(smoke=["--data.limit_per_class=40"], laptop=[], paper=[])]
    suite = mix(lab, f"{network}-{share}-val", data, network, vqvae(lab, data, share), share, *settings)
    epochs, repeats = lab.pick(smoke=(1, 1), laptop=(5, 3), paper=(10, 3))
    out = lab.out / "repairs" / f"{network}-{share}"
    args = [str(suite.path), "--out", str(out), "--epochs", str(epochs), "--repeats", str(repeats)]
    out.parent.mkdir(exist_ok=True)
    retrain.main(args)
    lab.commands.append(shlex.join(["lsgen", "retrain", *args]))
    written: dict[str, Any] = json.loads((out / "retrain.json").read_text(encoding="utf-8"))
    return written


def _rows(case: str, repairs: Repairs, published: tuple[float, ...]) -> list[Row]:
    before, real, *mixed = published
    rows = [Row(case, "accuracy before", next(iter(repairs.values()))["before"]["accuracy"], before, unit="%")]
    for share, repair in repairs.items():
        figures = {FAILURES: mixed[SHARES.index(share)], REAL: real}
        for variant, runs in repair["runs"].items():
            name = f"{case}, λ = {share}, {retrain.VARIANTS[variant]} added"
            accuracies = [one["accuracy"] for one in runs]
            rows.append(repeated(name, "accuracy after", accuracies, figures.get(variant), "%"))
            fresh = [one.get("fresh_failure_rate") for one in runs]
            rows.append(repeated(name, "failure rate of a fresh search", fresh, unit="%"))
        added = sum(repair["settings"]["per_class"])
        rows.append(Row(f"{case}, λ = {share}", "images added", added, ADDED))
    return rows


def _claims(case: str, repairs: Repairs) -> list[Claim]:
    claims = []
    for share, repair in repairs.items():
        claims += [
            Claim(
                f"{case}: mixtures of λ = {share} raise accuracy more than training on with nothing added",
                _more(repair, NOTHING),
            ),
            Claim(f"{case}: by more than as many real images do (λ = {share})", _more(repair, REAL)),
        ]
    if len(repairs) > 1:
        least, *others = ([run["ica"] for run in repairs[share]["runs"][FAILURES]] for share in sorted(repairs))
        tests = [welch(gains, least) for gains in others]
        told = [_sure(t.difference.estimate, p) for t, p in zip(tests, holm(t.p_value for t in tests), strict=True)]
        holds = False if False in told else None if None in told else True
        claims.append(Claim(f"{case}: mixtures of the smallest λ raise it least", holds))
    return claims


def _more(repair: dict[str, Any], control: str) -> bool | None:
    """Whether failures raise accuracy more than a control does."""
    test = _against(repair, "ica", control)
    return _sure(test["difference"]["estimate"], test["p_holm"])


def _against(repair: dict[str, Any], measure: str, control: str) -> dict[str, Any]:
    """The test of failures against a control."""
    return next(c for c in repair["comparisons"] if (c["measure"], c["control"]) == (measure, control))


def _closed(network: str, repairs: Repairs) -> Iterator[str]:
    """Whether mixtures of other images fail less often after the repair, λ by λ; the paper does not ask."""
    for share, repair in repairs.items():
        for control in (NOTHING, REAL):
            test = _against(repair, "fresh_failure_rate", control)
            difference, p = test["difference"]["estimate"], test["p_holm"]
            if difference is not None and p is not None:
                yield (
                    f"{network}, λ = {share}: with failures added, the failure rate of a fresh search is "
                    f"{100 * difference:+.2f} points from that with {retrain.VARIANTS[control]} added (p = {p:.3f})."
                )


def _sure(difference: float | None, p: float | None) -> bool | None:
    """Whether a difference is above zero; None where it may be chance, or there is one repeat."""
    return None if difference is None or p is None or p >= LEVEL else difference > 0


def _picture(lab: Lab, network: str, repairs: Repairs) -> tuple[Path, str]:
    """ICA of each variant against λ."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    variants = next(iter(repairs.values()))["runs"]
    for i, (variant, color, marker) in enumerate(zip(variants, common.COLORS, "osD^", strict=False)):
        means = [repair["mean"][variant]["ica"] for repair in repairs.values()]
        axes.errorbar(
            [share + 0.004 * (i - 1) for share in repairs],  # side by side, not one over the other
            [100 * mean["mean"] for mean in means],
            yerr=[100 * (mean["half"] or 0.0) for mean in means],
            color=color, marker=marker, capsize=3, label=f"{retrain.VARIANTS[variant]} added",
        )  # fmt: skip
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="λ of the mixtures", ylabel="ICA, percentage points", xticks=list(repairs))
    axes.legend()
    what = f"{network}: accuracy gained on test images by what was added, with 95 % intervals over repeats"
    return common.save(lab, figure, f"gains_{network}"), what


STUDY = Study(
    name="argus-retrain",
    shows="accuracy gained by training on mixtures that failed, with controls",
    source="ARGUS, Tab. 2",
    cost={"smoke": "15 seconds", "laptop": "20 minutes", "paper": "a week"},
    run=run,
)
