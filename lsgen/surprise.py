"""Surprise adequacy: how unlike the training data a SUT finds an image (Kim et al., 2019), and how to aim at a value.

Shapes use N (candidates), F (activations of one image), M (training images), D (units in use) and R (rows of a block).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lsgen.checkpoints import weights_sha256
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.objectives import Criterion, Objective
from lsgen.suts import SUT
from lsgen.types import Candidates, describe, from_uint8

CHUNK = 256  # rows compared at once while fitting
ROWS = 32  # candidates compared at once; see _in_blocks
SINGULAR = 1e-10  # share of a unit's variance that the units before it leave unexplained, for Cholesky to be trusted
RIDGE = 1e-6  # share of its variance that each unit gains where Cholesky is not

Measure = Callable[[Tensor], Tensor]  # [R, F] float64 -> [R] float64


class Surprise(ABC):
    """A number per candidate: how far its activations lie from those of the training data.

    All arithmetic is in float64, at one block shape, so a candidate's number does not depend on who is scored with it.

    Args:
        per_class: At most so many training activations of each predicted class, spread evenly; all of them if None.

    Attributes:
        by_class: Whether each predicted class has a measure of its own; otherwise there is one, at 0.
        fitted_to: A note of those who had it fitted on what it was fitted to, so that they need not do so twice.
    """

    by_class: bool = True

    def __init__(self, *, per_class: int | None = 1000) -> None:
        if per_class is not None and per_class < 2:
            raise InputError(f"per_class must be at least 2, got {per_class}")
        self.per_class = per_class
        self.fitted_to: Any = None
        self._measures: dict[int, Measure] = {}

    def fit(self, features: Tensor, predicted: Tensor) -> None:
        """Learns what is usual from training activations [M, F] and the classes predicted for them [M].

        Raises:
            InputError: The activations are not finite, or too few or too much alike to learn from.
        """
        self.fitted_to, self._measures = None, {}
        if not bool(features.isfinite().all()):
            raise InputError("the SUT has NaN or infinite activations for training images: no surprise can be measured")
        classes = predicted.unique().tolist()
        self._measures = self._fitted({k: _spread(features[predicted == k], self.per_class).double() for k in classes})

    def __call__(self, features: Tensor, predicted: Tensor) -> Tensor:
        """Activations [N, F] and predicted classes [N] -> [N], differentiable with respect to the activations.

        It is infinite, without a slope, for a class that was predicted for no training image.

        Raises:
            InputError: Nothing was fitted.
        """
        if not self._measures:
            raise InputError(f"{type(self).__name__} must be fitted to training activations before it is asked")
        if not self.by_class:
            return _in_blocks(self._measures[0], features.double()).to(features.dtype)
        surprise = features.new_full((len(features),), torch.inf)
        classes = predicted.cpu()  # once: a GPU makes the host wait for it
        for k in set(classes.tolist()) & set(self._measures):
            rows = (classes == k).nonzero().squeeze(1).to(features.device)
            values = _in_blocks(self._measures[k], features[rows].double())
            surprise = surprise.index_put((rows,), values.to(features.dtype))
        return surprise

    @abstractmethod
    def _fitted(self, activations: dict[int, Tensor]) -> dict[int, Measure]:
        """Training activations of each predicted class, [M, F] float64 -> a measure for each group of candidates."""


class LSA(Surprise):
    """Likelihood-based surprise: minus the log density of the activations under a Gaussian KDE of training ones.

    The KDE has Scott's bandwidth and the full covariance. SINVAD's code has one KDE for all classes, which the default
    values and its target of 111 belong to. Kim et al. have one for each predicted class (``by_class``); few units
    vary much in every class, so that takes a far smaller ``min_std``, theirs being 0.003.

    A class that was predicted for too few training images is refused: leaving it out would quietly rule out all
    candidates that are predicted as it. Only a class never predicted for one makes candidates infinitely surprising.

    Args:
        min_std: Units count whose standard deviation is at least this; in every class, if ``by_class``.
        max_units: The first so many of them are used.
        per_class: At most so many training activations of each predicted class, spread evenly; all of them if None.
        by_class: Whether a candidate is compared with the training images of its predicted class only.

    Example:
        >>> lsa = LSA(min_std=0.5, max_units=1)
        >>> lsa.fit(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 0]))
        >>> lsa(torch.tensor([[1.0], [1000.0]]), torch.tensor([0, 0]))
        tensor([1.1452e+00, 7.7282e+05])
    """

    def __init__(
        self, *, min_std: float = 0.6, max_units: int = 100, per_class: int | None = 1000, by_class: bool = False
    ) -> None:
        super().__init__(per_class=per_class)
        if not 0 < min_std < math.inf:
            raise InputError(f"min_std must be above 0 and finite, got {min_std}")
        if max_units < 1:
            raise InputError(f"max_units must be at least 1, got {max_units}")
        self.min_std, self.max_units, self.by_class = min_std, max_units, by_class

    def _fitted(self, activations: dict[int, Tensor]) -> dict[int, Measure]:
        groups = activations if self.by_class else {0: torch.cat(list(activations.values()))}
        self._check_counts(groups, 1)
        units = self._units(groups)
        self._check_counts(groups, len(units))
        return {k: _Density.of(group, units) for k, group in groups.items()}

    def _units(self, groups: dict[int, Tensor]) -> Tensor:
        """The units in use, [D]: one that stands still in some class would make that class's covariance singular."""
        least = torch.stack([group.std(dim=0, correction=0) for group in groups.values()]).amin(dim=0)
        units = (least >= self.min_std).nonzero().squeeze(1)[: self.max_units]
        if not len(units):
            where = "in every class" if self.by_class else "over the training images"
            raise InputError(
                f"no unit has a standard deviation of at least min_std {self.min_std} {where}; "
                f"the largest is {float(least.max()):.3g}: lower min_std"
            )
        return units

    def _check_counts(self, groups: dict[int, Tensor], units: int) -> None:
        """Refuses a group with no more activations than units: its covariance can't have full rank."""
        k = min(groups, key=lambda k: len(groups[k]))
        if (n := len(groups[k])) > units:
            return
        which = f"class {k} has {n} training activations" if self.by_class else f"there are {n} training activations"
        raise InputError(
            f"{which}, a density over {units} unit{'s' if units > 1 else ''} needs at least {units + 1}: "
            f"lower max_units, raise per_class or images{', or set by_class to false' if self.by_class else ''}"
        )


