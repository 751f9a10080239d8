"""What happens around a search: progress, and writing the suite."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lsgen.errors import InputError
from lsgen.suite import Suite
from lsgen.types import Evaluation, Seeds, describe, from_uint8

if TYPE_CHECKING:
    from lsgen.search.cases import Cases, Outcome
    from lsgen.search.task import SearchTask

STOPS = (None, "max_seconds", "max_failures")  # what may end a search
FEW_IMAGES = 8  # test images that a SUT must have some answer to
BLINK = 0.1  # seconds between two looks at numbers for the bar
PACKAGES = ("lsgen", "torch", "torchvision", "lightning", "torchmetrics", "safetensors", "pyarrow", "numpy")


@dataclass(frozen=True)
class StepInfo:
    """Where a block's search is after a step."""

    step: int  # from 1
    outcome: Outcome  # so far, of all seeds of the block
    evaluation: Evaluation
    seeds: Seeds  # the active ones, row by row those of the evaluation

    @property
    def steps(self) -> int:
        """The budget."""
        return self.outcome.budget

    @property
    def succeeded(self) -> Tensor:
        """Who of all seeds of the block has had a success by now, [S] bool."""
        return self.outcome.iterations < self.outcome.budget

    @property
    def misread(self) -> Tensor:
        """Of whom the SUT has read a candidate wrongly by now, [S] bool; what a seed ends with decides if it fails."""
        return self.outcome.misread


class SearchCallback(Callback):
    """A callback with hooks for searches; override those you need."""

    def on_search_start(self, trainer: Trainer, task: SearchTask) -> None:
        """Before the first block; models are on their device."""

    def on_search_step_end(self, trainer: Trainer, task: SearchTask, info: StepInfo) -> None:
        """After the candidates of a step were evaluated."""

    def on_search_batch_end(self, trainer: Trainer, task: SearchTask, cases: Cases) -> None:
        """After a block was searched; no collective operation may be used here."""

    def on_search_end(self, trainer: Trainer, task: SearchTask) -> None:
        """After the last block of this process."""


class SearchProgress(TQDMProgressBar, SearchCallback):
    """A bar over all steps of all blocks, with the time that is left and how the search is doing.

    Args:
        refresh_rate: 0 for no bar.
    """

    BAR_FORMAT = "{l_bar}{bar}| [{elapsed}<{remaining}{postfix}]"  # blocks are said in words: one may take hours

    def __init__(self, refresh_rate: int = 1) -> None:
        super().__init__(refresh_rate)
        self._drawn = 0.0
        self._block, self._blocks = 0, 1  # of this process: which one is searched, from 0, and how many there are
        self._so_far: dict[str, str] = {}

    @property
    def predict_description(self) -> str:
        """What stands left of the bar."""
        return "searching"

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the screen to what is said before the first step."""

    def on_search_start(self, trainer: Trainer, task: SearchTask) -> None:
        """Draws the bar."""
        self._so_far = {}
        super().on_predict_start(trainer, task)

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Names what is going on."""
        super().on_predict_batch_start(trainer, pl_module, batch, batch_idx, dataloader_idx)
        self._block, self._blocks = batch_idx, int(self.predict_progress_bar.total)
        self.predict_progress_bar.set_description(self.predict_description, refresh=False)

    def on_search_step_end(self, trainer: Trainer, task: SearchTask, info: StepInfo) -> None:
        """Shows seeds that are still searched, read wrongly and successful by now, and this step's best fitness."""
        if self.is_enabled and time.monotonic() > self._drawn + BLINK:  # looking at numbers makes a GPU wait
            hits, best = info.succeeded, _lowest(info.evaluation.fitness)
            more = {"active": str(len(info.seeds.label)), "misread": f"{int(info.misread.sum())}/{len(hits)}"}
            more["hits"] = f"{int(hits.sum())}/{len(hits)}"
            more["best"] = f"{best:.3g}" if math.isfinite(best) else "none"
            self.predict_progress_bar.n = self._block + info.step / info.steps
            self._show(step=f"{info.step}/{info.steps}", **more)

    def on_search_batch_end(self, trainer: Trainer, task: SearchTask, cases: Cases) -> None:
        """Shows the failure rate with this block in it."""
        if self.is_enabled:
            rate = task.live["failure_rate"]
            if rate.update_called and math.isfinite(so_far := float(rate.compute())):
                self._so_far = {"FR": f"{so_far:.1%}"}
            self.predict_progress_bar.n = self._block + 1
            self._show()

    def _show(self, **more: str) -> None:
        block = {"block": f"{self._block + 1}/{self._blocks}"} if self._blocks > 1 else {}
        self.predict_progress_bar.set_postfix({**block, **self._so_far, **more})  # and draws
        self._drawn = time.monotonic()


def _lowest(fitness: Tensor) -> float:
    return float(fitness.where(~fitness.isnan(), math.inf).amin())


