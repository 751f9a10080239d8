"""Where searches start: from the generator's prior, or from encoded images nobody was trained on."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lsgen.data import ImageData, Split
from lsgen.errors import InputError
from lsgen.generators import Generator
from lsgen.search.base import SeedRandom
from lsgen.types import Rows


@dataclass(frozen=True)
class Plan(Rows):
    """All cases of a search, before they have latents; several may start at the same seed."""

    label: Tensor  # [M]
    seed_id: Tensor  # [M]
    source_index: Tensor | None = None  # [M] row in the split that seeds come from
    target: Tensor | None = None  # [M] class that is aimed at
    other_index: Tensor | None = None  # [M] row in the split that other images come from
    other_label: Tensor | None = None  # [M]

    def __len__(self) -> int:
        return len(self.label)

    def aimed(self, target: int | Literal["each"] | None, num_classes: int) -> Plan:
        """The same with targets: one class for all, or every other class in turn for each seed.

        Raises:
            InputError: The target is no class, or the label of a seed.
        """
        if target is None:
            return self
        if target == "each":
            index = torch.arange(len(self)).repeat_interleave(num_classes - 1)
            step = torch.arange(1, num_classes).repeat(len(self))
            return replace(self.take(index), target=(self.label[index] + step) % num_classes)
        if not 0 <= target < num_classes:
            raise InputError(f"target: there is no class {target}; classes are 0 to {num_classes - 1}")
        if bool((self.label == target).any()):
            raise InputError(f"target {target} is the label of some seeds: leave class {target} out of the seeds")
        return replace(self, target=torch.full_like(self.label, target))


@dataclass(frozen=True)
class Block:
    """The cases that are searched together."""

    number: int
    case_id: Tensor  # [S]
    plan: Plan  # of these cases
    image: Tensor | None = None  # [S, C, H, W] uint8, the data set's image where seeds come from one
    other_image: Tensor | None = None  # [S, C, H, W] uint8, the image to be mixed in


class SeedSource(ABC):
    """Says which seeds there are and gives a block of them its latents."""

    targeted: bool = False  # whether its cases have targets
    paired: ClassVar[bool] = False  # whether its cases come with another image
    revision: ClassVar[int] = 0  # raised when the same settings give other cases than before

    @abstractmethod
    def plan(self, data: ImageData) -> Plan:
        """All cases, classes in turn, so that any part of a search covers them alike."""

    @abstractmethod
    def latents(self, block: Block, generator: Generator, encode: Callable[..., Tensor], rng: SeedRandom) -> Tensor:
        """Start latents of a block, [S, *L]; ``encode`` takes images [S, C, H, W] and labels [S]."""

    def block(self, number: int, case_id: Tensor, plan: Plan, data: ImageData) -> Block:
        """The cases of one block, with their images where they have any."""
        return Block(number, case_id, plan)

    def others(self, data: ImageData) -> SeedSource | None:
        """As many seeds that this source does not give, for the same search anew; None where there are too few.

        A random source gives others by itself as soon as the seed of the search is another.
        """
        return self

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
        target: The class to aim at, or ``each`` for every other class in turn; none by default.
    """

    def __init__(
        self,
        *,
        per_class: int = 200,
        distribution: Literal["uniform", "normal", "prior"] = "uniform",
        scale: float = 1.0,
        classes: list[int] | None = None,
        target: int | Literal["each"] | None = None,
    ) -> None:
        if per_class < 1:
            raise InputError(f"per_class must be at least 1, got {per_class}")
        if not 0 <= scale < math.inf:
            raise InputError(f"scale must be finite and not negative, got {scale}")
        _check_choice("distribution", distribution, ("uniform", "normal", "prior"))
        _check_target(target)
        self.per_class, self.distribution, self.scale, self.classes = per_class, distribution, scale, classes
        self.target, self.targeted = target, target is not None

    def plan(self, data: ImageData) -> Plan:
        """``per_class`` seeds of each class, in turn; with ``each``, so many for every pair of classes."""
        label = torch.tensor(_classes(self.classes, data)).repeat(self.per_class)
        plan = Plan(label, torch.arange(len(label))).aimed(self.target, data.num_classes)
        return replace(plan, seed_id=torch.arange(len(plan)))  # every case has a latent of its own

    def latents(self, block: Block, generator: Generator, encode: Callable[..., Tensor], rng: SeedRandom) -> Tensor:
        """Draws from the chosen distribution, [S, *L]."""
        if self.distribution == "prior":
            label = block.plan.label
            return self.scale * generator.sample_prior(len(label), label, rng.generator)
        if self.distribution == "normal":
            return self.scale * rng.normal(*generator.latent_shape)
        return self.scale * (2 * rng.uniform(*generator.latent_shape) - 1)

    def check(self, generator: Generator) -> None:
        """Refuses a generator whose random samples have no known label; warns of noise that gives no whole images."""
        if not generator.conditional:
            raise InputError(
                f"PriorSeeds needs to know which class a sample shows, and {type(generator).__name__} takes no label: "
                f"use DataSeeds, whose labels are those of the images"
            )
        if generator.latent.kind == "noise" and (self.distribution == "uniform" or self.scale != 1):
            warnings.warn(
                f"{type(generator).__name__} makes images of noise with a standard deviation of 1; of other noise, as "
                f"from distribution {self.distribution} with scale {self.scale:g}, it makes pale or broken ones, which "
                f"would pass for failures of the SUT: set distribution to prior and scale to 1",
                stacklevel=2,
            )


