"""The tables of a bench in every form: terminal, Markdown, LaTeX, CSV, HTML, W&B."""

from __future__ import annotations

import base64
import csv
import io
import shlex
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lsgen.bench.folder import write
from lsgen.bench.results import COLUMNS
from lsgen.bench.sheets import Sheet, Shown, Tables, notes
from lsgen.suite import load_suite

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

PICTURE, EXAMPLES = "examples.png", 10  # and classes in a line of it
TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
TEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
TEX |= {c: f"\\{c}" for c in "&%$#_{}"}


def write_all(tables: Tables, command: str) -> Path:
    """Writes every form into the folder of the bench and gives that of the page."""
    out = tables.grid.out
    write(out / "table.md", markdown(tables, command))
    write(out / "table.tex", latex(tables))
    write(out / "table.csv", as_csv(table_records(tables)))
    write(out / "cells.csv", as_csv(cell_records(tables)))
    write(out / "commands.sh", commands(tables))
    write_examples(tables)
    write(out / "index.html", page(tables, command))
    return out / "index.html"


def write_examples(tables: Tables) -> None:
    """A picture: of every row, one failure of each class below the seed it grew out of."""
    from lsgen.report.pictures import labelled_rows

    rows: dict[str, np.ndarray] = {}
    several = len({row.combination[:2] for row in tables.rows}) > 1
    for row in tables.rows:
        suite, (data, sut, generator, search) = row.suites[0], row.combination
        first = suite.table.iloc[suite.failures].drop_duplicates("label").sort_values("label")
        chosen = first.index[:EXAMPLES].to_numpy()
        if len(chosen):
            name = f"{data}, {sut}, {generator}, {search}" if several else f"{generator}, {search}"
            rows |= {
                f"{name}: seeds": suite.take("seed_image", chosen),
                f"{name}: failures": suite.take("image", chosen),
            }
    if rows:
        labelled_rows(rows).savefig(tables.grid.out / PICTURE, dpi=100)


def show(tables: Tables) -> None:
    """Prints the tables, and what is not in them."""
    for sheet in tables.sheets:
        if sheet.rows:
            show_sheet(sheet)
    for note in notes(tables):
        print(note)
    for line in tables.unfinished:
        print(line)


def show_sheet(sheet: Sheet) -> None:
    """Prints a table; one that is wider than the terminal is wrapped there, and no number is cut."""
    from rich.console import Console
    from rich.measure import Measurement

    table, console = terminal(sheet), Console(highlight=False)
    needed = Measurement.get(console, console.options.update(width=1000), table).maximum
    Console(highlight=False, width=max(console.width, needed)).print(table)


def terminal(sheet: Sheet) -> Table:
    """For rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=sheet.title, title_justify="left")
    for number, heading in enumerate(sheet.headings):
        table.add_column(Text(heading), justify="left" if number < sheet.names else "right", no_wrap=True)
    for number, row in enumerate(sheet.rows):
        if number in sheet.breaks:
            table.add_section()
        table.add_row(*(Text(c.text, "bold" if c.bold else "underline" if c.underlined else "") for c in row))
    return table


# --- text files ------------------------------------------------------------------------------------------------------


def markdown(tables: Tables, command: str) -> str:
    """For README files and issues."""
    parts = [f"# {tables.grid.name}", f"    {command}"]
    for sheet in tables.sheets:
        lines = [f"| {' | '.join(sheet.headings)} |", "|" + "---|" * sheet.names]
        lines[1] += "---:|" * (len(sheet.headings) - sheet.names)
        lines += [f"| {' | '.join(map(_markdown, row))} |" for row in sheet.rows]
        parts += [f"## {sheet.title}", "\n".join(lines)]
    parts.append("\n".join(f"- {note}" for note in notes(tables)))
    if tables.unfinished:
        parts += ["## Not in the table", "\n".join(f"- {escape(line, quote=False)}" for line in tables.unfinished)]
    return "\n\n".join(parts) + "\n"


def _markdown(cell: Shown) -> str:
    text = escape(cell.text, quote=False).replace("|", r"\|")
    return f"**{text}**" if cell.bold else f"<u>{text}</u>" if cell.underlined else text


def latex(tables: Tables) -> str:
    """For papers; needs the package booktabs."""
    parts = [f"% lsgen bench, {_tex(tables.grid.name)}; \\usepackage{{booktabs}}"]
    for sheet in tables.sheets:
        lines = ["\\begin{tabular}{" + "l" * sheet.names + "r" * (len(sheet.headings) - sheet.names) + "}", "\\toprule"]
        lines += [" & ".join(map(_tex, sheet.headings)) + r" \\", "\\midrule"]
        for number, row in enumerate(sheet.rows):
            lines += ["\\midrule"] * (number in sheet.breaks)
            lines.append(" & ".join(map(_latex, row)) + r" \\")
        parts.append("\n".join([*lines, "\\bottomrule", "\\end{tabular}"]))
    parts.append("\n".join(f"% {note}" for note in notes(tables)))
    return "\n\n".join(parts) + "\n"


def _latex(cell: Shown) -> str:
    text = _tex(cell.text)
    return f"\\textbf{{{text}}}" if cell.bold else f"\\underline{{{text}}}" if cell.underlined else text


def _tex(text: str) -> str:
    r"""Text that LaTeX sets as it is.

    Example:
        >>> _tex("50 % of a_b")
        '50 \\% of a\\_b'
    """
    return "".join(TEX.get(c, c) for c in text)


def as_csv(records: list[dict[str, Any]]) -> str:
    """One line a record; what is undefined is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def table_records(tables: Tables) -> list[dict[str, Any]]:
    """The table's rows in full precision: each number, its spread over repeats, and p against the best."""
    records = []
    for number, row in enumerate(tables.rows):
        data, sut, generator, search = row.combination
        facts = tables.facts.get(row.cells[0].generator.label)
        record: dict[str, Any] = {"data": data, "sut": sut, "search": search, "generator": generator}
        record |= {"family": facts and facts.family, "latent_size": facts and facts.latent_size}
        record |= {"train_minutes": facts and facts.minutes, "decode_ms": facts and facts.decode_ms}
        record["repeats"] = len(row.cells)
        for column in COLUMNS:
            key, mark = column.key, tables.marks[number, column.key]
            record |= {key: row.mean(key), f"{key}_sd": row.spread(key), f"{key}_p": mark.p_value}
        records.append(record)
    return records


