"""What loggers learn of a run: what is run and where, numbers while it goes on, and what it has found in the end."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lsgen import __version__
from lsgen.checkpoints import SavedModule
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.loggers import Artifact, RunLabels, Table, log_image, log_table, sink_of, sinks
from lsgen.metrics.functional import density_coverage, mean_pairwise_distance
from lsgen.metrics.table import LOOK
from lsgen.search.callbacks import SearchCallback, StepInfo, SuiteWriter, search_config
from lsgen.suite import Suite
from lsgen.types import Evaluation, Seeds, describe, from_uint8

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from lsgen.search.cases import Cases
    from lsgen.search.task import SearchTask

EVERY = 10  # rounds between two live reports
SHOWN = 200  # failures in the table of cases, whatever the size of the suite
MOST_BYTES = 256 * 2**20  # of arrays that go along with a suite
NEIGHBOURS = 5  # of coverage


# --- what is run, and where -------------------------------------------------------------------------------------------


class RunInfo(Callback):
    """Tells every logger the resolved configuration, code, data and hardware of a run, and hands over checkpoints."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Logs what is known before anything runs."""
        if trainer.is_global_zero and trainer.loggers:
            about = about_run(trainer, pl_module, stage)
            for logger in trainer.loggers:
                logger.log_hyperparams(about)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The best checkpoint goes to loggers that keep files."""
        best: str = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if trainer.is_global_zero and best and Path(best).is_file():
            artifact = _checkpoint(run_labels("fit", pl_module, _data_of(trainer)).group, pl_module, Path(best))
            for sink in sinks(trainer):
                sink.made(artifact)


def run_labels(command: str, model: LightningModule, data: Any = None) -> RunLabels:
    """Data set, generator or other model, and method of a run."""
    name = getattr(data, "name", None)
    if hasattr(model, "searcher") and hasattr(model, "generator"):
        return RunLabels(command, name, type(model.generator).__name__, type(model.searcher).__name__)
    return RunLabels(command, name, type(model).__name__)


def about_run(trainer: Trainer, model: LightningModule, stage: str) -> dict[str, Any]:
    """All that decides a run or its speed, as plain data: the resolved configuration, and ``run`` with the rest."""
    data = _data_of(trainer)
    labels = run_labels("search" if stage == "predict" else stage, model, data)
    run = {
        "command": labels.command,
        "data": labels.data,
        "data_fingerprint": getattr(data, "fingerprint", None),
        "model": labels.model,
        "method": labels.method,
        "lsgen": __version__,
        "git_commit": git_commit(),
        "hardware": hardware(trainer),
    }
    return {**resolved_config(trainer, model), "run": run}


def resolved_config(trainer: Trainer, model: LightningModule) -> dict[str, Any]:
    """Every setting: as the command line resolved it, or read from objects that were put together in Python."""
    import yaml
    from lightning.pytorch.cli import SaveConfigCallback

    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SaveConfigCallback):
            content: dict[str, Any] = yaml.safe_load(callback.parser.dump(callback.config, skip_unset=False))
            return content
    data = _data_of(trainer)
    about = {"data": describe(data) if isinstance(data, ImageData) else type(data).__name__}
    if isinstance(model, SavedModule):
        return {**about, "model": model.settings()}
    return {**about, **(search_config(model) if hasattr(model, "searcher") else {"model": type(model).__name__})}


def git_commit(folder: str | Path = ".") -> str | None:
    """The commit that is checked out in the folder, with ``-dirty`` where files differ; None outside a work tree."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def hardware(trainer: Trainer) -> dict[str, Any]:
    """Processor, memory, GPUs, and how the trainer makes use of them."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": gpus,
        "accelerator": type(trainer.accelerator).__name__,
        "strategy": type(trainer.strategy).__name__,
        "processes": trainer.world_size,
        "precision": trainer.precision,
        "torch": str(torch.__version__),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _data_of(trainer: Trainer) -> Any:
    return getattr(trainer, "datamodule", None)


# --- while a search goes on -------------------------------------------------------------------------------------------


class SearchLogging(SearchCallback):
    """Hands numbers, and in the end tables and files, to the loggers, under the names of the summary.

    The logger's step counts the rounds and blocks of this process, so that it only ever grows.

    Args:
        writer: Who knows the suite.
    """

    def __init__(self, writer: SuiteWriter) -> None:
        self.writer = writer
        self.step = 0
        self._so_far: dict[str, float] = {}

    def on_search_start(self, trainer: Trainer, task: SearchTask) -> None:
        """Starts counting, and names the batch size and the checkpoints that the search starts from."""
        self.step, self._so_far = 0, {}
        assert task.chunk is not None
        self._log(trainer, {"eval_batch_size": float(task.chunk)})
        self._began = time.monotonic()
        self._queries: int | Tensor = 0
        if trainer.is_global_zero:
            for artifact in used_checkpoints(trainer, task):
                for sink in sinks(trainer):
                    sink.used(artifact)

    def on_search_step_end(self, trainer: Trainer, task: SearchTask, info: StepInfo) -> None:
        """Every tenth round: active seeds, hits, best fitness, queries a second, and what finished blocks came to."""
        self.step += 1
        self._queries += info.evaluation.shown * task.passes(score=True)
        if info.step % EVERY == 1 and trainer.loggers:
            shares = torch.stack([who.float().mean() for who in (info.succeeded, info.misread)]).tolist()
            live = dict(zip(("succeeded", "misread"), shares, strict=True))
            self._log(trainer, {**self._so_far, **live_numbers(info.evaluation), **live, **self._speed()})

    def on_search_batch_end(self, trainer: Trainer, task: SearchTask, cases: Cases) -> None:
        """Failure rate and mean true-class probability of this process so far."""
        self.step += 1
        so_far = {k: float(v.compute()) for k, v in task.live.items() if v.update_called}
        self._so_far = {k: v for k, v in so_far.items() if v == v}  # while no case counts, there is none
        self._log(trainer, {**self._so_far, **self._speed()}, save=True)

    def on_search_end(self, trainer: Trainer, task: SearchTask) -> None:
        """Every number of the summary, how different the failures are, and what there is to look at."""
        self.step += 1
        suite = self.writer.suite
        if not trainer.is_global_zero or not trainer.loggers or not suite.blocks:
            return
        numbers = {k: v for k, v in suite.summary.items() if isinstance(v, (int, float))}
        self._log(trainer, numbers | diversity(task, suite), save=True)
        tables = suite_tables(suite)
        for name, table in tables.items():
            log_table(trainer, name, table, self.step)
        if tables["cases"].images:
            log_image(trainer, "gallery", gallery(tables["cases"]), self.step)
        if suite.finished:
            for sink in sinks(trainer):
                sink.made(suite_artifact(suite))

    def _speed(self) -> dict[str, float]:
        spent = time.monotonic() - self._began
        return {"queries_per_second": float(self._queries) / spent} if self._queries and spent else {}

    def _log(self, trainer: Trainer, numbers: dict[str, float], *, save: bool = False) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=self.step)
            if save:
                logger.save()


def live_numbers(evaluation: Evaluation) -> dict[str, float]:
    """Active seeds, those with a success in this round, and the mean of their best fitness, where it is finite.

    Example:
        >>> fitness, success = torch.tensor([[1.0, 3.0], [2.0, 9.0]]), torch.tensor([[False, True], [False, False]])
        >>> live_numbers(Evaluation(torch.zeros(2, 2, 1), torch.zeros(2, 2, 2), fitness, success, None))
        {'active_seeds': 2, 'hits': 1.0, 'best_fitness': 1.5}
    """
    best = evaluation.fitness.amin(dim=1)
    finite = best.isfinite()
    parts = (evaluation.success.any(dim=1).sum(), finite.sum(), best.where(finite, 0.0).sum())
    hits, counted, summed = torch.stack([part.float() for part in parts]).tolist()  # the device is asked once
    numbers: dict[str, float] = {"active_seeds": len(best), "hits": hits}
    return {**numbers, "best_fitness": summed / counted} if counted else numbers


class SearchGallery(SearchCallback):
    """Shows seeds above what has become of them, every few rounds; the first seeds that are still active.

    Pictures cost a pass through the decoder, and no SUT query.

    Args:
        every: Rounds between two pictures.
        seeds: How many seeds are shown.
    """

    def __init__(self, *, every: int = 25, seeds: int = 16) -> None:
        if every < 1 or seeds < 1:
            raise InputError(f"SearchGallery needs every >= 1 and seeds >= 1, got {every} and {seeds}")
        self.every, self.seeds = every, seeds
        self._step = 0  # as SearchLogging counts, so that pictures stand beside numbers

    def on_search_start(self, trainer: Trainer, task: SearchTask) -> None:
        """Starts counting."""
        self._step = 0

    def on_search_batch_end(self, trainer: Trainer, task: SearchTask, cases: Cases) -> None:
        """Counts the block."""
        self._step += 1

    def on_search_step_end(self, trainer: Trainer, task: SearchTask, info: StepInfo) -> None:
        """Draws at the first round of a block and at every k-th."""
        self._step += 1
        due = info.step % self.every == 1 or self.every == 1
        if due and trainer.is_global_zero and trainer.loggers:
            picture = candidate_grid(task, info.evaluation, info.seeds, self.seeds)
            log_image(trainer, "candidates", picture, self._step)


@torch.no_grad()
def candidate_grid(task: SearchTask, evaluation: Evaluation, seeds: Seeds, n: int) -> Tensor:
    """The first ``n`` seeds above the best candidate of each, as one picture [C, H, W] in [0, 1]."""
    from torchvision.utils import make_grid

    label, rows = seeds.label[:n], torch.arange(min(n, len(seeds.label)), device=seeds.label.device)
    best = evaluation.latent[rows, evaluation.fitness[:n].argmin(dim=1)]
    images = torch.cat([task.evaluator.images(z, label) for z in (seeds.latent[:n], best)])
    return make_grid(images.clamp(0, 1).cpu(), nrow=len(rows), padding=1, pad_value=0.5)


# --- what was found ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def diversity(task: SearchTask, suite: Suite) -> dict[str, float]:
    """How far apart failures lie, and how much of the data they cover, in the SUT's features; of 500 failures at most.

    Empty where there are fewer than two failures, or the SUT has no features.
    """
    failures = suite.failures
    failures = failures[np.linspace(0, len(failures) - 1, min(LOOK, len(failures))).astype(int)]
    if len(failures) < 2:
        return {}
    try:
        found = _features(task, torch.from_numpy(suite.take("image", failures)))
        real = _features(task, task.data["test"].spread(LOOK)[0])
    except InputError:  # a SUT of the user's own whose layers are not known
        return {}
    numbers = {"feature_distance": float(mean_pairwise_distance(found))}
    if len(real) > NEIGHBOURS:
        numbers["feature_coverage"] = float(density_coverage(real, found, NEIGHBOURS)[1])
    return {name: value for name, value in numbers.items() if value == value}


def _features(task: SearchTask, images: Tensor) -> Tensor:
    """Penultimate activations of stored images, [N, C, H, W] uint8 -> [N, F]."""
    parts = images.split(task.evaluator.chunk)
    return torch.cat([task.sut.features(from_uint8(part.to(task.device))).flatten(1).float() for part in parts])


def suite_tables(suite: Suite) -> dict[str, Table]:
    """Numbers of each class, escape rates, and some failures with their pictures."""
    import pandas as pd

    summary, names = suite.summary, _class_names(suite)
    classes = [{"class": names[int(k)], **numbers} for k, numbers in summary["per_class"].items()]
    escapes = pd.DataFrame(summary["escape_rate"], columns=names)
    escapes.insert(0, "class", names)
    return {
        "per_class_table": Table(pd.DataFrame(classes)),
        "escape_rate_table": Table(escapes),
        "cases": case_table(suite),
    }


def case_table(suite: Suite, limit: int = SHOWN) -> Table:
    """Up to ``limit`` failures, classes in turn: seed, found image, difference, and the main columns.

    A difference is half the change, from gray: brighter where pixels were added, darker where they were taken away.
    """
    rows, names = _in_turn(suite.failures, suite.table["label"].to_numpy("int64"))[:limit], _class_names(suite)
    frame = suite.table.iloc[rows][["id", "label", "predicted", "p_true", "iterations"]].reset_index(drop=True)
    frame = frame.assign(**{column: [names[int(k)] for k in frame[column]] for column in ("label", "predicted")})
    if not len(rows):
        return Table(frame)
    seed, found = suite.take("seed_image", rows), suite.take("image", rows)
    change = (found.astype(np.int16) - seed) // 2 + 128
    return Table(frame, {"seed": seed, "found": found, "difference": change.clip(0, 255).astype(np.uint8)})


def gallery(cases: Table, columns: int = 4, rows: int = 10) -> Tensor:
    """Failures as one picture [C, H, W] in [0, 1], four a row: seed, found image and difference of each."""
    from torchvision.utils import make_grid

    triples = torch.from_numpy(np.stack(list(cases.images.values()), axis=1)[: columns * rows])  # [N, 3, C, H, W]
    return make_grid(from_uint8(triples.flatten(0, 1)), nrow=3 * columns, padding=1, pad_value=0.5)


def _in_turn(rows: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Rows [M] reordered: the first of every class, then the second, and so on."""
    turn = np.zeros(len(rows), dtype=int)
    for k in np.unique(label[rows]):
        own = label[rows] == k
        turn[own] = np.arange(own.sum())
    return rows[np.argsort(turn, kind="stable")]


