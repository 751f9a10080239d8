"""What a study is: a published table or figure, measured anew with lsgen's own commands."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Literal, TypeVar

from lsgen.runs import fit_once, lsgen
from lsgen.shipped import shipped_configs

if TYPE_CHECKING:
    from lsgen.suite import Suite

Scale = Literal["smoke", "laptop", "paper"]
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One number of a table, with the published one where there is one.

    Attributes:
        case: What was measured on, e.g. ``CNN, PGD``.
        metric: What was measured, in words.
        measured: The mean over repeats; None where it is undefined.
        published: The number in the paper, in the same unit.
        spread: Standard deviation over repeats; None for a single one.
        unit: ``%`` for shares, which are kept as 0..1; otherwise shown behind the number.
        elsewhere: What the published number is of, where that is not what was measured on: then it has no ratio.
    """

    case: str
    metric: str
    measured: float | None
    published: float | None = None
    spread: float | None = None
    unit: str = ""
    elsewhere: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over published."""
        if self.measured is None or not self.published or self.elsewhere:
            return None
        return self.measured / self.published


def repeated(
    case: str, metric: str, values: Sequence[float | None], published: float | None = None, unit: str = ""
) -> Row:
    """A row from repeats; those without a value are left out.

    Example:
        >>> repeated("CNN", "failure rate", [0.1, 0.3], published=0.2, unit="%").measured
        0.2
    """
    known = [v for v in values if v is not None]
    spread = stdev(known) if len(known) > 1 else None
    return Row(case, metric, mean(known) if known else None, published, spread, unit)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about an order or a size, and whether it holds here."""

    text: str
    holds: bool | None  # None: these numbers cannot tell


