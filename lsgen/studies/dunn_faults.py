"""Dunn et al., Tab. 2 and Fig. 2: whether tests show what irrelevant feature a SUT tells two classes apart by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from lsgen.studies import common
from lsgen.studies.base import Claim, Findings, Lab, Row, Study, repeated
from lsgen.studies.dunn_transfer import CONFIDENTLY, confident_tests, perturbable, pictures, walk_length
from lsgen.studies.speth_faults import cvae, faulty, sound

if TYPE_CHECKING:
    from lsgen.data.faults import BiasedPair
    from lsgen.suite import Suite
    from lsgen.suts import SUT

PAIR = (4, 9)
# Tab. 2: share of tests that show each of eight faults, from the first class to the second and back
PUBLISHED = ((68, 36), (67, 73), (48, 32), (21, 9), (15, 16), (94, 88), (25, 34), (69, 11))
EPSILON = {"pixel_l2": 1.5, "pixel_linf": 0.3}  # what changes of pixels are held below on digits
NORMS = {"pixel_l2": "L2", "pixel_linf": "L∞"}
SUTS = ("biased", "ordinary")
NOTICED = 0.1  # of what the two classes of the hold-out along the bias differ by in the feature


@dataclass(frozen=True)
class Bias:
    """A feature that 4 and 9 are told apart by.

    Attributes:
        config: The SUT with this fault.
        feature: Arguments that make it another feature than the configuration's.
        like: Row of Tab. 2 with a feature of the same kind.
    """

    config: str
    feature: tuple[str, ...] = ()
    like: int | None = None

    @property
    def painted(self) -> bool:
        """Whether digits lack it by nature, so that a generator must be shown it."""
        return self.config != "mnist/faults/slant"


BIASES = {
    "corner": Bias("mnist/faults/corner", ("--data.fault.feature=CornerPatch",)),
    "slant": Bias("mnist/faults/slant", like=3),  # rising or falling
    "frame": Bias("mnist/faults/corner", ("--data.fault.feature=Frame",)),
    "ground": Bias("mnist/faults/corner", ("--data.fault.feature=Background", "--data.fault.feature.colour=[0.3]"), 0),
}


def run(lab: Lab) -> Findings:
    """Each bias: hold-outs, then tests for the biased SUT and for one without the fault."""
    chosen = lab.pick(smoke=("corner",), laptop=("corner", "slant"), paper=tuple(BIASES))
    found = Findings(rows=[])
    shares = [_one_bias(lab, found, name) for name in chosen]
    published = np.mean(PUBLISHED, axis=0) / 100
    for i, way in enumerate(_ways()):
        values = [both[i] for both in shares]
        found.rows.append(repeated(f"all biases, {way}", "tests that show the fault", values, float(published[i]), "%"))
    found.reduced = lab.pick(
        smoke=["one bias, 10 tests each way", "a LeNet-5 and a CVAE on embedded digits"],
        laptop=["2 biases of digits in place of 8 of ImageNet", "a LeNet-5", "a CVAE in place of a GAN for the corner"],
        paper=["4 biases of digits in place of 8 of ImageNet"],
    )
    found.remarks = [
        "Published features are of photos, judged by eye. Here a test shows the fault if the feature itself moved "
        f"towards the target by more than {NOTICED:.0%} of what sets the two classes of the hold-out apart.",
        "Slant stands beside the published slope of pens and screwdrivers, ground beside snow and grass; a mean over "
        "all eight faults is in the last rows.",
        "The usual ε are those of MNIST, L2 1.5 and L∞ 0.3; the paper's, of ImageNet, are 3 and 16/255.",
        "The ordinary SUT is a control: what its tests do to the feature, the generator and the classes bring about.",
    ]
    return found


def _ways() -> tuple[str, str]:
    first, second = PAIR
    return f"{first} → {second}", f"{second} → {first}"


def _one_bias(lab: Lab, found: Findings, name: str) -> tuple[float | None, float | None]:
    """Adds what was found of one bias; gives the shares of tests that show it, both ways."""
    from lsgen import suts
    from lsgen.data.faults import from_description

    bias = BIASES[name]
    files = {"biased": faulty(lab, bias.config, f"bias-{name}", *bias.feature), "ordinary": sound(lab)}
    sut = suts.pretrained(files["biased"])
    fault: BiasedPair = from_description(sut.fault or {})  # type: ignore[assignment]
    least = _hold_outs(lab, found, name, fault, sut)
    generator = _generator(lab, name)
    suites = {s: [_search(lab, name, s, files[s], generator, way) for way in (PAIR, PAIR[::-1])] for s in SUTS}
    shares = {s: [_showing(fault, suite, least) for suite in suites[s]] for s in SUTS}
    for s in SUTS:
        for i, way in enumerate(_ways()):
            case = f"{name}, {way}, {s} SUT"
            published = PUBLISHED[bias.like][i] / 100 if bias.like is not None and s == "biased" else None
            found.rows += [
                Row(case, "confident tests", len(confident_tests(suites[s][i]))),
                Row(case, "tests that show the fault", shares[s][i], published, unit="%"),
            ]
        _magnitudes(found, f"{name}, {s} SUT", suites[s])
    told = [mean(v or 0.0 for v in shares[s]) for s in SUTS]
    text = f"{name}: tests show the fault more often than those for an ordinary SUT"
    found.claims.append(Claim(text, told[0] > told[1]))
    found.figures.append(_sizes(lab, name, suites))
    for s in SUTS:  # Tab. 1; for the ordinary SUT, Fig. 1
        both = dict(zip(_ways(), suites[s], strict=True))
        found.figures += pictures(lab, f"tests_{name}_{s}", both, f"{name}: confident tests for the {s} SUT")
    return shares["biased"][0], shares["biased"][1]


def _generator(lab: Lab, name: str) -> Path:
    """Checkpoint of a generator that knows the feature: trained on digits with it where it is painted in."""
    if not BIASES[name].painted:
        return perturbable(lab)
    knows = ["--data.fault=BiasedPair", f"--data.fault.pair={list(PAIR)}", *BIASES[name].feature]
    knows.append("--data.fault.relabel=false")
    if lab.scale == "paper":
        return lab.model("mnist/gan_resnet", name=f"gan-{name}", more=knows)
    knows += lab.pick(smoke=[], laptop=["--trainer.max_epochs=5"], paper=[])
    return cvae(lab, common.DIGITS, f"cvae-{name}", *knows)


def _hold_outs(lab: Lab, found: Findings, name: str, fault: BiasedPair, sut: SUT) -> float:
    """Adds accuracies along and against the bias; gives what change of the feature is to count."""
    from lsgen.data import ImageData
    from lsgen.suts.base import accuracy
    from lsgen.types import from_uint8, to_uint8

    test = ImageData(name=lab.data())["test"]
    rows = fault.in_pair(test.labels)
    groups = fault.groups(from_uint8(test.images[rows]), test.labels[rows])
    scores = {group: accuracy(sut, to_uint8(x), y) for group, (x, y) in groups.items()}
    for group, value in scores.items():
        found.rows.append(Row(f"{name}, hold-out", f"accuracy {group.replace('_', ' ')}", value, unit="%"))
    along, against = scores.values()
    text = f"{name}: the SUT learnt the bias: it is right along it and wrong against it"
    found.claims.append(Claim(text, along > 0.5 > against))
    x, y = groups["along_the_bias"]
    amount = fault.feature.measure(x)
    return NOTICED * float(amount[y == PAIR[1]].mean() - amount[y == PAIR[0]].mean())


def _search(lab: Lab, name: str, which: str, sut: Path, generator: Path, way: tuple[int, int]) -> Suite:
    own, other = way
    return lab.search(
        f"{name}-{which}-{own}{other}",
        "mnist/search/perturbation",
        f"--model.generator.path={generator}",
        f"--model.sut.path={sut}",
        f"--data.name={lab.data()}",
        f"--model.seeds.classes=[{own}]",
        f"--model.seeds.target={other}",
        f"--model.seeds.per_class={lab.pick(smoke=10, laptop=100, paper=200)}",
        walk_length(lab),
        *CONFIDENTLY,
    )


def _showing(fault: BiasedPair, suite: Suite, least: float) -> float | None:
    """Share of the confident tests in which the feature moved towards the target."""
    import torch

    from lsgen.analysis.faults import moved_towards

    rows = confident_tests(suite)
    before, after = (torch.from_numpy(suite.array(which)[rows]) for which in ("seed_image", "image"))
    target = torch.tensor(suite.table["target"].to_numpy(int)[rows]) == PAIR[1]
    return moved_towards(fault.feature, before, after, target, least).double().mean().item() if rows else None


def _magnitudes(found: Findings, case: str, suites: list[Suite]) -> None:
    """Adds the sizes of changes in pixels, and how many lie beyond what attacks on pixels may do."""
    for column, epsilon in EPSILON.items():
        sizes, norm = _column(suites, column), NORMS[column]
        if len(sizes):
            found.rows += [
                Row(case, f"median {norm} change of pixels", float(np.median(sizes))),
                Row(case, f"tests beyond {norm} {epsilon}", float((sizes > epsilon).mean()), 1.0, unit="%"),
            ]


def _column(suites: list[Suite], name: str) -> np.ndarray:
    """A column of the confident tests of some suites."""
    return np.concatenate([suite.table[name].to_numpy(float)[confident_tests(suite)] for suite in suites])


def _sizes(lab: Lab, name: str, suites: dict[str, list[Suite]]) -> tuple[Path, str]:
    """Fig. 2."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.8), layout="constrained")
    for axes, (column, epsilon) in zip(figure.subplots(1, 2), EPSILON.items(), strict=True):
        sizes = {s: _column(suites[s], column) for s in SUTS}
        bins = np.linspace(0, max((x.max() for x in sizes.values() if len(x)), default=1.0), 25)
        for (s, values), color in zip(sizes.items(), common.COLORS, strict=False):
            axes.hist(values, bins=list(bins), color=color, alpha=0.6, label=f"{s} SUT")
        axes.axvline(epsilon, color="black", linestyle="--", label="usual ε")
        axes.set(xlabel=f"{NORMS[column]} change of pixels", ylabel="tests")
    figure.axes[0].legend(fontsize=7)
    return common.save(lab, figure, f"sizes_{name}"), f"{name}: how far confident tests lie from their seeds"


STUDY = Study(
    name="dunn-faults",
    shows="whether tests show the irrelevant feature that a SUT relies on",
    source="Dunn et al., Tab. 2 and Fig. 2",
    cost={"smoke": "15 seconds", "laptop": "10 minutes, of which 5 for models", "paper": "a day"},
    run=run,
)
