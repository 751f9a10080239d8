"""Dunn et al., Tab. 3: whether tests from a generator's activations fail SUTs that resist changes of pixels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lsgen.metrics.functional import CONFIDENT
from lsgen.studies import common
from lsgen.studies.base import Claim, Findings, Lab, Row, Study
from lsgen.studies.speth_faults import cvae

if TYPE_CHECKING:
    from lsgen.suite import Suite
    from lsgen.suts import SUT

KINDS = {"pixel": "pixel tests", "latent": "latent tests"}
ROBUST = {"robust_l2": "L2", "robust_linf": "fast L∞"}
# Tab. 3: accuracy of the robust SUTs on pixel and on latent tests; CNN and robust SUTs share an architecture, as there
PUBLISHED = {
    "cnn": {"robust_l2": (0.36, 0.25), "robust_linf": (0.32, 0.22)},
    "spinalnet": {"robust_l2": (0.56, 0.27), "robust_linf": (0.53, 0.24)},
}
WITHIN = {"robust_l2": 0.35, "robust_linf": 0.31}  # Sec. 4.3.2: their accuracy inside the ball they were trained for
BALLS = {"robust_l2": ("l2", 1.5), "robust_linf": ("linf", 0.3)}
STEPS, SHOWN = 40, 10
# tests in which the target leads by a margin (Def. 3.6)
CONFIDENTLY = (
    "--model.criterion=Confident",
    f"--model.criterion.margin={CONFIDENT}",
    "--model.criterion.targeted=true",
)


def run(lab: Lab) -> Findings:
    """Confident targeted tests of both kinds for each ordinary SUT, shown to both robust ones."""
    from lsgen import suts

    found = Findings(rows=[])
    names = tuple(PUBLISHED)[: lab.pick(smoke=1, laptop=2, paper=2)]
    ordinary = {name: common.classifier(lab, network=name) for name in names}
    files = {name: _robust(lab, name) for name in ROBUST}
    robust = {name: suts.pretrained(file) for name, file in files.items()}
    generator = perturbable(lab)
    for name, file in files.items():
        found.rows += _robustness(lab, name, file, robust[name])
    for name, file in ordinary.items():
        suites = {kind: _tests(lab, name, kind, file, generator) for kind in KINDS}
        _transfer(found, name, suites, suts.pretrained(file), robust)
        found.figures += pictures(lab, f"tests_{name}", suites, f"confident targeted tests for {name}")
    found.reduced = lab.pick(
        smoke=["one ordinary SUT", "90 tests", "LeNet-5s and a CVAE on embedded digits"],
        laptop=["180 tests of each kind", "digits, small CNNs and a small GAN in place of ImageNet and BigGAN"],
        paper=["digits, small CNNs and a small GAN in place of ImageNet and BigGAN"],
    )
    found.remarks = [
        f"Tests count that the attacked SUT reads as their target by a margin above {CONFIDENT}, from seeds that "
        "it read rightly. The paper gives no margin.",
        "Pixel tests change test images by at most 0.3 in each pixel; latent tests start at samples of the generator. "
        "How well the robust SUTs read these seeds unchanged is in the table: the rest is what the change did.",
        "A latent walk may turn a digit into the one it aims at. Such a test fails every SUT, robust or not, and is no "
        "fault of theirs: look at the pictures before you read the table.",
    ]
    return found


def perturbable(lab: Lab) -> Path:
    """Checkpoint of a generator whose activations can be changed: Dunn's kind of GAN, at ``smoke`` a CVAE."""
    return cvae(lab) if lab.scale == "smoke" else lab.model("mnist/gan_resnet")


def _robust(lab: Lab, name: str) -> Path:
    return lab.model(f"mnist/{name}", smoke=[*common.SMALL, "--model.network=lenet5"])


def _tests(lab: Lab, name: str, kind: str, sut: Path, generator: Path) -> Suite:
    """Tests of one kind for one SUT, from every class to every other."""
    if kind == "pixel":
        config, own = "mnist/search/pixel_pgd", [f"--model.searcher.steps={STEPS}", "--model.searcher.step_size=0.02"]
        own += ["--model.searcher.radius=0.3", "--model.searcher.early_stop=true"]
    else:
        config, own = "mnist/search/perturbation", [f"--model.generator.path={generator}", walk_length(lab)]
    return lab.search(
        f"{name}-{kind}",
        config,
        *own,
        *CONFIDENTLY,
        f"--model.sut.path={sut}",
        f"--data.name={lab.data()}",
        "--model.seeds.target=each",
        f"--model.seeds.per_class={lab.pick(smoke=1, laptop=2, paper=20)}",
    )


