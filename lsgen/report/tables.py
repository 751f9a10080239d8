"""Suites side by side in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lsgen.suite import Suite

COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {  # what is shown of a summary
    "FR": lambda s: _percent(s["failure_rate"]),
    "mP_t": lambda s: _percent(s["mean_p_true"]),
    "LD": lambda s: _number(s["label_diversity"]),
    "cases": lambda s: f"{s['n_cases']:,}",
    "failures": lambda s: f"{s['failed']:,}",
    "successes": lambda s: f"{s['success']:,}",
    "seconds": lambda s: _number(s["seconds"]),
}


def suites_table(suites: dict[str, Suite]) -> Table:
    """One row a suite; a column of successes where a search was after something else than failures."""
    summaries = {name: suite.summary for name, suite in suites.items()}
    alike = all(s["success"] == s["failed"] for s in summaries.values())
    columns = [column for column in COLUMNS if not (alike and column == "successes")]
    table = Table(box=None, pad_edge=False)
    table.add_column("method")
    for column in columns:
        table.add_column(column, justify="right")
    for name, s in summaries.items():
        table.add_row(escape(name), *(COLUMNS[column](s) for column in columns))
    return table


def print_suites(suites: dict[str, Suite]) -> None:
    """Prints :func:`suites_table` and where the suites lie."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(suites_table(suites))
    for name, suite in suites.items():
        state = "" if suite.finished else " (unfinished)"
        console.print(f"{escape(name)}: {escape(str(suite.path))}{state}")


def not_counted(suite: Suite) -> Iterator[str]:
    """Says of how many cases a search gave up, or did not begin, and why."""
    broken, viable = (suite.table[column].to_numpy("bool") for column in ("retired", "viable"))
    if broken.any():
        yield (
            f"{broken.sum():,} of {len(broken):,} cases are given up, because a fitness or an answer of the SUT is no "
            f"number there: they stand as their seed (column retired)"
        )
    if (left_out := ~viable & ~broken).any():
        yield (
            f"{left_out.sum():,} of {len(broken):,} cases are left out: before any step, the SUT reads their seeds "
            f"wrongly, or the criterion holds for them"
        )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
