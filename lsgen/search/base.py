"""What a searcher is, and where its random numbers come from."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lsgen.generators import Generator
from lsgen.objectives import Criterion, CrossEntropy, IsTarget, Misclassified, Objective
from lsgen.types import Evaluation, SearchState, Seeds

if TYPE_CHECKING:
    from lsgen.search.evaluator import Evaluator


def unit(x: Tensor, p: float = 2.0) -> Tensor:
    """Rows [..., D] scaled to a norm of 1, however short they are; rows of zeros stay.

    A very sure SUT gives gradients whose squares vanish: these are scaled first, by powers of two, which is exact. A
    row alone has a copy beside it: several threads would sum it in an order that depends on how many there are.

    Example:
        >>> unit(torch.tensor([[3e-30, -4e-30], [0.0, 0.0]]))
        tensor([[ 0.6000, -0.8000],
                [ 0.0000,  0.0000]])
    """
    exponent = torch.frexp(x.abs().amax(dim=-1, keepdim=True)).exponent.clamp(-126, 126)
    scaled = x * torch.exp2(-exponent.to(x.dtype))
    alone = x.numel() == x.shape[-1]
    return F.normalize(scaled.expand(2, *x.shape), p=p, dim=-1)[0] if alone else F.normalize(scaled, p=p, dim=-1)


class SeedRandom:
    """Random numbers for one block of seeds.

    Every draw is made for all seeds of the block and then cut to those still active, so that one seed's finish shifts
    nobody else's numbers. Draws are made on the CPU: they do not depend on the device.

    Args:
        seed: Seed of the whole search.
        block: Number of the block.
        size: Seeds in the block.
        device: Where draws are wanted.
    """

    def __init__(self, seed: int, block: int, size: int, device: torch.device | str = "cpu") -> None:
        sequence = np.random.SeedSequence([seed, block])
        low, high = sequence.generate_state(2)
        self.generator = torch.Generator().manual_seed((int(high) << 31) ^ int(low))
        self.bits = np.random.Generator(np.random.SFC64(sequence.spawn(1)[0]))  # of coins; cheaper than uniform numbers
        self.size, self.device = size, torch.device(device)
        self._active = torch.arange(size)
        self._drawn: deque[tuple[Any, Tensor]] = deque()  # by another part, for all seeds of the block: what, and it
        self._parts: list[SeedRandom] = [self]

    def split(self, parts: Sequence[Tensor]) -> list[SeedRandom]:
        """One for each part [S_i] of the active seeds, on the CPU, to be used in place of this one.

        A part gets the numbers that it would get among all: whoever is the first to need some draws for the others
        too. So all parts must ask for the same numbers in the same order, some sooner and some later.
        """
        shares = [copy.copy(self) for _ in parts]
        for share, part in zip(shares, parts, strict=True):
            share._active, share._drawn, share._parts = self._active[part], deque(), shares
        return shares

    def keep(self, index: Tensor) -> None:
        """Goes on with those of the active seeds that are at ``index``."""
        self._active = self._active[index.cpu()]

    def normal(self, *shape: int) -> Tensor:
        """Standard normal draws, [S, *shape]."""
        return self._draw(torch.randn, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Draws from [0, 1), [S, *shape]."""
        return self._draw(torch.rand, shape)

    def coins(self, heads: float, *shape: int) -> Tensor:
        """Coins that show heads with this probability, below 1: which do, [S, *shape] bool."""
        return self._draw(_words, shape) < int(heads * 2**32) - 2**31

    def _draw(self, kind: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        if not self._drawn:
            draws = kind(self.size, *shape, generator=self.bits if kind is _words else self.generator)
            for part in self._parts:
                if len(part._active):  # a part without seeds never asks again
                    part._drawn.append(((kind, shape), draws))
        what, draws = self._drawn.popleft()
        if what != (kind, shape):
            raise RuntimeError(
                f"a searcher must draw the same shapes in each step, whichever seeds are left: another lane of seeds "
                f"drew {what[1]} by {what[0].__name__} where this one draws {shape} by {kind.__name__}"
            )
        return self._cut(draws)

    def _cut(self, draws: Tensor) -> Tensor:
        draws = draws if len(self._active) == self.size else draws.index_select(0, self._active)
        if self.device.type == "cuda":  # from pinned memory, so that nobody waits for the copy
            draws = draws.pin_memory()
        return draws.to(self.device, non_blocking=True)


def _words(*shape: int, generator: np.random.Generator) -> Tensor:
    """Random numbers of 32 bits each, int32."""
    n = math.prod(shape)
    drawn = generator.integers(0, 2**64, -(-n // 2), dtype=np.uint64)
    return torch.from_numpy(drawn.view(np.int32)[:n]).view(shape)


@dataclass(frozen=True)
class Solution:
    """What a method that asks the SUT by itself came to."""

    latent: Tensor  # [S, *L]
    forward: Tensor  # [S] images shown to the SUT
    backward: Tensor  # [S] images with a backward pass


class Searcher(ABC):
    """Proposes latents and learns from what they scored; never touches a network.

    A searcher works on all seeds of a block at once and keeps what it knows in an explicit state. The task calls
    ``bind`` once for the whole search; for each block ``init`` once, then up to ``steps`` times ``ask`` and ``tell``,
    and ``result`` at the end. Some seeds of a block may be a step ahead of others: each step must draw the same shapes
    from ``rng`` in the same order, whichever seeds are left.

    Attributes:
        steps: Rounds of ask and tell; the budget of each seed.
        candidates: Candidates of a seed in a round.
        first: Those of the first round beyond that.
        minimises: Whether it goes by an objective at all.
        needs_grad: Whether ``tell`` uses the gradient of the fitness.
        needs_other: Whether seeds must come with the latent of another image.
        stops_at_success: Whether a seed is done with the first candidate that satisfies the criterion.
        viable_seeds_only: Whether seeds that the SUT already gets wrong are left out.
        final_look: Whether the candidates of the last state are scored once more, and the best of them is what a seed
            ends with; otherwise it is what :meth:`result` says.
        has_seed: Whether a case is a change of a seed, so that distances from it mean something.
        box: Where coordinates must lie: [0, 1] where they are pixels; None for latents, which may be anything.
        revision: Raised when the same settings give other cases than before, which no suite may hold both of.
    """

    minimises: ClassVar[bool] = True
    needs_grad: ClassVar[bool] = False
    needs_other: ClassVar[bool] = False
    viable_seeds_only: ClassVar[bool] = False
    has_seed: ClassVar[bool] = True
    stops_at_success: bool = True
    final_look: bool = False
    candidates: int = 1
    first: int = 0
    steps: int
    box: tuple[float, float] | None = None
    revision: ClassVar[int] = 0

    @property
    def asks_by_itself(self) -> bool:
        """Whether it is another package's, which nobody can hold to a budget; see :meth:`solve`."""
        return type(self).solve is not Searcher.solve

    def objective(self, *, targeted: bool) -> Objective:
        """What it minimises unless told otherwise."""
        return CrossEntropy(targeted=targeted)

    def criterion(self, *, targeted: bool) -> Criterion:
        """When it has succeeded unless told otherwise."""
        return IsTarget() if targeted else Misclassified()

    def check(self, *, targeted: bool) -> None:  # noqa: B027  # most take both
        """Refuses seeds with targets, or without, where it has no use for them.

        Raises:
            InputError: It has none.
        """

    def bind(self, generator: Generator) -> Generator:
        """Takes note of the generator and gives the space to search, most often its own latent space.

        Raises:
            InputError: This searcher cannot search it.
        """
        self.box = (0.0, 1.0) if generator.latent.kind == "pixels" else None
        return generator

    def inside(self, latent: Tensor) -> Tensor:
        """Latents cut to the box: what a decoder would cut away must not count as a change."""
        return latent if self.box is None else latent.clamp(*self.box)

    def lift(self, latent: Tensor) -> Tensor:
        """Latents of the generator [S, ...] -> the same points in the space that :meth:`bind` gave."""
        return latent

    @abstractmethod
    def init(self, seeds: Seeds, rng: SeedRandom) -> Any:
        """The state of a search that is about to start at ``seeds``."""

    @abstractmethod
    def ask(self, state: Any) -> Tensor:
        """Candidates to evaluate, [S, P, *L]; P is ``candidates``, in the first round ``first`` more."""

    @abstractmethod
    def tell(self, state: Any, evaluation: Evaluation, rng: SeedRandom) -> SearchState:
        """The state after the candidates of :meth:`ask` were evaluated."""

    @abstractmethod
    def result(self, state: Any) -> Tensor:
        """The latents that seeds without an early stop end with, [S, *L]."""

    def solve(self, seeds: Seeds, evaluator: Evaluator, rng: SeedRandom) -> Solution | None:
        """For methods of other packages, which cannot be asked step by step: all at once, instead of ask and tell."""
        return None

    def bar(self, state: Any) -> Tensor | None:
        """The fitness below which a candidate of :meth:`ask` changes anything, [S]; None: every one does.

        Candidates that cannot get below it are not shown to the SUT.
        """
        return None

    def done(self, state: Any) -> Tensor | None:
        """Which seeds have come to an end of their own, [S] bool; None: none ever does before the budget is spent."""
        return None
