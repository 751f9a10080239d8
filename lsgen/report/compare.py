"""Do two suites differ in how often the SUT fails? Counts only, so that any two searches can be compared."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

from lsgen.analysis import statistics
from lsgen.report.entry import Entry

LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))  # p below the first, its mark


class Pair(NamedTuple):
    """Two suites and the test between them; ``p`` is Holm's, None where one of them has no case."""

    first: Entry
    second: Entry
    p: float | None

    @property
    def mark(self) -> str:
        """Asterisks for a difference that is not chance, else nothing."""
        return mark(self.p)


def compare_all(entries: list[Entry]) -> list[Pair]:
    """Fisher's exact test on failed / not failed for every pair of suites, corrected together."""
    pairs = list(combinations(entries, 2))
    p = statistics.holm([fisher(a.independent(), b.independent()) for a, b in pairs])
    return [Pair(a, b, value) for (a, b), value in zip(pairs, p, strict=True)]


def compare_classes(reference: Entry, others: list[Entry]) -> dict[tuple[int, str], float | None]:
    """The same test for every class of every other suite against the reference: (suite, class) → p.

    All are corrected together: with many classes, some would differ by chance.
    """
    pairs = [(entry, k) for entry in others for k in entry.summary["per_class"]]
    p = statistics.holm([fisher(reference.independent(int(k)), entry.independent(int(k))) for entry, k in pairs])
    return {(entry.number, k): value for (entry, k), value in zip(pairs, p, strict=True)}


def fisher(a: dict[str, Any], b: dict[str, Any]) -> float | None:
    """P of Fisher's exact test, two-sided, for two summaries with ``failed`` and ``n_cases``, rounded.

    Example:
        >>> round(fisher({"failed": 0, "n_cases": 3}, {"failed": 3, "n_cases": 3}), 6)
        0.1
    """
    one, other = ((round(s["failed"]), round(s["n_cases"])) for s in (a, b))
    return statistics.fisher(one, other)


def mark(p: float | None) -> str:
    """One to three asterisks below 0.05, 0.01 and 0.001."""
    return next((stars for level, stars in LEVELS if p is not None and p < level), "")


def interval(failed: float, n_cases: float) -> tuple[float, float]:
    """95 % confidence interval of a rate (Clopper and Pearson), [0, 1] where there is no case.

    Cases need not be a whole number (Korn and Graubard): of cases that are not independent, fewer count.

    Example:
        >>> low, high = interval(0, 100)
        >>> low, round(high, 4)
        (0.0, 0.0362)
    """
    from scipy.stats import beta

    passed = n_cases - failed
    low = float(beta.ppf(0.025, failed, passed + 1)) if failed > 0 else 0.0
    return low, float(beta.ppf(0.975, failed + 1, passed)) if passed > 0 else 1.0


def below(n_cases: float) -> float:
    """What the rate of something that was not met in ``n_cases`` is below, with 95 % confidence (one-sided).

    Example:
        >>> round(below(1000), 4)
        0.003
    """
    return float(1 - 0.05 ** (1 / n_cases))


class Ratio(NamedTuple):
    """How many times as often one fails as another, with a 95 % interval.

    Attributes:
        times: The ratio of the rates, or what it is at least where ``at_least``.
        at_least: Whether the other never failed, so that only a lower bound is known.
        rate: The rate that it is relative to.
        low: Lower end of the interval, or the bound.
        high: Upper end, infinite for a bound.
    """

    times: float
    at_least: bool
    rate: float
    low: float
    high: float


def times_as_often(searched: dict[str, Any], baseline: dict[str, Any]) -> Ratio | None:
    """Failure rate relative to the baseline's; None where either has no case.

    The interval is that of the logarithm of the ratio (Katz et al.). Where the baseline found nothing, its rate is
    taken to be the upper end of a one-sided 95 % interval (Clopper and Pearson: 1 − 0.05^(1/n)), so that the ratio is
    a lower bound and not infinite.

    Example:
        >>> ratio = times_as_often({"failed": 5, "n_cases": 10}, {"failed": 1, "n_cases": 10})
        >>> ratio.times, round(ratio.low, 2), round(ratio.high, 1)
        (5.0, 0.7, 35.5)
    """
    a, m, b, n = searched["failed"], searched["n_cases"], baseline["failed"], baseline["n_cases"]
    if not n or not m:
        return None
    rate = b / n or below(n)
    times = a / m / rate
    if not b or not a:
        return Ratio(times, not b, rate, times, math.inf)
    spread = math.exp(1.96 * math.sqrt(1 / a - 1 / m + 1 / b - 1 / n))
    return Ratio(times, False, rate, times / spread, times * spread)
