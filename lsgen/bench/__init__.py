"""``lsgen bench``: generators × searches × classifiers, one table in the layout of the ICST 2025 benchmark."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from lsgen.errors import InputError


def main(args: list[str]) -> None:
    """Runs the command.

    Args:
        args: Command line after ``bench``.
    """
    parser = argparse.ArgumentParser(
        prog="lsgen bench",
        description="Runs every search on every generator and classifier that a YAML file names, and compares them in "
        "one table. Each cell is an ordinary suite. What is finished is not run again, and several machines can share "
        "a folder: run the same command on each.",
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="the grid, e.g. configs/bench/smoke.yaml")
    parser.add_argument("--out", metavar="DIR", help="folder for all of it (default: as FILE says, or runs/bench/NAME)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="show cells, cost and what is refused, and run nothing")
    parser.add_argument("--logger", choices=["wandb"], help="also log every search, and the table, to W&B as one group")
    options = parser.parse_args(args)
    if options.jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {options.jobs}")
    bench(options, shlex.join(["lsgen", "bench", *args]))


def bench(options: argparse.Namespace, command: str) -> None:
    """Looks at the grid, runs it, and writes the table of whatever is there in the end."""
    from lsgen.bench.check import Inspector
    from lsgen.bench.folder import check_folder, load_facts, mark_folder
    from lsgen.bench.forecast import show_forecast
    from lsgen.bench.grid import read_grid
    from lsgen.bench.run import run
    from lsgen.bench.write import log_to_wandb, wandb_flags

    file = Path(options.config)
    flags = wandb_flags(file.stem) if options.logger else {}
    grid = read_grid(file, Path(options.out) if options.out else None, flags)
    inspector = Inspector(known=load_facts(grid.out))
    outlooks = inspector.look(grid)
    check_folder(grid, outlooks)
    show_forecast(grid, outlooks, options.jobs)
    if options.dry_run:
        print("\n".join(["each cell on its own:", *(c.command for c in grid.cells if not outlooks[c.name].refused)]))
        return
    if all(outlook.refused for outlook in outlooks.values()):
        raise InputError(f"no cell of {file} can run; the first: {outlooks[grid.cells[0].name].refused}")
    mark_folder(grid)
    tables = run(grid, outlooks, inspector.facts, options.jobs, command)
    if options.logger:
        log_to_wandb(tables)
    if any(state.state in ("failed", "open") or outlooks[state.cell.name].missing for state in tables.states):
        sys.exit(1)