@dataclass
class Findings:
    """What a study found.

    Attributes:
        rows: Its table.
        claims: What the paper says of such a table, checked on this one.
        reduced: What is smaller than published at this scale; empty at ``paper``.
        figures: Pictures, files below the study's folder, with a caption each.
        remarks: Whatever a reader must know.
    """

    rows: list[Row]
    claims: list[Claim] = field(default_factory=list)
    reduced: list[str] = field(default_factory=list)
    figures: list[tuple[Path, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Study:
    """One entry of ``lsgen study``.

    Attributes:
        name: As it is called on the command line.
        shows: What it shows, in one line.
        source: The published table or figure.
        cost: What it takes at each scale on two cores, trained models at hand.
        run: Does it.
    """

    name: str
    shows: str
    source: str
    cost: dict[Scale, str]
    run: Callable[[Lab], Findings]


class Lab:
    """Where a study works: it finds or trains models, runs searches, and keeps every command.

    At ``smoke`` everything is made from the embedded digits and lies below ``out``. Otherwise models are those that
    ``lsgen fit --config configs/<data>/<model>.yaml`` leaves in ``runs/<data>/<model>``, trained first where missing.

    Args:
        out: The study's folder.
        scale: How large.
        models: Where models go that are no shipped configuration as it is; a folder in ``out`` at ``smoke``, otherwise
            ``runs/study/models/<scale>`` by default, so that studies share what they have in common.
    """

    def __init__(self, *, out: Path, scale: Scale, models: Path | None = None) -> None:
        own = out / "models" if scale == "smoke" else Path("runs/study/models") / scale
        self.out, self.scale, self.models = out, scale, models or own
        self.commands: list[str] = []

    def pick(self, *, smoke: T, laptop: T, paper: T) -> T:
        """The value for this scale."""
        return {"smoke": smoke, "laptop": laptop, "paper": paper}[self.scale]

    def data(self, name: str = "mnist") -> str:
        """The data set to use in place of ``name``."""
        return self.pick(smoke="mnist5k", laptop=name, paper=name)

    def model(
        self, config: str, *, smoke: Sequence[str] = (), name: str | None = None, more: Sequence[str] = ()
    ) -> Path:
        """The checkpoint of a shipped configuration, trained where it is missing.

        Args:
            config: e.g. ``mnist/cvae``.
            smoke: Arguments that make it small enough for ``smoke``; data, epochs and folder are set already.
            name: What it is called where ``more`` makes it another model than the configuration's.
            more: Arguments of ``lsgen fit`` at every scale.
        """
        file = shipped_configs() / f"{config}.yaml"
        folder = self.models / (name or config.replace("/", "-"))
        given = [*more, f"--trainer.default_root_dir={folder}"]
        if self.scale == "smoke":
            given += ["--data.name=mnist5k", "--data.limit_per_class=40", "--trainer.max_epochs=1"]
            given += ["--trainer.callbacks=[]", "--trainer.logger=false", "--trainer.enable_progress_bar=false", *smoke]
        elif name is None:
            folder, given = Path("runs") / config, list(more)
        fit_once(file, folder, *given)
        self._note(shlex.join(["lsgen", "fit", "--config", str(file), *given]))  # also where that was done before
        return folder / "best.ckpt"

    def search(self, name: str, config: str, *more: str) -> Suite:
        """A suite below ``out``, searched unless it is there.

        Args:
            name: Its folder in ``suites``.
            config: A shipped configuration, e.g. ``mnist/search/pgd``.
            more: Arguments of ``lsgen search``.
        """
        from lsgen.suite import load_suite

        out = self.out / "suites" / name
        given = ["--config", str(shipped_configs() / f"{config}.yaml"), "--out", str(out), *more]
        given += ["--trainer.logger=false"]
        given += ["--trainer.enable_progress_bar=false"] if self.scale == "smoke" else []
        self._note(lsgen("search", *given))
        return load_suite(out)

    def _note(self, command: str) -> None:
        command = command.replace(f"{shipped_configs()}/", "configs/")
        if command not in self.commands:
            self.commands.append(command)


def write(study: Study, lab: Lab, found: Findings) -> Path:
    """Writes ``README.md``, ``table.csv`` and ``commands.sh`` into the study's folder; gives the first."""
    lab.out.mkdir(parents=True, exist_ok=True)
    with (lab.out / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["case", "metric", "unit", "measured", "spread", "published", "published_of", "ratio"])
        for r in found.rows:
            writer.writerow([r.case, r.metric, r.unit, r.measured, r.spread, r.published, r.elsewhere, r.ratio])
    lines = ["#!/usr/bin/env bash", "# What this study ran, in order.", "set -e", *lab.commands]
    (lab.out / "commands.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")
    page = lab.out / "README.md"
    page.write_text(markdown(study, lab, found), encoding="utf-8")
    return page


def markdown(study: Study, lab: Lab, found: Findings) -> str:
    """The study as a page."""
    scale = f"Scale `{lab.scale}`" + (
        f", smaller than published: {'; '.join(found.reduced)}." if found.reduced else "."
    )
    parts = [f"# {study.name}: {study.shows}", f"Published: {study.source}. {scale}"]
    parts += [f"    lsgen study {study.name} --scale {lab.scale}", _table(found.rows)]
    if found.claims:
        parts += ["What the paper says of it, checked on these numbers:", "\n".join(map(_line, found.claims))]
    parts += ["\n".join(f"- {remark}" for remark in found.remarks)] if found.remarks else []
    parts += [f"![{caption}]({file.relative_to(lab.out)})\n\n{caption}" for file, caption in found.figures]
    return "\n\n".join(parts) + "\n"


def _line(claim: Claim) -> str:
    verdict = {True: "holds", False: "**does not hold**", None: "cannot be told"}[claim.holds]
    return f"- {verdict}: {claim.text}"


def _table(rows: Sequence[Row]) -> str:
    lines = ["| | metric | measured | published | measured / published |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"| {row.case} | {row.metric} | {_measured(row)} | {_published(row)} | {ratio} |")
    return "\n".join(lines)


def _published(row: Row) -> str:
    of = f" ({row.elsewhere})" if row.elsewhere and row.published is not None else ""
    return number(row.published, row.unit) + of


def _measured(row: Row) -> str:
    spread = "" if row.spread is None else f" ± {number(row.spread, row.unit)}"
    return number(row.measured, row.unit) + spread


def number(value: float | None, unit: str = "") -> str:
    """A number for people, with three figures or so.

    Example:
        >>> number(0.1234, "%"), number(1234.5), number(0.01234, "s"), number(None), number(0.0)
        ('12.34 %', '1,234', '0.0123 s', '', '0')
    """
    if value is None:
        return ""
    if unit == "%":
        return f"{100 * value:.2f} %"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".strip()
