"""The look before a search: what is searched, what it will cost, and whether networks and seeds can be trusted."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from lsgen.generators.quality import reconstruction_accuracy, sample_accuracy
from lsgen.search.base import SeedRandom
from lsgen.search.callbacks import SearchCallback, SuiteWriter
from lsgen.search.chunk_size import SMALLER, passes_a_round, seconds_per_image
from lsgen.suite import Suite
from lsgen.suts import accuracy
from lsgen.suts.base import predictions

if TYPE_CHECKING:
    from lsgen.search.task import SearchTask

LOOK = 1000  # seeds, samples and test images that are looked at before the first step
LOOK_SECONDS = 10.0  # for each of these, beyond which there are fewer, but at least
FEWEST = 32
PATIENCE = 30.0  # seconds of looking that are announced
BUSY = 0.05  # seconds for an image, beyond which a GPU has no room for padding beside it
LARGE = 10**9  # bytes of a suite that are announced


class Preflight(SearchCallback):
    """Says before the first step what is searched, what it will cost, and whether the generator can be trusted.

    Args:
        writer: Who has the suite, which keeps what the SUT makes of test images and of the generator's plain ones.
    """

    def __init__(self, writer: SuiteWriter) -> None:
        self.writer = writer

    def on_search_start(self, trainer: Trainer, task: SearchTask) -> None:
        """Prints clean accuracy, the seeds' own failure rate and an estimate of cost; warns of what is in doubt."""
        if not trainer.is_global_zero or not task.pending:
            return
        with trainer.precision_plugin.predict_step_context():  # as the search itself
            self._look(task, trainer.world_size)

    def _look(self, task: SearchTask, processes: int) -> None:
        assert task.chunk is not None
        each, suite = seconds_per_image(task.evaluator, task.chunk, needs_grad=False), self.writer.suite
        if less := _less_padding(task, each):
            print(less)
        n = looked_at(each)
        if 2 * n * each > PATIENCE:
            print(f"a first look at {n} images of the generator and at {n} seeds takes {duration(2 * n * each)}")
        suite.update_manifest(preflight=_look_at_networks(task, n))
        print(f"failure rate of the seeds themselves: {_look_at_seeds(task, n)}")
        blocks, cost = "block" if task.num_blocks == 1 else "blocks", _Cost.of(task, each, processes)
        print(
            f"{type(task.searcher).__name__}: {len(task.plan):,} seeds in {task.num_blocks} {blocks} "
            f"({len(task.pending)} to do), {task.rounds} steps each, batches of {task.chunk}; {cost}"
        )
        cost.warn(task, suite)
        if suite.doubt:
            rank_zero_warn(f"{suite.doubt}.", category=UserWarning)


def looked_at(each: float) -> int:
    """How many images there is time to look at, ``each`` seconds apiece."""
    return max(FEWEST, min(LOOK, int(LOOK_SECONDS / each)))


def _less_padding(task: SearchTask, each: float) -> str | None:
    """A sentence on a batch size that few seeds fill better than the one that ``auto`` took, where there is one.

    On a CPU, padding takes as long as candidates do; on a GPU, hardly any time, unless it is busy with each image.
    """
    quick = task.device.type != "cpu" and each < BUSY
    begun = len(task.pending) < task.num_blocks  # with this size, which belongs to the suite
    prepares = task.objective.needs_features or task.criterion.needs_features  # in batches of this size, which are many
    if task.eval_batch_size != "auto" or quick or begun or prepares or not task.rounds or task.searcher.asks_by_itself:
        return None
    candidates, chunk = len(task.plan) * task.searcher.candidates, task.chunk
    assert chunk is not None
    size = next((n for n in SMALLER[1:] if candidates <= n < chunk), None)  # alone, an image may lose its axis
    if size is None:
        return None
    padding = f"a step has {candidates} candidate{'s' * (candidates > 1)}, the rest of each batch is padding"
    return f"{padding}: a step takes less time with --model.eval_batch_size {size}"


def _look_at_networks(task: SearchTask, n: int) -> dict[str, Any]:
    """What the SUT reads rightly of test images and of ``n`` unperturbed ones of the generator; prints it as well."""
    size, started = task.evaluator.chunk, time.perf_counter()
    images, labels = task.data["test"].spread(size)
    predictions(task.sut, images, size)
    images, labels = task.data["test"].spread(looked_at((time.perf_counter() - started) / len(images)))
    found: dict[str, Any] = {"accuracy": accuracy(task.sut, images, labels, size), "test_images": len(labels)}
    print(f"SUT accuracy on {len(labels):,} test images: {found['accuracy']:.2%}")
    if task.generator.latent.kind == "pixels":  # an image itself is no generator's
        return found
    readable, what = _readable(task, n)
    print(f"{what} of the generator that the SUT reads as intended: {readable:.1%}")
    return found | {"readable": readable, "readable_of": what, "readable_images": n}


