"""The loop of asking and telling, for the seeds of one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lsgen.search.base import SeedRandom
from lsgen.search.cases import Outcome
from lsgen.search.stream import Round, Stream
from lsgen.types import Evaluation, Seeds

if TYPE_CHECKING:
    from lsgen.search.task import SearchTask


@dataclass
class Lane:
    """Some of a block's seeds, which go from step to step together."""

    active: Tensor  # [S] those that are still searched, by their place in the block
    seeds: Seeds  # the same themselves
    state: Any  # of the searcher
    rng: SeedRandom
    asked: Round | None = None  # the candidates of the step that comes next; None: there is none

    def keep(self, going: Tensor) -> None:
        """Goes on with those of the active seeds that are at ``going``, on the CPU."""
        if len(going) < len(self.active):
            self.rng.keep(going)
            going = going.to(self.active.device)
            self.active, self.seeds, self.state = self.active[going], self.seeds.take(going), self.state.take(going)


class Loop:
    """Asks and tells until the budget is spent or every seed is done; a seed that is done costs nothing more.

    On a CPU, seeds go in two lanes: while one lane's last candidates are shown to the networks, the other's first ones
    fill up the chunk. No result depends on it. The host waits for the device once a step of a lane, in
    :meth:`_stop_test`; so on a GPU, where a wait costs something and padding little, there is one lane.

    Args:
        task: Whose searcher and networks these are.
        outcome: What the search has come to, and its budget; updated.
        seeds: All seeds of the block.
    """

    def __init__(self, task: SearchTask, outcome: Outcome, seeds: Seeds) -> None:
        self.task, self.outcome, self.seeds = task, outcome, seeds
        self.searcher, self.evaluator = task.searcher, task.evaluator
        self.passes = task.passes(score=True)
        self.stream = Stream(task.evaluator, task.searcher.needs_grad)

    def run(self, viable: Tensor, rng: SeedRandom) -> None:
        """Searches the viable seeds [S] bool."""
        searcher, outcome = self.searcher, self.outcome
        where = viable.cpu().nonzero().squeeze(1)
        if not len(where):
            return
        active = where.to(viable.device)
        if (solution := searcher.solve(self.seeds.take(active), self.evaluator, rng)) is not None:
            outcome.latent[active] = solution.latent
            outcome.forward[active] += solution.forward
            outcome.backward[active] += solution.backward
            return
        lanes = self._line_up(where, rng)
        for step in range(outcome.budget):
            done = [(lane.active, lane.seeds, self._step(lane, step)) for lane in lanes]
            self.task.step_end(step, *_joined(done, self.seeds), outcome)
            lanes = [lane for lane in lanes if len(lane.active)]
            if not lanes:
                return
        for lane in lanes:
            outcome.latent[lane.active] = self._result(lane)

    def _line_up(self, where: Tensor, rng: SeedRandom) -> list[Lane]:
        """The seeds at ``where``, on the CPU, in lanes, their first candidates on the way."""
        state = self.searcher.init(self.seeds, rng)
        n = min(self.evaluator.lanes, len(where)) if len(where) * self.searcher.candidates > self.evaluator.chunk else 1
        parts, lanes = [where[i::n] for i in range(n)], []
        for part, own in zip(parts, rng.split(parts), strict=True):
            active = part.to(self.seeds.label.device)
            lanes.append(Lane(active, self.seeds.take(active), state.take(active), own))
            if self.outcome.budget:
                self._ask(lanes[-1])
        return lanes

    def _ask(self, lane: Lane, rows: Tensor | None = None) -> None:
        """Lines up a lane's next candidates, or those at ``rows``."""
        lane.asked = self.stream.put(self.searcher.ask(lane.state), lane.seeds, rows)

    def _step(self, lane: Lane, step: int) -> Evaluation:
        """One step of a lane; its next candidates get in line."""
        assert lane.asked is not None
        evaluation = self.stream.get(lane.asked)
        self.outcome.count(lane.active, lane.seeds.label, evaluation, step, self.passes)
        lane.state = self.searcher.tell(lane.state, evaluation, lane.rng)
        going, rows = self._stop_test(lane, evaluation)
        lane.keep(going)
        if len(lane.active) and step + 1 < self.outcome.budget:
            self._ask(lane, rows)
        return evaluation

    def _stop_test(self, lane: Lane, evaluation: Evaluation) -> tuple[Tensor, Tensor | None]:
        """Notes the latents of those active seeds that have come to an end.

        Returns:
            Positions of those that go on, on the CPU; and which of their next candidates to show to the SUT, None for
            all.
        """
        searcher, active = self.searcher, lane.active
        never = torch.zeros_like(active, dtype=torch.bool)
        broken = evaluation.fitness.isnan().any(dim=1)
        hit = evaluation.success.any(dim=1) & ~broken if searcher.stops_at_success else never
        own = searcher.done(lane.state)
        own = never if own is None else own & ~hit & ~broken
        looks, promising = torch.stack([hit, own, broken], dim=1), self._promising(lane)
        seen = (looks if promising is None else torch.cat([looks, promising], dim=1)).cpu()  # the host waits here only
        ended = seen[:, :3].any(dim=1)
        if ended.any():
            hits, owns, retired = (column.nonzero().squeeze(1).to(active.device) for column in seen[:, :3].T)
            self.outcome.latent[active[hits]] = _best(evaluation.take(hits))
            self.outcome.latent[active[owns]] = searcher.result(lane.state)[owns]
            self.outcome.retire(active[retired], self.seeds)
        going = (~ended).nonzero().squeeze(1)
        rows = None if promising is None else seen[going, 3:].flatten().nonzero().squeeze(1).to(active.device)
        return going, rows

    def _result(self, lane: Lane) -> Tensor:
        """What a lane's seeds end with when the budget is spent, [S, *L]."""
        if not self.searcher.final_look:
            return self.searcher.result(lane.state)
        last = self.evaluator.score(self.searcher.ask(lane.state), lane.seeds, needs_grad=False)
        self.outcome.count(lane.active, lane.seeds.label, last, self.outcome.budget, self.passes)
        return _best(last)

    def _promising(self, lane: Lane) -> Tensor | None:
        """Which candidates of the next round can change anything, [S, P] bool; None: all."""
        bar = self.searcher.bar(lane.state)
        if bar is None:
            return None
        hit = self.outcome.iterations[lane.active] < self.outcome.budget
        bar = bar.where(hit, torch.inf)  # before a first success, all can
        return self.evaluator.promising(self.searcher.ask(lane.state), lane.seeds, bar)


def _best(evaluation: Evaluation) -> Tensor:
    """Of each seed the candidate with the lowest fitness, of the successful ones where there are any, [S, *L]."""
    success, most = evaluation.success, torch.finfo(torch.float32).max
    finite = evaluation.fitness.nan_to_num(nan=most, posinf=most)  # a success may have no fitness
    fitness = finite.where(success | ~success.any(dim=1, keepdim=True), torch.inf)
    return evaluation.latent[torch.arange(len(fitness), device=fitness.device), fitness.argmin(dim=1)]


def _joined(done: list[tuple[Tensor, Seeds, Evaluation]], seeds: Seeds) -> tuple[Evaluation, Seeds]:
    """One step of all lanes: evaluations of the seeds that took part, and these seeds, as they stand in the block."""
    if len(done) == 1:
        _, own, evaluation = done[0]
        return evaluation, own
    active = torch.cat([part for part, *_ in done])
    order = active.argsort()
    return Evaluation.join([evaluation for *_, evaluation in done]).take(order), seeds.take(active[order])