class DataSeeds(SeedSource):
    """Encoded images of a split that neither generator nor SUT was trained on.

    Args:
        split: ``test`` or ``val``; training images are no fair seeds.
        per_class: Seeds for each class, the first ones of the split.
        classes: The classes to search; all by default.
        target: The class to aim at, or ``each`` for every other class in turn; none by default.
        skip: So many images of each class are left out first, which another search began at.
    """

    def __init__(
        self,
        *,
        split: Literal["test", "val"] = "test",
        per_class: int = 50,
        classes: list[int] | None = None,
        target: int | Literal["each"] | None = None,
        skip: int = 0,
    ) -> None:
        if per_class < 1 or skip < 0:
            raise InputError(f"per_class must be at least 1 and skip not negative, got {per_class} and {skip}")
        _check_choice("split", split, ("test", "val"))
        _check_target(target)
        self.split, self.per_class, self.classes, self.skip = split, per_class, classes, skip
        self.target, self.targeted = target, target is not None

    def others(self, data: ImageData) -> DataSeeds | None:
        """The next images of each class; None where one has too few of them."""
        source = copy(self)
        source.skip = self.skip + self.per_class
        labels = data[self.split].labels
        enough = all((labels == k).sum() >= source.skip + self.per_class for k in _classes(self.classes, data))
        return source if enough else None

    def plan(self, data: ImageData) -> Plan:
        """The first ``per_class`` images of each class behind those that are skipped, classes in turn."""
        n = self.skip + self.per_class
        setting = "per_class with skip" if self.skip else "per_class"
        index = _first(data, self.split, _classes(self.classes, data), n, setting)[self.skip :].flatten()
        label = data[self.split].labels[index]
        return Plan(label, torch.arange(len(label)), source_index=index).aimed(self.target, data.num_classes)

    def block(self, number: int, case_id: Tensor, plan: Plan, data: ImageData) -> Block:
        """With the data set's images."""
        assert plan.source_index is not None
        return Block(number, case_id, plan, data[self.split].images[plan.source_index])

    def latents(self, block: Block, generator: Generator, encode: Callable[..., Tensor], rng: SeedRandom) -> Tensor:
        """Encodings of the block's images, [S, *L]."""
        assert block.image is not None
        first, again = first_of_each(block.plan.seed_id)  # an image that starts several cases is encoded once
        return encode(block.image[first], block.plan.label[first])[again]

    def check(self, generator: Generator) -> None:
        """Refuses a generator without an encoder."""
        if not generator.encodes:
            raise InputError(
                f"{type(self).__name__} encodes images, and {type(generator).__name__} has no encoder: use PriorSeeds"
            )