class DSA(Surprise):
    """Distance-based surprise: how far off the predicted class is, over how far that is from the other classes.

    That is, the distance to the nearest training activation of the predicted class, over the distance of that neighbour
    to the nearest training activation of any other class.

    Args:
        per_class: At most so many training activations of each predicted class, spread evenly; all of them if None.

    Example:
        >>> dsa = DSA()
        >>> dsa.fit(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 0, 1]))
        >>> dsa(torch.tensor([[2.0], [2.0]]), torch.tensor([0, 1]))  # 1 / 4 and 3 / 4
        tensor([0.2500, 0.7500])
    """

    def _fitted(self, activations: dict[int, Tensor]) -> dict[int, Measure]:
        if len(activations) < 2:
            raise InputError(
                f"the SUT predicts class {min(activations)} for all training images: DSA compares at least two classes"
            )
        points = torch.cat(list(activations.values()))
        label = torch.cat([torch.full((len(a),), k, device=a.device) for k, a in activations.items()])
        other = _distance_to_others(points, label)
        return {k: _Nearest(points[label == k], other[label == k]) for k in activations}


class SurpriseDistance(Objective):
    """How far a candidate's surprise is from a wanted value (SINVAD's hill climbing).

    The surprise is fitted to what the SUT makes of training images before the search, which succeeds where it comes
    near enough to the value, whatever the SUT predicts; ``criterion: Misclassified`` asks for a failure instead.

    Args:
        surprise: What is measured, :class:`LSA` or :class:`DSA`.
        target: The wanted value; SINVAD's is 111, with LSA.
        tolerance: How far from it still counts as reached; a hundredth of it by default.
        images: At most so many training images are looked at, spread evenly; all of them if None.
    """

    needs_features = True

    def __init__(
        self, *, surprise: Surprise, target: float, tolerance: float | None = None, images: int | None = 10_000
    ) -> None:
        if not math.isfinite(target):
            raise InputError(f"target must be finite, got {target}")
        if tolerance is not None and not 0 <= tolerance < math.inf:
            raise InputError(f"tolerance must be finite and not negative, or null, got {tolerance}")
        if images is not None and images < 2:
            raise InputError(f"images must be at least 2, got {images}")
        if target == 0 and tolerance is None:
            raise InputError("tolerance is a hundredth of target by default, and target is 0: set tolerance")
        self.surprise, self.target, self.tolerance, self.images = surprise, target, tolerance, images
        self._sut: SUT | None = None

    def criterion(self) -> Criterion:
        """The value is reached."""
        return Surprised(distance=self)

    @torch.no_grad()
    def check(self, sut: SUT) -> None:
        """Refuses a SUT that shows no activations."""
        sut.eval().features(torch.zeros(2, *sut.image_shape, device=sut.device))

    @torch.no_grad()
    def prepare(self, sut: SUT, data: ImageData, size: int) -> None:
        """Fits the surprise to the SUT's activations and predictions for training images.

        Raises:
            InputError: They are not finite, or too few or too much alike to learn from.
        """
        fitted = (weights_sha256(sut), describe(sut.settings()), data.fingerprint, self.images, size, str(sut.device))
        self._sut = sut.eval()
        if self.surprise.fitted_to == fitted:  # as an objective, where it is the criterion's too
            return
        train = data["train"]
        images, _ = train.spread(len(train) if self.images is None else self.images)
        parts = [_activations(sut, part.to(sut.device), size) for part in images.split(size)]
        features, predicted = (torch.cat(column) for column in zip(*parts, strict=True))
        self.surprise.fit(features, predicted)
        self.surprise.fitted_to = fitted

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N].

        Raises:
            InputError: It was not prepared.
        """
        if self._sut is None:
            raise InputError("SurpriseDistance must be prepared with a SUT and data before it is asked")
        return candidates.answer(("surprise", id(self)), lambda: self._measured(candidates))

    def _measured(self, candidates: Candidates) -> Tensor:
        assert self._sut is not None
        features = candidates.features_of(self._sut)
        return (self.surprise(features, candidates.logits.argmax(1)) - self.target).abs()


class Surprised(Criterion):
    """The surprise is as wanted, within the tolerance of an objective that aims at it.

    Args:
        distance: That objective.
    """

    needs_features = True

    def __init__(self, *, distance: SurpriseDistance) -> None:
        self.distance = distance

    def check(self, sut: SUT) -> None:
        """Refuses a SUT that shows no activations."""
        self.distance.check(sut)

    def prepare(self, sut: SUT, data: ImageData, size: int) -> None:
        """Fits the surprise, where that was not done as the objective's."""
        self.distance.prepare(sut, data, size)

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""
        own = self.distance
        tolerance = abs(own.target) / 100 if own.tolerance is None else own.tolerance
        return own(candidates).detach() <= tolerance


