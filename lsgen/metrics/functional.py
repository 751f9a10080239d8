"""Metrics as plain functions of tensors; the classes in this package are built on them.

Shapes use N (cases), K (classes), F (features) and C×H×W (images in [0, 1]). Rates are 0 to 1; NaN where undefined.
"""

from __future__ import annotations

import torch
from torch import Tensor

SSIM_WINDOW = 11  # pixels, the side of the Gaussian window; smaller images have no SSIM
CONFIDENT = 0.5  # the margin c of the confident-failure rate, unless another is given


# --- how often, and how surely, the SUT is wrong ----------------------------------------------------------------------


def failure_rate(predicted: Tensor, label: Tensor, num_classes: int | None = None) -> Tensor:
    """Share of cases predicted as another class than their label (FR of Speth, ER of ARGUS), [N], [N] -> scalar.

    With ``num_classes``, that of each class, [K].

    Example:
        >>> failure_rate(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2]))
        tensor(0.2500, dtype=torch.float64)
        >>> failure_rate(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2]), num_classes=3)
        tensor([0.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    return _mean(predicted != label, label, num_classes)


def true_probability(logits: Tensor, label: Tensor) -> Tensor:
    """Softmax probability of the label (P_t of Speth), [N, K], [N] -> [N].

    Example:
        >>> true_probability(torch.zeros(1, 4), torch.tensor([2]))
        tensor([0.2500])
    """
    return logits.softmax(dim=1).gather(1, label[:, None]).squeeze(1)


def mean_true_probability(logits: Tensor, label: Tensor, num_classes: int | None = None) -> Tensor:
    """Mean softmax probability of the label (mP_t of Speth), [N, K], [N] -> scalar; of each class [K] if asked.

    Example:
        >>> mean_true_probability(torch.zeros(3, 2), torch.tensor([0, 1, 1]), num_classes=2)
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    return _mean(true_probability(logits, label), label, num_classes)


def boundary_gap(logits: Tensor) -> Tensor:
    """Difference of the two largest probabilities (U of SINVAD, Eq. 3), [N, K] -> [N]; 0 on the boundary.

    Example:
        >>> boundary_gap(torch.tensor([[3.0, 3.0, 0.0]]))
        tensor([0.])
    """
    top = logits.softmax(dim=1).topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def confident_failure(logits: Tensor, label: Tensor, margin: float = CONFIDENT) -> Tensor:
    """Whether the likeliest class leads the label by more than a margin c (Dunn, Def. 3.4), [N, K], [N] -> [N] bool.

    Example:
        >>> confident_failure(torch.tensor([[0.0, 3.0], [0.0, 0.1], [3.0, 0.0]]), torch.tensor([0, 0, 0]), margin=0.5)
        tensor([ True, False, False])
    """
    return logits.softmax(dim=1).amax(dim=1) - true_probability(logits, label) > margin


def confident_failure_rate(logits: Tensor, label: Tensor, margin: float = CONFIDENT) -> Tensor:
    """Share of cases that fail with more than margin c (Dunn, Def. 3.4), [N, K], [N] -> scalar.

    Example:
        >>> confident_failure_rate(torch.tensor([[0.0, 3.0], [0.0, 0.1]]), torch.tensor([0, 0]))
        tensor(0.5000, dtype=torch.float64)
    """
    return confident_failure(logits, label, margin).double().mean()