class PairSeeds(DataSeeds):
    """Encoded images, each with many of every other class to be mixed in (ARGUS, Alg. 1).

    Args:
        split: ``test`` or ``val``, of the originals.
        per_class: Originals of each class.
        others_per_class: Images of every other class for each original (ARGUS: 3,333 on MNIST).
        other_split: Where those come from; they are only mixed in, so training images will do.
        classes: The classes of the originals; all by default.
        skip: So many images of each class are left out first, which another search began at.
    """

    paired: ClassVar[bool] = True
    revision: ClassVar[int] = 1

    def __init__(
        self,
        *,
        split: Literal["test", "val"] = "test",
        per_class: int = 1,
        others_per_class: int = 100,
        other_split: Literal["train", "val", "test"] = "train",
        classes: list[int] | None = None,
        skip: int = 0,
    ) -> None:
        super().__init__(split=split, per_class=per_class, classes=classes, skip=skip)
        if others_per_class < 1:
            raise InputError(f"others_per_class must be at least 1, got {others_per_class}")
        _check_choice("other_split", other_split, ("train", "val", "test"))
        self.others_per_class, self.other_split = others_per_class, other_split

    def plan(self, data: ImageData) -> Plan:
        """Every original with the first ``others_per_class`` images of each other class.

        Originals come in groups of one a class, which take their mixtures in turn: any part of a search covers all
        classes, and a block holds few originals and other images, each of which is encoded once.
        """
        originals, k = super().plan(data), data.num_classes
        rows = _first(data, self.other_split, list(range(k)), self.others_per_class, "others_per_class")  # [others, K]
        together, others = len(originals) // self.per_class, self.others_per_class
        place = torch.arange(self.per_class * others * (k - 1) * together)
        group, turn = place // (others * (k - 1) * together), place // ((k - 1) * together) % others
        step = place // together % (k - 1) + 1
        plan = originals.take(group * together + place % together)
        other = (plan.label + step) % k
        return replace(plan, other_index=rows[turn, other], other_label=other)

    def block(self, number: int, case_id: Tensor, plan: Plan, data: ImageData) -> Block:
        """With the data set's images."""
        assert plan.other_index is not None
        others = data[self.other_split].images[plan.other_index]
        return replace(super().block(number, case_id, plan, data), other_image=others)


def first_of_each(key: Tensor) -> tuple[Tensor, Tensor]:
    """Where each distinct value of ``key`` [N] stands first [M], and which of those every entry repeats [N].

    Example:
        >>> first_of_each(torch.tensor([7, 7, 9]))
        (tensor([0, 2]), tensor([0, 0, 1]))
    """
    values, again = key.unique(return_inverse=True)
    first = torch.full_like(values, len(key)).scatter_reduce(
        0, again, torch.arange(len(key), device=key.device), "amin"
    )
    return first, again


def _first(data: ImageData, split: Split, classes: list[int], n: int, setting: str) -> Tensor:
    """Rows of the first ``n`` images of each class in a split, [n, K]."""
    labels = data[split].labels
    rows = {k: (labels == k).nonzero().squeeze(1)[:n] for k in classes}
    if short := [k for k, index in rows.items() if len(index) < n]:
        raise InputError(
            f"{setting} is {n}, but class {short[0]} has only {len(rows[short[0]])} images in the {split} split of "
            f"{data.name}"
        )
    return torch.stack([rows[k] for k in classes], dim=1)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _check_target(target: int | str | None) -> None:
    if isinstance(target, str) and target != "each":
        raise InputError(f"target must be the number of a class, each, or null, got {target!r}")


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
