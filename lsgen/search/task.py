"""The task that ties generator, SUT, seeds, searcher and objective together and runs blocks of seeds."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from lsgen.checkpoints import weights_sha256
from lsgen.data import ImageData, check_fits
from lsgen.errors import InputError
from lsgen.generators import Generator
from lsgen.metrics import FailureRate, MeanTrueProbability
from lsgen.objectives import Criterion, Objective
from lsgen.search.base import Searcher, SeedRandom
from lsgen.search.callbacks import SearchCallback, StepInfo
from lsgen.search.cases import Cases, Outcome, tabulate
from lsgen.search.check import check_fit, check_memory
from lsgen.search.chunk_size import MULTIPLE, SMALLER, fastest, is_chunk_size
from lsgen.search.evaluator import Evaluator, Judged, use_channels_last
from lsgen.search.loop import Loop
from lsgen.search.seeds import Block, Plan, SeedSource, first_of_each
from lsgen.suts import SUT
from lsgen.types import Evaluation, Seeds, describe

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
NOT_DECISIVE = {"max_seconds", "max_failures"}  # how much is done, and not what comes out; all other settings decide
PREPARED = 256  # images of a pass before the first block, where eval_batch_size is auto and not yet known
NO_BLOCK = -1  # keeps a process without work in step with the others


class SearchTask(LightningModule):
    """Searches a generator's latent space for inputs on which a SUT fails.

    It owns decoding, SUT calls, gradients and the final judgement of every case on its stored 8-bit image; the
    searcher only does latent arithmetic.

    Args:
        generator: The generative model, e.g. ``lsgen.generators.pretrained`` with a checkpoint.
        sut: The classifier under test, e.g. ``lsgen.suts.pretrained`` with a checkpoint.
        searcher: How candidates are proposed.
        seeds: Where searches start, and how many.
        objective: What is minimised; the searcher's own by default.
        criterion: When a search has succeeded; misclassification by default.
        block_size: Seeds that are searched and written together; fewer of them take less memory.
        eval_batch_size: Images in one pass through the networks: a multiple of 32, or 1, 4, 8 or 16 where 32 do not fit
            into memory or there are few seeds; or ``auto``: multiples of 32 are tried and the fastest is taken.
        channels_last: Whether convolutions are laid out for speed; where a SUT's code cannot take it, they are not.
        compile: Whether decoder and SUT are compiled: a minute's wait, then faster; suites are no longer equal bit for
            bit between runs.
        max_queries: Most images of one seed that are shown to the SUT, the looks at the seed and at the found image
            included; a round that would go beyond it is not begun, even where some of its candidates need no look.
            By default only the searcher's steps are limited.
        max_seconds: Time after which no further block is begun; running the search again goes on, by a block at least.
            A search of one block is not cut short: a smaller ``block_size`` makes more of them.
        max_failures: Failures, over all processes, after which no further block is begun; running the search again goes
            on, by a block at least.
    """

    compile: bool  # type: ignore[assignment]  # nn.Module's method of this name is not used

    def __init__(
        self,
        *,
        generator: Generator,
        sut: SUT,
        searcher: Searcher,
        seeds: SeedSource,
        objective: Objective | None = None,
        criterion: Criterion | None = None,
        block_size: int = 500,
        eval_batch_size: int | Literal["auto"] = "auto",
        channels_last: bool = True,
        compile: bool = False,
        max_queries: int | None = None,
        max_seconds: float | None = None,
        max_failures: int | None = None,
    ) -> None:
        super().__init__()
        if block_size < 1:
            raise InputError(f"block_size must be at least 1, got {block_size}")
        if eval_batch_size != "auto" and not is_chunk_size(eval_batch_size):
            smaller = ", ".join(map(str, SMALLER))
            raise InputError(
                f"eval_batch_size must be {smaller}, a multiple of {MULTIPLE} or auto, got {eval_batch_size}"
            )
        if (max_seconds is not None and not max_seconds > 0) or (max_failures is not None and max_failures < 1):
            raise InputError("max_seconds must be above 0 and max_failures at least 1; null means no limit")
        if generator.image_shape != sut.image_shape or generator.num_classes != sut.num_classes:
            way_out = "they must be trained on the same data"
            if generator.latent.kind == "pixels":
                way_out = "give it the image_shape and num_classes of the SUT"
            raise InputError(
                f"the generator makes images of {generator.image_shape} in {generator.num_classes} classes, "
                f"the SUT takes {sut.image_shape} in {sut.num_classes}: {way_out}"
            )
        if sut.num_classes < 2:
            raise InputError("a SUT of one class is never wrong: there is nothing to search for")
        if objective is not None and not searcher.minimises:
            raise InputError(
                f"{type(searcher).__name__} minimises nothing, so objective: {type(objective).__name__} would change "
                f"nothing: leave it out, or take another searcher; what counts as a success is the criterion"
            )
        seeds.check(generator)
        searcher = copy.copy(searcher)  # what it learns of this generator is not for another task
        self.generator, self.sut, self.searcher, self.seeds = generator, sut, searcher, seeds
        self.objective = objective or searcher.objective(targeted=seeds.targeted)
        self.criterion = criterion or self.objective.criterion() or searcher.criterion(targeted=seeds.targeted)
        self.block_size, self.eval_batch_size = block_size, eval_batch_size
        self.max_queries, self.max_seconds, self.max_failures = max_queries, max_seconds, max_failures
        check_fit(searcher, self.objective, self.criterion, sut, seeds)
        if max_queries is not None and searcher.asks_by_itself:
            raise InputError(
                f"{type(searcher).__name__} asks the SUT by itself, so max_queries cannot hold it: set its own limits "
                f"instead"
            )
        self.space = searcher.bind(generator)
        self._check_max_queries()
        self.channels_last, self.compile = channels_last, compile
        self.evaluator = Evaluator(self.space, sut, self.objective, self.criterion)
        self.seed_evaluator = self.evaluator  # a space of the same shape may still judge otherwise than the generator
        if self.space is not generator and self.space.latent_shape == generator.latent_shape:
            self.seed_evaluator = Evaluator(generator, sut, self.objective, self.criterion)
        self.live: dict[str, Metric] = {  # of this process; in a dict, or they would move to devices without float64
            "failure_rate": FailureRate(sync_on_compute=False),
            "mean_p_true": MeanTrueProbability(sync_on_compute=False),
        }
        self.pending: list[int] = []  # blocks still to do
        self.stopped_by: str | None = None  # the budget that ended this process's search
        self.failures_on_disk: Callable[[], int] = lambda: 0
        self.chunk: int | None = None  # the eval_batch_size in use
        self.requires_grad_(False)

    def _check_max_queries(self) -> None:
        if self.max_queries is None:
            return
        least = self.queries_beside_rounds
        if self.searcher.steps:
            least += (self.searcher.first + self.searcher.candidates) * self.passes(score=True)
        if self.max_queries < least:
            raise InputError(
                f"max_queries must be at least {least}, for looks at a seed and at what became of it and for one round "
                f"of candidates, got {self.max_queries}"
            )

    @property
    def suts(self) -> list[SUT]:
        """The SUT and whichever others take part, each once."""
        return self._asked_by([self.objective, self.criterion])

    def _asked_by(self, parts: list[Objective | Criterion]) -> list[SUT]:
        return list({id(sut): sut for sut in (self.sut, *(sut for part in parts for sut in part.others))}.values())

    # --- what a seed costs ---------------------------------------------------------------------------------------

    def passes(self, *, score: bool) -> int:
        """SUT forward passes that one candidate costs."""
        parts: list[Objective | Criterion] = [self.criterion, self.objective] if score else [self.criterion]
        return len(self._asked_by(parts)) + any(part.needs_features for part in parts)

    @property
    def queries_beside_rounds(self) -> int:
        """Most queries of a seed for looks at it, at the last candidates where one is to be chosen, and at that one."""
        looks = 2 if self.searcher.has_seed else 1  # a case that is no change of a seed is the seed
        last = self.searcher.candidates if self.searcher.final_look else 0
        return looks * self.passes(score=False) + last * self.passes(score=True)

    @property
    def rounds(self) -> int:
        """Rounds of each seed: the searcher's steps, or as many as ``max_queries`` has room for."""
        searcher = self.searcher
        if self.max_queries is None:
            return searcher.steps
        room = (self.max_queries - self.queries_beside_rounds) // self.passes(score=True)
        return min(searcher.steps, max(0, room - searcher.first) // searcher.candidates)

    @property
    def candidates_of_a_seed(self) -> int:
        """Candidates in all rounds of a seed that never ends early."""
        return self.rounds * self.searcher.candidates + min(self.rounds, 1) * self.searcher.first

    @property
    def most_queries(self) -> int:
        """Queries of a seed that never ends early."""
        return self.candidates_of_a_seed * self.passes(score=True) + self.queries_beside_rounds

    # --- what decides the result ---------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The seed given to ``seed_everything``, 0 without one."""
        return int(os.environ.get("PL_GLOBAL_SEED", "0"))

    @property
    def data(self) -> ImageData:
        """The data set that the search runs on."""
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, ImageData):
            raise InputError("a search needs `data`, e.g. class_path: ImageData with the name of a data set")
        return data

    def weights(self) -> dict[str, dict[str, str]]:
        """Class and SHA-256 of the weights of generator, SUT and, where another SUT takes part, of that."""
        modules = {"generator": self.generator, "sut": self.sut}
        for part in (self.searcher, self.objective, self.criterion):
            modules |= _suts_in(part)
        return {k: {"class": type(m).__name__, "sha256": weights_sha256(m)} for k, m in modules.items()}

    def identity(self) -> str:
        """A hash of everything that decides the cases: weights, data, seeds, searcher, objective, sizes, seed."""
        networks = {"generator", "sut"}  # whose settings and weights count, wherever they lie
        names = inspect.signature(type(self)).parameters.keys() - networks - NOT_DECISIVE
        content = {name: _decisive(getattr(self, name)) for name in names}
        content |= {"generator settings": self.generator.settings(), "SUT settings": self.sut.settings()}
        content |= {"weights": self.weights(), "data": self.data.fingerprint, "seed": self.seed}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    # --- blocks --------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Refuses a SUT that does not fit the data, before anything runs."""
        check_fits(self.sut, self.trainer)
        if (precision := str(self.trainer.precision)) not in PRECISIONS:
            raise InputError(f"trainer.precision: a search runs in {' or '.join(PRECISIONS)}, got {precision}")
        self.__dict__.pop("plan", None)  # of an earlier search, perhaps on other data
        if self.rounds:
            check_memory(self.searcher, self.space.latent_shape, min(self.block_size, len(self.plan)))

    @cached_property
    def plan(self) -> Plan:
        """All cases of the search."""
        return self.seeds.plan(self.data)

    @property
    def num_blocks(self) -> int:
        """How many blocks the cases fill."""
        return -(-len(self.plan) // self.block_size)

    def block(self, number: int) -> Block:
        """The cases of one block."""
        ids = torch.arange(number * self.block_size, min((number + 1) * self.block_size, len(self.plan)))
        return self.seeds.block(number, ids, self.plan.take(ids), self.data)

    def start(self, block: Block, rng: SeedRandom) -> Seeds:
        """The block's seeds with their latents, on this process's device."""
        plan = block.plan
        latent = self.seeds.latents(block, self.generator, self._encode, rng).to(self.device, torch.float32)
        other = None
        if block.other_image is not None and plan.other_label is not None and plan.other_index is not None:
            first, again = first_of_each(plan.other_index)  # an image that is mixed into several is encoded once
            other = self._encode(block.other_image[first], plan.other_label[first])[again.to(self.device)]
        target = None if plan.target is None else plan.target.to(self.device)
        return Seeds(self.searcher.lift(latent), plan.label.to(self.device), target, other)

    def _encode(self, images: Tensor, label: Tensor) -> Tensor:
        return self.evaluator.encode(images.to(self.device), label.to(self.device))

    def predict_dataloader(self) -> DataLoader[int]:
        """The numbers of the pending blocks, at least one entry for each process."""
        idle = max(0, self.trainer.world_size - len(self.pending))
        return DataLoader(dataset=self.pending + idle * [NO_BLOCK], batch_size=None)  # type: ignore[arg-type]

    # --- the search ----------------------------------------------------------------------------------------------

    def on_predict_start(self) -> None:
        """Settles the batch size for all processes, then tells the callbacks."""
        for metric in self.live.values():
            metric.reset()
        self.stopped_by = None
        self.lay_out()
        size = PREPARED if self.eval_batch_size == "auto" else self.eval_batch_size
        for part in (self.objective, self.criterion):  # now that the SUT is on its device
            part.prepare(self.sut, self.data, size)
        if self.chunk is None:
            given = self.eval_batch_size
            tries = given == "auto" and self.trainer.is_global_zero
            with self.trainer.precision_plugin.predict_step_context():
                own = self.fastest_chunk(min(self.block_size, len(self.plan))) if tries else given
            self.chunk = int(self.trainer.strategy.broadcast(own))
        self.evaluator.chunk = self.seed_evaluator.chunk = self.chunk
        if self.compile:
            self.evaluator.compile()
        for callback in self._callbacks():
            callback.on_search_start(self.trainer, self)
        self._began, self._searched = time.monotonic(), 0

    def lay_out(self) -> None:
        """Lays the networks out for speed, where they are now, unless that is not wanted or does not work."""
        if self.channels_last:
            use_channels_last(self.generator, partial(_try_out, self.generator))
            for sut in self.suts:
                use_channels_last(sut, partial(_ask, sut))

    def fastest_chunk(self, seeds: int) -> int:
        """The batch size for rounds of so many seeds; the smallest where nobody knows what will be asked at once."""
        searcher = self.searcher
        if searcher.asks_by_itself:
            return MULTIPLE
        steady = not searcher.stops_at_success and type(searcher).bar is Searcher.bar
        return fastest(self.evaluator, searcher.needs_grad, seeds * searcher.candidates, steady)

    def predict_step(self, batch: int, batch_idx: int) -> None:
        """Searches one block and hands its cases to the callbacks."""
        number = int(batch)
        self._end_if_told()
        self.stopped_by = self.stopped_by or self._spent()
        if number == NO_BLOCK or self.stopped_by:
            return
        started = time.perf_counter()
        cases = self.search_block(number)
        cases.seconds = time.perf_counter() - started
        self._searched += 1
        counted = cases.columns["viable"]
        logits, label = cases.arrays["logits"][counted], cases.columns["label"][counted]
        for metric in self.live.values():
            metric.update(logits, label)
        for callback in self._callbacks():
            callback.on_search_batch_end(self.trainer, self, cases)

    def _spent(self) -> str | None:
        """The budget that is used up, if any."""
        if not self._searched:  # each run gets on by a block, however little it is given
            return None
        if self.max_seconds is not None and time.monotonic() - self._began > self.max_seconds:
            return "max_seconds"
        if self.max_failures is not None and self.failures_on_disk() >= self.max_failures:
            return "max_failures"
        return None

    def on_predict_end(self) -> None:
        """Tells the callbacks."""
        for callback in self._callbacks():
            callback.on_search_end(self.trainer, self)

    def search_block(self, number: int) -> Cases:
        """All cases of one block, judged on their stored images."""
        block = self.block(number)
        rng = SeedRandom(self.seed, number, len(block.plan), self.device)
        seeds = self.start(block, rng)
        first, shared = self.judge_seeds(block, seeds)
        tested = torch.ones_like(shared) if self.criterion.needs_target else ~shared  # by the criterion, each by itself
        viable = first.logits.isfinite().all(1)
        if self.searcher.viable_seeds_only:
            viable &= (first.logits.argmax(1) == seeds.label) & ~first.success
        outcome = Outcome.at(seeds, first.success, viable, self.rounds)
        outcome.retire((~first.logits.isfinite().all(1)).nonzero().squeeze(1), seeds)
        outcome.forward += (~shared).long() + (self.passes(score=False) - 1) * tested
        self.run(outcome, seeds, viable, rng)
        last = self._judge_found(outcome, seeds, first)
        return tabulate(block, seeds, first, last, outcome, viable, self.searcher.has_seed)

    def judge_seeds(self, block: Block, seeds: Seeds) -> tuple[Judged, Tensor]:
        """The seeds' own images, each judged once, and which cases only share the judgement of an earlier one."""
        index, again = first_of_each(block.plan.seed_id.to(self.device))
        own, evaluator = seeds.take(index), self.seed_evaluator
        if self.criterion.needs_target:  # a seed's cases aim at different classes
            image, logits = (column[again] for column in evaluator.look(own.latent, own.label))
            judged = Judged(image, logits, evaluator.successes(seeds.latent, image, logits, seeds))
        else:
            judged = evaluator.judge(own.latent, own).take(again)
        shared = torch.ones_like(again, dtype=torch.bool)
        shared[index] = False
        return judged, shared

    def _judge_found(self, outcome: Outcome, seeds: Seeds, first: Judged) -> Judged:
        """What became of the seeds: those that moved are judged anew, whatever the searcher thinks of them."""
        moved = (outcome.latent != seeds.latent).flatten(1).any(1).nonzero().squeeze(1)
        if not len(moved):
            return first
        found = self.evaluator.judge(outcome.latent[moved], seeds.take(moved))
        outcome.forward[moved] += self.passes(score=False)
        broken = ~found.logits.isfinite().all(1)
        outcome.retire(moved[broken], seeds)
        return first.replace(moved[~broken], found.take((~broken).nonzero().squeeze(1)))

    def run(self, outcome: Outcome, seeds: Seeds, viable: Tensor, rng: SeedRandom) -> None:
        """Searches the viable seeds and notes what comes of them."""
        Loop(self, outcome, seeds).run(viable, rng)

    def step_end(self, step: int, evaluation: Evaluation, seeds: Seeds, outcome: Outcome) -> None:
        """Tells the callbacks what a step of these seeds came to."""
        info = StepInfo(step + 1, outcome, evaluation, seeds)
        for callback in self._callbacks():
            callback.on_search_step_end(self.trainer, self, info)
        self._end_if_told()

    def _end_if_told(self) -> None:
        """Ends as Ctrl-C does after SIGTERM, which Lightning only notes while it predicts."""
        if self._trainer is not None and self.trainer.received_sigterm:
            raise KeyboardInterrupt

    def _callbacks(self) -> list[SearchCallback]:
        trainer: Any = self._trainer
        return [] if trainer is None else [c for c in trainer.callbacks if isinstance(c, SearchCallback)]


def _try_out(generator: Generator) -> None:
    """Decodes two latents, and encodes what comes of it where that can be done."""
    y = torch.zeros(2, dtype=torch.long, device=generator.device)
    image = generator.eval().decode(torch.zeros(2, *generator.latent_shape, device=generator.device), y)
    if generator.encodes:
        generator.encode(image, y)


def _ask(sut: SUT) -> None:
    """Shows two images to a SUT."""
    sut.eval().logits(torch.zeros(2, *sut.image_shape, device=sut.device))


def _decisive(part: Any) -> Any:
    """A part of the search as plain data; a SUT in it by what decides its answers, not by where its files lie."""
    if isinstance(part, SUT):
        return part.settings()
    plain, revision = describe(part, _decisive), getattr(part, "revision", 0)
    return {**plain, "revision": revision} if revision else plain


def _suts_in(part: object) -> dict[str, SUT]:
    """Other SUTs that take part, wherever they are nested."""
    found: dict[str, SUT] = {}
    for name, value in vars(part).items():
        if name.startswith("_"):  # learnt, and no setting
            continue
        if isinstance(value, SUT):
            found[f"{type(part).__name__}.{name}"] = value
        elif isinstance(value, (Objective, Criterion)):
            found |= {f"{type(part).__name__}.{name}.{k}": sut for k, sut in _suts_in(value).items()}
    return found
