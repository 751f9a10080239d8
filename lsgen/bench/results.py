"""The numbers of a bench: rows of the table, which of them are best, and which cannot be told from the best."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lsgen.analysis.parts import task_settings
from lsgen.analysis.statistics import holm, mann_whitney, welch
from lsgen.bench.grid import Cell
from lsgen.report.compare import fisher
from lsgen.suite import Suite, load_suite

if TYPE_CHECKING:
    import pandas as pd

ALPHA = 0.05
Test = Literal["welch", "fisher", "mann-whitney"]


@dataclass(frozen=True)
class Column:
    """One column of the table of searches.

    Attributes:
        key: Its name in CSV.
        heading: Its name for people.
        better: 1 where more is better, -1 where less is.
        form: How a number is written; ``%`` for shares.
        value: The number of a suite; None where it is undefined.
        seeds: One number for each seed of a suite's table, by which two suites can be compared; None where a seed has
            none.
        count: What a share counts, shown in brackets.
        needs_budget: Whether a search that was cut short for want of queries looks better here than it is.
    """

    key: str
    heading: str
    better: int
    form: str
    value: Callable[[Suite], float | None]
    seeds: Callable[[pd.DataFrame], pd.Series] | None = None
    count: Callable[[Suite], int] | None = None
    needs_budget: bool = False


# --- columns ---------------------------------------------------------------------------------------------------------


def _summary(key: str) -> Callable[[Suite], float | None]:
    return lambda suite: suite.summary.get(key)


def _mean(pick: Callable[[pd.DataFrame], pd.Series]) -> Callable[[Suite], float | None]:
    """The mean of picked cases, None where there are none."""

    def value(suite: Suite) -> float | None:
        numbers = pick(suite.table).dropna()
        return float(numbers.astype("float64").mean()) if len(numbers) else None

    return value


def _by_seed(pick: Callable[[pd.DataFrame], pd.Series]) -> Callable[[pd.DataFrame], pd.Series]:
    """The same for each seed."""

    def seeds(table: pd.DataFrame) -> pd.Series:
        numbers = pick(table).dropna().astype("float64")
        return numbers.groupby(table.loc[numbers.index, "seed_id"]).mean()

    return seeds


def _cases(column: str) -> Callable[[pd.DataFrame], pd.Series]:
    """A column of the cases that count."""
    return lambda table: table.loc[table["viable"], column]


def _readable(table: pd.DataFrame) -> pd.Series:
    """Whether the SUT reads the seed rightly."""
    return (table["seed_predicted"] == table["label"]) & table["seed_p_true"].notna()


def _misclassified(table: pd.DataFrame) -> pd.Series:
    """Whether a seed that the SUT reads rightly has led to a failure, for each seed."""
    cases = table[table["viable"] & _readable(table)]
    return cases["failed"].astype("float64").groupby(cases["seed_id"]).max()


def _valid(table: pd.DataFrame) -> pd.Series:
    """What an oracle says of failures."""
    return table.loc[table["viable"] & table["failed"], "valid"]


def _preserved(table: pd.DataFrame) -> pd.Series:
    """Whether failures still show their label; not of those that are known to be invalid."""
    kept = table["valid"].fillna(True).astype(bool)
    return table.loc[table["viable"] & table["failed"] & kept, "preserved"]


def _count(pick: Callable[[pd.DataFrame], pd.Series]) -> Callable[[Suite], int]:
    return lambda suite: int(pick(suite.table).sum())


def _seconds(suite: Suite) -> float | None:
    cases = suite.summary["n_cases"]
    return suite.summary["seconds"] / cases if cases else None


COLUMNS = (
    Column(
        "seed_viability",
        "% seeds",
        1,
        "%",
        _summary("seed_viability"),
        _by_seed(_readable),
        lambda suite: int(_by_seed(_readable)(suite.table).sum()),
    ),
    Column(
        "misclassified",
        "% misclassified",
        1,
        "%",
        _summary("misclassification_rate"),
        _misclassified,
        _count(_misclassified),
    ),
    Column(
        "iterations",
        "iterations",
        -1,
        ".1f",
        _summary("iterations_mean"),
        _by_seed(_cases("iterations")),
        needs_budget=True,
    ),
    Column("queries", "queries", -1, ",.0f", _mean(_cases("queries")), _by_seed(_cases("queries")), needs_budget=True),
    Column("seconds", "s", -1, ".3g", _seconds, needs_budget=True),
    Column("failure_rate", "FR %", 1, "%", _summary("failure_rate"), _by_seed(_cases("failed"))),
    Column("ssim", "SSIM", 1, ".3f", _summary("ssim"), _by_seed(_cases("ssim")), needs_budget=True),
    Column("label_diversity", "LD", 1, ".2f", _summary("label_diversity")),
    Column("valid", "% valid", 1, "%", _mean(_valid), _by_seed(_valid), _count(_valid)),
    Column("preserved", "% preserved", 1, "%", _mean(_preserved), _by_seed(_preserved), _count(_preserved)),
)


# --- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A generator under one search on one SUT.

    Attributes:
        cells: The repeats that are finished.
    """

    cells: list[Cell]

    @property
    def combination(self) -> tuple[str, str, str, str]:
        """Data set, SUT, generator, search."""
        return self.cells[0].combination

    @cached_property
    def suites(self) -> list[Suite]:
        """One for each repeat."""
        return [load_suite(cell.folder) for cell in self.cells]

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """The numbers of every column over repeats; without those that are undefined."""
        found = {column.key: [column.value(suite) for suite in self.suites] for column in COLUMNS}
        return {key: [v for v in values if v is not None] for key, values in found.items()}

    @cached_property
    def cut_short(self) -> bool:
        """Whether ``max_queries`` has ended the search of a seed that had not failed yet."""
        most = task_settings(self.suites[0]).get("max_queries")
        return most is not None and any(_stopped(suite.table, most) for suite in self.suites)

    def seeds(self, column: Column) -> np.ndarray:
        """One number for each seed of the first repeat, float [N]."""
        assert column.seeds is not None
        return column.seeds(self.suites[0].table).to_numpy("float64")

    def mean(self, key: str) -> float | None:
        """Over repeats."""
        return mean(self.values[key]) if self.values[key] else None

    def spread(self, key: str) -> float | None:
        """Standard deviation over repeats; None for a single one."""
        return stdev(self.values[key]) if len(self.values[key]) > 1 else None

    def count(self, column: Column) -> str | None:
        """What a share counts, in the mean over repeats."""
        if column.count is None or self.mean(column.key) is None:
            return None
        return f"{mean(map(column.count, self.suites)):,.1f}".removesuffix(".0")


