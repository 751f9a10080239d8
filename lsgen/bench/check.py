"""A look at every cell before anything runs: can it work, which suite would it be, and what will it cost."""

from __future__ import annotations

import io
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lsgen import checkpoints
from lsgen.bench.grid import Cell, Grid, Model
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import Generator
from lsgen.lightning_cli import LsgenCLI
from lsgen.messages import explain
from lsgen.search import SearchTask
from lsgen.search.preflight import looked_at
from lsgen.types import describe

BATCH = 32  # images in a timed pass, and the smallest batch of a search
SHORT = 0.5  # seconds after which no further pass is timed
BACKWARD = 2.0  # what a backward pass costs, in forward passes


@dataclass(frozen=True)
class Outlook:
    """What is known of a cell beforehand.

    Attributes:
        refused: Why it cannot run; None where it can.
        missing: Whether that is for want of a model: no checkpoint, one that cannot be read, or a refused training.
        identity: Of its suite; None where a model is still to be trained.
        seeds: How many searches start.
        queries: Most images that the SUT will see; None where the method decides by itself.
        seconds: About how long that many take.
        overhead: About how long it takes to load and to look at everything once, in seconds.
    """

    refused: str | None = None
    missing: bool = False
    identity: str | None = None
    seeds: int = 0
    queries: int | None = None
    seconds: float | None = None
    overhead: float = 0.0


@dataclass(frozen=True)
class Facts:
    """What a table says of a generator.

    Attributes:
        weights: SHA-256, so that what was measured is not taken for another's.
        family: Its class.
        latent_size: Numbers in a latent.
        minutes: Of training until this checkpoint; None where nobody knows.
        decode_ms: Milliseconds for an image, in batches of 32.
    """

    weights: str
    family: str
    latent_size: int
    minutes: float | None
    decode_ms: float


class Built(LsgenCLI):
    """All that a command needs, built and not run."""

    def before_fit(self) -> None:
        """Puts nothing in the place of training."""
        self.trainer.fit = _nothing  # type: ignore[assignment]

    def before_search(self) -> None:
        """Puts nothing in the place of searching."""
        self.trainer.search = _nothing  # type: ignore[method-assign, assignment]

    def after_fit(self) -> None:
        """There is nothing to say."""

    def after_search(self) -> None:
        """There is nothing to say."""


def _nothing(**kwargs: Any) -> None:
    """Takes the place of a command."""


