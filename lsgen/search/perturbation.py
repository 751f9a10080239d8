"""Dunn et al.: changes to the activations of a decoder's first stages, found by a gradient walk."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgen.errors import InputError
from lsgen.generators import Generator
from lsgen.objectives import ConfidentTarget, Objective, TopConfidence
from lsgen.search.base import Searcher, SeedRandom, unit
from lsgen.types import Evaluation, LatentSpec, SearchState, Seeds


class Perturbed(Generator):
    """A generator whose latent also holds what is added to the outputs of its first stages.

    Its latent is a vector: the generator's own latent, then p₁ … p_k, which are zero for an unchanged image. p₀ of the
    paper is added to z, so it is how far the first part has moved.

    Args:
        generator: The one whose activations are changed.
        stages: k, how many of its stages.
    """

    def __init__(self, generator: Generator, stages: int) -> None:
        super().__init__()
        self.generator, self.first = generator, generator.stages[:stages]
        self.image_shape, self.num_classes = generator.image_shape, generator.num_classes
        self.shapes = [torch.Size(generator.latent_shape), *_output_shapes(generator, self.first)]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.eval()

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """(size of the latent and of all perturbations together,)."""
        return (sum(self.sizes),)

    @property
    def latent(self) -> LatentSpec:
        """Of the generator's kind."""
        return replace(self.generator.latent, shape=self.latent_shape)

    def lift(self, z: Tensor) -> Tensor:
        """Latents of the generator [N, ...] -> the same images here [N, D]."""
        return F.pad(z.flatten(1), (0, sum(self.sizes[1:])))

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents with perturbations [N, D] and labels [N] -> images [N, C, H, W]."""
        parts = zip(z.split(self.sizes, dim=1), self.shapes, strict=True)
        own, *changes = [part.unflatten(1, shape) for part, shape in parts]
        with ExitStack() as hooks:
            for stage, change in zip(self.first, changes, strict=True):
                hooks.enter_context(_adding(stage, change))
            return self.generator.decode(own, y)

    def encode(self, x: Tensor, y: Tensor) -> Tensor:
        """What the generator encodes; :meth:`lift` adds the rest."""
        return self.generator.encode(x, y)


def _adding(stage: nn.Module, change: Tensor) -> torch.utils.hooks.RemovableHandle:
    """Adds ``change`` to what the stage gives, until the handle is closed."""
    return stage.register_forward_hook(lambda _module, _inputs, output: output + change)


@torch.no_grad()
def _output_shapes(generator: Generator, stages: list[nn.Module]) -> list[torch.Size]:
    """Shape of what each stage gives for one image."""
    if not stages:
        return []
    found: dict[int, torch.Size] = {}
    with ExitStack() as hooks:
        for i, stage in enumerate(stages):
            hook = stage.register_forward_hook(lambda _m, _in, out, i=i: found.update({i: out.shape[1:]}))
            hooks.enter_context(hook)
        z = torch.zeros(2, *generator.latent_shape, device=generator.device)
        generator.eval().decode(z, torch.zeros(2, dtype=torch.long, device=generator.device))
    return [found[i] for i in range(len(stages))]


@dataclass(frozen=True)
class WalkState(SearchState):
    """Where each seed began and where it is."""

    origin: Tensor  # [S, D]
    latent: Tensor  # [S, D]


class ActivationPerturbation(Searcher):
    """Walks down the gradient over the latent and the outputs of the decoder's first stages (Dunn et al., §3.3).

    It starts without any change. Each step has the same length, in the L2 norm over everything that is changed, so
    that it means the same for every generator; the walk ends at the first success. The published loss is the SUT's top
    confidence; with targets, the confident targeted loss of Def. 3.6. For confident tests without a target (Def. 3.4),
    set ``objective: LogitMargin`` and ``criterion: Confident``: top confidence is lowest where nobody is sure.

    Args:
        stages: k, how many stages of the decoder to change; a third of them, rounded up, by default (Dunn: 6 of 18).
            With 0, or where there are none as in PixelSpace, only the latent itself moves.
        steps: Most steps.
        step_size: Length of a step.
        radius: Largest length of the whole change, in the L2 norm; unbounded by default, as published.
    """

    needs_grad: ClassVar[bool] = True
    viable_seeds_only: ClassVar[bool] = True  # a test begins at an image that the SUT reads rightly (Dunn, §4.2)

    def __init__(
        self, *, stages: int | None = None, steps: int = 200, step_size: float = 0.5, radius: float | None = None
    ) -> None:
        if not (steps >= 0 and 0 < step_size < math.inf):
            raise InputError(f"ActivationPerturbation needs steps >= 0 and step_size > 0, got {steps} and {step_size}")
        if stages is not None and stages < 0:
            raise InputError(f"stages must not be negative, got {stages}")
        if radius is not None and not 0 <= radius < math.inf:
            raise InputError(f"radius must be finite and not negative, or null, got {radius}")
        self.stages, self.steps, self.step_size, self.radius = stages, steps, step_size, radius
        self._space: Perturbed | None = None

    def objective(self, *, targeted: bool) -> Objective:
        """Top confidence, or the confident targeted loss."""
        return ConfidentTarget() if targeted else TopConfidence()

    def bind(self, generator: Generator) -> Generator:
        """The generator with changeable activations.

        Raises:
            InputError: It has no such stages, or not so many.
        """
        have = len(generator.eval().stages)
        wanted = -(-have // 3) if self.stages is None else self.stages
        if wanted > have:
            raise InputError(f"stages: {type(generator).__name__} has {have} stages to change, {wanted} are asked for")
        super().bind(generator)
        self._space = Perturbed(generator, wanted)
        return self._space

    def lift(self, latent: Tensor) -> Tensor:
        """Adds perturbations of zero."""
        assert self._space is not None
        return self._space.lift(latent)

    def init(self, seeds: Seeds, rng: SeedRandom) -> WalkState:
        """No change yet."""
        return WalkState(seeds.latent, seeds.latent)

    def ask(self, state: WalkState) -> Tensor:
        """Where each seed is, [S, 1, D]."""
        return state.latent[:, None]

    def tell(self, state: WalkState, evaluation: Evaluation, rng: SeedRandom) -> WalkState:
        """One step down, then back into the ball."""
        assert evaluation.grad is not None
        moved = state.latent - self.step_size * unit(evaluation.grad[:, 0]) - state.origin
        if self.radius is not None:
            moved = moved * (self.radius / moved.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
        return replace(state, latent=self.inside(state.origin + moved))

    def result(self, state: WalkState) -> Tensor:
        """Where the walk has come to, [S, D]."""
        return state.latent
