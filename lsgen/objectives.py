"""What a search minimises (objectives, a number per candidate) and when it has succeeded (criteria, a boolean)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lsgen.checkpoints import weights_sha256
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.suts import SUT
from lsgen.types import Candidates


class Part:
    """What objectives and criteria have in common.

    Attributes:
        needs_target: Whether it asks which class is aimed at.
        needs_features: Whether it looks at the SUT's activations, which takes one more pass, whoever else does.
        others: Other SUTs that it asks about each candidate, once each, whoever else asks them too.
        revision: Raised when the same settings give other cases than before, which no suite may hold both of.
    """

    needs_target: bool = False
    needs_features: bool = False
    others: tuple[SUT, ...] = ()
    revision: ClassVar[int] = 0

    def check(self, sut: SUT) -> None:
        """Refuses a SUT that it cannot work with, before anything runs."""

    def prepare(self, sut: SUT, data: ImageData, size: int) -> None:
        """Called once before a search, with its SUT, on its device, and data; passes may take ``size`` images."""


class Objective(Part, ABC):
    """A number per candidate; lower is closer to failure.

    Attributes:
        differentiable: Whether its gradient leads anywhere.
        at_the_edge: Whether it is lowest where the class is about to change, and no class leads by anything.
    """

    differentiable: ClassVar[bool] = True
    at_the_edge: ClassVar[bool] = False

    def criterion(self) -> Criterion | None:
        """The criterion that belongs to it, where it has one of its own; the searcher's otherwise."""
        return None

    def floor(self, latent: Tensor, origin: Tensor) -> Tensor | None:
        """What candidates [N, *L] cannot score below, whatever the SUT says, [N]; None where nothing is known.

        Args:
            latent: Candidates.
            origin: Their seeds' latents [N, *L], of seeds that the SUT reads rightly.
        """
        return None

    @abstractmethod
    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N], differentiable where the SUT is."""


class Criterion(Part, ABC):
    """A boolean per candidate: has the search succeeded?

    Attributes:
        lead: By how much some class must lead, in probability.
        holds_at_seeds: Whether every seed satisfies it as it is.
    """

    lead: float = 0.0
    holds_at_seeds: bool = False

    @abstractmethod
    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""

    def __and__(self, other: Criterion) -> Criterion:
        return Both(self, other)


class Both(Criterion):
    """Two criteria at once; what ``a & b`` gives.

    Args:
        first: One.
        second: The other.
    """

    def __init__(self, first: Criterion, second: Criterion) -> None:
        self.first, self.second = first, second
        self.needs_target = first.needs_target or second.needs_target
        self.needs_features = first.needs_features or second.needs_features
        self.others = first.others + second.others
        self.lead = max(first.lead, second.lead)
        self.holds_at_seeds = first.holds_at_seeds and second.holds_at_seeds

    def check(self, sut: SUT) -> None:
        """Checks both."""
        self.first.check(sut)
        self.second.check(sut)

    def prepare(self, sut: SUT, data: ImageData, size: int) -> None:
        """Prepares both."""
        self.first.prepare(sut, data, size)
        self.second.prepare(sut, data, size)

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""
        return self.first(candidates) & self.second(candidates)


class CrossEntropy(Objective):
    """Cross entropy: climbed for the true label (Speth, Alg. 1), or descended for the target.

    Args:
        targeted: Whether it aims at the target class.
    """

    def __init__(self, *, targeted: bool = False) -> None:
        self.targeted = self.needs_target = targeted

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N]."""
        if self.targeted:
            return F.cross_entropy(candidates.logits, candidates.target, reduction="none")
        return -F.cross_entropy(candidates.logits, candidates.label, reduction="none")


