"""Comparisons of two groups of numbers, such as a metric over repeats of two searches, with what they leave open.

Missing values (None, NaN) are left out, and every result says how many numbers it rests on. What cannot be computed is
None, and ``reason`` says why: a single repeat has no spread, and equal repeats show none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from lsgen.errors import InputError

EXACT_SPLITS = 20_000  # ways to split the values into the two groups that are gone through one by one
MAGNITUDES = ((0.71, "large"), (0.64, "medium"), (0.56, "small"))  # Vargha and Delaney, on A12
_TOO_FEW = "needs at least two values in each group"
_CONSTANT = "neither group varies"
Values = Iterable[float | None] | np.ndarray


@dataclass(frozen=True)
class Interval:
    """An estimate and how far it may be off.

    Attributes:
        estimate: The statistic of the values; None where there are none.
        low: Lower end; None where it is undefined.
        high: Upper end.
        level: Confidence level, e.g. 0.95.
        n: Values it rests on, of both groups together where there are two.
        reason: Why something is None.
    """

    estimate: float | None
    low: float | None
    high: float | None
    level: float
    n: int
    reason: str | None = None

    def __str__(self) -> str:
        if self.estimate is None:
            return "–"
        spread = "" if self.low is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.estimate:.3g}{spread}"


@dataclass(frozen=True)
class Welch:
    """Welch's test: do two means differ, whatever the variances are.

    Attributes:
        n_a: Values in the first group.
        n_b: Values in the second group.
        difference: Mean of the first minus mean of the second, with its confidence interval.
        t: Test statistic.
        df: Degrees of freedom (Welch-Satterthwaite).
        p_value: Two-sided.
        reason: Why something is None.
    """

    n_a: int
    n_b: int
    difference: Interval
    t: float | None
    df: float | None
    p_value: float | None
    reason: str | None = None


@dataclass(frozen=True)
class MannWhitney:
    """Mann and Whitney's test: do values of one group tend to be larger than those of the other.

    Attributes:
        n_a: Values in the first group.
        n_b: Values in the second group.
        u: Pairs in which the first group's value is larger; ties count half.
        a12: ``u`` as a share of all pairs (Vargha and Delaney), the size of the effect.
        p_value: Two-sided. With 3 + 3 values it cannot be below 0.1, with 4 + 4 not below 0.029.
        method: ``"exact"`` (all ways to split the values, ties included) or ``"normal"`` (approximation, corrected for
            ties and continuity).
        reason: Why something is None.
    """

    n_a: int
    n_b: int
    u: float | None
    a12: float | None
    p_value: float | None
    method: str | None
    reason: str | None = None


def welch(a: Values, b: Values, *, level: float = 0.95) -> Welch:
    """Compares the means of two groups [N], [M]; needs two values in each, and one group that varies.

    Example:
        >>> test = welch([1.0, 2.0, 3.0], [2.0, 3.0, 7.0])
        >>> print(f"t {test.t:.3f}, df {test.df:.2f}, p {test.p_value:.3f}, difference {test.difference}")
        t -1.225, df 2.56, p 0.321, difference -2 [-7.74, 3.74]
        >>> welch([0.5], [0.1, 0.2]).reason
        'needs at least two values in each group'
    """
    from scipy import stats

    _check_level(level)
    x, y = _clean(a), _clean(b)
    estimate = float(x.mean() - y.mean()) if len(x) and len(y) else None
    undefined = _TOO_FEW if min(len(x), len(y)) < 2 else _CONSTANT if _constant(x) and _constant(y) else None
    if undefined:
        interval = Interval(estimate, None, None, level, len(x) + len(y), undefined)
        return Welch(len(x), len(y), interval, None, None, None, undefined)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss")  # raised for one constant group, which is fine
        test = stats.ttest_ind(x, y, equal_var=False)
    low, high = test.confidence_interval(level)
    interval = Interval(estimate, float(low), float(high), level, len(x) + len(y))
    return Welch(len(x), len(y), interval, float(test.statistic), float(test.df), float(test.pvalue))


def mann_whitney(a: Values, b: Values) -> MannWhitney:
    """Compares two groups [N], [M] by rank, exactly where the groups are small.

    Example:
        >>> test = mann_whitney([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
        >>> print(f"U {test.u}, A12 {test.a12:.3f}, p {test.p_value:.2f} ({test.method})")
        U 8.5, A12 0.944, p 0.20 (exact)
    """
    from scipy import stats

    x, y = _clean(a), _clean(b)
    effect = a12(x, y)
    if effect is None:
        return MannWhitney(len(x), len(y), None, None, None, None, "a group is empty")
    u = effect * len(x) * len(y)
    values = np.concatenate([x, y])
    if comb(len(values), len(x)) <= EXACT_SPLITS:
        p_value, method = _exact_p(values, len(x)), "exact"
    elif _constant(values):  # every split is as extreme as this one; scipy divides by zero
        p_value, method = 1.0, "exact"
    else:
        p_value, method = float(stats.mannwhitneyu(x, y, method="asymptotic").pvalue), "normal"
    return MannWhitney(len(x), len(y), u, effect, p_value, method)


def a12(a: Values, b: Values) -> float | None:
    """Vargha and Delaney's A12: the chance that a value of ``a`` [N] beats one of ``b`` [M]; ties count half.

    0.5 means no difference, 1 that all of ``a`` lie above all of ``b``. None where a group is empty.

    Example:
        >>> a12([1.0, 2.0, 3.0], [2.0, 2.0])
        0.5
        >>> a12([5.0, 6.0], [1.0, 5.0])
        0.875
    """
    x, y = _clean(a), np.sort(_clean(b))
    if not len(x) or not len(y):
        return None
    below = np.searchsorted(y, x, "left") + np.searchsorted(y, x, "right")  # twice: smaller ones, and half the ties
    return float(below.mean() / (2 * len(y)))


def cliffs_delta(a: Values, b: Values) -> float | None:
    """Cliff's delta: the chance that a value of ``a`` [N] is larger than one of ``b`` [M], minus that it is smaller.

    From -1 to 1, 0 means no difference; it is 2·A12 − 1. None where a group is empty.

    Example:
        >>> cliffs_delta([5.0, 6.0], [1.0, 5.0])
        0.75
    """
    effect = a12(a, b)
    return None if effect is None else 2 * effect - 1


def magnitude(delta: float) -> str:
    """What Vargha and Delaney call an effect, given as Cliff's delta.

    Example:
        >>> [magnitude(delta) for delta in (0.05, -0.2, 0.3, -0.9)]
        ['negligible', 'small', 'medium', 'large']
    """
    effect = (abs(delta) + 1) / 2
    return next((word for bound, word in MAGNITUDES if effect >= bound), "negligible")


def bootstrap(
    a: Values,
    b: Values | None = None,
    *,
    statistic: Callable[..., np.ndarray] = np.mean,
    level: float = 0.95,
    resamples: int = 9999,
    seed: int = 0,
) -> Interval:
    """A bias-corrected (BCa) bootstrap interval of a statistic, or of the difference of two groups' statistics.

    With fewer than about ten values it is too narrow: a resample cannot show what was not seen.

    Args:
        a: Values [N].
        b: A second group [M]; the interval is then that of ``statistic(a) - statistic(b)``.
        statistic: NumPy reduction with an ``axis``, such as ``np.mean`` or ``np.median``.
        level: Confidence level.
        resamples: How often values are drawn again.
        seed: Of these draws; the same seed gives the same interval.

    Example:
        >>> print(bootstrap([0.21, 0.25, 0.19, 0.24, 0.22]))
        0.222 [0.204, 0.24]
    """
    from scipy import stats

    _check_level(level)
    groups = [_clean(a)] if b is None else [_clean(a), _clean(b)]
    n = sum(map(len, groups))
    if not all(map(len, groups)):
        return Interval(None, None, None, level, n, "a group is empty" if b is not None else "there are no values")

    def value(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        first, *second = (statistic(sample, axis=axis) for sample in samples)
        return first - second[0] if second else first

    estimate = float(value(*groups))
    if min(map(len, groups)) < 2:
        return Interval(estimate, None, None, level, n, "a group has a single value")
    if all(map(_constant, groups)):
        return Interval(estimate, None, None, level, n, "the values do not vary")
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # said as the reason below
        drawn = stats.bootstrap(
            groups,
            value,
            confidence_level=level,
            n_resamples=resamples,
            method="BCa",
            batch=max(1, 2_000_000 // n),  # bounds the memory
            random_state=np.random.default_rng(seed),
        )
    low, high = map(float, drawn.confidence_interval)
    if not np.isfinite([low, high]).all():
        return Interval(estimate, None, None, level, n, "no single value changes the statistic")
    return Interval(estimate, low, high, level, n)


def fisher(one: tuple[int, int], other: tuple[int, int]) -> float | None:
    """P of Fisher's exact test, two-sided, for two shares, each given as (hits, tries); None where one has no try.

    Example:
        >>> round(fisher((0, 3), (3, 3)), 6)
        0.1
    """
    from scipy.stats import fisher_exact

    if not one[1] or not other[1]:
        return None
    return float(fisher_exact([[hits, tries - hits] for hits, tries in (one, other)]).pvalue)


def independent(values: np.ndarray, groups: np.ndarray) -> float:
    """How many independent values N values [N] are worth, of which those of one group [N] tend to be alike.

    N over the design effect (Kish): the variance of their mean as the groups show it, over that of independent values.
    Where they are all the same, nothing shows it, and each group counts once.

    Example:
        >>> independent(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1])), independent(np.eye(4)[0], np.arange(4))
        (1.0, 4.0)
    """
    _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    n, k = len(values), len(sizes)
    if k == n or k < 2 or _constant(values):
        return float(k)
    off = np.bincount(index, weights=values - values.mean())
    effect = k / (k - 1) * np.square(off).sum() / (n * values.var())
    return float(n / max(1.0, effect))


def holm(p_values: Iterable[float | None]) -> list[float | None]:
    """Holm's correction: p-values of one family of tests, raised so that comparing each with 5 % errs 5 % in all.

    Args:
        p_values: In any order; None (a test that could not be done) stays None and does not count.

    Raises:
        InputError: One of them is no probability.

    Example:
        >>> holm([0.01, 0.04, None, 0.03])
        [0.03, 0.06, None, 0.06]
    """
    given = list(p_values)
    known = [i for i, p in enumerate(given) if p is not None]
    p = np.array([given[i] for i in known], dtype=float)
    if not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"p-values must lie between 0 and 1, got {p[~((p >= 0) & (p <= 1))][0]}")
    order = np.argsort(p, kind="stable")
    raised = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    adjusted: list[float | None] = [None] * len(given)
    for rank, i in enumerate(order):
        adjusted[known[i]] = float(raised[rank])
    return adjusted


def _exact_p(values: np.ndarray, n: int) -> float:
    """Share of all ways to choose ``n`` of the values whose ranks are at least as unusual as the first ``n``'s."""
    from scipy.stats import rankdata

    ranks = rankdata(values)
    chosen = np.array(list(combinations(range(len(values)), n)))
    distance = abs(ranks[chosen].sum(1) - n * (len(values) + 1) / 2)
    return float((distance >= distance[0] - 1e-9).mean())  # ranks are multiples of a half; the first split is ours


def _clean(values: Values) -> np.ndarray:
    """As float64 [N] without what is missing."""
    array = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=float)
    if array.ndim != 1:
        raise InputError(f"a group must be a list of numbers, got an array of shape {array.shape}")
    array = array[~np.isnan(array)]
    if np.isinf(array).any():
        raise InputError("a group holds an infinite value: leave it out, or say what it should count as")
    return array


def _constant(values: np.ndarray) -> bool:
    """Equal but for rounding, which must not look like a tiny spread."""
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, such as 0.95, got {level}")
