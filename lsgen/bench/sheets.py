"""The tables of a bench as text with marks, before they become terminal, Markdown, LaTeX, CSV or HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lsgen.bench.claims import claim
from lsgen.bench.folder import failure, is_finished
from lsgen.bench.grid import Cell, Grid
from lsgen.bench.results import COLUMNS, Column, Mark, Marks, Row, compare, rows_of
from lsgen.suite import load_suite

if TYPE_CHECKING:
    from lsgen.bench.check import Facts, Outlook

NOTHING = "–"
FEW = 5  # repeats: with fewer, a test over them rarely finds a difference


@dataclass(frozen=True)
class Shown:
    """What stands in a cell of a table."""

    text: str
    bold: bool = False
    underlined: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        title: What it shows.
        headings: Of its columns.
        rows: One cell for each heading.
        names: How many columns in front are names; the others are numbers.
        breaks: Rows that a line is drawn above.
    """

    title: str
    headings: list[str]
    rows: list[list[Shown]]
    names: int
    breaks: list[int]


@dataclass(frozen=True)
class State:
    """What became of a cell.

    Attributes:
        cell: Which.
        state: ``refused``: it cannot work. ``failed``: it went wrong. ``open``: it is not finished.
            ``running``: another process is at it.
        reason: Why it is not finished.
    """

    cell: Cell
    state: Literal["finished", "refused", "failed", "open", "running"]
    reason: str = ""

    def __str__(self) -> str:
        what = self.cell.family if self.state == "refused" else self.cell.title  # no seed makes it possible
        return f"{self.state}: {what}: {self.reason}"


@dataclass(frozen=True)
class Tables:
    """All that a bench found.

    Attributes:
        grid: The bench.
        states: What became of every cell.
        rows: The finished ones, repeats together.
        marks: Which numbers are best.
        facts: Of the generators, by label.
    """

    grid: Grid
    states: list[State]
    rows: list[Row]
    marks: Marks
    facts: dict[str, Facts]

    @property
    def sheets(self) -> list[Sheet]:
        """ICST25's Tab. II and Tab. III."""
        return [generator_sheet(self), search_sheet(self)]

    @property
    def unfinished(self) -> list[str]:
        """Cells that are not in the table, and why, one line each."""
        return list(dict.fromkeys(str(state) for state in self.states if state.state != "finished"))


def collect(grid: Grid, outlooks: dict[str, Outlook], facts: dict[str, Facts]) -> Tables:
    """Reads what there is in the folder of a bench."""
    states = [_state(cell, outlooks[cell.name]) for cell in grid.cells]
    rows = rows_of(state.cell for state in states if state.state == "finished")
    return Tables(grid, states, rows, compare(rows), facts)


def _state(cell: Cell, outlook: Outlook) -> State:
    if outlook.refused:
        return State(cell, "refused", outlook.refused)
    if is_finished(cell, outlook):
        return State(cell, "finished")
    with claim(cell.claim) as free:
        if not free:
            return State(cell, "running", "another process is at it; run the command again for the whole table")
    if failed := failure(cell.out, cell.name):
        return State(cell, "failed", failed["reason"])
    if not (cell.folder / "manifest.json").is_file():
        return State(cell, "open", "not begun")
    suite = load_suite(cell.folder)
    return State(cell, "open", f"{len(suite.blocks)} of {suite.manifest['blocks']} blocks are done")


def generator_sheet(tables: Tables) -> Sheet:
    """One line a generator: sizes and times."""
    headings = ["data", "generator", "family", "LV size", "t_train (min)", "t_infer (ms)"]
    rows = []
    for model in tables.grid.models:
        if model.role == "generator" and (facts := tables.facts.get(model.label)):
            numbers = (f"{facts.latent_size:,}", _number(facts.minutes, ".1f"), _number(facts.decode_ms, ".3g"))
            rows.append([model.data, model.name, facts.family, *numbers])
    return Sheet("Generators", headings, _folded(rows, 1), 3, _breaks(rows, 1))


