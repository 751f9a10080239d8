"""Suites as the columns of a report: their names, their cases, and what is known of how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lsgen.analysis import statistics
from lsgen.errors import InputError
from lsgen.report.regions import Regions, read_regions
from lsgen.suite import Suite, load_suite

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "RandomSampling"


@dataclass(frozen=True)
class Entry:
    """One suite of a report.

    Attributes:
        name: Short and different from all others in the report.
        suite: Where it lies.
        number: Its place among the suites, from 0.
        baseline: Whether it is the random sampling that the others are compared with.
        shade: Which of the colours and dashes it has in figures; the baseline is grey.
    """

    name: str
    suite: Suite
    number: int = 0
    baseline: bool = False
    shade: int = 0

    @cached_property
    def table(self) -> pd.DataFrame:
        """All rows, also those whose seed is not viable."""
        return self.suite.table

    @cached_property
    def cases(self) -> pd.DataFrame:
        """The rows that count in rates."""
        return self.table[self.table["viable"].astype(bool)]

    @cached_property
    def failures(self) -> pd.DataFrame:
        """The cases that the SUT gets wrong."""
        return self.cases[self.cases["failed"].astype(bool)]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The metrics of the suite."""
        return self.suite.summary

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What made the suite."""
        return self.suite.manifest

    @cached_property
    def config_text(self) -> str:
        """The configuration that the suite keeps, as YAML; empty where there is none that can be read."""
        try:
            return (self.suite.path / "config.yaml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The same as data; empty where it is no YAML mapping."""
        import yaml

        try:
            content = yaml.safe_load(self.config_text)
        except yaml.YAMLError:
            return {}
        return content if isinstance(content, dict) else {}

    @cached_property
    def regions(self) -> Regions | None:
        """Failure regions, where ``lsgen cluster`` was run."""
        return read_regions(self.suite.path)

    @cached_property
    def class_names(self) -> list[str] | None:
        """One for each class; None where the suite does not know them all."""
        return self.suite.class_names

    def independent(self, label: int | None = None) -> dict[str, float]:
        """``failed`` and ``n_cases``, of all classes or of one, of as many independent cases as there are in effect.

        Tests and intervals are made for those, and cases that grew from one seed tend to fail together.
        """
        rows = self.cases if label is None else self.cases[self.cases["label"] == label]
        failed = rows["failed"].to_numpy("float64")
        n = statistics.independent(failed, rows["seed_id"].to_numpy("int64"))
        return {"failed": float(failed.sum()) * n / max(1, len(failed)), "n_cases": n}

    def comparable(self, other: Entry) -> bool:
        """Whether both searched the same generator for failures of the same SUT, on the same data."""
        keys = (("sut", "sha256"), ("generator", "sha256"), ("data", "fingerprint"))
        return all((self.manifest.get(a) or {}).get(b) == (other.manifest.get(a) or {}).get(b) for a, b in keys)

    @property
    def shares_seeds(self) -> bool:
        """Whether several cases grew from one seed."""
        return bool(self.cases["seed_id"].duplicated().any())

    @property
    def searcher(self) -> str:
        """Class of the searcher."""
        return str(self.manifest.get("searcher") or "unknown searcher")

    @property
    def has_seeds(self) -> bool:
        """Whether its cases were made from seeds that they can be compared with."""
        return bool(self.table["pixel_l2"].notna().any())

    def numbers(self, column: str, *, failures: bool | None = None) -> np.ndarray:
        """Finite values of a column over all cases, only failures, or only the others, float [M]."""
        rows = self.cases if failures is None else self.cases[self.cases["failed"].astype(bool) == failures]
        values = rows[column].to_numpy("float64", na_value=np.nan)
        return values[np.isfinite(values)]


def open_entries(paths: Sequence[str | Path]) -> list[Entry]:
    """Opens suites to stand side by side; the first that sampled at random is the baseline of the others.

    Raises:
        InputError: A suite is missing or given twice, or they do not have the same classes.
    """
    folders = [Path(path) for path in paths]
    for i, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:i]]:
            raise InputError(f"the suite {folder} is given twice")
    suites = [load_suite(folder) for folder in folders]
    random = [suite.manifest.get("searcher") == BASELINE for suite in suites]
    baseline = random.index(True) if any(random) and len(suites) > 1 else None
    names = short_names(folders)
    entries = []
    for i, suite in enumerate(suites):
        shade = i - (baseline is not None and i > baseline)
        entries.append(Entry(names[i], suite, i, i == baseline, shade))
    _check_same_classes(entries)
    return entries


def _check_same_classes(entries: list[Entry]) -> None:
    first = entries[0]
    for other in entries[1:]:
        here, there = first.manifest["num_classes"], other.manifest["num_classes"]
        if here != there:
            raise InputError(
                f"suites side by side need the same classes: {first.suite.path} has {here}, {other.suite.path} {there}"
            )
    known = [entry for entry in entries if entry.class_names]
    for other in known[1:]:
        if other.class_names != known[0].class_names:
            raise InputError(
                f"suites side by side need the same classes: those of {known[0].suite.path} and {other.suite.path} "
                f"have other names"
            )


def short_names(folders: list[Path]) -> list[str]:
    """The last parts of the paths, as many as are needed to tell them apart.

    Example:
        >>> short_names([Path("runs/a/pgd"), Path("runs/b/pgd")]), short_names([Path("runs/a/pgd")])
        (['a/pgd', 'b/pgd'], ['pgd'])
    """
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            break
    return names


def class_titles(entries: list[Entry]) -> list[str]:
    """What to call each class: number and name, or the number where that is all there is.

    A name that is the number itself, as for digits, is not said twice.
    """
    names = next((entry.class_names for entry in entries if entry.class_names), None)
    count = entries[0].manifest["num_classes"]
    if names is None:
        return [str(k) for k in range(count)]
    return [name if name == str(k) else f"{k} {name}" for k, name in enumerate(names)]


def class_names(entries: list[Entry]) -> list[str]:
    """The shortest that tells the classes apart: names alone where no two are the same."""
    names = next((entry.class_names for entry in entries if entry.class_names), None)
    return names if names and len(set(names)) == len(names) else class_titles(entries)
