"""Suites side by side in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lsgen.suite import Suite

COLUMNS = ("FR", "mP_t", "LD", "cases", "failures", "seconds")


def suites_table(suites: dict[str, Suite]) -> Table:
    """One row a suite: failure rate, mean true-class probability, label diversity, cases, failures, seconds."""
    table = Table(box=None, pad_edge=False)
    table.add_column("method")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for name, suite in suites.items():
        s = suite.summary
        cells = (_percent(s["failure_rate"]), _percent(s["mean_p_true"]), _number(s["label_diversity"]))
        table.add_row(escape(name), *cells, f"{s['n_cases']:,}", f"{s['failed']:,}", _number(s["seconds"]))
    return table


def print_suites(suites: dict[str, Suite]) -> None:
    """Prints :func:`suites_table` and where the suites lie."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(suites_table(suites))
    for name, suite in suites.items():
        state = "" if suite.finished else " (unfinished)"
        console.print(f"{escape(name)}: {escape(str(suite.path))}{state}")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
