"""What several studies use: classifiers and VAEs for digits at every scale, answers about stored images, pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lsgen.report.pictures import Images, labelled_rows
from lsgen.studies.base import Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

CHUNK = 250
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito's, which colour-blind eyes tell apart
DIGITS, FASHION = "mnist", "fashion_mnist"  # the second takes the configurations of the first
SMALL = ("--data.limit_per_class=200", "--data.batch_size=32", "--trainer.max_epochs=4")
SMALL_VAE = (*SMALL, "--data.batch_size=16", "--model.lr=0.003", "--model.hidden=64", "--model.width=4")


def classifier(lab: Lab, data: str = DIGITS, network: str = "cnn") -> Path:
    """Checkpoint of the SUT called ``network``; at ``smoke`` always a LeNet-5, which learns in a second."""
    if lab.scale == "smoke":
        return lab.model("mnist/sut_lenet5", smoke=SMALL)
    if data == FASHION:
        pixels = ["--model.mean=[0.286]", "--model.std=[0.353]"]
        return lab.model("mnist/sut_cnn", name=f"{data}-sut_cnn", more=[f"--data.name={data}", *pixels])
    return lab.model(f"{data}/sut_{network}")


def vae(lab: Lab, data: str = DIGITS) -> Path:
    """Checkpoint of SINVAD's VAE."""
    classifier(lab)  # judges the VAE of the digits while that trains
    if data == FASHION:
        more = [f"--data.name={data}", "--trainer.max_epochs=50", "--trainer.callbacks=[]"]
        return lab.model("mnist/vae", name=f"{data}-vae", more=more)
    return lab.model("mnist/vae", smoke=[*SMALL_VAE, "--model.latent_dim=16"])


def mapped(function: Callable[[Tensor], Tensor], images: Tensor | np.ndarray) -> Tensor:
    """``function`` of stored images, uint8 [N, C, H, W] -> [N, …], some at a time."""
    import torch

    from lsgen.types import from_uint8

    stored = images if isinstance(images, torch.Tensor) else torch.tensor(images)
    with torch.no_grad():
        return torch.cat([function(from_uint8(part)) for part in stored.split(CHUNK)])


def save(lab: Lab, figure: Figure, name: str) -> Path:
    """Writes a figure into the study's folder."""
    lab.out.mkdir(parents=True, exist_ok=True)
    file = lab.out / f"{name}.png"
    figure.savefig(file, dpi=130)
    return file


def gallery(lab: Lab, name: str, rows: Mapping[str, Images], columns: Sequence[str] = ()) -> Path:
    """Stored images in rows that have a name each, as one picture."""
    return save(lab, labelled_rows(rows, columns), name)
