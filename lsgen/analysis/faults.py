"""How often generated images show an injected fault, and what the test set alone says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lsgen.metrics.functional import escape_rate
from lsgen.suts.base import predictions
from lsgen.types import from_uint8

if TYPE_CHECKING:
    from lsgen.data import Feature
    from lsgen.suts import SUT

CHUNK = 1000  # images judged at once


def match_share(images: Tensor, criterion: Callable[[Tensor], Tensor]) -> float:
    """Share of stored images that meet a fault criterion (Speth et al., Fig. 4).

    Args:
        images: uint8, [N, C, H, W].
        criterion: [N, C, H, W] in [0, 1] -> [N] bool, e.g. :meth:`lsgen.data.faults.CriterionFault.matches`.

    Example:
        >>> match_share(torch.tensor([0, 255, 255, 0]).byte().view(4, 1, 1, 1), lambda x: x.amax((1, 2, 3)) > 0.5)
        0.5
    """
    return torch.cat([criterion(from_uint8(chunk)) for chunk in images.split(CHUNK)]).double().mean().item()


def moved_towards(feature: Feature, before: Tensor, after: Tensor, target: Tensor, least: float = 0.0) -> Tensor:
    """Whether tests moved in a feature towards the class that they aim at (Dunn et al., Tab. 2), [N] bool.

    Args:
        feature: What the two classes of a biased pair are told apart by.
        before: Seed images, uint8 [N, C, H, W].
        after: The tests that grew out of them, uint8 [N, C, H, W].
        target: [N] bool, whether the class aimed at is the one that has the feature.
        least: A smaller change of the measured feature than this is none.
    """
    change = feature.measure(from_uint8(after)) - feature.measure(from_uint8(before))
    return torch.where(target, change, -change) > least


def error_matrix(sut: SUT, images: Tensor, labels: Tensor) -> Tensor:
    """What a test set by itself says of confusions, [source, target]: share of a class's images read as another.

    The counterpart of the class escape rate (SINVAD, Fig. 14a); NaN on the diagonal.

    Args:
        sut: The classifier.
        images: uint8, [N, C, H, W].
        labels: [N].
    """
    return escape_rate(predictions(sut, images), labels, sut.num_classes).fill_diagonal_(torch.nan)