class LogitMargin(Objective):
    """Logit of the label above the best other one (ICST25), negative for a failure; or best other above the target.

    Args:
        targeted: Whether it aims at the target class.
    """

    def __init__(self, *, targeted: bool = False) -> None:
        self.targeted = self.needs_target = targeted

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N]."""
        if self.targeted:
            return -margin(candidates.logits, candidates.target)
        return margin(candidates.logits, candidates.label)


class TopConfidence(Objective):
    """The largest probability, of whatever class: minimising it leads to where the SUT is unsure (Dunn, §3.3.3)."""

    at_the_edge = True

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N]."""
        return candidates.logits.softmax(1).amax(1)


class ConfidentTarget(Objective):
    """Best other probability above that of the target, plus c: below 0 where the target wins by c (Dunn, Def. 3.6).

    Args:
        margin: c, from 0 to below 1.
    """

    needs_target = True

    def __init__(self, *, margin: float = 0.0) -> None:
        self.margin = _lead(margin)

    def criterion(self) -> Criterion:
        """The target leads by more than c, that is, this is below 0."""
        return Confident(margin=self.margin, targeted=True)

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N]."""
        return self.margin - margin(candidates.logits.softmax(1), candidates.target)


class LatentDistance(Objective):
    """L1 distance from the seed's latent where the class has changed, else infinite (SINVAD, Eq. 1 and 4).

    Args:
        targeted: Whether the class must have changed to the target.
    """

    differentiable = False  # no slope where it matters, at the boundary
    at_the_edge = True

    def __init__(self, *, targeted: bool = False) -> None:
        self.targeted = self.needs_target = targeted

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N]."""
        changed = IsTarget()(candidates) if self.targeted else Misclassified()(candidates)
        return l1(candidates.latent, candidates.origin).where(changed, torch.inf)

    def floor(self, latent: Tensor, origin: Tensor) -> Tensor:
        """The distance; a copy of the seed has the seed's class and does not count."""
        distance = l1(latent, origin)
        return distance.where(distance > 0, torch.inf)


class Misclassified(Criterion):
    """The SUT predicts another class than the label."""

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""
        return candidates.logits.argmax(1) != candidates.label


class IsTarget(Criterion):
    """The SUT predicts the target (Dunn, Def. 3.5)."""

    needs_target = True

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""
        return candidates.logits.argmax(1) == candidates.target


class Confident(Criterion):
    """The SUT is surely wrong: a wrong class, or the target, leads by more than a margin (Dunn, Def. 3.4 and 3.6).

    Args:
        margin: c, from 0 to below 1, in probability.
        targeted: Whether the target must lead, ahead of all others; otherwise any class, ahead of the label.
    """

    def __init__(self, *, margin: float = 0.0, targeted: bool = False) -> None:
        self.margin = self.lead = _lead(margin)
        self.targeted = self.needs_target = targeted

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""
        p = candidates.logits.softmax(1)
        if self.targeted:
            return margin(p, candidates.target) > self.margin
        return -margin(p, candidates.label) > self.margin


