"""ARGUS: latents of one class with a little of another mixed in."""

from __future__ import annotations

import warnings
from typing import ClassVar

from lsgen.errors import InputError
from lsgen.generators import VQVAE, Generator
from lsgen.search.base import SeedRandom
from lsgen.search.random import RandomSampling, RandomState
from lsgen.types import Seeds


class Interpolation(RandomSampling):
    """Mixes the latent of each seed with that of an image of another class (ARGUS, Alg. 1); needs PairSeeds.

    Args:
        share: λ, of the other image, between 0 and 1.
    """

    has_seed: ClassVar[bool] = True
    needs_other: ClassVar[bool] = True

    def __init__(self, *, share: float = 0.1) -> None:
        if not 0 <= share <= 1:
            raise InputError(f"share must lie between 0 and 1, got {share}")
        self.share = share

    def bind(self, generator: Generator) -> Generator:
        """Warns where a VQVAE was trained for another λ."""
        if isinstance(generator, VQVAE) and generator.discriminators and generator.interpolation != self.share:
            warnings.warn(
                f"this VQVAE was trained on mixtures of λ = {generator.interpolation} and is searched at "
                f"{self.share}; the paper trains one model for each λ",
                stacklevel=2,
            )
        return generator

    def init(self, seeds: Seeds, rng: SeedRandom) -> RandomState:
        """Mixes at once: there is nothing to learn."""
        assert seeds.other is not None
        return RandomState(seeds.latent.lerp(seeds.other, self.share))
