"""What a bench keeps in its folder beside the suites, for all processes that work there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsgen.bench.claims import claim
from lsgen.bench.grid import Cell, Grid, slug
from lsgen.errors import InputError
from lsgen.files import replacing
from lsgen.suite import load_suite

if TYPE_CHECKING:
    from lsgen.bench.check import Facts, Outlook

MARK = "bench.json"  # tells the folder of a bench from others, and one grid's from another's


def check_folder(grid: Grid, outlooks: dict[str, Outlook]) -> None:
    """Refuses a folder that belongs to something else.

    Raises:
        InputError: It holds no bench, or one of another grid.
    """
    out, mark = grid.out, grid.out / MARK
    if not mark.is_file():
        if out.exists() and (not out.is_dir() or any(f.name != "claims" for f in out.iterdir())):
            raise InputError(f"{out} exists and is not the folder of a bench: choose another --out")
        return
    there = _read(mark).get("cells", [])
    if there and not {cell.name for cell in grid.cells} & set(there):
        raise InputError(f"{out} holds another grid, with cells such as {there[0]}: choose another --out")
    for cell in grid.cells:
        identity, own = suite_identity(cell), outlooks[cell.name].identity
        if own is not None and identity not in (None, own):
            raise InputError(
                f"{out} holds another grid: {cell.name} was searched with other weights, data or settings; choose "
                f"another --out, or delete {cell.folder}"
            )


def mark_folder(grid: Grid) -> None:
    """Makes the folder, or adds this grid's cells to it."""
    grid.out.mkdir(parents=True, exist_ok=True)
    with claim(grid.out / "claims" / "folder") as mine:
        if mine:  # who is at it now has the same cells
            mark = grid.out / MARK
            known = _read(mark).get("cells", []) if mark.is_file() else []
            cells = [*known, *(c.name for c in grid.cells if c.name not in known)]
            write(mark, json.dumps({"cells": cells}, indent=1) + "\n")


def suite_identity(cell: Cell) -> str | None:
    """Of the suite that is there, None where there is none."""
    if not (cell.folder / "manifest.json").is_file():
        return None
    return str(load_suite(cell.folder).manifest["identity"])


def is_finished(cell: Cell, outlook: Outlook) -> bool:
    """Whether a cell's suite is there and whole, and is the one that the cell would make."""
    there = suite_identity(cell)
    return there is not None and outlook.identity in (None, there) and load_suite(cell.folder).finished


# --- failures: cells and trainings that came to no end ---------------------------------------------------------------


def failure(out: Path, name: str) -> dict[str, str] | None:
    """Why a cell or a model failed, and in which run; None where it did not."""
    file = out / "failed" / f"{slug(name)}.json"
    return _read(file) if file.is_file() else None


def note_failure(out: Path, name: str, reason: str | None, run: str) -> None:
    """Keeps why something failed, or forgets it where it did not."""
    file = out / "failed" / f"{slug(name)}.json"
    if reason is None:
        file.unlink(missing_ok=True)
    else:
        write(file, json.dumps({"reason": reason, "run": run}) + "\n")


# --- facts of generators, so that they are measured once -------------------------------------------------------------


def load_facts(out: Path) -> dict[str, Facts]:
    """What is known of the generators from an earlier run, by label."""
    from lsgen.bench.check import Facts

    file = out / "generators.json"
    if not file.is_file():
        return {}
    try:
        return {label: Facts(**facts) for label, facts in _read(file).items()}
    except TypeError as error:
        raise InputError(f"{file} is not what a bench wrote: delete it, or choose another --out") from error


def save_facts(out: Path, facts: dict[str, Facts]) -> None:
    """Keeps them, and those of generators that are not in this grid."""
    joined = {**load_facts(out), **facts}
    write(out / "generators.json", json.dumps({label: asdict(f) for label, f in joined.items()}, indent=1) + "\n")


def write(file: Path, text: str) -> None:
    """Writes a file that is whole or not there, whatever happens."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}): delete it, or choose another --out") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} is not what a bench wrote: delete it, or choose another --out")
    return content
