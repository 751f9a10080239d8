"""The genetic algorithm of the ICST 2025 benchmark: a random latent walk that lowers the logit margin."""

from __future__ import annotations

import copy
import math
import warnings
from typing import ClassVar, Literal

from torch import Tensor

from lsgen.errors import InputError
from lsgen.generators import GAN, Diffusion, Generator, StableDiffusion
from lsgen.objectives import LogitMargin, Objective
from lsgen.search.base import SeedRandom
from lsgen.search.genetic import Genetic, crossover, per_seed

EXTENTS = {"low": 1e-4, "high": 1e-3}  # of twice the width of the latent space
BEYOND = 1e30  # σ grows without end in the published code; so far is as far, and no overflow
SEED_GUIDANCE, POPULATION_GUIDANCE = 3.5, 1.4  # in the published diffusion arm


class MarginGA(Genetic):
    """Evolves a population around each seed until the SUT is wrong.

    Children mutate by normal noise of size σ in those coordinates that already differ from the seed's. σ doubles while
    the best individual stays the best, up to the width of the latent space, and falls back to its first value when a
    better one is found. All latents are cut to the bounds stored in the generator. Seeds that the SUT gets wrong as
    they are count as not viable. The paper parts the latents of a diffusion model between channels only; here children
    of all generators part anywhere, since a model of grey pixels has one channel, and they would be copies.

    Args:
        population: Individuals of a seed.
        elites: How many of them live on and have children.
        generations: Rounds; a seed that never fails counts so many iterations.
        extent: First σ: ``low`` is 2 (max − min) / 10,000 of the latent space, ``high`` ten times that.
        as_published: Whether to do as the published code where it differs from the paper. On a GAN, children are
            copies of one parent, since the splice fell on an axis of size 1. On diffusion models the splice falls
            between channels, and the population is judged at guidance 1.4, whatever that of the seeds is (3.5 there:
            set ``guidance`` of the generator). σ doubles beyond the width of the space. (One more difference, a GAN's
            images in [-1, 1] for a SUT that takes [0, 1], cannot occur here.)
    """

    viable_seeds_only: ClassVar[bool] = True

    def __init__(
        self,
        *,
        population: int = 25,
        elites: int = 10,
        generations: int = 250,
        extent: Literal["low", "high"] = "low",
        as_published: bool = False,
    ) -> None:
        super().__init__(population=population, elites=elites, generations=generations, as_published=as_published)
        if extent not in EXTENTS:
            raise InputError(f"extent must be low or high, got {extent!r}")
        self.extent = extent
        self._bounds: tuple[float, float] = (0.0, 0.0)
        self._together = 1  # coordinates that no crossover parts

    def objective(self, *, targeted: bool) -> Objective:
        """The logit margin."""
        return LogitMargin(targeted=targeted)

    def bind(self, generator: Generator) -> Generator:
        """Takes bounds and first σ from the generator.

        Raises:
            InputError: Its checkpoint has no bounds.
        """
        bounds = generator.latent.bounds
        if bounds is None:
            raise InputError(
                f"MarginGA takes its step from the bounds of the latent space, and this {type(generator).__name__} has "
                f"none: fit it again, or load a checkpoint of `lsgen fit`"
            )
        if not 0 < bounds[1] - bounds[0] < math.inf:
            raise InputError(
                f"MarginGA takes its step from the bounds of the latent space, and those of this "
                f"{type(generator).__name__} are {bounds[0]:g} and {bounds[1]:g}: fit it again"
            )
        self._bounds = bounds
        if not self.as_published:
            return generator
        if isinstance(generator, GAN):
            self._together = math.prod(generator.latent_shape)
        if isinstance(generator, (Diffusion, StableDiffusion)):
            self._check_guidance(generator)
            self._together = math.prod(generator.latent_shape[1:])
            generator = copy.copy(generator)
            generator.guidance = POPULATION_GUIDANCE
        return generator

    @staticmethod
    def _check_guidance(generator: Diffusion | StableDiffusion) -> None:
        if isinstance(generator, Diffusion) and not generator.label_dropout:
            raise InputError(
                f"as_published judges a population at guidance {POPULATION_GUIDANCE}, and this Diffusion was trained "
                f"with label_dropout 0, so without the predictions that guidance needs"
            )
        if generator.guidance != SEED_GUIDANCE:
            warnings.warn(
                f"the published diffusion arm judges its seeds at guidance {SEED_GUIDANCE}, this generator at "
                f"{generator.guidance}: set its guidance (of a checkpoint, change: {{guidance: {SEED_GUIDANCE}}})",
                stacklevel=3,
            )

    @property
    def first_size(self) -> float:
        """δ of the paper."""
        low, high = self._bounds
        return 2 * (high - low) * EXTENTS[self.extent]

    def place(self, latent: Tensor) -> Tensor:
        """Cut to the bounds."""
        return latent.clamp(*self._bounds)

    def next_size(self, size: Tensor, best: Tensor, before: Tensor) -> Tensor:
        """Twice the last one while nothing gets better, up to the width of the space, else the first."""
        most = BEYOND if self.as_published else self._bounds[1] - self._bounds[0]
        return (2 * size).clamp(max=most).where(best == before, self.first_size)

    def vary(self, child: Tensor, origin: Tensor, size: Tensor, rng: SeedRandom) -> Tensor:
        """Noise on the genes that differ from the seed's."""
        noise = rng.normal(*child.shape[1:]) * per_seed(size, child)
        return (child + noise).where(child != origin[:, None], child)

    def cross(self, elite: Tensor, rng: SeedRandom) -> Tensor:
        """One-point crossover; in the published GAN arm it comes to copies."""
        return crossover(elite, self.population - self.elites, rng, self._together)