class SuiteWriter(SearchCallback):
    """Writes blocks as they are done, and joins them at the end.

    Args:
        out: Folder of the suite; ``runs/<name>-<8 digits of the identity>`` by default.
        name: What the default folder is called.
        config: The resolved configuration as YAML; described from the objects where there is none.
    """

    suite: Suite

    def __init__(self, out: str | Path | None, name: str | None = None, config: str | None = None) -> None:
        self.out, self.name, self.config = out, name, config
        self._lock: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Opens the suite and finds out which blocks are still to do."""
        task: Any = pl_module
        pl_module.setup(stage)  # what does not fit together is refused before a folder is made
        identity = task.identity()
        name = self.name or type(task.searcher).__name__
        self.suite = Suite(self.out or Path("runs") / f"{name}-{identity[:8]}")
        found: Any = self._open(task, identity) if trainer.is_global_zero else None
        task.pending, task.chunk, refused = trainer.strategy.broadcast(found)
        task.failures_on_disk = self.suite.count_failures
        if refused:  # every process learns of it, so that none is left waiting or ends with a traceback
            raise InputError(refused)

    def _open(self, task: SearchTask, identity: str) -> tuple[list[int], int | None, str | None]:
        """Blocks to do, batch size of an earlier start, and why the folder cannot be used, if so."""
        try:
            _check_answers(task)
            self._lock = self.suite.open(_manifest(task, identity), self.config or _yaml(search_config(task)))
        except InputError as error:
            return [], None, str(error)
        done, before, now = set(self.suite.blocks), self.suite.manifest.get("precision"), str(task.trainer.precision)
        pending = [n for n in range(task.num_blocks) if n not in done]
        if done and pending and before not in (None, now):
            rank_zero_warn(f"{self.suite.path} was begun in precision {before} and goes on in {now}: its blocks differ")
        print(_what_was_found(self.suite, len(done), task.num_blocks))
        return pending, self.suite.manifest.get("eval_batch_size"), None

    def discard(self, *, alone: bool) -> None:
        """Takes the folder away again where the search ended with an error before anything was found.

        Otherwise the search that puts the error right would be another one, and refused there.

        Args:
            alone: Whether no other process may be writing to it.
        """
        if alone and self._lock is not None:
            self.suite.discard()

    def close(self) -> None:
        """Lets go of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def on_search_start(self, trainer: Trainer, task: SearchTask) -> None:
        """Stores the batch size that was settled on before any block is, so that a resumed search uses it too."""
        if trainer.is_global_zero and task.pending:
            self.suite.update_manifest(eval_batch_size=task.chunk, stopped_by=None)
        trainer.strategy.barrier("lsgen.suite.open")

    def on_search_batch_end(self, trainer: Trainer, task: SearchTask, cases: Cases) -> None:
        """Writes the block."""
        self.suite.write(cases)

    def on_search_end(self, trainer: Trainer, task: SearchTask) -> None:
        """Joins the blocks when every process has written its own."""
        trainer.strategy.barrier("lsgen.suite")
        reason = _any_process(trainer, task.stopped_by)
        if trainer.is_global_zero and not self.suite.finished:
            self.suite.finish(stopped_by=reason)
        trainer.strategy.barrier("lsgen.suite.joined")


@torch.no_grad()
def _check_answers(task: SearchTask) -> None:
    """Refuses SUTs that have no finite answer to any of a few test images, before a folder is made."""
    images = from_uint8(task.data["test"].spread(FEW_IMAGES)[0])
    size = FEW_IMAGES if task.eval_batch_size == "auto" else task.eval_batch_size
    for sut in task.suts:
        parts = images.to(sut.device).split(size)
        if not any(bool(sut.eval().logits(part).isfinite().all(1).any()) for part in parts):
            which = "the SUT" if sut is task.sut else "the second SUT"
            raise InputError(
                f"{which}, {type(sut).__name__}, answers with NaN or infinite logits: nothing it says can be trusted"
            )


def _any_process(trainer: Trainer, reason: str | None) -> str | None:
    """The reason that any process has for having stopped."""
    code = torch.tensor(float(STOPS.index(reason)), device=trainer.strategy.root_device)
    largest: Any = trainer.strategy.reduce(code, reduce_op="max")
    return STOPS[int(largest)]


def _what_was_found(suite: Suite, done: int, total: int) -> str:
    if suite.finished:
        return f"suite {suite.path}: already finished, nothing to do"
    return f"suite {suite.path}: " + (f"going on after {done} of {total} blocks" if done else "new")


def _manifest(task: SearchTask, identity: str) -> dict[str, Any]:
    return {
        "stopped_by": None,
        "identity": identity,
        "blocks": task.num_blocks,
        "block_size": task.block_size,
        "num_classes": task.sut.num_classes,
        "seed": task.seed,
        "eval_batch_size": None,
        "precision": str(task.trainer.precision),
        "searcher": type(task.searcher).__name__,
        **task.weights(),
        "data": {
            "name": task.data.name,
            "fingerprint": task.data.fingerprint,
            "class_names": task.data.class_names,
        },
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in PACKAGES}},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _yaml(content: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(content, sort_keys=False)
    return text


def search_config(task: Any) -> dict[str, Any]:
    """The configuration of a search that was put together in Python."""
    return {"seed_everything": task.seed, "model": describe(task)["args"], "data": describe(task.data)}


def check_task(model: object) -> None:
    """Refuses anything but a search task.

    Raises:
        InputError: It is something else.
    """
    from lsgen.search.task import SearchTask

    if not isinstance(model, SearchTask):
        raise InputError(
            f"`lsgen search` takes a SearchTask as model, got {type(model).__name__}; configs/mnist5k/search/pgd.yaml "
            f"shows one"
        )