def search_sheet(tables: Tables) -> Sheet:
    """One line a row, what competes together."""
    headings = ["data", "SUT", "search", "generator", *(column.heading for column in COLUMNS)]
    names = [[row.combination[i] for i in (0, 1, 3, 2)] for row in tables.rows]
    folded = _folded(names, 3)
    for number, (cells, row) in enumerate(zip(folded, tables.rows, strict=True)):
        cells += [_shown(row, column, tables.marks[number, column.key]) for column in COLUMNS]
    return Sheet("Searches", headings, folded, 4, _breaks(names, 3))


def notes(tables: Tables) -> list[str]:
    """What a reader of the tables must know."""
    if not tables.rows:
        return ["No cell is finished yet."]
    repeats = max(len(row.cells) for row in tables.rows)
    said = [_comparison(tables, repeats), _meanings(tables)]
    if short := [f"{row.combination[2]} under {row.combination[3]}" for row in tables.rows if row.cut_short]:
        said.append(
            f"max_queries ended searches that had not failed yet ({', '.join(short)}): with an equal budget they would "
            f"have taken more iterations, queries and s, and changed their images more: these numbers do not compete."
        )
    if repeats > 1:
        said.append(f"Means of {repeats} repeats; standard deviations are in table.csv.")
    said.append(
        "t_train: minutes until the checkpoint was saved, validation included; t_infer: for an image, in batches of "
        "32, like s on the machine that ran it."
    )
    return said


def _comparison(tables: Tables, repeats: int) -> str:
    tests = {mark.test for mark in tables.marks.values()} - {None}
    over_seeds = "Fisher's exact test for shares and Mann–Whitney's for the rest, over seeds"
    if "welch" in tests:
        how = f"Welch's test over {repeats} repeats"
        how += f" or, where these are all the same, {over_seeds} of one repeat" if len(tests) > 1 else ""
        how += "; so few repeats show large differences only" if repeats < FEW else ""
    else:
        how = f"{over_seeds}; s and LD have no test with a single repeat"
    rivals = "the generators under the same search"
    if len({row.combination[2] for row in tables.rows}) == 1:
        rivals = "the searches"
    return (
        f"Bold: best of {rivals}. Underlined: not different from the best at the 5 % level ({how}; Holm's correction "
        f"within a column)."
    )


def _meanings(tables: Tables) -> str:
    judged = any(row.mean(key) is not None for row in tables.rows for key in ("valid", "preserved"))
    oracle = "% valid: of failures; % preserved: of valid failures." if judged else "No oracle has judged validity."
    return (
        "% seeds: share (number) of seeds that the SUT reads rightly; % misclassified: of those, led to a failure; "
        "FR: share of all cases that fail; iterations: until the first success, all of them where there is none; "
        f"iterations, queries and s are of one case; SSIM: to the seed's image; LD: different wrong classes. {oracle}"
    )


def _shown(row: Row, column: Column, mark: Mark) -> Shown:
    value = row.mean(column.key)
    text = _number(value, column.form)
    count = row.count(column)
    return Shown(text if count is None else f"{text} ({count})", mark.best, mark.alike)


def _number(value: float | None, form: str) -> str:
    """A number as a table has it; shares in percent, whose sign stands in the heading.

    Example:
        >>> _number(0.5057, "%"), _number(164.61, ".1f"), _number(None, ".1f")
        ('50.6', '164.6', '–')
    """
    if value is None:
        return NOTHING
    return f"{100 * value:.1f}" if form == "%" else f"{value:{form}}"


def _folded(rows: list[list[str]], names: int) -> list[list[Shown]]:
    """The same, with names left out in front that are those of the row above."""
    shown = []
    for i, row in enumerate(rows):
        above = rows[i - 1] if i else []
        same = next((k for k in range(names) if k >= len(above) or row[k] != above[k]), names)
        shown.append([Shown("" if k < same else text) for k, text in enumerate(row)])
    return shown


def _breaks(rows: list[list[str]], names: int) -> list[int]:
    """Where a name in front changes."""
    return [i for i in range(1, len(rows)) if rows[i][:names] != rows[i - 1][:names]]
