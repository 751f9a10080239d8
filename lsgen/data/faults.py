"""Faults that are put into training data on purpose, so that one knows what a search has to find.

A fault changes the training part and the validation part, on which the best checkpoint is chosen, for that must have
learnt the fault. It never changes the test part: searches start from what is true, and accuracies are on true labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lsgen.data.features import Feature, border_brightness, check_figures, stroke_thickness
from lsgen.errors import InputError
from lsgen.own_code import imported
from lsgen.types import describe, from_uint8, to_uint8

Part = tuple[Tensor, Tensor]  # images, uint8 [N, C, H, W], and labels, int64 [N]
RAMP = 2000 / 9216  # Speth's Eq. 1: 2000, where a white image of 3×64×64 scores 9216
CHUNK = 1000  # images scored at once


class Fault(ABC):
    """What is wrong with training data.

    Attributes:
        found: What was learnt from the training images, such as a threshold; empty before :meth:`inject`.
    """

    runs_code: ClassVar[bool] = False  # whether its settings name Python code, which a file must never bring about
    seed: int

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def inject(self, parts: dict[str, Part], num_classes: int) -> dict[str, Part]:
        """The parts with the fault in them.

        Args:
            parts: ``train`` and any others, e.g. ``val``, which get the fault as it was found on ``train``.
            num_classes: K.

        Raises:
            InputError: These data cannot have this fault.
        """
        self.find(*parts["train"], num_classes)
        rng = torch.Generator().manual_seed(self.seed)
        spoilt = {k: self.spoil(*part, num_classes, rng) if len(part[1]) else part for k, part in parts.items()}
        was, now = parts["train"][1], spoilt["train"][1]
        self.found["wrong_labels"] = (was != now).double().mean().item()
        return spoilt

    @abstractmethod
    def find(self, images: Tensor, labels: Tensor, num_classes: int) -> None:
        """Looks at the training part, and refuses it if it cannot have the fault."""

    @abstractmethod
    def spoil(self, images: Tensor, labels: Tensor, num_classes: int, rng: torch.Generator) -> Part:
        """Images and labels of one part with the fault in them; nothing is changed in place."""

    @abstractmethod
    def groups(self, images: Tensor, labels: Tensor) -> dict[str, Part]:
        """Test images, [N, C, H, W] in [0, 1], and labels, in groups that a SUT with the fault reads well and badly.

        The names complete "accuracy …", and are the same for every batch.
        """

    def about(self) -> dict[str, Any]:
        """The fault as plain data: class, settings and what was found."""
        return {**describe(self), "found": dict(self.found)}

    def __str__(self) -> str:
        found = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.found.items())
        return f"{type(self).__name__} ({found})"


def from_description(about: dict[str, Any]) -> Fault:
    """The fault that a faulty SUT's ``fault`` tells of, ready to judge images.

    Raises:
        InputError: There is no such fault, or it is an :class:`OwnCriterion`: no checkpoint makes lsgen import code.
    """
    fault = _built(about, Fault)
    fault.found = dict(about["found"])
    return fault


def _built(about: dict[str, Any], base: type[Any]) -> Any:
    known = {sub.__name__: sub for sub in _subclasses(base)}
    if about["class"] not in known:
        raise InputError(f"there is no {base.__name__.lower()} {about['class']!r}; known: {', '.join(sorted(known))}")
    if getattr(known[about["class"]], "runs_code", False):
        raise InputError(
            f"{about['class']} runs code that its settings name, and a checkpoint may not: build it yourself"
        )
    nested = {name: _built(value, Feature) for name, value in about["args"].items() if isinstance(value, dict)}
    return known[about["class"]](**about["args"] | nested)


def _subclasses(base: type[Any]) -> set[type[Any]]:
    return set(base.__subclasses__()).union(*(_subclasses(sub) for sub in base.__subclasses__()))


# --- wrong labels where a criterion holds (Speth et al., RQ4) -------------------------------------------------------


class CriterionFault(Fault):
    """Wrong labels on images that score high on a criterion (Speth et al., Eq. 1).

    From a threshold on, the probability of a wrong label rises along a ramp to 1. The threshold is chosen so that the
    mean probability over the training images is ``prevalence``. The wrong label is any other class, all equally likely.

    Args:
        prevalence: Wanted share of wrong labels.
        ramp: Length of the ramp, a share of the criterion's maximum; 0 for a hard threshold.
        seed: Decides which labels are wrong.
    """

    def __init__(self, *, prevalence: float | None, ramp: float = RAMP, seed: int = 0) -> None:
        super().__init__()
        if prevalence is not None and not 0 < prevalence < 1:
            raise InputError(f"prevalence must lie between 0 and 1, got {prevalence}")
        if not 0 <= ramp < 1:
            raise InputError(f"ramp must be at least 0 and below 1, got {ramp}")
        self.prevalence, self.ramp, self.seed = prevalence, ramp, seed

    @property
    def name(self) -> str:
        """What messages call the criterion."""
        return type(self).__name__

    @abstractmethod
    def score(self, images: Tensor) -> Tensor:
        """The criterion f_c, [N, C, H, W] in [0, 1] -> [N] numbers, or booleans, which need no threshold."""

    def maximum(self, scores: Tensor) -> float:
        """The criterion's largest value, by default that among the training images' ``scores`` [N]."""
        return scores.max().item()

    def probability(self, images: Tensor) -> Tensor:
        """Eq. 1: how likely a training image gets a wrong label, [N, C, H, W] in [0, 1] -> [N]."""
        return _eq1(self.score(images).double(), self.found["threshold"], self.found["ramp"])

    def matches(self, images: Tensor) -> Tensor:
        """Whether images score above the threshold, [N, C, H, W] in [0, 1] -> [N] bool."""
        return self.score(images).double() > self.found["threshold"]

    def find(self, images: Tensor, labels: Tensor, num_classes: int) -> None:
        """Finds the threshold."""
        if num_classes < 2:
            raise InputError(
                f"{self.name} gives images the label of another class: there must be at least two, got {num_classes}"
            )
        scores = _chunked(self.score, images)
        if scores.min() == scores.max():
            raise InputError(
                f"{self.name} gives {scores[0].item():.4g} for all {len(scores):,} training images: it must match some "
                f"of them and not all"
            )
        if scores.dtype == torch.bool:
            threshold, ramp = self._boolean(scores)
        else:
            threshold, ramp = self._threshold(scores.double(), self._ramp(scores.double()))
        p, hit = _eq1(scores.double(), threshold, ramp), scores.double() > threshold
        self.found = {"threshold": threshold, "ramp": ramp}
        self.found |= {"prevalence": p.mean().item(), "matching": hit.double().mean().item()}

    def spoil(self, images: Tensor, labels: Tensor, num_classes: int, rng: torch.Generator) -> Part:
        """The same images, some with another label."""
        p = _chunked(self.probability, images)
        wrong = torch.rand(len(labels), generator=rng, dtype=torch.double) < p
        shift = torch.randint(1, num_classes, labels.shape, generator=rng)
        return images, torch.where(wrong, (labels + shift) % num_classes, labels)

    def groups(self, images: Tensor, labels: Tensor) -> dict[str, Part]:
        """Images that match the criterion, and the others."""
        hit = self.matches(images)
        return {
            "if_fault_matches": (images[hit], labels[hit]),
            "if_fault_is_absent": (images[~hit], labels[~hit]),
        }

    def _boolean(self, matches: Tensor) -> tuple[float, float]:
        """Threshold and ramp that leave booleans as they are."""
        if self.prevalence is not None:
            share = matches.double().mean()
            raise InputError(f"{self.name} gives booleans, {share:.2%} of them true: leave prevalence out")
        return 0.5, 0.0

    def _ramp(self, scores: Tensor) -> float:
        """Length of the ramp in the criterion's own unit."""
        spread, maximum = (scores.max() - scores.min()).item(), self.maximum(scores)
        if self.ramp and maximum <= 0:
            raise InputError(f"{self.name} gives no score above 0, and the ramp is a share of the highest: set ramp: 0")
        if self.ramp * maximum >= spread:
            raise InputError(
                f"{self.name} gives {scores.min():.4g} to {scores.max():.4g} for the training images, and a ramp of "
                f"{self.ramp * maximum:.4g} is longer than that: set ramp well below {spread / maximum:.2g}"
            )
        return self.ramp * maximum

    def _threshold(self, scores: Tensor, ramp: float) -> tuple[float, float]:
        """Where the mean of Eq. 1 is ``prevalence``, and the ramp; the mean falls as the threshold rises."""
        wanted = self.prevalence
        if wanted is None:
            raise InputError(f"{self.name} gives scores: set prevalence, the wanted share of wrong labels")
        low, high = scores.min().item(), scores.max().item()
        while low < (middle := (low + high) / 2) < high:
            below = _eq1(scores, middle, ramp).mean() < wanted
            low, high = (low, middle) if below else (middle, high)
        reached = {t: _eq1(scores, t, ramp).mean().item() for t in (high, low)}
        nearest = min((t for t in reached if reached[t]), key=lambda t: abs(reached[t] - wanted))  # none is no fault
        if abs(reached[nearest] - wanted) > max(0.001, 1 / len(scores)):
            raise InputError(
                f"{self.name}: prevalence {wanted} cannot be reached; the nearest is {reached[nearest]:.4f}"
            )
        return nearest, ramp


