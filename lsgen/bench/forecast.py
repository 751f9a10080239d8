"""What a bench will do and cost, before it does it."""

from __future__ import annotations

from itertools import groupby

from lsgen.bench.check import Outlook
from lsgen.bench.folder import is_finished
from lsgen.bench.grid import Cell, Grid, counted
from lsgen.bench.sheets import Sheet, Shown
from lsgen.bench.write import show_sheet
from lsgen.search.preflight import duration

Outlooks = dict[str, Outlook]


def show_forecast(grid: Grid, outlooks: Outlooks, jobs: int) -> None:
    """Prints the cells with their cost, what is refused and why, and the sum."""
    show_sheet(forecast(grid, outlooks))
    for cell in grid.cells:
        if cell.repeat == 0 and (reason := outlooks[cell.name].refused):
            print(f"refused: {cell.family}: {reason}")
    print(_sum(grid, outlooks, jobs))


def forecast(grid: Grid, outlooks: Outlooks) -> Sheet:
    """One line for the repeats of a cell."""
    headings = ["data", "SUT", "search", "generator", "state", "repeats", "seeds", "queries, at most", "time, about"]
    rows = []
    for (data, sut, generator, search), group in groupby(grid.cells, key=lambda c: c.combination):
        cells = list(group)
        outlook = outlooks[cells[0].name]
        cost = ["–"] * 3
        if not outlook.refused:
            cost = [f"{outlook.seeds:,}", _count(outlook.queries), _time(outlook)]
        state = _state(cells, outlooks)
        rows.append([Shown(t) for t in (data, sut, search, generator, state, str(len(cells)), *cost)])
    return Sheet(f"{grid.name}: {counted(len(grid.cells))} in {grid.out}", headings, rows, 5, [])


def _state(cells: list[Cell], outlooks: Outlooks) -> str:
    if outlooks[cells[0].name].refused:
        return "refused"
    done = sum(is_finished(cell, outlooks[cell.name]) for cell in cells)
    if done:
        return "finished" if done == len(cells) else f"{done} finished"
    untrained = [m.name for m in (cells[0].sut, cells[0].generator) if m.missing]
    return f"after training {' and '.join(untrained)}" if untrained else "to do"


def _sum(grid: Grid, outlooks: Outlooks, jobs: int) -> str:
    refused = [c for c in grid.cells if outlooks[c.name].refused]
    todo = [c for c in grid.cells if c not in refused and not is_finished(c, outlooks[c.name])]
    known = [outlooks[c.name] for c in todo if outlooks[c.name].queries is not None]
    queries, seconds = sum(o.queries or 0 for o in known), sum((o.seconds or 0.0) + o.overhead for o in known)
    processes = "1 process" if jobs == 1 else f"{jobs} processes"
    cost = f", at most {queries:,} SUT queries and about {duration(seconds / jobs)} in {processes}" if known else ""
    training = "; training comes on top" if any(m.missing and m.config for m in grid.models) else ""
    finished = len(grid.cells) - len(todo) - len(refused)
    return f"{counted(len(todo))} to do{cost}{training}; {finished} finished, {len(refused)} refused"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _time(outlook: Outlook) -> str:
    return "?" if outlook.seconds is None else duration(outlook.seconds + outlook.overhead)