@dataclass(frozen=True)
class _Density:
    """Minus the log of a Gaussian KDE, in coordinates in which its kernel is a standard normal."""

    units: Tensor  # [D]
    mean: Tensor  # [D]
    root: Tensor  # [D, D] lower triangular; times its transpose it is the kernel's covariance
    points: Tensor  # [M, D] the training activations in those coordinates
    constant: float  # minus the log density of a single kernel at its centre, plus log M

    @classmethod
    def of(cls, activations: Tensor, units: Tensor) -> _Density:
        """From training activations [M, F] and the units in use [D]."""
        x = activations[:, units]
        m, d = x.shape
        root = _cholesky(x.T.cov().reshape(d, d)) * m ** (-1 / (d + 4))  # Scott's factor
        constant = math.log(m) + 0.5 * d * math.log(2 * math.pi) + float(root.diagonal().log().sum())
        return cls(units, x.mean(dim=0), root, _whitened(x, x.mean(dim=0), root), constant)

    def __call__(self, rows: Tensor) -> Tensor:
        """[R, F] -> [R]."""
        x = _whitened(rows[:, self.units], self.mean, self.root)
        return self.constant - (-0.5 * _squared_distances(x, self.points)).logsumexp(dim=1)


@dataclass(frozen=True)
class _Nearest:
    """Distance to the nearest of some points, over that point's own distance to the other classes."""

    points: Tensor  # [M, F]
    other: Tensor  # [M]

    def __call__(self, rows: Tensor) -> Tensor:
        """[R, F] -> [R]."""
        nearest = _squared_distances(rows.detach(), self.points).argmin(dim=1)
        distance, other = _distance(rows, self.points[nearest]), self.other[nearest]
        apart = other > 0  # an activation that two classes share is infinitely surprising but for itself: no slope
        return torch.where(apart, distance / other.where(apart, 1), torch.where(distance > 0, torch.inf, 0.0))


