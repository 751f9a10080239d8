"""How good a generator is: measured after every validation, the same for every family."""

from __future__ import annotations

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torchvision.utils import make_grid

from lsgen.data import ImageData, Split
from lsgen.errors import InputError
from lsgen.generators.base import Generator
from lsgen.loggers import log_image
from lsgen.suts import SUT, accuracy
from lsgen.types import from_uint8, to_uint8

CHUNK = 250


class GeneratorQuality(Callback):
    """Judges a generator after every validation: what a SUT reads in its samples and reconstructions, and a picture.

    Logs ``val/sample_accuracy`` (prior samples read as the class they were made for, where the family takes a label)
    and ``val/reconstruction_accuracy`` (where it encodes); ``test/…`` in ``lsgen test``. The sample grid has one row
    for each of up to ten classes.

    Args:
        judge: The SUT that reads the images, best one that is not under test; without it only pictures are made.
        samples: How many prior samples are judged, and at most how many reconstructions.
    """

    def __init__(self, *, judge: SUT | None = None, samples: int = 1000) -> None:
        if samples < 1:
            raise InputError(f"samples must be at least 1, got {samples}")
        self.judge, self.samples = judge, samples

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs accuracies, and a grid unless this is the sanity check."""
        self._report(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs accuracies and a grid."""
        self._report(trainer, pl_module, "test")

    def _report(self, trainer: Trainer, module: LightningModule, stage: Split) -> None:
        if not isinstance(module, Generator) or trainer.sanity_checking:
            return
        if self.judge is not None:
            self.judge.to(module.device).eval()
            if module.conditional:
                value = sample_accuracy(module, self.judge, self.samples)
                module.log(f"{stage}/sample_accuracy", value, prog_bar=True, rank_zero_only=True)
            if module.encodes:
                data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
                value = reconstruction_accuracy(module, self.judge, data, stage, self.samples)
                module.log(f"{stage}/reconstruction_accuracy", value, rank_zero_only=True)
        if trainer.is_global_zero:
            log_image(trainer, f"{stage}/samples", sample_grid(module))


@torch.no_grad()
def sample_accuracy(generator: Generator, judge: SUT, n: int, seed: int = 0) -> float:
    """Share of ``n`` plain prior samples, classes in turn, that ``judge`` reads as the class they were made for."""
    y = torch.arange(n, device=generator.device) % generator.num_classes
    z = generator.sample_prior(n, y, torch.Generator().manual_seed(seed))
    return accuracy(judge, torch.cat([to_uint8(generator.decode(a, b)) for a, b in _chunks(z, y)]), y)


@torch.no_grad()
def reconstruction_accuracy(generator: Generator, judge: SUT, data: ImageData, split: Split, n: int) -> float:
    """Share of up to ``n`` images of a split whose reconstruction ``judge`` reads as their label."""
    images, labels = data[split].spread(n)
    x, y = from_uint8(images.to(generator.device)), labels.to(generator.device)
    rebuilt = [to_uint8(generator.decode(generator.encode(a, b), b)) for a, b in _chunks(x, y)]
    return accuracy(judge, torch.cat(rebuilt), y)


@torch.no_grad()
def sample_grid(generator: Generator, columns: int = 10, seed: int = 0) -> Tensor:
    """Prior samples as one picture [C, H, W], a row a class for up to ten classes."""
    rows = min(10, generator.num_classes)
    y = torch.arange(rows, device=generator.device).repeat_interleave(columns)
    z = generator.sample_prior(len(y), y, torch.Generator().manual_seed(seed))
    return make_grid(generator.decode(z, y).cpu(), nrow=columns, padding=1, pad_value=0.5)


def _chunks(*tensors: Tensor) -> zip[tuple[Tensor, ...]]:
    return zip(*(t.split(CHUNK) for t in tensors), strict=True)