def _readable(task: SearchTask, n: int) -> tuple[float, str]:
    """What the SUT reads rightly of ``n`` images that the generator makes unperturbed, and what that is."""
    networks, size = (task.generator, task.sut), task.evaluator.chunk
    if task.generator.conditional:
        return sample_accuracy(*networks, n, size), "plain samples"
    return reconstruction_accuracy(*networks, task.data, "test", n, size), "reconstructions"


def _look_at_seeds(task: SearchTask, n: int) -> str:
    """Failure rate of the first block's seeds, at most ``n`` of them; warns where none is left to search."""
    block = task.block(task.pending[0])
    seeds = task.start(block, SeedRandom(task.seed, block.number, len(block.plan), task.device))
    few = torch.arange(min(n, len(block.plan)))
    seeds = seeds.take(few.to(task.device))
    judged, shared = task.judge_seeds(replace(block, plan=block.plan.take(few)), seeds)
    if task.searcher.viable_seeds_only and judged.success.all():
        rank_zero_warn(
            f"{type(task.criterion).__name__}, the criterion, holds for all of the first {len(shared)} seeds as they "
            f"are: nothing is left to search",
            category=UserWarning,
        )
    failed = (judged.logits.argmax(1) != seeds.label)[~shared]
    return f"{float(failed.float().mean()):.2%} of the first {len(failed)}"


@dataclass(frozen=True)
class _Cost:
    """What is left of a search comes to at most; early stops make it less."""

    queries: int | None  # None: nobody knows
    block: float  # seconds of a full block
    seconds: float
    size: int  # bytes on disk

    @classmethod
    def of(cls, task: SearchTask, judged: float, processes: int) -> _Cost:
        """At the speed of now, ``judged`` seconds for an image; padding takes as long as any image."""
        searcher, evaluator, seeds = task.searcher, task.evaluator, min(task.block_size, len(task.plan))
        left = min(len(task.pending) * task.block_size, len(task.plan))
        latent, image = math.prod(task.space.latent_shape), math.prod(task.sut.image_shape)
        size = left * (8 * latent + 2 * image + 4 * task.sut.num_classes)
        if searcher.asks_by_itself:
            return cls(None, 0.0, 0.0, size)

        def shown(n: int) -> float:
            return passes_a_round(n, evaluator.chunk, evaluator.lanes) * evaluator.chunk

        last = shown(seeds * searcher.candidates) if searcher.final_look else 0.0
        block = judged * (shown(seeds) * (2 if searcher.has_seed else 1) + last)
        if task.rounds:
            stepped = seconds_per_image(evaluator, evaluator.chunk, needs_grad=searcher.needs_grad)
            of_rounds = task.rounds * shown(seeds * searcher.candidates) + shown(seeds * searcher.first)
            block += stepped * of_rounds
        blocks = min(-(-len(task.pending) // processes), left / seeds)
        return cls(left * task.most_queries, block, block * blocks, size)

    def __str__(self) -> str:
        if self.queries is None:
            cost = "as many SUT queries as the method asks by itself"
        else:
            cost = f"at most {self.queries:,} SUT queries, {duration(self.seconds)}"
        return f"{cost}, {self.size / 1e9:.1f} GB on disk" if self.size > LARGE else cost

    def warn(self, task: SearchTask, suite: Suite) -> None:
        """Warns of a time limit that ends nothing for long, and of a disk that is too small."""
        if task.max_seconds is not None and (len(task.pending) == 1 or self.block > task.max_seconds):
            left = "there is one left" if len(task.pending) == 1 else f"one may take {duration(self.block)}"
            rank_zero_warn(
                f"max_seconds ends a search between blocks, and {left}: lower block_size for more of them",
                category=UserWarning,
            )
        free = shutil.disk_usage(suite.path).free
        if self.size > free:
            rank_zero_warn(
                f"the suite may take {self.size / 1e9:.1f} GB, and the disk of {suite.path} has {free / 1e9:.1f} left",
                category=UserWarning,
            )


def duration(seconds: float) -> str:
    """A time for people.

    Example:
        >>> duration(7), duration(200), duration(8000)
        ('7 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
