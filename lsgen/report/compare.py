"""Do two suites differ in how often the SUT fails? Counts only, so that any two searches can be compared."""

from __future__ import annotations

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
    p = statistics.holm([fisher(a.summary, b.summary) for a, b in pairs])
    return [Pair(a, b, value) for (a, b), value in zip(pairs, p, strict=True)]


def compare_classes(reference: Entry, others: list[Entry]) -> dict[tuple[int, str], float | None]:
    """The same test for every class of every other suite against the reference: (suite, class) → p.

    All are corrected together: with many classes, some would differ by chance.
    """
    mine = reference.summary["per_class"]
    keys = [(entry.number, k) for entry in others for k in entry.summary["per_class"]]
    theirs = {entry.number: entry.summary["per_class"] for entry in others}
    return dict(zip(keys, statistics.holm([fisher(mine.get(k), theirs[number][k]) for number, k in keys]), strict=True))


def fisher(a: dict[str, Any] | None, b: dict[str, Any] | None) -> float | None:
    """P of Fisher's exact test, two-sided, for two summaries with ``failed`` and ``n_cases``.

    Example:
        >>> round(fisher({"failed": 0, "n_cases": 3}, {"failed": 3, "n_cases": 3}), 6)
        0.1
    """
    if not a or not b:
        return None
    return statistics.fisher((a["failed"], a["n_cases"]), (b["failed"], b["n_cases"]))


def mark(p: float | None) -> str:
    """One to three asterisks below 0.05, 0.01 and 0.001."""
    return next((stars for level, stars in LEVELS if p is not None and p < level), "")


def interval(failed: int, n: int) -> tuple[float, float]:
    """95 % confidence interval of a rate (Clopper and Pearson), [0, 1] where there is no case.

    Example:
        >>> low, high = interval(0, 100)
        >>> low, round(high, 4)
        (0.0, 0.0362)
    """
    from scipy.stats import binomtest

    if n == 0:
        return 0.0, 1.0
    found = binomtest(failed, n).proportion_ci(0.95)
    return float(found.low), float(found.high)


class Ratio(NamedTuple):
    """How many times as often; ``at_least`` where it is a lower bound. ``rate`` is the rate it is relative to."""

    times: float
    at_least: bool
    rate: float


def times_as_often(searched: dict[str, Any], baseline: dict[str, Any]) -> Ratio | None:
    """Failure rate relative to the baseline's; None where either has no case.

    Where the baseline found nothing, its rate is taken to be the upper end of a one-sided 95 % interval
    (Clopper and Pearson: 1 − 0.05^(1/n)), so that the ratio is a lower bound and not infinite.

    Example:
        >>> times_as_often({"failed": 5, "n_cases": 10}, {"failed": 1, "n_cases": 10})
        Ratio(times=5.0, at_least=False, rate=0.1)
    """
    n = baseline["n_cases"]
    if not n or not searched["n_cases"]:
        return None
    rate = baseline["failed"] / n or 1 - 0.05 ** (1 / n)
    return Ratio(searched["failed"] / searched["n_cases"] / rate, baseline["failed"] == 0, rate)