def _stopped(table: pd.DataFrame, most: int) -> bool:
    """Whether a seed that had not failed was one round short of ``most`` queries."""
    open_ones = table[table["viable"] & ~table["failed"]]
    a_round = open_ones["queries"] / open_ones["iterations"].clip(lower=1)
    return bool((open_ones["queries"] + a_round > most).any())


def rows_of(cells: Iterable[Cell]) -> list[Row]:
    """Finished cells as rows, repeats together, in the order they come in."""
    return [Row(list(group)) for _, group in groupby(cells, key=lambda c: c.combination)]


# --- comparisons -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """How a number compares with the best of its column.

    Attributes:
        best: Whether it is the best, or as good.
        alike: Whether it cannot be told from the best; never for the best itself.
        p_value: Of the test against the best, after Holm's correction; None for the best, and where there is no test.
        test: Which test.
    """

    best: bool = False
    alike: bool = False
    p_value: float | None = None
    test: Test | None = None


Marks = dict[tuple[int, str], Mark]  # by number of the row and key of the column


def compare(rows: list[Row]) -> Marks:
    """Marks every number that is best, or not to be told from the best, of the rows it competes with."""
    groups: dict[Hashable, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(_contest(row, rows), []).append(number)
    marks: Marks = {}
    for members in groups.values():
        for column in COLUMNS:
            found = _compare([rows[i] for i in members], column)
            marks |= {(i, column.key): mark for i, mark in zip(members, found, strict=True)}
    return marks


def _contest(row: Row, rows: list[Row]) -> Hashable:
    """Generators compete under the same search; where there is but one generator, searches do."""
    data, sut, _, search = row.combination
    rivals = {r.combination[2] for r in rows if r.combination[:2] == (data, sut)}
    return (data, sut, search) if len(rivals) > 1 else (data, sut)


def _compare(rows: list[Row], column: Column) -> list[Mark]:
    """Marks of one column for rows that compete."""
    means = [None if column.needs_budget and row.cut_short else row.mean(column.key) for row in rows]
    known = [m for m in means if m is not None]
    if len(set(known)) < 2:  # nothing to compare, or nothing to choose
        return [Mark()] * len(rows)
    best = max(known, key=lambda m: column.better * m)
    champion = rows[means.index(best)]
    nothing: tuple[float | None, Test | None] = (None, None)
    tests = [nothing if m is None else _test(champion, row, column) for m, row in zip(means, rows, strict=True)]
    p_values = holm([p for p, _ in tests])
    return [
        Mark(m == best, p is not None and p >= ALPHA, p, test)
        for m, p, (_, test) in zip(means, p_values, tests, strict=True)
    ]


def _test(best: Row, other: Row, column: Column) -> tuple[float | None, Test | None]:
    """The p-value of a difference: over repeats or, where these are too few or all the same, over seeds.

    There is none where there is no difference, or one of them is undefined.
    """
    if other.mean(column.key) in (None, best.mean(column.key)):
        return None, None
    over_repeats = welch(best.values[column.key], other.values[column.key]).p_value
    if over_repeats is not None:
        return over_repeats, "welch"
    if column.seeds is None:
        return None, None
    a, b = best.seeds(column), other.seeds(column)
    if np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        return fisher(_counts(a), _counts(b)), "fisher"
    return mann_whitney(a, b).p_value, "mann-whitney"


def _counts(shares: np.ndarray) -> dict[str, Any]:
    return {"failed": int(shares.sum()), "n_cases": len(shares)}
