"""``lsgen study``: published tables and figures, measured; one file a study."""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import get_args

from lsgen.errors import InputError
from lsgen.files import replacing
from lsgen.studies.base import Lab, Scale, Study, write

STUDIES = {  # each module has a STUDY
    "speth-baseline": "speth_baseline",
    "speth-parameters": "speth_parameters",
    "speth-faults": "speth_faults",
    "sinvad-boundary": "sinvad_boundary",
    "sinvad-architecture": "sinvad_architecture",
    "sinvad-interpolation": "sinvad_interpolation",
    "sinvad-pollution": "sinvad_pollution",
    "argus-similarity": "argus_similarity",
    "argus-ablation": "argus_ablation",
    "argus-retrain": "argus_retrain",
    "dunn-faults": "dunn_faults",
    "dunn-transfer": "dunn_transfer",
    "icst25-families": "icst25_families",
}


def find(name: str) -> Study:
    """The study of that name.

    Raises:
        InputError: There is none.
    """
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; studies: {', '.join(STUDIES)} (see `lsgen study --list`)")
    study: Study = import_module(f"lsgen.studies.{STUDIES[name]}").STUDY
    return study


def main(args: list[str]) -> None:
    """Runs one study, or lists them.

    Args:
        args: Command line after ``study``.
    """
    parser = argparse.ArgumentParser(
        prog="lsgen study",
        description="Measures one published table or figure and puts the published numbers beside. A folder gets the "
        "table, pictures, suites and the exact commands; running it again goes on where it stopped.",
    )
    parser.add_argument("name", nargs="?", help="one of the studies; see --list")
    parser.add_argument("--list", action="store_true", help="what there is, its source, and what each scale costs")
    parser.add_argument("--scale", choices=get_args(Scale), default="laptop", help="how large (default: %(default)s)")
    parser.add_argument("--out", help="folder for everything it makes (default: runs/study/NAME-SCALE)")
    options = parser.parse_args(args)
    if options.list:
        return show()
    if options.name is None:
        raise InputError(f"which study? One of {', '.join(STUDIES)} (see `lsgen study --list`)")
    study = find(options.name)
    out = Path(options.out or f"runs/study/{study.name}-{options.scale}")
    claim(out, study, options.scale)
    return run(study, Lab(out=out, scale=options.scale))


def claim(out: Path, study: Study, scale: str) -> None:
    """Makes the study's folder, or finds it to be that of an earlier start.

    Raises:
        InputError: It holds something else, which would be overwritten.
    """
    mark, text = out / "study.json", json.dumps({"study": study.name, "scale": scale}) + "\n"
    try:
        if mark.is_file():
            if mark.read_text(encoding="utf-8", errors="replace") != text:
                raise InputError(f"{out} holds another study, or another scale: choose another --out")
            return
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} exists and is not the folder of a study: choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        with replacing(mark) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out: cannot write to {out} ({error.strerror})") from error


def run(study: Study, lab: Lab) -> None:
    """Runs a study, writes its page and prints it."""
    from rich.console import Console
    from rich.markdown import Markdown

    print(f"{study.name} at scale {lab.scale}: {study.cost[lab.scale]} (trained models at hand)", flush=True)
    started = time.perf_counter()
    page = write(study, lab, study.run(lab))
    Console().print(Markdown(page.read_text(encoding="utf-8")))
    print(f"{page}, after {time.perf_counter() - started:.0f} s")


def show() -> None:
    """Prints what studies there are."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="lsgen study NAME [--scale SCALE]", show_lines=True)
    table.add_column("study", no_wrap=True)
    table.add_column("what it shows, and where it was published")
    table.add_column("scales, and what they cost")
    for name in STUDIES:
        study = find(name)
        costs = "\n".join(f"{scale}: {study.cost[scale]}" for scale in get_args(Scale))
        table.add_row(name, f"{study.shows}\n[dim]{study.source}[/dim]", costs)
    Console().print(table)