def _class_names(suite: Suite) -> list[str]:
    """One for each class: its name, or its number where names are missing or repeated."""
    count = suite.manifest["num_classes"]
    names = suite.class_names or []
    return names if len(set(names)) == count else [str(k) for k in range(count)]


# --- files and where they come from -----------------------------------------------------------------------------------


def used_checkpoints(trainer: Trainer, task: SearchTask) -> list[Artifact]:
    """The checkpoints of generator and SUT, where the configuration names them."""
    settings = resolved_config(trainer, task).get("model", {}).get("init_args", {})
    found = []
    for part in ("generator", "sut"):
        about = settings.get(part) or {}
        path = (about.get("init_args") or {}).get("path")
        if str(about.get("class_path")).endswith(".pretrained") and path and Path(path).is_file():
            module = getattr(task, part)
            found.append(_checkpoint(RunLabels("fit", task.data.name, type(module).__name__).group, module, Path(path)))
    return found


def _checkpoint(name: str, module: LightningModule, file: Path) -> Artifact:
    """A model file; under one name, so that the one that a training made is the one that a search uses."""
    return Artifact(name, "model", {file.name: file}, {"class": type(module).__name__})


def suite_artifact(suite: Suite) -> Artifact:
    """A suite's files; without its arrays where they are large."""
    manifest, summary = suite.manifest, suite.summary
    names = ["manifest.json", "config.yaml", "summary.json", "cases.parquet"]
    arrays = sorted((suite.path / "arrays").glob("block-*.safetensors"))
    whole = sum(file.stat().st_size for file in arrays) <= MOST_BYTES
    if whole:
        names += [f"arrays/{file.name}" for file in arrays]
    labels = RunLabels("search", manifest["data"]["name"], manifest["generator"]["class"], manifest["searcher"])
    about = {"identity": manifest["identity"], "arrays": whole}
    about |= {key: manifest[key]["sha256"] for key in ("generator", "sut")}
    about |= {key: summary[key] for key in ("n_cases", "failed", "failure_rate", "mean_p_true", "label_diversity")}
    return Artifact(labels.group, "suite", {name: suite.path / name for name in names}, about)


def track_report(page: Path, suites: list[Suite], logger: Logger) -> None:
    """Hands a report to a logger that keeps files, as made from its suites.

    Args:
        page: The HTML file.
        suites: What it is about.
        logger: Whose run it is; a new one, since a report is a run of its own.
    """
    sink = sink_of(logger)
    sink.begin(RunLabels("report", method=page.stem), page.parent)
    for suite in suites:
        sink.used(suite_artifact(suite))
    sink.made(Artifact(page.stem, "report", {page.name: page}))
