"""The numbers of a suite, computed from its table of cases and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch

from lsgen.metrics import functional as F

MEANS = {
    "mean_p_true": "p_true",
    "mse": "mse",
    "ssim": "ssim",
    "boundary_gap": "boundary_gap",
    "iterations_mean": "iterations",
}


def summarise(table: pd.DataFrame, num_classes: int, seconds: float) -> dict[str, Any]:
    """All metrics of a suite, overall and per class; undefined ones are None.

    Args:
        table: One row a case, the columns of a suite.
        num_classes: K.
        seconds: Time spent searching, added up over blocks.
    """
    overall = _rates(table)
    cases = table[table["viable"]]
    predicted, label = (torch.tensor(cases[c].to_numpy("int64")) for c in ("predicted", "label"))
    target = torch.tensor(cases["target"].to_numpy("int64")) if cases["target"].notna().all() and len(cases) else None
    escapes = F.escape_rate(predicted, label, num_classes, target)
    overall["escape_rate"] = [[_plain(x) for x in row] for row in escapes.tolist()]
    overall |= {
        "seconds": round(seconds, 3),
        "queries_per_second": round(overall["queries"] / seconds, 1) if seconds > 0 else None,
    }
    overall["per_class"] = {str(k): _rates(group) for k, group in table.groupby("label")}
    return overall


def _rates(table: pd.DataFrame) -> dict[str, Any]:
    """The metrics that make sense for any set of cases."""
    cases = table[table["viable"]]
    predicted, label, seed = (torch.tensor(cases[c].to_numpy("int64")) for c in ("predicted", "label", "seed_id"))
    failed = torch.tensor(cases["failed"].to_numpy(bool))
    one_case_a_seed = not cases["seed_id"].duplicated().any()
    rate = _plain(F.failure_rate(predicted, label))
    seeds = table.drop_duplicates("seed_id")
    return {
        "n_cases": len(cases),
        "failed": int(failed.sum()),
        "failure_rate": rate,
        "error_rate": rate,
        "success": int(cases["success"].sum()),
        "success_rate": _plain(F.success_rate(failed, seed)),
        "label_diversity": _plain(F.label_diversity(predicted, label, label if one_case_a_seed else seed)),
        "seed_viability": _plain((seeds["seed_predicted"] == seeds["label"]).mean()),
        "queries": int(table["queries"].sum()),
        "backward_queries": int(table["backward_queries"].sum()),
        "retired": int(table["retired"].sum()),
        **{key: _plain(cases[column].astype("float64").mean()) for key, column in MEANS.items()},
    }


def _plain(value: Any) -> float | None:
    """A float that JSON can hold; None for NaN and missing values."""
    number = math.nan if value is None or value is pd.NA else float(value)
    return None if math.isnan(number) else number
