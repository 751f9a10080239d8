"""ARGUS, Tab. 4: what the quantiser and the discriminators of its VQ-VAE are good for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lsgen.studies import common
from lsgen.studies.argus_similarity import ONCE, SHORT, first_mixtures, mix, rows, vqvae
from lsgen.studies.base import Claim, Findings, Lab, Study

SHARE = 0.2
DIGITS = "MNIST and LeNet-5 in place of CIFAR-10 and ResNet18"
VARIANTS = {  # how the checkpoint is called, and what is set
    "ARGUS": ("", ()),
    "without quantiser": ("-plain", ("--model.quantiser=none",)),
    "without discriminators": ("-alone", ("--model.discriminators=false",)),
}
# Tab. 4, ResNet18 on CIFAR-10, in the order of METRICS
PUBLISHED = {
    "ARGUS": (0.0076, 0.8224, 6.1, 0.3996, 1.0),
    "without quantiser": (0.0243, 0.6594, 6.0, 0.3228, 1.0),
    "without discriminators": (0.0301, 0.6971, 6.1, 0.3694, 1.0),
}


def run(lab: Lab) -> Findings:
    """The same mixtures by three models."""
    data, network = lab.pick(smoke=("mnist", "lenet5"), laptop=("mnist", "lenet5"), paper=("cifar10", "resnet18"))
    found, summaries, images = Findings(rows=[]), {}, {}
    of = "" if data == "cifar10" else "CIFAR-10, ResNet18"
    for variant, (suffix, settings) in VARIANTS.items():
        generator = vqvae(lab, data, SHARE, suffix, settings)
        suite = mix(lab, f"{network}-{SHARE}{suffix}", data, network, generator, SHARE)
        summaries[variant], images[variant] = suite.summary, first_mixtures(suite)
        measured = rows(f"{data} {network}, {variant}", suite.summary, PUBLISHED[variant])
        found.rows += [replace(row, elsewhere=of) for row in measured]
    found.claims = _claims(summaries)
    found.figures = [(common.gallery(lab, "mixtures", images), f"one mixture of each original at λ = {SHARE}")]
    found.reduced = lab.pick(
        smoke=["9 mixtures an original", DIGITS],
        laptop=["2,700 mixtures an original in place of 30,000", DIGITS, SHORT, ONCE],
        paper=[ONCE],
    )
    found.remarks = [
        "Without the quantiser the model is a plain VAE with as many numbers in its latent; its KL term stands in for "
        "the two codebook terms, with a weight of 0.02. The paper names none; at 1 all images become one."
    ]
    return found


def _claims(summaries: dict[str, dict[str, Any]]) -> list[Claim]:
    diversity, successes = ([s[key] or 0.0 for s in summaries.values()] for key in ("label_diversity", "success_rate"))
    return [  # each model is trained once: the order of three may be chance
        Claim("whichever is left out, images are less like their original (MSE)", None),
        Claim("whichever is left out, images are less like their original (SSIM)", None),
        Claim("whichever is left out, the error rate falls", None),
        Claim("label diversity hardly changes (by 1 at most)", max(diversity) - min(diversity) <= 1),
        Claim("every original fails in some mixture of every variant", min(successes) == 1),
    ]


STUDY = Study(
    name="argus-ablation",
    shows="what the quantiser and the discriminators of the VQ-VAE add",
    source="ARGUS, Tab. 4",
    cost={"smoke": "15 seconds", "laptop": "25 minutes, of which 20 for VQ-VAEs", "paper": "5 hours"},
    run=run,
)