class Within(Criterion):
    """The latent is close to the seed's.

    A searcher that keeps to a ball stores its points, not its steps, and a point at the edge may lie beyond it by the
    rounding of its coordinates; that much is forgiven, and a hundred thousandth of the radius for the sum.

    Args:
        radius: Largest distance, ε.
        norm: ``l1``, ``l2`` or ``linf``.
    """

    holds_at_seeds = True
    revision = 1

    def __init__(self, *, radius: float, norm: Literal["l1", "l2", "linf"] = "l2") -> None:
        if not radius >= 0:
            raise InputError(f"radius must not be negative, got {radius}")
        if norm not in NORMS:
            raise InputError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        self.radius, self.norm = radius, norm

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool."""
        z, origin = candidates.latent.flatten(1), candidates.origin.flatten(1)
        rounding = torch.finfo(z.dtype).eps * (z.abs() + origin.abs())
        moved = ((z - origin).abs() - rounding).clamp(min=0)
        return torch.linalg.vector_norm(moved, ord=NORMS[self.norm], dim=1) <= self.radius * (1 + 1e-5)


class Disagree(Criterion):
    """Two SUTs predict different classes (SINVAD's differential testing).

    Args:
        other: The second SUT, e.g. ``lsgen.suts.pretrained`` with its checkpoint.
    """

    def __init__(self, *, other: SUT) -> None:
        self.other, self.others = other, (other,)

    def check(self, sut: SUT) -> None:
        """Refuses SUTs for different images."""
        _check_alike(self.other, sut)

    def prepare(self, sut: SUT, data: ImageData, size: int) -> None:
        """Puts the second SUT beside the first."""
        self.other.to(sut.device).eval().requires_grad_(False)

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N] bool; False where the second SUT's answer is no number."""
        answer = candidates.logits_of(self.other)
        return (answer.argmax(1) != candidates.logits.argmax(1)) & answer.isfinite().all(1)


class DifferentialDistance(Objective):
    """Latent L1 distance × (2 + p₁(label) − p₂(label)), infinite where it does not count (SINVAD).

    Small for a near image that the first SUT gets wrong and the second does not.

    Args:
        other: The second SUT.
        threshold: As in the published code, an image counts where the first SUT gives the label at most this, even if
            no other class has more. By default it counts where the first SUT is wrong and the second says otherwise.
    """

    differentiable = False  # infinite until the first SUT is wrong
    at_the_edge = True

    def __init__(self, *, other: SUT, threshold: float | None = None) -> None:
        self.other, self.others = other, (other,)
        self.threshold = None if threshold is None else _share("threshold", threshold)

    def check(self, sut: SUT) -> None:
        """Refuses SUTs for different images."""
        _check_alike(self.other, sut)

    def prepare(self, sut: SUT, data: ImageData, size: int) -> None:
        """Puts the second SUT beside the first."""
        self.other.to(sut.device).eval().requires_grad_(False)

    def __call__(self, candidates: Candidates) -> Tensor:
        """N candidates -> [N]; NaN where the second SUT's answer is no number."""
        label, answer = candidates.label[:, None], candidates.logits_of(self.other)
        first = candidates.logits.softmax(1).gather(1, label).squeeze(1)
        second = answer.softmax(1).gather(1, label).squeeze(1)
        if self.threshold is None:
            counts = Misclassified()(candidates) & Disagree(other=self.other)(candidates)
        else:
            counts = first <= self.threshold
        distance = l1(candidates.latent, candidates.origin) * (2 + first - second)
        return distance.where(counts, torch.inf).where(answer.isfinite().all(1), torch.nan)


def l1(latent: Tensor, origin: Tensor) -> Tensor:
    """L1 distances between latents, [N, *L] and [N, *L] -> [N]."""
    return (latent - origin).flatten(1).abs().sum(1)


NORMS = {"l1": 1, "l2": 2, "linf": torch.inf}


def margin(scores: Tensor, k: Tensor) -> Tensor:
    """Score of class ``k`` above the best other one, [N, K], [N] -> [N]; positive where k wins.

    Example:
        >>> margin(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([1]))
        tensor([-2.])
    """
    own = scores.gather(1, k[:, None])
    others = scores.scatter(1, k[:, None], -torch.inf)
    return own.squeeze(1) - others.amax(1)


def _share(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise InputError(f"{name} must lie between 0 and 1, got {value}")
    return value


def _lead(margin: float) -> float:
    if not 0 <= margin < 1:
        raise InputError(f"margin must be at least 0 and below 1, got {margin}: no class leads by more than 1")
    return margin


def _check_alike(other: SUT, sut: SUT) -> None:
    """Refuses two SUTs that do not take the same images, or are one and the same."""
    if (other.image_shape, other.num_classes) != (sut.image_shape, sut.num_classes):
        raise InputError(
            f"the second SUT takes images of {other.image_shape} in {other.num_classes} classes, the first "
            f"{sut.image_shape} in {sut.num_classes}: they must be trained on the same data"
        )
    if weights_sha256(other) == weights_sha256(sut) and other.settings() == sut.settings():
        raise InputError("the second SUT is the first: they can never disagree; give another checkpoint")
