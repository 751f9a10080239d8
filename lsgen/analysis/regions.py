"""Failure regions: groups that latents form (Speth et al., step 3), how far apart they are, and where a fault lies."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lsgen.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from lsgen.generators import Generator

MIN_SIZE, MIN_SHARE = 5, 0.01  # a region has at least so many cases, and so large a share of those clustered
MIN_SAMPLES = 3  # neighbours that make a place dense; HDBSCAN's own choice, the cluster size, calls nearly all noise
WORK = 1.6e11  # cases × cases × dimensions that HDBSCAN may go through; beyond, it sees a random subset
AT_ONCE = 4096  # coordinates that are compared at once
SEEN = 1000  # cases that a subset has at least, and among which a medoid is looked for at most
CONTROLS, CONTROL_CASES = 19, 3000  # clusterings of random seeds; of at most so many cases, to be quick
Scope = Literal["all", "class"]


@dataclass(frozen=True)
class Groups:
    """What one run of HDBSCAN found.

    Attributes:
        labels: Group of each case, [N]; 0 is the largest, -1 is noise.
        persistence: Of each group, [C].
        seen: Cases that HDBSCAN saw; the others were assigned to its groups afterwards.
    """

    labels: np.ndarray
    persistence: np.ndarray
    seen: int


@dataclass(frozen=True)
class Region:
    """A group of challenging cases.

    Attributes:
        scope: ``"all"`` classes, or one ``"class"``.
        label: The class, or that of most members.
        number: Among those of its scope and class; 0 is the largest.
        members: Rows [M] among the challenging cases.
        persistence: HDBSCAN's: over how large a range of densities the group holds together, 0 to 1.
        chance: How often as many random seeds had a group as persistent; None where that was not measured.
        centroid: Mean latent, [*L].
        medoid: The member with the smallest L1 distance to all others, a row among the challenging cases.
    """

    scope: Scope
    label: int
    number: int
    members: np.ndarray
    persistence: float
    chance: float | None
    centroid: np.ndarray
    medoid: int


# --- clustering ----------------------------------------------------------------------------------------------------


def default_size(cases: int) -> int:
    """The smallest region among so many cases: 1 % of them, and at least 5."""
    return max(MIN_SIZE, round(MIN_SHARE * cases))


def group(latents: np.ndarray, min_cluster_size: int) -> Groups:
    """HDBSCAN with the L1 metric.

    Its time grows with cases² × dimensions. Where that is too much, it sees a random subset, and the other cases are
    assigned to the groups that it found there (``hdbscan.approximate_predict``).

    Args:
        latents: [N, D].
        min_cluster_size: Cases a group has at least.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> two = np.concatenate([rng.normal(0, 0.1, (20, 3)), rng.normal(5, 0.1, (30, 3))])
        >>> group(two, 5).labels.tolist() == [1] * 20 + [0] * 30
        True
    """
    n, dimensions = latents.shape
    if n < min_cluster_size:
        return Groups(np.full(n, -1), np.zeros(0), n)
    seen = min(n, max(SEEN, int(WORK / (n * dimensions))))
    if seen == n:
        model = _hdbscan(latents, min_cluster_size)
        labels = model.labels_.astype(int)
    else:
        subset = np.sort(np.random.default_rng(0).permutation(n)[:seen])
        model = _hdbscan(latents[subset], max(MIN_SIZE, round(min_cluster_size * seen / n)), prediction_data=True)
        labels = _assign(model, latents, subset)
    sizes = np.bincount(labels[labels >= 0], minlength=len(model.cluster_persistence_))
    order = np.argsort(-sizes, kind="stable")
    renumbered = np.append(np.argsort(order), -1)  # its last entry keeps noise, -1, as it is
    return Groups(renumbered[labels], np.nan_to_num(model.cluster_persistence_)[order], seen)


def _hdbscan(latents: np.ndarray, min_cluster_size: int, prediction_data: bool = False) -> Any:
    from hdbscan import HDBSCAN

    model = HDBSCAN(
        min_cluster_size=min_cluster_size,
        min_samples=MIN_SAMPLES,
        metric="l1",
        core_dist_n_jobs=1,  # more are processes, each with a copy of the latents
        prediction_data=prediction_data,
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # equal latents have an infinite density
        warnings.simplefilter("ignore")
        return model.fit(latents.astype(np.float64))


def _assign(model: Any, latents: np.ndarray, subset: np.ndarray) -> np.ndarray:
    """Groups [N] of all latents [N, D], given a model of those at ``subset``."""
    from hdbscan import approximate_predict

    labels = np.full(len(latents), -1)
    labels[subset] = model.labels_
    if not len(model.cluster_persistence_):
        return labels
    rest = np.setdiff1d(np.arange(len(latents)), subset)
    for rows in np.array_split(rest, -(-len(rest) // 10_000)):  # pieces bound the memory
        labels[rows] = approximate_predict(model, latents[rows].astype(np.float64))[0]
    return labels


def find_regions(
    latents: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    scope: Scope,
    *,
    min_cluster_size: int | None = None,
    seeds: dict[int, np.ndarray] | None = None,
) -> tuple[list[Region], Groups]:
    """The regions that some cases form.

    Args:
        latents: Of all challenging cases, [N, *L].
        labels: Their classes, [N].
        rows: The cases to cluster, [M].
        scope: What they are: cases of all classes, or of one.
        min_cluster_size: Cases a region has at least; by default 1 % of M, and at least 5.
        seeds: Latents of random seeds of each class, [S, D], to measure chance with.
    """
    smallest = default_size(len(rows)) if min_cluster_size is None else min_cluster_size
    flat = latents[rows].reshape(len(rows), math.prod(latents.shape[1:]))
    groups = group(flat, smallest)
    controls = control_persistence(labels[rows], seeds, smallest) if seeds and len(groups.persistence) else []
    regions = []
    for number, persistence in enumerate(groups.persistence):
        own = np.flatnonzero(groups.labels == number)
        classes, counts = np.unique(labels[rows[own]], return_counts=True)
        regions.append(
            Region(
                scope=scope,
                label=int(classes[counts.argmax()]),
                number=number,
                members=rows[own],
                persistence=float(persistence),
                chance=chance(float(persistence), controls),
                centroid=latents[rows[own]].mean(0, dtype=np.float64).astype(np.float32),
                medoid=int(rows[own[medoid(flat[own])]]),
            )
        )
    return regions, groups


def control_persistence(labels: np.ndarray, seeds: dict[int, np.ndarray], min_cluster_size: int) -> list[float]:
    """Persistence of the most persistent group among random seeds, 19 times; 0 where there is none.

    Seeds know nothing of failures: groups among them come from chance, or from the seeds' own distribution. In many
    dimensions HDBSCAN nearly always finds some.

    Args:
        labels: Classes [N] of the cases; so many seeds of each class are drawn.
        seeds: Latents of each class, [S, D].
        min_cluster_size: That of the cases.

    Returns:
        Empty where there are too many cases to do it quickly, or too few seeds.
    """
    rng = np.random.default_rng(0)
    classes, counts = np.unique(labels, return_counts=True)
    wanted = [(seeds.get(int(k), np.zeros((0, 0))), count) for k, count in zip(classes, counts, strict=True)]
    if len(labels) > CONTROL_CASES or any(len(pool) < count for pool, count in wanted):
        return []
    draws = (np.concatenate([p[rng.permutation(len(p))[:n]] for p, n in wanted]) for _ in range(CONTROLS))
    return [float(max(group(draw, min_cluster_size).persistence, default=0.0)) for draw in draws]


def chance(persistence: float, controls: list[float]) -> float | None:
    """How often chance gives a group as persistent as this one, this one counted; None without controls.

    Example:
        >>> chance(0.3, [0.1, 0.0, 0.4]), chance(0.3, [])
        (0.5, None)
    """
    return (1 + sum(c >= persistence for c in controls)) / (1 + len(controls)) if controls else None


def medoid(latents: np.ndarray) -> int:
    """Row of the latent [N, D] with the smallest sum of L1 distances to the others.

    Of more than 1,000 latents, the 1,000 nearest to the mean are tried, against 1,000 random ones.
    """
    from scipy.spatial.distance import cdist

    tried, against = np.arange(len(latents)), latents
    if len(latents) > SEEN:
        tried = np.argsort(np.abs(latents - latents.mean(0)).sum(1), kind="stable")[:SEEN]
        against = latents[np.random.default_rng(0).permutation(len(latents))[:SEEN]]
    return int(tried[cdist(latents[tried], against, "cityblock").sum(1).argmin()])


# --- distances -----------------------------------------------------------------------------------------------------


def centroid_distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of two centroids [*L] in any coordinate (Speth et al., Eq. 2).

    Example:
        >>> centroid_distance(np.array([0.0, 1.0]), np.array([0.5, -1.0]))
        2.0
    """
    return float(np.abs(a - b).max())


