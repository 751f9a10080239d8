"""SINVAD, Fig. 16 and 17: how well VAEs of both architectures rebuild images, against the size of their latent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lsgen.studies import common
from lsgen.studies.base import Claim, Findings, Lab, Row, Study

if TYPE_CHECKING:
    from torch import Tensor

    from lsgen.data import InMemory

KINDS = ("linear", "conv")
SIZES = (1, 2, 5, 10, 50, 100, 400, 1600)
PIXELS = 784
ENOUGH = 10  # from this size on, the paper says, the size matters little
TOLERANCE = 0.10  # and so much at most
Model = tuple[str, int]  # architecture and size of the latent


def run(lab: Lab) -> Findings:
    """Trains a VAE of each architecture and size, and shows a classifier what it rebuilds of the test images."""
    found = Findings(rows=[])
    for data in lab.pick(smoke=(common.DIGITS,), laptop=(common.DIGITS,), paper=(common.DIGITS, common.FASHION)):
        _one_set(lab, found, data)
    found.reduced = lab.pick(
        smoke=["2 sizes, 200 images a class, tiny models"],
        laptop=["6 sizes", "10 epochs of 1,000 images a class in place of 50 of all", "16 channels", "MNIST only"],
        paper=["8 sizes, since the paper does not list its own"],
    )
    found.remarks = [
        "Fig. 17 is drawn without numbers. The one number in the text is the bound of 10 points for sizes from 10 on.",
        "A convolutional VAE here has 4 convolutions each way, the published one 8 layers.",
    ]
    return found


def _one_set(lab: Lab, found: Findings, data: str) -> None:
    """Adds what was found on one data set."""
    from lsgen import suts
    from lsgen.data import ImageData
    from lsgen.suts.base import predictions

    judge, test = suts.pretrained(common.classifier(lab, data)), ImageData(name=lab.data(data))["test"]
    sizes = lab.pick(smoke=(2, 16), laptop=(1, 2, 10, 50, 400, 1600), paper=SIZES)
    rebuilt = {(kind, d): _rebuilt(_vae(lab, data, kind, d), test) for kind in KINDS for d in sizes}
    right = {model: (predictions(judge, images) == test.labels).numpy() for model, images in rebuilt.items()}
    original = suts.accuracy(judge, test.images, test.labels)
    shares = {model: float(read.mean()) for model, read in right.items()}
    found.rows += _rows(data, original, shares)
    found.claims += _claims(data, shares)
    found.figures += [
        _curves(lab, data, original, shares),
        _examples(lab, data, test, rebuilt, np.sum(list(right.values()), axis=0)),
    ]


def _vae(lab: Lab, data: str, kind: str, size: int) -> Path:
    settings = [f"--data.name={data}", f"--model.architecture={kind}", f"--model.latent_dim={size}"]
    fewer = ["--data.limit_per_class=1000", "--trainer.max_epochs=10", "--model.width=16"]
    settings += lab.pick(smoke=[], laptop=fewer, paper=["--trainer.max_epochs=50"])
    more = [*settings, "--trainer.callbacks=[]"]
    return lab.model(
        "mnist/vae", name=f"{data}-vae-{kind}-{size}", more=more, smoke=[*common.SMALL_VAE, "--data.limit_per_class=40"]
    )


def _rebuilt(checkpoint: Path, test: InMemory) -> Tensor:
    """What the VAE makes of test images, uint8 [N, C, H, W]."""
    from lsgen import generators
    from lsgen.types import to_uint8

    vae, nobody = generators.pretrained(checkpoint), test.labels[:0]  # which label is ignored
    return common.mapped(lambda x: to_uint8(vae.decode(vae.encode(x, nobody), nobody)), test.images)


def _rows(data: str, original: float, shares: dict[Model, float]) -> list[Row]:
    rows = [Row(f"{data}, test images", "read rightly", original, unit="%")]
    rows += [
        Row(f"{data}, {k}, latent of {d}", "reconstructions read rightly", s, unit="%") for (k, d), s in shares.items()
    ]
    text = f"largest difference from latents of {ENOUGH} on (published: at most)"
    return [*rows, Row(f"{data}, both architectures", text, _range(shares), TOLERANCE, unit="%")]


def _range(shares: dict[Model, float]) -> float:
    enough = [s for (_, d), s in shares.items() if d >= ENOUGH]
    return max(enough) - min(enough)


def _claims(data: str, shares: dict[Model, float]) -> list[Claim]:
    sizes = sorted({d for _, d in shares})
    by_kind = {kind: [shares[kind, d] for d in sizes] for kind in KINDS}
    claims = [
        Claim(f"{data}, {kind}: the smallest latent rebuilds worst", s[0] == min(s)) for kind, s in by_kind.items()
    ]
    claims.append(
        Claim(f"{data}: from {ENOUGH} on, the size changes accuracy by 10 points at most", _range(shares) <= TOLERANCE)
    )
    if sizes[-1] > PIXELS:
        falls = all(s[-1] < max(s[:-1]) for s in by_kind.values())
        claims.append(
            Claim(f"{data}: a latent larger than the image ({PIXELS}) is worse than the best smaller one", falls)
        )
    better = sum(by_kind["linear"]) > sum(by_kind["conv"])
    return [*claims, Claim(f"{data}: linear VAEs are a little better than convolutional ones, in the mean", better)]


def _curves(lab: Lab, data: str, original: float, shares: dict[Model, float]) -> tuple[Path, str]:
    """Fig. 17."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    axes.axhline(100 * original, color="black", linestyle=":", label="test images themselves")
    for kind, color, marker in zip(KINDS, common.COLORS, "os", strict=False):
        points = sorted((d, 100 * s) for (k, d), s in shares.items() if k == kind)
        axes.plot(*zip(*points, strict=True), color=color, marker=marker, label=kind)
    sizes = sorted({d for _, d in shares})
    axes.set(xscale="log", xlabel="size of the latent", ylabel="reconstructions read rightly, %")
    axes.set_xticks(sizes, map(str, sizes))
    axes.set_xticks([], minor=True)
    axes.legend()
    return common.save(lab, figure, f"accuracy_{data}"), f"{data}: accuracy on reconstructions against latent size"


def _examples(lab: Lab, data: str, test: InMemory, rebuilt: dict[Model, Tensor], right: np.ndarray) -> tuple[Path, str]:
    """Fig. 16: reconstructions of an image that most models rebuild readably, and of one that fewest do."""
    rows: dict[str, list[Tensor]] = {}
    for name, i in (("typical", int(right.argmax())), ("atypical", int(right.argmin()))):
        for kind in KINDS:
            rows[f"{name}, {kind}"] = [test.images[i], *(images[i] for (k, _), images in rebuilt.items() if k == kind)]
    sizes = [str(d) for k, d in rebuilt if k == KINDS[0]]
    file = common.gallery(lab, f"reconstructions_{data}", rows, ["original", *sizes])
    return file, f"{data}: an image that most VAEs rebuild readably and one that fewest do, by size of the latent"


STUDY = Study(
    name="sinvad-architecture",
    shows="what latent size and layers of a VAE do to its reconstructions",
    source="SINVAD, Fig. 16 and 17",
    cost={"smoke": "15 seconds", "laptop": "25 minutes, training included", "paper": "four days, training included"},
    run=run,
)
