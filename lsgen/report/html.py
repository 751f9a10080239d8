"""``lsgen report``: one page about one or several suites that opens from disk and asks nothing of the network."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from lsgen import __version__
from lsgen.errors import InputError
from lsgen.files import replacing
from lsgen.report import content, figures
from lsgen.report.entry import Entry, class_names, class_titles, open_entries
from lsgen.report.gallery import COLUMNS, Gallery, make_galleries
from lsgen.report.sprites import picture

ASSETS = Path(__file__).parent / "assets"
SHOWCASE = 12  # failures at the top of the page
STRIP = 12  # members of a region that are shown
LONG = 9  # letters of a class name that make captions take a line for each class


def main(args: list[str]) -> None:
    """Runs the command.

    Args:
        args: Command line after ``report``.
    """
    parser = argparse.ArgumentParser(
        prog="lsgen report",
        description="Writes one HTML file about one or several suites, side by side: numbers, figures, and all "
        "failures to look through. It needs no network and can be sent as it is.",
    )
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="folder that `lsgen search` wrote, finished or not")
    parser.add_argument("--out", required=True, metavar="FILE", help="HTML file to write")
    parser.add_argument("--figures", metavar="DIR", help="also write the figures to this folder, as PNG and SVG")
    parser.add_argument("--wandb", action="store_true", help="also keep it in W&B, as made from its suites")
    options = parser.parse_args(args)
    entries = open_entries(options.suites)
    if options.figures:
        count = figures.save_figures(entries, Path(options.figures))
        print(f"figures: {count} in {options.figures}, as PNG and SVG")
    size = write_report(entries, Path(options.out))
    print(f"report: {options.out} ({size / 1e6:.1f} MB)")
    if options.wandb:
        _track(Path(options.out), entries)


def _track(page: Path, entries: list[Entry]) -> None:
    """Hands the page to W&B; imports Lightning, which takes seconds."""
    from lightning.pytorch.loggers import WandbLogger

    from lsgen.search.tracking import track_report

    track_report(page, [entry.suite for entry in entries], WandbLogger())


def write_report(entries: list[Entry], out: Path) -> int:
    """Writes the page and gives its size in bytes.

    Raises:
        InputError: The file cannot be written.
    """
    if out.is_dir():  # told before the work
        raise InputError(f"--out: {out} is a folder; give the name of an HTML file")
    page = render(entries).encode("utf-8", errors="replace")  # JSON can name half a character
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as temporary:
            temporary.write_bytes(page)
    except OSError as error:
        raise InputError(f"--out: cannot write {out} ({error.strerror})") from error
    return len(page)


def render(entries: list[Entry]) -> str:
    """The page. The same suites give the same page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,  # names of files and classes, configurations: all of it is foreign text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": content.percent, "number": content.number}
    galleries = make_galleries(entries)
    text: str = environment.get_template("report.html").render(**_context(entries, galleries))
    return text


def _context(entries: list[Entry], galleries: list[Gallery]) -> dict[str, Any]:
    """All that the template knows."""
    script = (ASSETS / "report.js").read_text(encoding="utf-8")
    title, detail = content.headline(entries)
    places = [gallery.places for gallery in galleries]
    return {
        "version": __version__,
        "style": (ASSETS / "report.css").read_text(encoding="utf-8"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        "data": embedded_json(_data(entries, galleries)),
        "entries": entries,
        "galleries": galleries,
        "subject": content.subject(entries),
        "title": title,
        "detail": detail,
        "notices": content.notices(entries),
        "showcase": _showcase(entries, galleries),
        "unjudged": content.unjudged(entries),
        "scores": content.scoreboard(entries),
        "metrics": content.metric_rows(entries),
        "pairs": content.pair_tests(entries),
        "classes": class_titles(entries),
        "long_names": max(map(len, class_names(entries))) > LONG,
        "class_rows": content.class_rows(entries),
        "confusions": content.confusions(entries, places),
        "regions": _regions(entries, places),
        "settings": content.settings_rows(entries),
        "commands": [content.commands(entry) for entry in entries],
        **_figures(entries),
    }


def _data(entries: list[Entry], galleries: list[Gallery]) -> dict[str, Any]:
    return {
        "classes": class_titles(entries),
        "names": class_names(entries),
        "columns": [column._asdict() for column in COLUMNS],
        "suites": [gallery.data() for gallery in galleries],
    }


def embedded_json(content: Any) -> str:
    r"""JSON that can stand in a script element, whatever text it holds.

    Example:
        >>> print(embedded_json(["</script>"]))
        ["\u003c/script>"]
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _figures(entries: list[Entry]) -> dict[str, Any]:
    return {
        "true_probability": figures.true_probability(entries),
        "cost": [d for d in (figures.steps(entries), figures.queries(entries)) if d],
        "constant": content.constant_queries(entries),
        "changes": [d for column in figures.MAGNITUDES if (d := figures.magnitude(entries, column))],
        "escapes": [d for entry in entries if (d := figures.escapes(entry))],
    }


def _showcase(entries: list[Entry], galleries: list[Gallery]) -> list[tuple[int, int]]:
    """(suite, place) of a few failures of the leading suite, one a class in turn, the surest first."""
    best = content.lead(entries)
    columns = galleries[best.number].columns
    seen: dict[int, int] = {}
    ranked = []
    for place, (outcome, label) in enumerate(zip(columns["outcome"], columns.get("label", []), strict=False)):
        if outcome == 0:
            seen[label] = seen.get(label, 0) + 1
            ranked.append((seen[label], place))
    return [(best.number, place) for _, place in sorted(ranked)[:SHOWCASE]]


def _regions(entries: list[Entry], places: list[dict[int, int]]) -> list[dict[str, Any]]:
    """For each suite that was clustered: a map, and its regions with centre, typical case and members."""
    found = []
    for entry in entries:
        if entry.regions is None:
            continue
        shown = [_region(entry, i, places[entry.number]) for i in range(len(entry.regions.clusters))]
        shown.sort(key=lambda region: -region["size"])
        found.append(
            {
                "entry": entry,
                "map": figures.region_map(entry),
                "all": [region for region in shown if region["scope"] == "all"],
                "class": [region for region in shown if region["scope"] != "all"],
            }
        )
    return found


def _region(entry: Entry, index: int, places: dict[int, int]) -> dict[str, Any]:
    assert entry.regions is not None
    cluster, centroids = entry.regions.clusters[index], entry.regions.centroids
    medoid = places.get(cluster["medoid_id"])
    members = sorted(places[i] for i in entry.regions.members(cluster).tolist() if i in places and places[i] != medoid)
    return {
        **cluster,
        "index": index,
        "medoid": medoid,
        "members": members[:STRIP],
        "centre": None if centroids is None else picture(centroids[index]),
    }
