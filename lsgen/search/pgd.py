"""Projected gradient descent in the latent space (Speth et al., Alg. 1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from lsgen.errors import InputError
from lsgen.search.base import Searcher, SeedRandom, unit
from lsgen.types import Evaluation, SearchState, Seeds

Norm = Literal["linf", "l2"]


@dataclass(frozen=True)
class PGDState(SearchState):
    """Where each seed lies, and how far its R tries have moved."""

    origin: Tensor  # [S, *L]
    delta: Tensor  # [S, R, *L]
    velocity: Tensor  # [S, R, *L]


class LatentPGD(Searcher):
    """Gradient steps inside a ball around each seed; defaults of Speth's Tab. I.

    As everywhere in lsgen, the SUT sees the image rounded to 8 bits; gradients pass the rounding unchanged. The paper
    does not round, a difference of at most 1/510 in a pixel.

    In PixelSpace this is the usual PGD, and with one step of length ``radius`` FGSM.

    Args:
        steps: Number of gradient steps, n.
        step_size: α: how far each coordinate moves in a step (``linf``), or how long a step is (``l2``).
        radius: ε, of the ball.
        norm: Whether the ball bounds each coordinate (``linf``) or the Euclidean length (``l2``).
        momentum: Share of the earlier gradients, each scaled to an L1 norm of 1, that is added to the new one.
        restarts: Tries for each seed; the first starts at the seed, the others at random points of the ball. The last
            iterates of several are scored once more, and the best of them counts, a success before all others.
        early_stop: Whether a seed stops at its first success; the published method takes all steps and returns the
            last iterate, whatever lay between.
    """

    needs_grad: ClassVar[bool] = True

    def __init__(
        self,
        *,
        steps: int = 20,
        step_size: float = 0.05,
        radius: float = 0.5,
        norm: Norm = "linf",
        momentum: float = 0.0,
        restarts: int = 1,
        early_stop: bool = False,
    ) -> None:
        if not (steps >= 0 and 0 < step_size < math.inf and 0 <= radius < math.inf):
            raise InputError(
                f"LatentPGD needs steps >= 0, step_size > 0 and radius >= 0, all finite, "
                f"got steps={steps}, step_size={step_size}, radius={radius}"
            )
        if norm not in get_args(Norm):
            raise InputError(f"norm must be one of {', '.join(get_args(Norm))}, got {norm!r}")
        if not (0 <= momentum < math.inf and restarts >= 1):
            raise InputError(f"LatentPGD needs momentum >= 0 and restarts >= 1, got {momentum} and {restarts}")
        self.steps, self.step_size, self.radius, self.norm = steps, step_size, radius, norm
        self.momentum, self.restarts, self.early_stop = momentum, restarts, early_stop
        self.stops_at_success, self.candidates, self.final_look = early_stop, restarts, restarts > 1

    def init(self, seeds: Seeds, rng: SeedRandom) -> PGDState:
        """Starts at the seeds, further tries anywhere in the ball."""
        z = seeds.latent
        delta = torch.zeros_like(z[:, None].expand(-1, self.restarts, *z.shape[1:]))
        if self.restarts > 1:
            delta[:, 1:] = self._in_ball(rng, *delta[0, 1:].shape)
            delta = self._in_box(z, delta)
        return PGDState(origin=z, delta=delta, velocity=torch.zeros_like(delta))

    def _in_ball(self, rng: SeedRandom, *shape: int) -> Tensor:
        """Points spread evenly over the ball, [S, *shape]."""
        if self.norm == "linf":
            return self.radius * (2 * rng.uniform(*shape) - 1)
        direction = _flat(rng.normal(*shape), unit)
        length = rng.uniform(shape[0]) ** (1 / math.prod(shape[1:]))
        return self.radius * direction * length.view(*length.shape, *[1] * (len(shape) - 1))

    def ask(self, state: PGDState) -> Tensor:
        """The current iterates, [S, R, *L]."""
        return state.origin[:, None] + state.delta

    def tell(self, state: PGDState, evaluation: Evaluation, rng: SeedRandom) -> PGDState:
        """One step down the fitness, then back into the ball."""
        assert evaluation.grad is not None
        velocity = evaluation.grad
        if self.momentum:
            velocity = self.momentum * state.velocity + _flat(velocity, lambda g: unit(g, p=1.0))
        if self.norm == "linf":
            delta = (state.delta - self.step_size * velocity.sign()).clamp(-self.radius, self.radius)
        else:
            delta = state.delta - self.step_size * _flat(velocity, unit)
            delta = _flat(delta, self._shorten)
        return PGDState(state.origin, self._in_box(state.origin, delta), velocity)

    def _in_box(self, origin: Tensor, delta: Tensor) -> Tensor:
        """Changes [S, R, *L] of seeds [S, *L] that lead to where latents may be; none gets longer."""
        if self.box is None:
            return delta
        return self.inside(origin[:, None] + delta) - origin[:, None]

    def _shorten(self, delta: Tensor) -> Tensor:
        return delta * (self.radius / delta.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1)

    def result(self, state: PGDState) -> Tensor:
        """The last iterate of the first try, [S, *L]."""
        return state.origin + state.delta[:, 0]


def _flat(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies ``change`` to [S, R, D] and gives the shape [S, R, *L] back."""
    return change(x.flatten(2)).view_as(x)
