"""ARGUS, Tab. 1 and 3: how alike, diverse and fault-revealing mixtures of encoded images are, for each share λ."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsgen.studies import common
from lsgen.studies.base import Claim, Findings, Lab, Row, Study

if TYPE_CHECKING:
    import numpy as np

    from lsgen.suite import Suite

SUTS = {"mnist": ("lenet4", "lenet5"), "cifar10": ("vgg16", "resnet18")}
SHARES = (0.1, 0.2, 0.3)
METRICS = {  # of a suite's summary: words and unit
    "mse": ("MSE to the original", ""),
    "ssim": ("SSIM with the original", ""),
    "label_diversity": ("label diversity LD", ""),
    "error_rate": ("error rate ER", "%"),
    "success_rate": ("success rate SR", "%"),
}
# Tab. 1 and 3, in the order of METRICS
PUBLISHED = {
    ("lenet4", 0.1): (0.0011, 0.9869, 3.1, 0.2348, 1.0),
    ("lenet4", 0.2): (0.0015, 0.9147, 5.3, 0.3224, 1.0),
    ("lenet4", 0.3): (0.0083, 0.8638, 7.5, 0.4556, 1.0),
    ("lenet5", 0.1): (0.0012, 0.9902, 3.6, 0.2094, 1.0),
    ("lenet5", 0.2): (0.0019, 0.9094, 5.1, 0.3134, 1.0),
    ("lenet5", 0.3): (0.0066, 0.8768, 8.6, 0.4375, 1.0),
    ("vgg16", 0.1): (0.0035, 0.9247, 4.1, 0.3028, 1.0),
    ("vgg16", 0.2): (0.0074, 0.7992, 5.3, 0.4012, 1.0),
    ("vgg16", 0.3): (0.0136, 0.6447, 8.8, 0.5513, 1.0),
    ("resnet18", 0.1): (0.0036, 0.9152, 4.4, 0.2940, 1.0),
    ("resnet18", 0.2): (0.0076, 0.8224, 6.1, 0.3996, 1.0),
    ("resnet18", 0.3): (0.0148, 0.6601, 8.9, 0.4802, 1.0),
}
OTHERS = {  # of DiffChaser, ADAPT, DLFuzz and DeepXplore the best, metric by metric
    "lenet4": (0.0168, 0.7212, 3.7, 0.1881, 1.0),
    "lenet5": (0.0181, 0.7502, 3.4, 0.1962, 1.0),
    "vgg16": (0.0210, 0.5692, 8.1, 0.4377, 1.0),
    "resnet18": (0.0513, 0.5542, 8.2, 0.3913, 1.0),
}
ONCE = "each model trained once in place of three times"
SHORT = "VQ-VAEs trained for 6 epochs, 4 of them in the first phase in place of 50"
Summaries = dict[float, dict[str, Any]]  # by λ


def run(lab: Lab) -> Findings:
    """Every SUT at every λ, each λ with a VQ-VAE of its own, and at λ = 0 the reconstructions alone."""
    found = Findings(rows=[])
    for data in lab.pick(smoke=("mnist",), laptop=("mnist",), paper=tuple(SUTS)):
        for network in SUTS[data][1:] if lab.scale == "smoke" else SUTS[data]:
            _one_sut(lab, found, data, network)
    found.reduced = lab.pick(
        smoke=["9 mixtures an original, one SUT, two λ"],
        laptop=["2,700 mixtures an original in place of 30,000", "MNIST only", SHORT, ONCE],
        paper=["no ImageNet", ONCE],
    )
    found.remarks = [
        "λ = 0 mixes nothing in: it shows what the VQ-VAE of the smallest λ alone does to images, and it is no part of "
        "the paper.",
        "The other methods (DiffChaser, ADAPT, DLFuzz, DeepXplore) are not run: their figures are the published ones.",
    ]
    return found


def _one_sut(lab: Lab, found: Findings, data: str, network: str) -> None:
    """Adds what was found on one SUT."""
    shares = lab.pick(smoke=(0.1, 0.3), laptop=SHARES, paper=SHARES)
    models = {share: vqvae(lab, data, share) for share in shares}
    suites = {0.0: _unmixed(lab, data, network, models[shares[0]])}
    suites |= {share: mix(lab, f"{network}-{share}", data, network, models[share], share) for share in shares}
    summaries = {share: suite.summary for share, suite in suites.items()}
    for share, summary in summaries.items():
        found.rows += rows(f"{data} {network}, λ = {share}", summary, PUBLISHED.get((network, share)))
    found.rows += rows(f"{data} {network}, best of four other methods", {}, OTHERS[network])
    found.claims += _claims(f"{data} {network}", {s: summaries[s] for s in shares}, OTHERS[network])
    found.figures += [_curves(lab, network, summaries), _examples(lab, network, suites)]


def classifier(lab: Lab, data: str, network: str) -> Path:
    """Checkpoint of one of the paper's SUTs."""
    if data == "mnist":
        return common.classifier(lab, data, network)
    return lab.model("cifar10/sut_cnn", name=f"{data}-sut_{network}", more=[f"--model.network={network}"])


