"""The cases that a report shows one by one: their order, their columns and their thumbnails, for the browser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lsgen.report.content import commands
from lsgen.report.entry import Entry
from lsgen.report.sprites import Sprites, make_sprites

LIMIT = 20_000  # cases with pictures in one report
BUDGET = 22_000_000  # characters of all thumbnails, so that the page stays below 30 MB
FAILED, PASSED, NOT_VIABLE = 0, 1, 2


class Column(NamedTuple):
    """A column of a suite as people see it; ``kind`` is how the browser writes its values."""

    key: str
    title: str
    kind: str  # "number", "share", "class" or "yes"
    unit: str = ""


COLUMNS = (
    Column("id", "Case", "number"),
    Column("label", "True class", "class"),
    Column("predicted", "Read as", "class"),
    Column("p_true", "P_t, probability of the true class", "share"),
    Column("p_predicted", "Probability of the answer", "share"),
    Column("boundary_gap", "Boundary gap, U", "share"),
    Column("success", "Criterion of the search met", "yes"),
    Column("target", "Target class", "class"),
    Column("iterations", "Steps to the first success", "number", "steps"),
    Column("queries", "SUT queries", "number", "images"),
    Column("backward_queries", "SUT backward passes", "number", "images"),
    Column("ssim", "SSIM, likeness to the seed, or to the image it was encoded from", "number"),
    Column("mse", "MSE from that image", "number", "intensity²"),
    Column("pixel_l2", "Pixel change, L2", "number", "intensity"),
    Column("pixel_linf", "Largest pixel change, L∞", "share"),
    Column("latent_l1", "Latent change, L1", "number", "latent units"),
    Column("latent_l2", "Latent change, L2", "number", "latent units"),
    Column("latent_linf", "Latent change, L∞", "number", "latent units"),
    Column("seed_predicted", "Seed read as", "class"),
    Column("seed_p_true", "P_t of the seed", "share"),
    Column("seed_id", "Seed", "number"),
    Column("source_index", "Source image in the data", "number"),
    Column("other_index", "Mixed-in image in the data", "number"),
    Column("other_label", "Class mixed in", "class"),
    Column("valid", "Called valid", "yes"),
    Column("preserved", "Label preserved", "yes"),
    Column("retired", "Retired: a value was no number", "yes"),
)


@dataclass(frozen=True)
class Gallery:
    """A suite's cases in the order of the gallery.

    Attributes:
        entry: The suite.
        rows: Rows of its table, int [M]: failures first, the surest ones in front.
        sprites: Thumbnails in the same order; None where there is no case.
        columns: Values in the same order, by column; None where there is no finite number.
    """

    entry: Entry
    rows: np.ndarray
    sprites: Sprites | None
    columns: dict[str, list[Any]]

    @property
    def places(self) -> dict[int, int]:
        """Where each case id stands."""
        return {case: place for place, case in enumerate(self.columns["id"])}

    def data(self) -> dict[str, Any]:
        """What the page's script knows about the suite."""
        regions = self.entry.regions.clusters if self.entry.regions else []
        keys = ("scope", "label", "number")
        return {
            "name": self.entry.name,
            "columns": self.columns,
            "regions": [{key: region[key] for key in keys} for region in regions],
            "commands": commands(self.entry),
            "sprites": None if self.sprites is None else self._layout(self.sprites),
        }

    def _layout(self, sprites: Sprites) -> dict[str, Any]:
        how = sprites.encoding
        return {
            "width": how.width,
            "height": how.height,
            "exact": how.exact,
            "tiles": 2 if self.entry.has_seeds else 1,
            "columns": sprites.columns,
            "perSheet": sprites.per_sheet,
        }


def make_galleries(entries: list[Entry]) -> list[Gallery]:
    """One for each suite; together they keep to the limits of a report."""
    shares = fair_shares([len(entry.table) for entry in entries], LIMIT)
    chosen = [_order(entry)[:share] for entry, share in zip(entries, shares, strict=True)]
    tiles = [len(rows) * (2 if entry.has_seeds else 1) for rows, entry in zip(chosen, entries, strict=True)]
    galleries = []
    for entry, rows, count in zip(entries, chosen, tiles, strict=True):
        sprites = None
        if len(rows):
            names = ("seed_image", "image") if entry.has_seeds else ("image",)
            arrays = (entry.suite.take(name, rows) for name in names)
            sprites = make_sprites(arrays, BUDGET * count // sum(tiles))
        galleries.append(Gallery(entry, rows, sprites, _columns(entry, rows)))
    return galleries


def fair_shares(sizes: list[int], limit: int) -> list[int]:
    """How many of each may be shown: what small ones leave over goes to the large ones.

    Example:
        >>> fair_shares([50, 10, 70], 100)
        [45, 10, 45]
    """
    shares = [0] * len(sizes)
    for left, i in zip(range(len(sizes), 0, -1), np.argsort(sizes, kind="stable"), strict=True):
        shares[i] = min(sizes[i], limit // left)
        limit -= shares[i]
    return shares


def _outcome(entry: Entry) -> np.ndarray:
    """What became of each row, int [N]."""
    failed, viable = (entry.table[name].to_numpy(bool) for name in ("failed", "viable"))
    return np.where(~viable, NOT_VIABLE, np.where(failed, FAILED, PASSED))


def _order(entry: Entry) -> np.ndarray:
    """Rows as the gallery shows them at first: by outcome, then by P_t, which is no number at the end."""
    p_true = entry.table["p_true"].to_numpy("float64", na_value=np.nan)
    return np.lexsort((p_true, _outcome(entry)))


def _columns(entry: Entry, rows: np.ndarray) -> dict[str, list[Any]]:
    """Columns that hold something, plus outcome and regions."""
    table = entry.table.iloc[rows]
    found: dict[str, list[Any]] = {"outcome": _outcome(entry)[rows].tolist()}
    for column in COLUMNS:
        if column.key in table and (table[column.key].notna().any() or column.key == "id"):
            found[column.key] = _listed(table[column.key].to_numpy("float64", na_value=np.nan))
    if entry.regions:
        known = entry.regions.cases.set_index("id")
        for key in ("cluster", "class_cluster"):
            found[key] = known[key].reindex(table["id"].to_numpy("int64")).fillna(-1).astype(int).tolist()
    return found


def _listed(values: np.ndarray) -> list[Any]:
    """Numbers as short as JSON can have them: whole ones whole, others with four digits, None for no number."""
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> int | float | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.4g}")