def cell_records(tables: Tables) -> list[dict[str, Any]]:
    """Every cell, whatever became of it."""
    records = []
    for state in tables.states:
        cell = state.cell
        summary = load_suite(cell.folder).summary if state.state == "finished" else {}
        records.append(
            {"cell": cell.name, "data": cell.data, "sut": cell.sut.name, "search": cell.search}
            | {"generator": cell.generator.name, "repeat": cell.repeat, "state": state.state, "reason": state.reason}
            | {key: summary.get(key) for key in ("n_cases", "failed", "failure_rate", "queries", "seconds")}
            | {"command": cell.command}
        )
    return records


def commands(tables: Tables) -> str:
    """What the bench ran, as a script."""
    fits = [m for m in tables.grid.models if m.config is not None]
    lines = [shlex.join(["lsgen", "fit", "--config", str(m.config), *m.fit_args]) for m in fits]
    lines += [state.cell.command for state in tables.states if state.state != "refused"]
    head = ["#!/usr/bin/env bash", "# What this bench trains and searches, each on its own.", "set -e"]
    return "\n".join([*head, *lines]) + "\n"


# --- page ------------------------------------------------------------------------------------------------------------


def page(tables: Tables, command: str) -> str:
    """One HTML file, which links the reports of the suites."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names in the user's file are foreign text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    cells = [{"state": s, "report": _link(s.cell.report, tables.grid.out)} for s in tables.states]
    template = environment.get_template("page.html")
    file = tables.grid.out / PICTURE
    picture = base64.b64encode(file.read_bytes()).decode("ascii") if file.is_file() else None
    text: str = template.render(tables=tables, notes=notes(tables), cells=cells, command=command, picture=picture)
    return text


def _link(file: Path, out: Path) -> str | None:
    return quote(str(file.relative_to(out))) if file.is_file() else None


# --- W&B -------------------------------------------------------------------------------------------------------------


def wandb_flags(group: str) -> dict[str, Any]:
    """What makes every search log to W&B, in one group."""
    return {"trainer.logger": "WandbLogger", "trainer.logger.group": group}


def log_to_wandb(tables: Tables) -> None:
    """One run with the table, in the group of the searches."""
    import pandas as pd
    from lightning.pytorch.loggers import WandbLogger

    from lsgen.loggers import RunLabels, Table, sink_of

    project = tables.grid.cells[0].flags.get("trainer.logger.project")  # where the searches went
    logger = WandbLogger(group=tables.grid.name, name=f"{tables.grid.name} summary", project=project)
    sink = sink_of(logger)
    sink.begin(RunLabels("bench"), tables.grid.out)
    sink.table("bench/table", Table(pd.DataFrame(table_records(tables))), 0)
    logger.experiment.finish()