def vqvae(lab: Lab, data: str, share: float, variant: str = "", more: Sequence[str] = ()) -> Path:
    """Checkpoint of the VQ-VAE for mixtures with ``share`` of another image, or of a variant of it."""
    shorter = ["--trainer.max_epochs=6", "--model.pretrain_epochs=4", "--model.lr_decay_epochs=2"]
    longer = ["--trainer.max_epochs=100", "--model.pretrain_epochs=50", "--model.lr_decay_epochs=20"]
    settings = [f"--model.interpolation={share}", *more, *lab.pick(smoke=[], laptop=shorter, paper=longer)]
    small = ["--data.limit_per_class=100", "--data.batch_size=16", "--trainer.max_epochs=3"]
    small += ["--model.pretrain_epochs=2", "--model.lr=0.003", "--model.width=8", "--model.num_codes=32"]
    return lab.model(
        f"{data}/vqvae",
        name=f"{data}-vqvae-{share}{variant}",
        more=[*settings, "--trainer.callbacks=[]"],
        smoke=small,
    )


def mix(lab: Lab, name: str, data: str, network: str, generator: Path, share: float, *more: str) -> Suite:
    """Every original mixed with images of all other classes; ``more`` are arguments of the search."""
    return lab.search(
        name,
        "mnist/search/interpolation",
        f"--model.generator.path={generator}",
        f"--model.sut.path={classifier(lab, data, network)}",
        f"--model.searcher.share={share}",
        f"--model.seeds.others_per_class={lab.pick(smoke=1, laptop=300, paper=3333)}",
        f"--data.name={lab.data(data)}",
        *more,
    )


def _unmixed(lab: Lab, data: str, network: str, generator: Path) -> Suite:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this VQVAE was trained on mixtures")  # on purpose
        return mix(lab, f"{network}-0.0", data, network, generator, 0.0, "--model.seeds.others_per_class=1")


def rows(case: str, summary: dict[str, Any], published: Sequence[float] | None) -> list[Row]:
    """One line of Tab. 1 and 3, or of Tab. 4."""
    values = [None] * len(METRICS) if published is None else published
    return [
        Row(case, words, summary.get(key), value, unit=unit)
        for (key, (words, unit)), value in zip(METRICS.items(), values, strict=True)
    ]


def _claims(case: str, summaries: Summaries, others: Sequence[float]) -> list[Claim]:
    mse, ssim, diversity, errors, successes = ([s[key] or 0.0 for s in summaries.values()] for key in METRICS)
    return [
        Claim(f"{case}: likeness to the original falls as λ grows", _rises(mse) and _rises([-s for s in ssim])),
        Claim(f"{case}: label diversity grows with λ", _rises(diversity)),
        Claim(f"{case}: the error rate grows with λ", _rises(errors)),
        Claim(f"{case}: every original fails in some mixture, at every λ", min(successes) == 1),
        Claim(
            f"{case}: even at the largest λ, images are more like the original than those of other methods",
            mse[-1] < others[0] and ssim[-1] > others[1],
        ),
        Claim(f"{case}: at the largest λ, the error rate is above that of other methods", errors[-1] > others[3]),
    ]


def _rises(values: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _curves(lab: Lab, network: str, summaries: Summaries) -> tuple[Path, str]:
    """Likeness and errors against λ, measured and published."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.8), layout="constrained")
    published = {share: dict(zip(METRICS, v, strict=True)) for (n, share), v in PUBLISHED.items() if n == network}
    for axes, key in zip(figure.subplots(1, 3), ("ssim", "label_diversity", "error_rate"), strict=True):
        for name, values, color, line in (
            ("measured", summaries, common.COLORS[0], "o-"),
            ("published", published, common.COLORS[1], "s--"),
        ):
            axes.plot(list(values), [v[key] for v in values.values()], line, color=color, label=name)
        axes.set(xlabel="λ", ylabel=METRICS[key][0])
    figure.axes[0].legend()
    return common.save(lab, figure, f"shares_{network}"), f"{network}: likeness, diversity and errors against λ"


def _examples(lab: Lab, network: str, suites: dict[float, Suite]) -> tuple[Path, str]:
    """The first mixture of each original, for every λ."""
    images = {f"λ = {share}": first_mixtures(suite) for share, suite in suites.items()}
    return common.gallery(lab, f"mixtures_{network}", images), f"{network}: one mixture of each original, for every λ"


def first_mixtures(suite: Suite) -> np.ndarray:
    """One image of each original, of ten at most."""
    return suite.images[suite.table.drop_duplicates("seed_id").index[:10]]


STUDY = Study(
    name="argus-similarity",
    shows="likeness, diversity and errors of latent mixtures against their share λ",
    source="ARGUS, Tab. 1 and 3",
    cost={"smoke": "15 seconds", "laptop": "40 minutes, of which 30 for VQ-VAEs", "paper": "half a day"},
    run=run,
)
