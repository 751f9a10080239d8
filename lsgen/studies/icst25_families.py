"""ICST25, Tab. II and III: a VAE, a GAN and a diffusion model under one genetic algorithm, at two step sizes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lsgen.studies import common
from lsgen.studies.base import Claim, Findings, Lab, Row, Study

if TYPE_CHECKING:
    import numpy as np

    from lsgen.suite import Suite


class Traits(NamedTuple):
    """A line of Tab. II."""

    latent_size: float
    training: float | None  # minutes, where the checkpoint knows them
    inference: float  # milliseconds for an image


# both tables for MNIST
TABLE_2 = {"VAE": Traits(400, 6, 0.27), "GAN": Traits(100, 9, 0.70), "diffusion": Traits(16384, 405, 960.68)}
TABLE_3 = {  # in the order of METRICS, then what people said: valid inputs, and of these with their label preserved
    ("VAE", "low"): (0.99, 0.0404, 245.41, 0.5, 1.0),
    ("GAN", "low"): (0.99, 0.0808, 242.05, 0.75, 0.8333),
    ("diffusion", "low"): (0.87, 0.5057, 164.61, 0.4545, 0.3),
    ("VAE", "high"): (0.99, 1.0, 62.92, 0.7374, 0.4932),
    ("GAN", "high"): (0.99, 0.9697, 107.46, 0.6979, 0.6269),
    ("diffusion", "high"): (0.87, 1.0, 26.77, 0.4023, 0.3429),
}
OTHERS = ("VAE", "GAN")
METRICS = {  # of a suite's summary: words and unit
    "seed_viability": ("viable seeds", "%"),
    "failure_rate": ("misclassified", "%"),
    "iterations_mean": ("iterations", ""),
}
SMOKE = {
    "GAN": ["--model.width=4"],
    "diffusion": ["--model.channels=[8]", "--model.patch=4", "--model.steps=2"],
}
FEW = {"smoke": [*range(10)], "laptop": [1, 3, 5, 8]}  # classes with a diffusion seed: an image takes 30 network passes
MOST = 500  # queries of such a seed at laptop scale, about 30 generations
LEFT_OUT = {"smoke": [("GAN", "low"), ("diffusion", "low")], "laptop": [("diffusion", "low")], "paper": []}
Suites = dict[tuple[str, str], "Suite"]  # by family and extent


def run(lab: Lab) -> Findings:
    """What the generators are like, then the same search in each."""
    models = {family: _model(lab, family) for family in TABLE_2}
    cells = [cell for cell in TABLE_3 if cell not in LEFT_OUT[lab.scale]]
    suites: Suites = {cell: _search(lab, *cell, models[cell[0]]) for cell in cells}
    traits = {family: _traits(path, 16 if family == "diffusion" else 1000) for family, path in models.items()}
    found = Findings(rows=_rows(traits, suites), claims=_claims(traits, suites))
    found.figures = [_iterations(lab, suites), _examples(lab, suites)]
    found.reduced = lab.pick(
        smoke=["10 seeds, 5 generations", "low extent for the VAE only"],
        laptop=[
            "50 seeds in place of 100",
            f"diffusion at high extent only, 4 seeds and {MOST} queries each",
            "MNIST only",
        ],
        paper=["MNIST only"],
    )
    found.remarks = [
        "The diffusion model is a small one of pixels; the paper's is Stable Diffusion 1.5, fine-tuned, whose latents "
        "have 4×64×64 numbers.",
        "Validity and label preservation are not measured: the paper asked 364 people about them.",
        "Children have two parents in every family, as the paper says; in its code those of a GAN are copies of one.",
    ]
    return found


def _model(lab: Lab, family: str) -> Path:
    common.classifier(lab)  # judges generators while they train
    return common.vae(lab) if family == "VAE" else lab.model(f"mnist/{family.lower()}", smoke=SMOKE[family])


def _search(lab: Lab, family: str, extent: str, generator: Path) -> Suite:
    return lab.search(
        f"{family.lower()}-{extent}",
        "mnist/search/margin_ga",
        f"--model.generator.path={generator}",
        f"--model.sut.path={common.classifier(lab)}",
        f"--data.name={lab.data()}",
        f"--model.searcher.extent={extent}",
        f"--model.searcher.generations={lab.pick(smoke=5, laptop=250, paper=250)}",
        *_seeds(lab, family),
    )


def _seeds(lab: Lab, family: str) -> list[str]:
    """Encoded images for the VAE, samples of the prior for those that have no encoder."""
    number = [f"--model.seeds.per_class={lab.pick(smoke=1, laptop=5, paper=10)}"]
    if family == "VAE":
        return number
    if family == "diffusion" and lab.scale in FEW:
        number = ["--model.seeds.per_class=1", f"--model.seeds.classes={FEW[lab.scale]}", "--model.eval_batch_size=32"]
        number += lab.pick(smoke=[], laptop=[f"--model.max_queries={MOST}"], paper=[])
    return ["--model.seeds=PriorSeeds", "--model.seeds.distribution=prior", *number]


def _traits(path: Path, samples: int) -> Traits:
    import torch

    from lsgen import checkpoints, generators

    generator, y = generators.pretrained(path), torch.arange(samples) % 10
    z = generator.sample_prior(samples, y, torch.Generator().manual_seed(0))
    with torch.no_grad():
        generator.decode(z[:1], y[:1])  # the first call takes longer
        started = time.perf_counter()
        generator.decode(z, y)
    milliseconds = 1000 * (time.perf_counter() - started) / samples
    trained = checkpoints.read(path).get("callbacks", {}).get("GeneratorQuality", {}).get("minutes")
    return Traits(z[0].numel(), trained, milliseconds)


def _rows(traits: dict[str, Traits], suites: Suites) -> list[Row]:
    rows = []
    for family, own in traits.items():
        published = TABLE_2[family]
        rows += [
            Row(family, "latent size", own.latent_size, published.latent_size),
            Row(family, "training", own.training, published.training, unit="min"),
            Row(family, "an image", own.inference, published.inference, unit="ms"),
        ]
    for (family, extent), suite in suites.items():
        case, (*figures, valid, preserved) = f"{family}, {extent} extent", TABLE_3[family, extent]
        for (key, (words, unit)), figure in zip(METRICS.items(), figures, strict=True):
            rows.append(Row(case, words, suite.summary[key], figure, unit=unit))
        rows += [Row(case, "valid", None, valid, unit="%"), Row(case, "label preserved", None, preserved, unit="%")]
    return rows


def _claims(traits: dict[str, Traits], suites: Suites) -> list[Claim]:
    steps = {cell: _number(suite, "iterations_mean") for cell, suite in suites.items()}
    viable = {family: _number(suites[family, "high"], "seed_viability") for family in TABLE_2}
    claims = [
        Claim(f"{family}: a larger extent takes fewer iterations", steps[family, "high"] < steps[family, "low"])
        for family in TABLE_2
        if (family, "low") in suites
    ]
    claims += [
        Claim(
            f"{extent} extent: diffusion takes the fewest iterations",
            _whole(suites["diffusion", extent], steps["diffusion", extent] < min(steps[f, extent] for f in OTHERS)),
        )
        for extent in ("low", "high")
        if ("diffusion", extent) in suites
    ]
    return [
        *claims,
        Claim("high extent: the VAE takes fewer iterations than the GAN", steps["VAE", "high"] < steps["GAN", "high"]),
        Claim("seeds of diffusion are viable least often", viable["diffusion"] < min(viable[f] for f in OTHERS)),
        Claim(
            "an image of the diffusion model takes at least ten times as long as one of the VAE",
            traits["diffusion"].inference >= 10 * traits["VAE"].inference,
        ),
    ]


def _whole(suite: Suite, holds: bool) -> bool | None:
    """What is said of iterations, unless a limit on queries hides how many some seeds would have taken."""
    return holds if suite.summary["failure_rate"] == 1 else None


def _number(suite: Suite, key: str) -> float:
    """NaN where it is undefined: no comparison with it holds."""
    value = suite.summary[key]
    return float("nan") if value is None else float(value)


def _iterations(lab: Lab, suites: Suites) -> tuple[Path, str]:
    """How many seeds have failed after so many iterations."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3), layout="constrained")
    axes = figure.subplots()
    colors = dict(zip(TABLE_2, common.COLORS, strict=False))
    for (family, extent), suite in suites.items():
        cases = suite.table[suite.table["viable"]]
        taken = np.sort(cases["iterations"][cases["failed"]].to_numpy("float64"))
        share = 100 * np.arange(len(taken) + 1) / max(len(cases), 1)
        line = "-" if extent == "high" else ":"
        axes.step([0, *taken], share, line, where="post", color=colors[family], label=f"{family}, {extent}")
    axes.set(xlabel="iterations", ylabel="viable seeds that have failed, %", xlim=(0, None), ylim=(0, 102))
    axes.legend(fontsize=8)
    return common.save(lab, figure, "iterations"), "share of viable seeds that have failed after so many iterations"


def _examples(lab: Lab, suites: Suites) -> tuple[Path, str]:
    """Seeds above what the search made of them."""
    rows: dict[str, np.ndarray] = {}
    for (family, extent), suite in suites.items():
        if extent == "high":
            rows |= {f"{family}, seeds": suite.array("seed_image")[:8], f"{family}, found": suite.images[:8]}
    return common.gallery(lab, "examples", rows), "seeds, and what the search at high extent made of them"


STUDY = Study(
    name="icst25-families",
    shows="VAE, GAN and diffusion under one genetic algorithm",
    source="ICST25, Tab. II and III",
    cost={"smoke": "20 seconds", "laptop": "20 minutes", "paper": "12 hours"},
    run=run,
)