def success_rate(failed: Tensor, seed_id: Tensor) -> Tensor:
    """Share of distinct seeds with at least one failed case (SR of ARGUS), [N] bool, [N] -> scalar.

    Example:
        >>> success_rate(torch.tensor([True, False, False, False]), torch.tensor([0, 0, 1, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    return _share(len(seed_id[failed].unique()), len(seed_id.unique()))


def seed_viability(seed_predicted: Tensor, label: Tensor, seed_id: Tensor) -> Tensor:
    """Share of distinct seeds that the SUT classifies as their label (ICST25), [N], [N], [N] -> scalar.

    Example:
        >>> seed_viability(torch.tensor([0, 0, 2]), torch.tensor([0, 0, 1]), torch.tensor([7, 7, 8]))
        tensor(0.5000, dtype=torch.float64)
    """
    return success_rate(seed_predicted == label, seed_id)


def misclassification_rate(predicted: Tensor, seed_predicted: Tensor, label: Tensor, seed_id: Tensor) -> Tensor:
    """Share of viable seeds, those that the SUT gets right, with at least one failed case (ICST25), 4 × [N] -> scalar.

    Example:
        >>> misclassification_rate(
        ...     torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]), torch.tensor([7, 8, 9])
        ... )
        tensor(0.5000, dtype=torch.float64)
    """
    viable = seed_predicted == label
    return success_rate((predicted != label)[viable], seed_id[viable])


def label_diversity(predicted: Tensor, label: Tensor, group: Tensor) -> Tensor:
    """Mean number of distinct wrong classes in each group that has a failure (LD of ARGUS), [N], [N], [N] -> scalar.

    ARGUS groups by seed; a method with one case a seed groups by label.

    Example:
        >>> label_diversity(torch.tensor([1, 2, 2, 3]), torch.tensor([0, 0, 0, 3]), torch.tensor([7, 7, 7, 8]))
        tensor(2., dtype=torch.float64)
    """
    wrong = predicted != label
    pairs = torch.stack([group[wrong], predicted[wrong]], dim=1).unique(dim=0)
    return _share(len(pairs), len(group[wrong].unique()))


def distinct_pairs(predicted: Tensor, label: Tensor) -> Tensor:
    """Number of different (label, wrong class) pairs, [N], [N] -> scalar.

    Example:
        >>> distinct_pairs(torch.tensor([1, 1, 2, 0]), torch.tensor([0, 0, 0, 0]))
        tensor(2)
    """
    wrong = predicted != label
    return torch.tensor(len(torch.stack([label[wrong], predicted[wrong]], dim=1).unique(dim=0)))


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
    reached, attempts = escapes(predicted, label, num_classes, target)
    return reached / attempts


def escapes(predicted: Tensor, label: Tensor, num_classes: int, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """How often each source class ended as each class, and how often that was tried; two of [K, K].

    Example:
        >>> escapes(torch.tensor([1]), torch.tensor([0]), 2)[0]
        tensor([[0., 1.],
                [0., 0.]], dtype=torch.float64)
    """
    reached = torch.zeros(num_classes, num_classes, dtype=torch.float64, device=label.device)
    ones = torch.ones(len(label), dtype=torch.float64, device=label.device)
    if target is None:
        reached.index_put_((label, predicted), ones, accumulate=True)
        return reached, reached.sum(dim=1, keepdim=True).expand(-1, num_classes)
    attempts = torch.zeros_like(reached)
    reached.index_put_((label, target), (predicted == target).double(), accumulate=True)
    attempts.index_put_((label, target), ones, accumulate=True)
    return reached, attempts


def effectiveness(failed: Tensor, valid: Tensor, preserved: Tensor) -> Tensor:
    """Share of cases that fail, are valid inputs and still show their label (ICST25), 3 × [N] bool -> scalar.

    Example:
        >>> yes, no = True, False
        >>> effectiveness(torch.tensor([yes, yes, no]), torch.tensor([yes, no, yes]), torch.tensor([yes, yes, yes]))
        tensor(0.3333, dtype=torch.float64)
    """
    return (failed & valid & preserved).double().mean()


# --- what a failure costs ---------------------------------------------------------------------------------------------


def mean_iterations(iterations: Tensor, success: Tensor, budget: int) -> Tensor:
    """Mean steps to the first success; a seed without one counts the whole budget (ICST25), [N], [N] bool -> scalar.

    ``success`` says who ever succeeded; a search that goes on may lose it again, and a suite's column of that name is
    about what it ended with.

    Example:
        >>> mean_iterations(torch.tensor([3, 99]), torch.tensor([True, False]), budget=250)
        tensor(126.5000, dtype=torch.float64)
    """
    return iterations.double().where(success, float(budget)).mean()


def cost_per_failure(cost: Tensor, failed: Tensor) -> Tensor:
    """What was spent on all cases, divided by the number of failures, [M] or scalar, [N] bool -> scalar.

    Example:
        >>> cost_per_failure(torch.tensor([20, 20, 20]), torch.tensor([True, False, False]))
        tensor(60., dtype=torch.float64)
    """
    found = failed.sum()
    return (cost.double().sum() / found).where(found > 0, torch.nan)


# --- how far an image is from where it came from ----------------------------------------------------------------------


def mse(image: Tensor, reference: Tensor) -> Tensor:
    """Mean squared difference of the pixels, two of [N, C, H, W] in [0, 1] -> [N].

    Example:
        >>> mse(torch.full((1, 1, 2, 2), 0.5), torch.zeros(1, 1, 2, 2))
        tensor([0.2500])
    """
    return (image - reference).flatten(1).square().mean(dim=1)


def ssim(image: Tensor, reference: Tensor) -> Tensor:
    """Structural similarity, two of [N, C, H, W] in [0, 1] -> [N]; NaN for images below 11 pixels.

    Gaussian window of 11 pixels (standard deviation 1.5), constants 0.01 and 0.03, population covariance. The border
    rule is that of torchmetrics: images are mirrored at their edges and the mean goes over all pixels. scikit-image
    leaves out a border of 5 pixels, so that the two differ widely where, as in MNIST, the border is empty.

    Example:
        >>> line = torch.zeros(1, 1, 28, 28)
        >>> line[..., 14, 8:20] = 1.0
        >>> whole = ssim(line, line.roll(1, dims=2))
        >>> without_border = ssim_map(line, line.roll(1, dims=2))[..., 5:-5, 5:-5].mean()
        >>> print(f"{float(whole):.2f} here, {float(without_border):.2f} with the border left out")
        0.73 here, 0.40 with the border left out
    """
    if min(image.shape[2:]) < SSIM_WINDOW:
        return image.new_full((len(image),), torch.nan)
    return ssim_map(image, reference).flatten(1).mean(dim=1)


def ssim_map(image: Tensor, reference: Tensor) -> Tensor:
    """Structural similarity around each pixel, two of [N, C, H, W] in [0, 1] -> [N, C, H, W]."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    with torch.autocast(image.device.type, enabled=False):  # variances cancel in half precision
        _, around = structural_similarity_index_measure(
            image.float(), reference.float(), data_range=1.0, reduction="none", return_full_image=True
        )
    return around