def _activations(sut: SUT, images: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """At most ``size`` stored images, uint8 [N, C, H, W] -> activations [N, F] and predicted classes [N]."""
    n = len(images)
    x = from_uint8(torch.cat([images, images.new_zeros(size - n, *images.shape[1:])]))
    return sut.features(x).float()[:n], sut.logits(x).argmax(1)[:n]


def _cholesky(covariance: Tensor) -> Tensor:
    """Lower triangular root of a covariance [D, D], of a slightly wider one if units depend on each other.

    Rounding may let the decomposition of a singular matrix pass with senseless pivots, so these are looked at.
    """
    variance = covariance.diagonal()
    root, failed = torch.linalg.cholesky_ex(covariance)
    unexplained = root.diagonal().square() / variance
    if not int(failed) and bool((unexplained > SINGULAR).all()):
        return root
    return torch.linalg.cholesky(covariance + RIDGE * variance.diag())


def _whitened(x: Tensor, mean: Tensor, root: Tensor) -> Tensor:
    """[N, D] -> [N, D]."""
    return torch.linalg.solve_triangular(root, (x - mean).T, upper=False).T


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """[R, D], [M, D] -> [R, M], by a matrix product: the differences themselves would take R·M·D numbers."""
    return a.square().sum(dim=1, keepdim=True) + b.square().sum(dim=1) - 2 * a @ b.T


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance of each row, [R, F], [R, F] -> [R]; exact also where it is tiny, unlike the above."""
    return torch.linalg.vector_norm(a - b, dim=1)


def _distance_to_others(points: Tensor, label: Tensor) -> Tensor:
    """Distance of each point to the nearest with another label, [M, F], [M] -> [M]."""
    parts = []
    for x, k in zip(points.split(CHUNK), label.split(CHUNK), strict=True):
        squared = _squared_distances(x, points).masked_fill(k[:, None] == label, torch.inf)
        parts.append(_distance(x, points[squared.argmin(dim=1)]))
    return torch.cat(parts)


def _spread(rows: Tensor, n: int | None) -> Tensor:
    """At most ``n`` of the rows, spread evenly."""
    if n is None or len(rows) <= n:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, n, dtype=torch.float64, device=rows.device).long()]


def _in_blocks(measure: Measure, rows: Tensor) -> Tensor:
    """``measure`` of all rows [N, F] -> [N], in padded blocks of one shape.

    Blocks bound memory, and one shape makes results equal to the last bit whoever else is in the batch: how many
    candidates are predicted as one class changes from call to call, and rounding in a matrix product with its shape.
    """
    padded = F.pad(rows, (0, 0, 0, -len(rows) % ROWS))
    return torch.cat([measure(block) for block in padded.split(ROWS)])[: len(rows)]