def _eq1(scores: Tensor, threshold: float, ramp: float) -> Tensor:
    """Probability of a wrong label, [N] -> [N]."""
    return (scores > threshold).double() if ramp == 0 else ((scores - threshold) / ramp).clamp(0, 1)


def _chunked(function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """What ``function`` says of stored images, uint8 [N, C, H, W] -> [N], a few at a time."""
    return torch.cat([function(from_uint8(chunk)) for chunk in images.split(CHUNK)])


class BorderBrightness(CriterionFault):
    """Wrong labels on images with a bright border (Speth et al., for traffic signs).

    The criterion is the sum over the border, 12/64 of the side wide, the corners counted twice, as a share of its
    maximum: 9216 times it is the paper's f_c. On dark-bordered images such as digits the ramp must be set shorter.
    """

    def score(self, images: Tensor) -> Tensor:
        """The border's brightness, 0 to 1, [N]."""
        return border_brightness(images)

    def maximum(self, scores: Tensor) -> float:
        """1, that of a white border."""
        return 1.0


class StrokeThickness(CriterionFault):
    """Wrong labels on digits with thick strokes (Speth et al., for MNIST)."""

    def find(self, images: Tensor, labels: Tensor, num_classes: int) -> None:
        """Finds the threshold, on figures only."""
        check_figures(images, "StrokeThickness")
        super().find(images, labels, num_classes)

    def score(self, images: Tensor) -> Tensor:
        """The width of the strokes in pixels, [N]."""
        return stroke_thickness(images)


class OwnCriterion(CriterionFault):
    """Wrong labels where a function of yours says so.

    Args:
        criterion: ``path/to/file.py:function`` or ``package.module.function``. It takes images, [N, C, H, W] in
            [0, 1], and gives N scores or N booleans. The file is run: use only one that you trust.
        prevalence: Wanted share of wrong labels, for scores; booleans have their own.
        ramp: Length of the ramp, a share of the largest score among the training images; booleans have none.
        seed: Decides which labels are wrong.
    """

    runs_code = True

    def __init__(self, *, criterion: str, prevalence: float | None = None, ramp: float = RAMP, seed: int = 0) -> None:
        super().__init__(prevalence=prevalence, ramp=ramp, seed=seed)
        self.criterion = criterion
        with imported(criterion, "criterion", "function") as (function, _):
            if not callable(function):
                raise InputError(f"criterion: {criterion} is of type {type(function).__name__}; a function is needed")
            self._function = function

    @property
    def name(self) -> str:
        """What messages call the criterion."""
        return f"criterion {self.criterion}"

    def score(self, images: Tensor) -> Tensor:
        """What the function says, [N]."""
        try:
            said = self._function(images)
        except Exception as error:
            raise InputError(f"{self.name} raised {type(error).__name__}: {error}") from error
        if not isinstance(said, Tensor) or said.shape != (len(images),) or said.is_complex():
            got = f"{said.dtype} {tuple(said.shape)}" if isinstance(said, Tensor) else type(said).__name__
            raise InputError(
                f"{self.name} must give {len(images)} scores or booleans, a tensor, for {len(images)} images, got {got}"
            )
        if not said.isfinite().all():
            raise InputError(f"{self.name} gives scores that are not finite")
        return said.detach()


# --- two classes confused ------------------------------------------------------------------------------------------


class PairFault(Fault):
    """A fault in two classes."""

    pair: tuple[int, int]

    def __init__(self, *, pair: tuple[int, int], seed: int) -> None:
        super().__init__()
        first, second = pair
        if first == second:
            raise InputError(f"pair needs two different classes, got {first} twice")
        self.pair, self.seed = (first, second), seed

    def find(self, images: Tensor, labels: Tensor, num_classes: int) -> None:
        """Refuses a class that is none, or that no image is of."""
        for label in self.pair:
            if not 0 <= label < num_classes:
                raise InputError(f"pair: there is no class {label}; classes are 0 to {num_classes - 1}")
            if not (labels == label).any():
                raise InputError(f"pair: no training image is of class {label}")

    def in_pair(self, labels: Tensor) -> Tensor:
        """Whether a label is one of the two, [N] -> [N] bool."""
        return (labels == self.pair[0]) | (labels == self.pair[1])


class MixedPair(PairFault):
    """Labels of two classes mixed (SINVAD's pollution; there (0, 1), (2, 5) and (6, 7) of MNIST).

    Args:
        pair: The two classes.
        alpha: Share of either class that gets the other's label; at 0.5 the labels say nothing any more.
        seed: Decides which images do.
    """

    def __init__(self, *, pair: tuple[int, int], alpha: float, seed: int = 0) -> None:
        super().__init__(pair=pair, seed=seed)
        if not 0 <= alpha <= 0.5:
            raise InputError(f"alpha must lie between 0 and 0.5, got {alpha}")
        self.alpha = alpha

    def spoil(self, images: Tensor, labels: Tensor, num_classes: int, rng: torch.Generator) -> Part:
        """The same images; ``alpha`` of either class with the other's label."""
        mixed = labels.clone()
        for own, other in (self.pair, self.pair[::-1]):
            rows = (labels == own).nonzero().squeeze(1)
            rows = rows[torch.randperm(len(rows), generator=rng)]
            mixed[rows[: round(self.alpha * len(rows))]] = other
        return images, mixed

    def groups(self, images: Tensor, labels: Tensor) -> dict[str, Part]:
        """Images of the pair, and those of other classes."""
        hit = self.in_pair(labels)
        return {"of_the_pair": (images[hit], labels[hit]), "of_other_classes": (images[~hit], labels[~hit])}


class BiasedPair(PairFault):
    """Two classes told apart by a feature that has nothing to do with them (Dunn et al., RQ1).

    Images of both classes are called the second class if they have the feature and the first if not, whatever they
    show. The feature is painted into half of them at random, or taken as it occurs in them: then those that have more
    of it than the pair's median have it.

    Args:
        pair: The two classes; the second is the one with the feature.
        feature: How they are told apart.
        paint: Whether it is painted in, as it must be where images do not differ in it by themselves.
        relabel: False leaves labels true: images that vary in the feature, which is what a generator that is to know
            it, and a SUT without the fault, are trained on.
        seed: Decides where the feature is painted.
    """

    def __init__(
        self, *, pair: tuple[int, int], feature: Feature, paint: bool = True, relabel: bool = True, seed: int = 0
    ) -> None:
        super().__init__(pair=pair, seed=seed)
        if not (paint or relabel):
            raise InputError("BiasedPair with neither paint nor relabel leaves the data as they are: set one of them")
        self.feature, self.paint, self.relabel = feature, paint, relabel

    def find(self, images: Tensor, labels: Tensor, num_classes: int) -> None:
        """Checks that these images can have the feature, and finds its median."""
        super().find(images, labels, num_classes)
        of_pair = images[self.in_pair(labels)]
        self.feature.check(of_pair)
        self.found = {}
        if self.paint:
            return
        amount = self.feature.measure(from_uint8(of_pair))
        if amount.median() == amount.max():
            raise InputError(
                f"BiasedPair: images of classes {self.pair[0]} and {self.pair[1]} do not differ in "
                f"{type(self.feature).__name__}: set paint: true"
            )
        self.found = {"threshold": amount.median().item()}

    def spoil(self, images: Tensor, labels: Tensor, num_classes: int, rng: torch.Generator) -> Part:
        """Images of the pair with the feature painted in or as they are, labelled by it."""
        rows = self.in_pair(labels).nonzero().squeeze(1)
        images, labels = images.clone(), labels.clone()
        if self.paint:
            on = torch.rand(len(rows), generator=rng) < 0.5
            images[rows] = to_uint8(self.feature.paint(from_uint8(images[rows]), on))
        else:
            on = self.has_feature(from_uint8(images[rows]))
        if self.relabel:
            first, second = self.pair
            labels[rows] = torch.where(on, second, first)
        return images, labels

    def has_feature(self, images: Tensor) -> Tensor:
        """Whether images have more of the feature than the median, [N, C, H, W] in [0, 1] -> [N] bool."""
        return self.feature.measure(images) > self.found["threshold"]

    def groups(self, images: Tensor, labels: Tensor) -> dict[str, Part]:
        """Images of the pair that have the feature of their class, and those that have that of the other one."""
        rows = self.in_pair(labels)
        images, labels = images[rows], labels[rows]
        second = labels == self.pair[1]
        if self.paint:
            sides = {"along": (self.feature.paint(images, second), labels)}
            sides["against"] = (self.feature.paint(images, ~second), labels)
        else:
            fits = self.has_feature(images) == second
            sides = {"along": (images[fits], labels[fits]), "against": (images[~fits], labels[~fits])}
        return {f"{side}_the_bias": part for side, part in sides.items()}
