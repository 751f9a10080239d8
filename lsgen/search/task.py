"""The task that ties generator, SUT, seeds, searcher and objective together and runs blocks of seeds."""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader

from lsgen.checkpoints import weights_sha256
from lsgen.data import ImageData, check_fits
from lsgen.errors import InputError
from lsgen.generators import Generator
from lsgen.metrics import FailureRate, MeanTrueProbability
from lsgen.objectives import Criterion, CrossEntropy, Misclassified, Objective
from lsgen.search.base import Searcher, SeedRandom
from lsgen.search.callbacks import SearchCallback, StepInfo
from lsgen.search.cases import Cases, Outcome, tabulate
from lsgen.search.evaluator import Evaluator
from lsgen.search.seeds import Block, Plan, SeedSource
from lsgen.suts import SUT
from lsgen.types import Evaluation, Seeds, describe

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
        objective: What is minimised; cross entropy of the true label by default (negated, so that it climbs).
        criterion: When a search has succeeded; misclassification by default.
        block_size: Seeds that are searched and written together.
        eval_batch_size: Images in one pass through the networks, a multiple of 32, or ``auto``: a few sizes are tried
            and the fastest is taken.
    """

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
    ) -> None:
        super().__init__()
        if block_size < 1:
            raise InputError(f"block_size must be at least 1, got {block_size}")
        if eval_batch_size != "auto" and (eval_batch_size < 32 or eval_batch_size % 32):
            raise InputError(f"eval_batch_size must be a multiple of 32 or auto, got {eval_batch_size}")
        if searcher.needs_grad and not sut.differentiable:
            raise InputError(
                f"{type(searcher).__name__} follows gradients, and the SUT is a black box (differentiable: false)"
            )
        if generator.image_shape != sut.image_shape or generator.num_classes != sut.num_classes:
            raise InputError(
                f"the generator makes images of {generator.image_shape} in {generator.num_classes} classes, "
                f"the SUT takes {sut.image_shape} in {sut.num_classes}: they must be trained on the same data"
            )
        seeds.check(generator)
        self.generator, self.sut, self.searcher, self.seeds = generator, sut, searcher, seeds
        self.objective, self.criterion = objective or CrossEntropy(), criterion or Misclassified()
        self.block_size, self.eval_batch_size = block_size, eval_batch_size
        self.evaluator = Evaluator(generator, sut, self.objective, self.criterion)
        self.failure_rate = FailureRate(sync_on_compute=False)  # live, this process; the summary has the final ones
        self.mean_p_true = MeanTrueProbability(sync_on_compute=False)
        self.pending: list[int] = []  # blocks still to do
        self.chunk: int | None = None  # the eval_batch_size in use
        self.requires_grad_(False)

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
        """Class and SHA-256 of the weights of generator and SUT."""
        modules = {"generator": self.generator, "sut": self.sut}
        return {k: {"class": type(m).__name__, "sha256": weights_sha256(m)} for k, m in modules.items()}

    def identity(self) -> str:
        """A hash of everything that decides the cases: weights, data, seeds, searcher, objective, sizes, seed."""
        parts = ("searcher", "seeds", "objective", "criterion", "block_size", "eval_batch_size")
        content = {name: describe(getattr(self, name)) for name in parts}
        content |= {"generator settings": self.generator.settings(), "SUT settings": self.sut.settings()}
        content |= {"weights": self.weights(), "data": self.data.fingerprint, "seed": self.seed}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    # --- blocks --------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Refuses a SUT that does not fit the data, before anything runs."""
        _ = self.data
        check_fits(self.sut, self.trainer)

    @property
    def plan(self) -> Plan:
        """All seeds of the search."""
        return self.seeds.plan(self.data)

    @property
    def num_blocks(self) -> int:
        """How many blocks the seeds fill."""
        return -(-len(self.plan.label) // self.block_size)

    def block(self, number: int) -> Block:
        """The seeds of one block, on this process's device."""
        plan = self.plan
        ids = torch.arange(number * self.block_size, min((number + 1) * self.block_size, len(plan.label)))
        source = None if plan.source_index is None else plan.source_index[ids]
        image = None if source is None else self.seeds.images(self.data, source)
        return Block(
            number=number,
            seed_id=ids,
            label=plan.label[ids].to(self.device),
            source_index=source,
            image=None if image is None else image.to(self.device),
        )

    def start(self, block: Block, rng: SeedRandom) -> Seeds:
        """The block's seeds with their latents."""
        latent = self.seeds.latents(block, self.generator, self.evaluator.encode, rng)
        return Seeds(latent=latent.to(self.device, torch.float32), label=block.label)

    def predict_dataloader(self) -> DataLoader[int]:
        """The numbers of the pending blocks, at least one entry for each process."""
        idle = max(0, self.trainer.world_size - len(self.pending))
        return DataLoader(dataset=self.pending + idle * [NO_BLOCK], batch_size=None)  # type: ignore[arg-type]

    # --- the search ----------------------------------------------------------------------------------------------

    def on_predict_start(self) -> None:
        """Settles the batch size for all processes, then tells the callbacks."""
        self.failure_rate.reset()
        self.mean_p_true.reset()
        if self.chunk is None:
            given = self.eval_batch_size
            tries = given == "auto" and self.trainer.is_global_zero
            own = self.evaluator.fastest_chunk(self.searcher.needs_grad) if tries else given
            self.chunk = int(self.trainer.strategy.broadcast(own))
        self.evaluator.chunk = self.chunk
        for callback in self._callbacks():
            callback.on_search_start(self.trainer, self)

    def predict_step(self, batch: int, batch_idx: int) -> None:
        """Searches one block and hands its cases to the callbacks."""
        number = int(batch)
        if number == NO_BLOCK:
            return
        started = time.perf_counter()
        cases = self.search_block(number)
        cases.seconds = time.perf_counter() - started
        counted = cases.columns["viable"]
        logits, label = cases.arrays["logits"][counted], cases.columns["label"][counted]
        self.failure_rate.update(logits.to(self.device), label.to(self.device))
        self.mean_p_true.update(logits.to(self.device), label.to(self.device))
        for callback in self._callbacks():
            callback.on_search_batch_end(self.trainer, self, cases)

    def on_predict_end(self) -> None:
        """Tells the callbacks."""
        for callback in self._callbacks():
            callback.on_search_end(self.trainer, self)

    def search_block(self, number: int) -> Cases:
        """All cases of one block, judged on their stored images."""
        block = self.block(number)
        rng = SeedRandom(self.seed, number, len(block.label), self.device)
        seeds = self.start(block, rng)
        first = self.evaluator.judge(seeds.latent, seeds.label)
        viable = torch.ones_like(seeds.label, dtype=torch.bool)
        if self.searcher.viable_seeds_only:
            viable = first.logits.argmax(1) == seeds.label
        outcome = Outcome.at(seeds, first.success, viable, self.searcher.steps)
        self._run(outcome, seeds, viable, rng)
        last = first
        if self.searcher.steps:  # otherwise nothing can have moved
            last = self.evaluator.judge(outcome.latent, seeds.label)
            outcome.forward += 1
            outcome.note_success(last.success, self.searcher.steps)
        return tabulate(block, seeds, first, last, outcome, viable, self.searcher.has_seed)

    def _run(self, outcome: Outcome, seeds: Seeds, viable: Tensor, rng: SeedRandom) -> None:
        """Asks and tells until the budget is spent or every seed is done; a seed that is done costs nothing more."""
        searcher = self.searcher
        active = viable.nonzero().squeeze(1)
        state = searcher.init(seeds, rng)
        if len(active) < len(viable):
            state = state.take(active)
            rng.keep(active)
        for step in range(searcher.steps):
            if not len(active):
                return
            evaluation = self.evaluator.score(searcher.ask(state), seeds.label[active], searcher.needs_grad)
            outcome.count(active, evaluation, step)
            self._step_end(step, evaluation)
            state = searcher.tell(state, evaluation, rng)
            if searcher.stops_at_success:
                done = evaluation.success.any(dim=1)
                outcome.latent[active[done]] = _best_success(evaluation, done)
                going = (~done).nonzero().squeeze(1)
                state, active = state.take(going), active[going]
                rng.keep(going)
        outcome.latent[active] = searcher.result(state)

    def _step_end(self, step: int, evaluation: Evaluation) -> None:
        info = StepInfo(step + 1, self.searcher.steps, evaluation)
        for callback in self._callbacks():
            callback.on_search_step_end(self.trainer, self, info)
        if self._trainer is not None and self.trainer.received_sigterm:
            raise KeyboardInterrupt  # Lightning only notes the signal while it predicts; end like Ctrl-C

    def _callbacks(self) -> list[SearchCallback]:
        trainer: Any = self._trainer
        return [] if trainer is None else [c for c in trainer.callbacks if isinstance(c, SearchCallback)]


def _best_success(evaluation: Evaluation, done: Tensor) -> Tensor:
    """Of each done seed, the successful candidate with the lowest fitness, [S', *L]."""
    fitness = evaluation.fitness.where(evaluation.success, torch.inf)[done]
    latent = evaluation.latent[done]
    return latent[torch.arange(len(latent), device=latent.device), fitness.argmin(dim=1)]
