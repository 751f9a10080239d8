"""Failure regions that ``lsgen cluster`` left in a suite."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lsgen.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Regions:
    """What ``clusters/`` of a suite holds.

    Attributes:
        clusters: One entry a region: ``scope``, ``label``, ``number``, ``size``, ``persistence``, ``medoid_id``,
            ``sentence``.
        settings: How they were found, such as ``threshold`` (P_t below which a case is challenging).
        notes: What else a reader should know.
        challenging: Cases that were grouped.
        noise: Those of them in no region.
        cases: One row a challenging case: ``id``, ``cluster``, ``class_cluster``, ``x``, ``y``.
        centroids: Decoded centres, uint8 [C, c, h, w] in the order of ``clusters``; None where they are missing.
    """

    clusters: list[dict[str, Any]]
    settings: dict[str, Any]
    notes: list[str]
    challenging: int
    noise: int
    cases: pd.DataFrame
    centroids: np.ndarray | None

    @property
    def axes(self) -> tuple[str, str]:
        """What the two directions of the map are."""
        names = (self.settings.get("projection") or {}).get("axes") or ("first direction", "second direction")
        return str(names[0]), str(names[1])

    def members(self, cluster: dict[str, Any]) -> np.ndarray:
        """Ids of the cases in a region, int64 [M]."""
        if cluster["scope"] == "all":
            inside = self.cases["cluster"] == cluster["number"]
        else:
            inside = (self.cases["class_cluster"] == cluster["number"]) & (self.cases["label"] == cluster["label"])
        return self.cases.loc[inside, "id"].to_numpy("int64")


def read_regions(suite: Path) -> Regions | None:
    """The regions of a suite; None where it was not clustered.

    Raises:
        InputError: There are some, and they cannot be read.
    """
    folder = suite / "clusters"
    if not (folder / "clusters.json").is_file():
        return None
    import pandas as pd
    import pyarrow as pa

    try:
        content = json.loads((folder / "clusters.json").read_text(encoding="utf-8"))
        if content["format_version"] != FORMAT_VERSION:
            raise InputError(
                f"{folder} holds regions of format {content['format_version']}, this lsgen reads format "
                f"{FORMAT_VERSION}: run `lsgen cluster {suite}` again"
            )
        return Regions(
            clusters=content["clusters"],
            settings=content.get("settings", {}),
            notes=content.get("notes", []),
            challenging=content["challenging"],
            noise=content["noise"],
            cases=pd.read_parquet(folder / "cases.parquet"),
            centroids=_centroids(folder / "centroids.safetensors", len(content["clusters"])),
        )
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, pa.ArrowInvalid) as error:
        raise InputError(
            f"the regions in {folder} cannot be read ({error}): run `lsgen cluster {suite}` again"
        ) from error


def _centroids(file: Path, count: int) -> np.ndarray | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not file.is_file():
        return None
    try:
        image = load_file(file)["image"]
    except SafetensorError as error:
        raise InputError(f"{file} cannot be read ({error})") from error
    return image if len(image) == count else None
