"""Metrics as plain functions of tensors; the classes in this package are built on them."""

from __future__ import annotations

import torch
from torch import Tensor


def failure_rate(predicted: Tensor, label: Tensor) -> Tensor:
    """Share of cases predicted as another class than their label (FR of Speth, ER of ARGUS), [N], [N] -> scalar.

    NaN where there is no case.

    Example:
        >>> failure_rate(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2]))
        tensor(0.2500, dtype=torch.float64)
    """
    return (predicted != label).double().mean()


def true_probability(logits: Tensor, label: Tensor) -> Tensor:
    """Softmax probability of the label (P_t of Speth), [N, K], [N] -> [N].

    Example:
        >>> true_probability(torch.zeros(1, 4), torch.tensor([2]))
        tensor([0.2500])
    """
    return logits.softmax(dim=1).gather(1, label[:, None]).squeeze(1)


def boundary_gap(logits: Tensor) -> Tensor:
    """Difference of the two largest probabilities (U of SINVAD, Eq. 3), [N, K] -> [N]; 0 on the boundary.

    Example:
        >>> boundary_gap(torch.tensor([[3.0, 3.0, 0.0]]))
        tensor([0.])
    """
    top = logits.softmax(dim=1).topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def success_rate(failed: Tensor, seed_id: Tensor) -> Tensor:
    """Share of distinct seeds with at least one failed case (SR of ARGUS), [N] bool, [N] -> scalar.

    Example:
        >>> success_rate(torch.tensor([True, False, False, False]), torch.tensor([0, 0, 1, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    seeds = seed_id.unique()
    return torch.tensor(len(seed_id[failed].unique()) / len(seeds) if len(seeds) else torch.nan, dtype=torch.float64)


def label_diversity(predicted: Tensor, label: Tensor, group: Tensor) -> Tensor:
    """Mean number of distinct wrong classes in each group that has a failure (LD of ARGUS), [N], [N], [N] -> scalar.

    NaN where nothing failed. ARGUS groups by seed; a method with one case a seed groups by label.

    Example:
        >>> label_diversity(torch.tensor([1, 2, 2, 3]), torch.tensor([0, 0, 0, 3]), torch.tensor([7, 7, 7, 8]))
        tensor(2., dtype=torch.float64)
    """
    wrong = predicted != label
    pairs = torch.stack([group[wrong], predicted[wrong]], dim=1).unique(dim=0)
    groups = group[wrong].unique()
    return torch.tensor(len(pairs) / len(groups) if len(groups) else torch.nan, dtype=torch.float64)


def escape_rate(predicted: Tensor, label: Tensor, num_classes: int, target: Tensor | None = None) -> Tensor:
    """Share of the cases of each source class that are predicted as each class, [N], [N] -> [K, K].

    With targets [N], the share of the attempts from source to target that end predicted as target (SINVAD's class
    escape rate). Where there is no case or attempt, NaN.

    Example:
        >>> escape_rate(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), 2)
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]], dtype=torch.float64)
        >>> escape_rate(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2, target=torch.tensor([1, 1, 0]))
        tensor([[   nan, 0.5000],
                [0.0000,    nan]], dtype=torch.float64)
    """
    counts = torch.zeros(2, num_classes, num_classes, dtype=torch.float64)
    ones = torch.ones(len(label), dtype=torch.float64)
    if target is None:
        counts[0].index_put_((label, predicted), ones, accumulate=True)
        return counts[0] / counts[0].sum(dim=1, keepdim=True)
    counts[0].index_put_((label, target), (predicted == target).double(), accumulate=True)
    counts[1].index_put_((label, target), ones, accumulate=True)
    return counts[0] / counts[1]


def density_coverage(real: Tensor, fake: Tensor, k: int = 5) -> tuple[Tensor, Tensor]:
    """How well generated points lie among real ones (Naeem et al., 2020), [N, F], [M, F] -> two scalars.

    Around each real point is a ball that reaches its ``k``-th nearest real neighbour. Density is the mean number of
    balls that a generated point lies in, over k: about 1 for perfect samples, less for outliers. Coverage is the share
    of balls with a generated point in them: 1 - 2^-k for perfect samples, less where whole kinds of image are missing.

    Example:
        >>> line = torch.arange(8.0)[:, None]
        >>> density_coverage(line, line[:4], k=1)  # a ball of radius 1 around each point
        (tensor(2.7500), tensor(0.6250))
    """
    radius = torch.cdist(real, real).kthvalue(k + 1, dim=1).values  # the nearest is the point itself
    inside = torch.cdist(real, fake) <= radius[:, None]
    return inside.float().sum(dim=0).mean() / k, inside.any(dim=1).float().mean()