def jensen_shannon(a: np.ndarray, b: np.ndarray) -> float:
    """Jensen-Shannon distance of two groups of latents [N, *L], [M, *L] in the coordinate where it is largest; 0 to 1.

    Speth et al. name the divergence without saying how it was estimated. Here each coordinate of a group counts as
    normal, which suits groups of few members, whose histograms would be all gaps; the distance is the square root of
    the divergence in bits; and as in Eq. 2 the largest over the coordinates is taken.

    Example:
        >>> near, far = np.array([[-1.0], [1.0]]), np.array([[99.0], [101.0]])
        >>> jensen_shannon(near, near), round(jensen_shannon(near, far), 6)
        (0.0, 1.0)
    """
    return _normal_distance(_normal(a), _normal(b))


def _normal(latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation in each coordinate of latents [N, *L], [D] each."""
    flat = latents.reshape(len(latents), -1).astype(float)
    return flat.mean(0), flat.std(0)


def _normal_distance(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> float:
    """The largest Jensen-Shannon distance between two normals over the coordinates, some of these at a time."""
    parts = [slice(start, start + AT_ONCE) for start in range(0, len(a[0]), AT_ONCE)]
    return max(_largest_divergence((a[0][p], a[1][p]), (b[0][p], b[1][p])) for p in parts) ** 0.5


def _largest_divergence(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> float:
    from scipy.integrate import trapezoid

    least = 1e-3 * np.maximum(np.maximum(a[1], b[1]), np.abs(a[0] - b[0])) + 1e-12  # equal members: narrow, no spike
    normals = [(mean, np.maximum(spread, least)) for mean, spread in (a, b)]
    steps = np.linspace(-8, 8, 129)[:, None]
    x = np.sort(np.concatenate([mean + spread * steps for mean, spread in normals]), axis=0)  # fine at both, [258, D]
    logs = [-0.5 * ((x - m) / s) ** 2 - np.log(s * np.sqrt(2 * np.pi)) for m, s in normals]
    middle = np.logaddexp(*logs) - np.log(2)
    divergence = trapezoid(sum(0.5 * np.exp(own) * (own - middle) for own in logs), x, axis=0) / np.log(2)
    return float(divergence.clip(0, 1).max())


def distances(regions: list[Region], latents: np.ndarray) -> dict[str, list[list[float]]]:
    """Distances between all regions, in their order: ``centroid`` (Eq. 2) and ``jensen_shannon``, each [C, C].

    Args:
        regions: C of them.
        latents: Of all challenging cases, [N, *L].
    """
    normals = [_normal(latents[region.members]) for region in regions]
    return {
        "centroid": _matrix([region.centroid for region in regions], centroid_distance),
        "jensen_shannon": _matrix(normals, _normal_distance),
    }


def _matrix(things: list[Any], distance: Callable[[Any, Any], float]) -> list[list[float]]:
    matrix = np.zeros((len(things), len(things)))
    for i, a in enumerate(things):
        for j, b in enumerate(things[:i]):
            matrix[i, j] = matrix[j, i] = distance(a, b)
    rounded: list[list[float]] = matrix.round(4).tolist()
    return rounded


# --- where a known fault lies --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The place of a known fault in the latent space (Speth et al., RQ5).

    Attributes:
        latent: Samples whose images match the fault's criterion, [M, *L].
        sampled: How many were drawn.
    """

    latent: np.ndarray
    sampled: int

    @property
    def centroid(self) -> np.ndarray:
        """Their mean, [*L]."""
        return np.asarray(self.latent.mean(0))

    def closest(self, regions: Iterable[Region]) -> tuple[Region, float] | None:
        """The region at the smallest :func:`centroid_distance`, and that distance; None where there is no region."""
        measured = [(region, centroid_distance(region.centroid, self.centroid)) for region in regions]
        return min(measured, key=lambda pair: pair[1]) if measured else None


def reference_cluster(
    generator: Generator,
    criterion: Callable[[Tensor], Tensor],
    *,
    per_class: int = 1000,
    distribution: Literal["uniform", "prior"] = "uniform",
    scale: float = 1.0,
    classes: list[int] | None = None,
    seed: int = 0,
) -> Reference:
    """Samples latents, decodes them, and keeps those whose images match a fault's criterion (Speth et al., RQ5).

    Args:
        generator: Decodes.
        criterion: Images [N, C, H, W] in [0, 1] -> bool [N].
        per_class: Samples of each class.
        distribution: ``uniform`` (-scale to scale, as published) or the generator's own ``prior``, times scale.
        scale: In standard deviations of the prior.
        classes: Those that are sampled; all by default.
        seed: Of the draws.

    Raises:
        InputError: The criterion matches no sample or every one, or does not give one boolean an image.
    """
    import torch

    labels = torch.tensor(classes if classes is not None else range(generator.num_classes)).repeat(per_class)
    rng = torch.Generator().manual_seed(seed)
    if distribution == "prior":
        latents = scale * generator.sample_prior(len(labels), labels, rng)
    else:
        latents = scale * (2 * torch.rand(len(labels), *generator.latent_shape, generator=rng) - 1)
    with torch.no_grad():
        pairs = zip(latents.split(250), labels.split(250), strict=True)
        match = torch.cat([_checked(criterion(generator.decode(z, y)), len(y)) for z, y in pairs])
    if int(match.sum()) in (0, len(match)):
        which = "all" if match.any() else "none"
        raise InputError(f"the criterion matches {which} of {len(match):,} samples: it marks no region to compare with")
    return Reference(latents[match].numpy(), len(match))


def _checked(match: Tensor, n: int) -> Tensor:
    import torch

    if match.dtype != torch.bool or match.shape != (n,):
        raise InputError(
            f"a criterion must give a bool for each of {n} images, and this one gave {match.dtype} {list(match.shape)}"
        )
    return match