def pixel_norm(image: Tensor, reference: Tensor, order: float = 2.0) -> Tensor:
    """Norm of the change in pixels (Dunn, Fig. 2), L2 or any other ``order``, two of [N, C, H, W] -> [N].

    Example:
        >>> black, white = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
        >>> pixel_norm(white, black), pixel_norm(white, black, order=torch.inf)
        (tensor([2.]), tensor([1.]))
    """
    return torch.linalg.vector_norm((image - reference).flatten(1), ord=order, dim=1)


# --- how different failures are from each other -----------------------------------------------------------------------


def mean_pairwise_distance(features: Tensor) -> Tensor:
    """Mean Euclidean distance between any two of N points, [N, F] -> scalar; NaN below two points.

    Example:
        >>> mean_pairwise_distance(torch.tensor([[0.0], [0.0], [3.0]]))
        tensor(2., dtype=torch.float64)
    """
    return torch.nn.functional.pdist(features.double()).mean()


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


# --- one SUT, or one set of images, against another -------------------------------------------------------------------


def robustness(clean: Tensor, perturbed: Tensor, label: Tensor) -> Tensor:
    """Accuracy lost to a perturbation (r of Speth, Sec. I), predictions [N], predictions [N], label [N] -> scalar.

    Example:
        >>> robustness(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0]), torch.tensor([0, 1, 0]))
        tensor(0., dtype=torch.float64)
        >>> robustness(torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]))
        tensor(0.6667, dtype=torch.float64)
    """
    return failure_rate(perturbed, label) - failure_rate(clean, label)


def improved_accuracy(before: Tensor, after: Tensor, label: Tensor) -> Tensor:
    """Accuracy gained by retraining (ICA of ARGUS), predictions [N], predictions [N], label [N] -> scalar.

    Example:
        >>> improved_accuracy(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([0, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    return failure_rate(before, label) - failure_rate(after, label)


def detection_rate(escaped: Tensor, escaped_clean: Tensor) -> Tensor:
    """s_α − s_0 (SINVAD, Sec. 5.4): escapes with polluted training labels above those without, [N], [M] -> scalar.

    Example:
        >>> detection_rate(torch.tensor([True, True, False]), torch.tensor([False, False, False]))
        tensor(0.6667, dtype=torch.float64)
    """
    return escaped.double().mean() - escaped_clean.double().mean()


def _mean(values: Tensor, label: Tensor, num_classes: int | None) -> Tensor:
    """Mean of values [N], or of those of each class."""
    if num_classes is None:
        return values.double().mean()
    summed = torch.zeros(num_classes, dtype=torch.float64, device=label.device)
    return summed.index_add(0, label, values.double()) / label.bincount(minlength=num_classes)


def _share(part: int, whole: int) -> Tensor:
    return torch.tensor(part / whole if whole else torch.nan, dtype=torch.float64)
