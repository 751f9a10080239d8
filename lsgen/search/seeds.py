"""Where searches start: from the generator's prior, or from encoded images nobody was trained on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import Generator
from lsgen.search.base import SeedRandom


@dataclass(frozen=True)
class Plan:
    """All seeds of a search, before they have latents."""

    label: Tensor  # [M]
    source_index: Tensor | None = None  # [M] row in the split they come from


@dataclass(frozen=True)
class Block:
    """The seeds that are searched together."""

    number: int
    seed_id: Tensor  # [S]
    label: Tensor  # [S]
    source_index: Tensor | None  # [S]
    image: Tensor | None  # [S, C, H, W] uint8, the data set's image where there is one


class SeedSource(ABC):
    """Says which seeds there are and gives a block of them its latents."""

    @abstractmethod
    def plan(self, data: ImageData) -> Plan:
        """All seeds, classes in turn, so that any part of a search covers them alike."""

    @abstractmethod
    def latents(self, block: Block, generator: Generator, encode: Callable[..., Tensor], rng: SeedRandom) -> Tensor:
        """Start latents of a block, [S, *L]; ``encode`` takes images [S, C, H, W] and labels [S]."""

    def images(self, data: ImageData, index: Tensor) -> Tensor | None:
        """Data set images of seeds, [S, C, H, W] uint8, where seeds come from a data set."""
        return None

    def check(self, generator: Generator) -> None:  # noqa: B027 (most sources serve every generator)
        """Refuses a generator that this source cannot serve."""


class PriorSeeds(SeedSource):
    """Random latents, the same number for every class (Speth, Alg. 1 line 2).

    Args:
        per_class: Seeds for each class.
        distribution: ``uniform`` (−scale to scale), ``normal`` (standard deviation scale) or ``prior`` (whatever the
            generator's own prior is, times scale).
        scale: s, in standard deviations of the prior.
        classes: The classes to search; all by default.
    """

    def __init__(
        self,
        *,
        per_class: int = 200,
        distribution: Literal["uniform", "normal", "prior"] = "uniform",
        scale: float = 1.0,
        classes: list[int] | None = None,
    ) -> None:
        if per_class < 1:
            raise InputError(f"per_class must be at least 1, got {per_class}")
        if not 0 <= scale < math.inf:
            raise InputError(f"scale must be finite and not negative, got {scale}")
        self.per_class, self.distribution, self.scale, self.classes = per_class, distribution, scale, classes

    def plan(self, data: ImageData) -> Plan:
        """``per_class`` seeds of each class, in turn."""
        return Plan(label=torch.tensor(_classes(self.classes, data)).repeat(self.per_class))

    def latents(self, block: Block, generator: Generator, encode: Callable[..., Tensor], rng: SeedRandom) -> Tensor:
        """Draws from the chosen distribution, [S, *L]."""
        if self.distribution == "prior":
            return self.scale * generator.sample_prior(len(block.label), block.label, rng.generator)
        if self.distribution == "normal":
            return self.scale * rng.normal(*generator.latent_shape)
        return self.scale * (2 * rng.uniform(*generator.latent_shape) - 1)

    def check(self, generator: Generator) -> None:
        """Refuses a generator whose random samples have no known label."""
        if not generator.conditional:
            raise InputError(
                f"PriorSeeds needs to know which class a sample shows, and {type(generator).__name__} takes no label: "
                f"use DataSeeds, whose labels are those of the images"
            )


class DataSeeds(SeedSource):
    """Encoded images of a split that neither generator nor SUT was trained on.

    Args:
        split: ``test`` or ``val``; training images are no fair seeds.
        per_class: Seeds for each class, the first ones of the split.
        classes: The classes to search; all by default.
    """

    def __init__(
        self, *, split: Literal["test", "val"] = "test", per_class: int = 50, classes: list[int] | None = None
    ) -> None:
        if per_class < 1:
            raise InputError(f"per_class must be at least 1, got {per_class}")
        self.split, self.per_class, self.classes = split, per_class, classes

    def plan(self, data: ImageData) -> Plan:
        """The first ``per_class`` images of each class, classes in turn."""
        labels = data[self.split].labels
        wanted = _classes(self.classes, data)
        rows = {k: (labels == k).nonzero().squeeze(1)[: self.per_class] for k in wanted}
        if short := [k for k, index in rows.items() if len(index) < self.per_class]:
            raise InputError(
                f"per_class is {self.per_class}, but class {short[0]} has only {len(rows[short[0]])} images in the "
                f"{self.split} split of {data.name}"
            )
        index = torch.stack([rows[k] for k in wanted], dim=1).flatten()
        return Plan(label=labels[index], source_index=index)

    def images(self, data: ImageData, index: Tensor) -> Tensor:
        """Data set images, [S, C, H, W] uint8."""
        return data[self.split].images[index]

    def latents(self, block: Block, generator: Generator, encode: Callable[..., Tensor], rng: SeedRandom) -> Tensor:
        """Encodings of the block's images, [S, *L]."""
        return encode(block.image, block.label)

    def check(self, generator: Generator) -> None:
        """Refuses a generator without an encoder."""
        if not generator.encodes:
            raise InputError(f"DataSeeds encodes images, and {type(generator).__name__} has no encoder: use PriorSeeds")


def _classes(classes: list[int] | None, data: ImageData) -> list[int]:
    if classes is None:
        return list(range(data.num_classes))
    if not classes or len(set(classes)) < len(classes):
        raise InputError(f"classes must name at least one class, each once, got {classes}")
    if wrong := [k for k in classes if not 0 <= k < data.num_classes]:
        raise InputError(
            f"classes: there is no class {wrong[0]} in {data.name}; its classes are 0 to {data.num_classes - 1}"
        )
    return classes