class Inspector:
    """Looks at the cells of a grid; remembers what many of them share.

    A model that is still to be trained is stood in for by an untrained one: what fits together, and how fast it is,
    does not depend on the weights.

    Args:
        known: Facts of generators from an earlier look, by label.
        minutes: How long models were trained that do not say so themselves, by label.
    """

    def __init__(self, *, known: dict[str, Facts] | None = None, minutes: dict[str, float] | None = None) -> None:
        self.known, self.minutes = known or {}, minutes or {}
        self.facts: dict[str, Facts] = {}
        self._data: dict[str, ImageData] = {}
        self._sut_seconds: dict[str, float] = {}
        self._broken: dict[str, str | None] = {}

    def look(self, grid: Grid) -> dict[str, Outlook]:
        """The outlook of every cell, by its name."""
        from rich.console import Console

        found: dict[str, Outlook] = {}
        untrained = [m for m in grid.models if m.missing and m.config is not None]
        console = Console(file=sys.stderr)
        with console.status("looking at models") as status, tempfile.TemporaryDirectory() as folder, _quiet():
            stand_ins = {model.label: _stand_in(model, Path(folder)) for model in untrained}
            for _, group in groupby(grid.cells, key=lambda c: c.combination):
                repeats = list(group)
                status.update(f"looking at cell {len(found) + 1} of {len(grid.cells)}")
                found |= self._look(repeats, stand_ins)
        return found

    def _look(self, repeats: list[Cell], stand_ins: dict[str, Path | str]) -> dict[str, Outlook]:
        """Cells that differ by their seed only are built once."""
        cell = repeats[0]
        for model in (cell.sut, cell.generator):
            if isinstance(reason := stand_ins.get(model.label), str):
                return _all(repeats, Outlook(refused=f"{model.label} cannot be trained: {reason}", missing=True))
            if (model.config is None or not model.missing) and (reason := self._unreadable(model)):
                return _all(repeats, Outlook(refused=reason, missing=True))
        try:
            started = time.perf_counter()
            task = self._build(cell, stand_ins)
            outlook = self._outlook(cell, task, time.perf_counter() - started)
            if cell.sut.missing or cell.generator.missing:
                return _all(repeats, outlook)
            return {c.name: replace(outlook, identity=_identity(task, c.repeat)) for c in repeats}
        except Exception as error:  # whatever it is, it would end the search as well
            return _all(repeats, Outlook(refused=reason_of(error)))

    def _unreadable(self, model: Model) -> str | None:
        """Why a checkpoint cannot be read, looked at once; None where it can, or where there is none to read."""
        if model.label not in self._broken:
            try:
                if model.checkpoint is not None:
                    checkpoints.read(model.checkpoint)
                self._broken[model.label] = None
            except InputError as error:
                self._broken[model.label] = reason_of(error)
        return self._broken[model.label]

    def _build(self, cell: Cell, stand_ins: dict[str, Path | str]) -> SearchTask:
        """The task of a cell, with its data."""
        models = [m for m in (cell.sut, cell.generator) if m.label in stand_ins]
        paths = {f"model.{m.role}.path": str(stand_ins[m.label]) for m in models}
        flags = {key: value for key, value in cell.flags.items() if not key.startswith("trainer.logger")}
        command = Built(replace(cell, flags={**flags, **paths, "trainer.logger": False}).args)
        task: Any = command.model
        if not isinstance(task, SearchTask):
            raise InputError(f"{cell.config} is not the configuration of a search: its model is {type(task).__name__}")
        if command.trainer.world_size > 1:
            raise InputError("a bench runs each search in one process: leave trainer.devices at 1, and use --jobs")
        data: Any = command.datamodule
        command.trainer.datamodule = self._data.setdefault(repr(describe(data)), data)  # type: ignore[attr-defined]
        task.trainer = command.trainer
        task.setup("predict")  # refuses what does not fit the data
        return task.to(command.trainer.strategy.root_device)

    def _outlook(self, cell: Cell, task: SearchTask, building: float) -> Outlook:
        """Seeds and cost, given the seconds that building took; takes note of the generator."""
        if cell.generator.label not in self.facts:
            self.facts[cell.generator.label] = self._facts(cell.generator, task.generator)
        facts, sut = self.facts[cell.generator.label], task.sut
        if cell.sut.label not in self._sut_seconds:
            images = torch.zeros(BATCH, *sut.image_shape, device=sut.device)
            self._sut_seconds[cell.sut.label] = _seconds(lambda: sut.logits(images))
        decoding, asking = facts.decode_ms / 1000, self._sut_seconds[cell.sut.label]
        seen = looked_at(decoding + asking)  # samples of the generator, and seeds
        overhead = building + 2 * seen * (decoding + asking) + looked_at(asking) * asking
        queries = most_queries(task)
        outlook = Outlook(seeds=len(task.plan), queries=queries, overhead=overhead)
        if queries is None:
            return outlook
        once = decoding + asking * task.passes(score=True)
        return replace(outlook, seconds=most_passes(task) * once * (1 + BACKWARD * task.searcher.needs_grad))

    def _facts(self, model: Model, generator: Generator) -> Facts:
        weights = checkpoints.weights_sha256(generator)
        if (known := self.known.get(model.label)) and known.weights == weights:
            return known
        z = torch.zeros(BATCH, *generator.latent_shape, device=generator.device)
        y = torch.zeros(BATCH, dtype=torch.long, device=generator.device)
        return Facts(
            weights=weights,
            family=type(generator).__name__,
            latent_size=torch.Size(generator.latent_shape).numel(),
            minutes=trained_minutes(model.checkpoint) or self.minutes.get(model.label),
            decode_ms=1000 * _seconds(lambda: generator.decode(z, y)),
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks that building makes."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def reason_of(error: BaseException) -> str:
    """Why something went wrong, in a sentence."""
    return explain(error)[1] or f"{type(error).__name__}: {error}"


def most_queries(task: SearchTask) -> int | None:
    """Images that the SUT may see; None where the method decides by itself."""
    return None if task.searcher.asks_by_itself else len(task.plan) * task.most_queries


def most_passes(task: SearchTask) -> int:
    """Images that go through the networks when no seed ends early; batches that are not full count as full."""
    searcher, size = task.searcher, min(task.block_size, len(task.plan))
    first = _padded(size * searcher.first) if task.rounds else 0
    rounds, looks = task.rounds + searcher.final_look, 2 if searcher.has_seed else 1
    of_block = rounds * _padded(size * searcher.candidates) + first + looks * _padded(size)
    return of_block * -(-len(task.plan) // size)


def _padded(images: int) -> int:
    return -(-images // BATCH) * BATCH


def trained_minutes(checkpoint: Path | None) -> float | None:
    """How long a checkpoint took to train, where it was told (by GeneratorQuality)."""
    if checkpoint is None or not checkpoint.is_file():
        return None
    states = checkpoints.read(checkpoint).get("callbacks", {}).values()
    return next((float(s["minutes"]) for s in states if isinstance(s, dict) and "minutes" in s), None)


def _all(cells: list[Cell], outlook: Outlook) -> dict[str, Outlook]:
    return {cell.name: outlook for cell in cells}


def _identity(task: SearchTask, seed: int) -> str:
    """Of the same search with another seed."""
    os.environ["PL_GLOBAL_SEED"] = str(seed)  # where Lightning keeps it; every command sets it anew
    return task.identity()


def _stand_in(model: Model, folder: Path) -> Path | str:
    """An untrained checkpoint of what is to be trained, or why there can be none."""
    quiet = ["--trainer.logger=false", "--trainer.callbacks=[]"]
    try:
        module: Any = Built(["fit", "--config", str(model.config), *model.fit_args, *quiet]).model
        if isinstance(module, Generator):
            module.latent_bounds.copy_(torch.tensor([-1.0, 1.0]))  # any: training measures them
        about = {"role": module.role, **describe(module)}
        file = folder / f"{len(list(folder.iterdir()))}.ckpt"
        torch.save({checkpoints.KEY: about, "state_dict": module.state_dict()}, file)
    except Exception as error:  # whatever it is, it would end the training as well
        return reason_of(error)
    return file


@torch.no_grad()
def _seconds(run: Callable[[], Tensor]) -> float:
    """Time of one pass of a batch, per image: the best of a few after a warm-up, one if that is long."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < 5 and sum(times) < SHORT):
        start = time.perf_counter()
        run().cpu()  # waits for a GPU
        times.append(time.perf_counter() - start)
    return min(times[1:]) / BATCH
