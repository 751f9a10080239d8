"""How good a generator is: measured after every validation, the same for every family."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torchmetrics.functional.image import structural_similarity_index_measure
from torchmetrics.image.fid import FrechetInceptionDistance
from torchvision.utils import make_grid

from lsgen.data import ImageData, Split
from lsgen.errors import InputError
from lsgen.generators.base import Generator
from lsgen.loggers import log_image
from lsgen.metrics.functional import density_coverage
from lsgen.suts import SUT, accuracy
from lsgen.types import from_uint8, to_uint8

CHUNK = 250
NEIGHBOURS = 5  # of density and coverage


class GeneratorQuality(Callback):
    """Judges a generator after every validation by numbers that mean the same for every family, and by pictures.

    Logged as ``val/…`` (``test/…`` in ``lsgen test``), all on images rounded to 8 bits:

    - where it encodes: ``reconstruction_mse``, ``reconstruction_ssim``; with a judge ``reconstruction_accuracy``, the
      share of reconstructions read as their label;
    - where it has a prior: ``sample_ms``, milliseconds for one sample of a batch; with a judge ``sample_accuracy``
      (samples read as the class they were made for, where the family takes a label), and in the judge's features
      ``frechet_distance`` (0 is best), ``density`` and ``coverage`` (1 is best) against real images;
    - ``parameters`` (trained weights), ``latent_size``, and ``minutes`` of training so far, validation included.

    Args:
        judge: The SUT that reads the images, best one that is not under test; without it some numbers are left out.
        samples: How many prior samples are judged, and at most how many reconstructions and real images.
    """

    def __init__(self, *, judge: SUT | None = None, samples: int = 1000) -> None:
        if samples <= NEIGHBOURS:
            raise InputError(f"samples must be above {NEIGHBOURS}, got {samples}")
        self.judge, self.samples = judge, samples
        self._minutes, self._started = 0.0, None  # type: tuple[float, float | None]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._started = time.monotonic()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs numbers and pictures, unless this is the sanity check."""
        self._report(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs numbers and pictures."""
        self._report(trainer, pl_module, "test")

    def state_dict(self) -> dict[str, Any]:
        """Minutes of training, so that a checkpoint knows them."""
        return {"minutes": self._trained()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on counting."""
        self._minutes = float(state_dict["minutes"])

    def _trained(self) -> float:
        return self._minutes + (0.0 if self._started is None else (time.monotonic() - self._started) / 60)

    def _report(self, trainer: Trainer, module: LightningModule, stage: Split) -> None:
        if not isinstance(module, Generator) or trainer.sanity_checking or not trainer.is_global_zero:
            return
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        if self.judge is not None:
            self.judge.to(module.device).eval()
        values = measure(module, self.judge, data, stage, self.samples)
        if self._trained():
            values["minutes"] = self._trained()
        shown = ("sample_accuracy", "reconstruction_accuracy")
        for name, value in values.items():
            module.log(f"{stage}/{name}", float(value), prog_bar=name in shown, rank_zero_only=True)
        if module.has_prior:
            log_image(trainer, f"{stage}/samples", sample_grid(module))
        if module.encodes:
            log_image(trainer, f"{stage}/reconstructions", reconstruction_grid(module, data, stage))


def measure(generator: Generator, judge: SUT | None, data: ImageData, split: Split, n: int) -> dict[str, float]:
    """All numbers of :class:`GeneratorQuality` that can be had, from ``n`` samples and up to ``n`` images."""
    real = _Labelled(*data[split].spread(n)).to(generator.device)
    trained = sum(p.numel() for p in generator.parameters() if p.requires_grad)
    values = {"parameters": float(trained), "latent_size": float(torch.Size(generator.latent_shape).numel())}
    if generator.encodes and len(real.label):
        values |= _of_reconstructions(generator, judge, real)
    if generator.has_prior:
        values |= _of_samples(generator, judge, real, n)
    return values


@dataclass(frozen=True)
class _Labelled:
    image: Tensor  # [N, C, H, W] uint8
    label: Tensor  # [N]

    def to(self, device: torch.device) -> _Labelled:
        return _Labelled(self.image.to(device), self.label.to(device))


def _of_reconstructions(generator: Generator, judge: SUT | None, real: _Labelled) -> dict[str, float]:
    rebuilt = _reconstruct(generator, real)
    x, x0 = from_uint8(rebuilt), from_uint8(real.image)
    values = {"reconstruction_mse": float((x - x0).square().mean())}
    if min(x.shape[2:]) >= 11:  # the size of SSIM's window
        ssim = structural_similarity_index_measure(x, x0, data_range=1.0)
        assert isinstance(ssim, Tensor)
        values["reconstruction_ssim"] = float(ssim)
    if judge is not None:
        values["reconstruction_accuracy"] = accuracy(judge, rebuilt, real.label)
    return values


def _of_samples(generator: Generator, judge: SUT | None, real: _Labelled, n: int) -> dict[str, float]:
    started = time.perf_counter()
    made = _sample(generator, n)
    made.image[-1].cpu()  # a GPU is still at work when the call returns
    values = {"sample_ms": 1000 * (time.perf_counter() - started) / n}
    if judge is None:
        return values
    if generator.conditional:
        values["sample_accuracy"] = accuracy(judge, made.image, made.label)
    if len(real.label) > NEIGHBOURS:
        features = _Features(judge)
        values["frechet_distance"] = frechet_distance(features, real.image, made.image)
        density, coverage = density_coverage(_map(features, real.image), _map(features, made.image), NEIGHBOURS)
        values |= {"density": float(density), "coverage": float(coverage)}
    return values


class _Features(nn.Module):
    """A SUT's penultimate activations of stored images, as torchmetrics wants an extractor. uint8 [N, …] -> [N, F]."""

    def __init__(self, sut: SUT) -> None:
        super().__init__()
        self.sut = sut

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return self.sut.features(from_uint8(images)).flatten(1)


def _map(features: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([features(part) for part in images.split(CHUNK)])


def frechet_distance(features: nn.Module, real: Tensor, made: Tensor) -> float:
    """FID's formula in the feature space of ``features`` between two sets of stored images (uint8, [N, C, H, W])."""
    shape = (int(real.shape[1]), int(real.shape[2]), int(real.shape[3]))
    # it is measured in one process: waiting for others would be for ever
    fid = FrechetInceptionDistance(feature=features, input_img_size=shape, sync_on_compute=False).to(real.device)
    for images, is_real in ((real, True), (made, False)):
        for part in images.split(CHUNK):
            fid.update(part, real=is_real)
    return float(fid.compute())


@torch.no_grad()
def _sample(generator: Generator, n: int, seed: int = 0, batch_size: int = CHUNK) -> _Labelled:
    """``n`` plain prior samples, classes in turn; fewer samples than classes are spread over these."""
    k = generator.num_classes
    y = torch.arange(n, device=generator.device) % k if n >= k else torch.arange(n, device=generator.device) * k // n
    z = generator.sample_prior(n, y, torch.Generator().manual_seed(seed))
    pairs = zip(z.split(batch_size), y.split(batch_size), strict=True)
    return _Labelled(torch.cat([to_uint8(generator.decode(a, b)) for a, b in pairs]), y)


@torch.no_grad()
def _reconstruct(generator: Generator, real: _Labelled, batch_size: int = CHUNK) -> Tensor:
    """Reconstructions of stored images, [N, C, H, W] uint8."""
    pairs = zip(from_uint8(real.image).split(batch_size), real.label.split(batch_size), strict=True)
    return torch.cat([to_uint8(generator.decode(generator.encode(a, b), b)) for a, b in pairs])


def sample_accuracy(generator: Generator, judge: SUT, n: int, batch_size: int = CHUNK) -> float:
    """Share of ``n`` plain prior samples, classes in turn, that ``judge`` reads as the class they were made for."""
    made = _sample(generator, n, batch_size=batch_size)
    return accuracy(judge, made.image, made.label, batch_size)


def reconstruction_accuracy(
    generator: Generator, judge: SUT, data: ImageData, split: Split, n: int, batch_size: int = CHUNK
) -> float:
    """Share of up to ``n`` images of a split whose reconstruction ``judge`` reads as their label."""
    real = _Labelled(*data[split].spread(n)).to(generator.device)
    return accuracy(judge, _reconstruct(generator, real, batch_size), real.label, batch_size)


def sample_grid(generator: Generator, columns: int = 10, seed: int = 0) -> Tensor:
    """Prior samples as one picture [C, H, W], a row a class for up to ten classes."""
    rows = min(10, generator.num_classes)
    y = torch.arange(rows, device=generator.device).repeat_interleave(columns)
    z = generator.sample_prior(len(y), y, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return make_grid(generator.decode(z, y).cpu(), nrow=columns, padding=1, pad_value=0.5)


def reconstruction_grid(generator: Generator, data: ImageData, split: Split, pairs: int = 50) -> Tensor:
    """Images above their reconstructions as one picture [C, H, W], ten pairs a row."""
    real = _Labelled(*data[split].spread(pairs)).to(generator.device)
    rows = zip(real.image.split(10), _reconstruct(generator, real).split(10), strict=True)
    images = torch.cat([half for row in rows for half in row])
    return make_grid(from_uint8(images).cpu(), nrow=10, padding=1, pad_value=0.5)
