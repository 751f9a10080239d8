"""Rounds of candidates on their way through the networks, packed into full chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lsgen.types import Evaluation, Seeds

if TYPE_CHECKING:
    from lsgen.search.evaluator import Evaluator


class Round:
    """Candidates of some seeds, of which some have been answered.

    Args:
        latent: The candidates [S, P, *L].
        seeds: The S seeds that they come from.
        rows: Those of the S·P candidates that are shown to the SUT, [M] in ascending order, all by default; the
            others' fitness is infinite, and they are no success.
    """

    def __init__(self, latent: Tensor, seeds: Seeds, rows: Tensor | None = None) -> None:
        self.latent, self.rows = latent, rows
        self.carried = carried(seeds)
        self.size = latent.shape[0] * latent.shape[1] if rows is None else len(rows)
        self.sent = 0
        self.answers: list[tuple[Tensor, ...]] = []

    @property
    def left(self) -> int:
        """How many are still to be shown."""
        return self.size - self.sent

    def send(self, n: int) -> list[Tensor]:
        """The next ``n``: latent, label, target and origin."""
        start, self.sent = self.sent, self.sent + n
        latent, part = self.latent.flatten(0, 1), slice(start, self.sent)
        if self.rows is None:
            z, rows = latent[part], torch.arange(start, self.sent, device=latent.device)
        else:
            z, rows = latent[self.rows[part]], self.rows[part]
        seed = rows // self.latent.shape[1]
        return [z, *(t[seed] for t in self.carried)]

    def evaluation(self, needs_grad: bool, classes: int) -> Evaluation:
        """What the networks said of all, when all have been answered."""
        z = self.latent
        s, p = z.shape[:2]
        if self.answers:
            answers = _joined(self.answers)
        else:  # nobody was worth a look
            answers = [z.new_empty(0, classes), z.new_empty(0), z.new_empty(0, dtype=torch.bool), z.flatten(0, 1)[:0]]
        asked = None
        if self.rows is not None:
            fill = (torch.nan, torch.inf, 0, 0)
            answers = [_spread(self.rows, s * p, *pair) for pair in zip(answers, fill, strict=False)]
            asked = _spread(self.rows, s * p, torch.ones_like(self.rows, dtype=torch.bool), False).view(s, p)
        logits, fitness, success, *grads = (answer.unflatten(0, (s, p)) for answer in answers)
        return Evaluation(z, logits, fitness, success, grads[0] if needs_grad else None, asked)


class Stream:
    """Shows rounds to the networks in the order in which they came, chunk by chunk.

    A chunk that a round does not fill takes the first candidates of the next one along, so that nothing is padding as
    long as another round waits. What a candidate scores does not depend on who shares its chunk.

    Args:
        evaluator: Who runs a chunk.
        needs_grad: Whether gradients of the fitness are wanted.
    """

    def __init__(self, evaluator: Evaluator, needs_grad: bool) -> None:
        self.evaluator, self.needs_grad = evaluator, needs_grad
        self._waiting: deque[Round] = deque()

    def put(self, latent: Tensor, seeds: Seeds, rows: Tensor | None = None) -> Round:
        """Lines a round up; see :class:`Round`."""
        new = Round(latent, seeds, rows)
        if new.left:
            self._waiting.append(new)
        return new

    def get(self, wanted: Round) -> Evaluation:
        """The answers to a round that was lined up."""
        while wanted.left:
            self._run_chunk()
        return wanted.evaluation(self.needs_grad, self.evaluator.sut.num_classes)

    def _run_chunk(self) -> None:
        taken, room = [], self.evaluator.chunk
        while room and self._waiting:
            first = self._waiting[0]
            n = min(room, first.left)
            taken.append((first, n, first.send(n)))
            room -= n
            if not first.left:
                self._waiting.popleft()
        columns = _joined([piece for *_, piece in taken])
        answers, start = self.evaluator.score_chunk(self.needs_grad, *columns), 0
        for owner, n, _ in taken:
            owner.answers.append(tuple(t[start : start + n] for t in answers))
            start += n


def carried(seeds: Seeds) -> tuple[Tensor, Tensor, Tensor]:
    """Label, target and origin of each seed, as candidates carry them."""
    target = torch.full_like(seeds.label, -1) if seeds.target is None else seeds.target
    return seeds.label, target, seeds.latent


def _joined(pieces: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
    """Pieces of the same columns one below the other."""
    return pieces[0] if len(pieces) == 1 else [torch.cat(column) for column in zip(*pieces, strict=True)]


def _spread(where: Tensor, n: int, values: Tensor, elsewhere: float) -> Tensor:
    """Values [M, ...] in the rows ``where`` [M] of ``n``, the same number in all others."""
    return values.new_full((n, *values.shape[1:]), elsewhere).index_copy_(0, where, values)