def walk_length(lab: Lab) -> str:
    """Most steps of a latent search, as an argument."""
    return f"--model.searcher.steps={lab.pick(smoke=30, laptop=200, paper=200)}"


def _robustness(lab: Lab, name: str, file: Path, sut: SUT) -> list[Row]:
    """Accuracy of a robust SUT, on test images and on the worst of the ball around some of them."""
    from lsgen.data import ImageData
    from lsgen.suts.base import accuracy

    norm, radius = BALLS[name]
    suite = lab.search(
        f"{name}-own",
        "mnist/search/pixel_pgd",
        f"--model.sut.path={file}",
        f"--data.name={lab.data()}",
        f"--model.searcher.norm={norm}",
        f"--model.searcher.radius={radius}",
        f"--model.searcher.step_size={2.5 * radius / STEPS}",
        f"--model.searcher.steps={STEPS}",
        f"--model.seeds.per_class={lab.pick(smoke=2, laptop=20, paper=100)}",
    )
    test, case = ImageData(name=lab.data())["test"], f"{ROBUST[name]}-robust SUT"
    return [
        Row(case, "accuracy on test images", accuracy(sut, test.images, test.labels), unit="%"),
        Row(case, f"accuracy within {norm} {radius}", 1 - float(suite.table["failed"].mean()), WITHIN[name], unit="%"),
    ]


def _transfer(found: Findings, name: str, suites: dict[str, Suite], own: SUT, robust: dict[str, SUT]) -> None:
    """Adds the accuracies of the robust SUTs on the tests for one ordinary SUT."""
    accuracies = {}
    for column, (kind, suite) in enumerate(suites.items()):
        case, chosen = f"{KINDS[kind]} for {name}", confident_tests(suite)
        right = int((suite.table["seed_predicted"] == suite.table["label"]).sum())
        found.rows += [
            Row(case, "searches that end in a confident test", len(chosen) / max(right, 1), unit="%"),
            Row(case, "accuracy of the SUT they are for", _on_tests(own, suite, chosen), unit="%"),
        ]
        for key, sut in robust.items():
            accuracies[key, kind] = _on_tests(sut, suite, chosen)
            published, shown_to = PUBLISHED[name][key][column], f"{case}, {ROBUST[key]}-robust SUT"
            found.rows += [
                Row(shown_to, "accuracy, 1 − transfer rate", accuracies[key, kind], published, unit="%"),
                Row(shown_to, "accuracy on their seeds", _on_seeds(sut, suite, chosen), unit="%"),
            ]
    for key in robust:
        pixel, latent = (accuracies[key, kind] for kind in KINDS)
        holds = pixel is not None and latent is not None and latent < pixel
        text = f"{name}: latent tests transfer to the {ROBUST[key]}-robust SUT more often than pixel tests"
        found.claims.append(Claim(text, holds))


def confident_tests(suite: Suite) -> list[int]:
    """Rows of the cases that succeeded and whose seed the SUT read rightly."""
    table = suite.table
    return [int(row) for row in table.index[table["success"] & (table["seed_predicted"] == table["label"])]]


def _on_tests(sut: SUT, suite: Suite, rows: list[int]) -> float | None:
    """Share of some tests that a SUT reads as their label, as ``lsgen replay`` sees it; None of none."""
    from lsgen.analysis.replay import replay

    if not rows:
        return None
    again = replay(suite, sut, "")
    return 1 - float(again.failing[again.table["id"].isin(suite.table["id"].iloc[rows])].mean())


def _on_seeds(sut: SUT, suite: Suite, rows: list[int]) -> float | None:
    """The same for the unchanged seeds of these tests."""
    import torch

    from lsgen.suts.base import accuracy

    labels = torch.tensor(suite.table["label"].to_numpy(int)[rows])
    return accuracy(sut, torch.from_numpy(suite.array("seed_image")[rows]), labels) if rows else None


def pictures(lab: Lab, file: str, suites: dict[str, Suite], caption: str) -> list[tuple[Path, str]]:
    """Seeds of each suite and the confident tests that grew out of them, as one picture; none where there are none."""
    rows: dict[str, common.Images] = {}
    for name, suite in suites.items():
        chosen = confident_tests(suite)
        some = chosen[:: max(1, len(chosen) // SHOWN)][:SHOWN]  # spread over the suite
        rows |= {f"{name}: seeds": suite.array("seed_image")[some], f"{name}: tests": suite.images[some]}
    return [(common.gallery(lab, file, rows), caption)] if any(map(len, rows.values())) else []


STUDY = Study(
    name="dunn-transfer",
    shows="whether latent tests fail SUTs that resist changes of pixels",
    source="Dunn et al., Tab. 3",
    cost={"smoke": "15 seconds", "laptop": "5 minutes", "paper": "5 hours"},
    run=run,
)
