"""The numbers of a suite, computed from its table of cases and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lsgen.metrics import functional as F

MEANS = {
    "mean_p_true": "p_true",
    "mse": "mse",
    "ssim": "ssim",
    "pixel_l2": "pixel_l2",
    "pixel_linf": "pixel_linf",
    "boundary_gap": "boundary_gap",
    "iterations_mean": "iterations",
}
COUNTS = {  # what a summary has beside metrics, and what it means
    "n_cases": "viable cases, the denominator of all rates. MarginGA, BoundaryGA, Differential and "
    "ActivationPerturbation leave out seeds that the SUT reads wrongly or that satisfy the criterion as they are; "
    "other searchers leave out only those without a finite answer, so that a seed read wrongly from the start is a "
    "failure",
    "failed": "cases that the SUT predicts as another class than their label",
    "success": "cases that satisfy the searcher's own criterion",
    "retired": "seeds given up because a fitness or a logit was no number",
    "queries": "SUT forward passes, images",
    "backward_queries": "SUT backward passes, images",
    "seconds": "time spent searching, added up over blocks",
    "queries_per_second": "queries ÷ seconds",
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
    target = _integers(cases, "target") if len(cases) and cases["target"].notna().all() else None
    escapes = F.escape_rate(_integers(cases, "predicted"), _integers(cases, "label"), num_classes, target)
    overall["escape_rate"] = [[_plain(x) for x in row] for row in escapes.tolist()]
    overall |= {
        "seconds": round(seconds, 3),
        "queries_per_second": round(overall["queries"] / seconds, 1) if seconds > 0 else None,
        "seconds_per_failure": _plain(F.cost_per_failure(torch.tensor(seconds), _booleans(cases, "failed"))),
    }
    overall["per_class"] = {str(k): _rates(group) for k, group in table.groupby("label")}
    return overall


def _rates(table: pd.DataFrame) -> dict[str, Any]:
    """The metrics that make sense for any set of cases."""
    cases = table[table["viable"]]
    predicted, label, seed, at_first = (
        _integers(cases, name) for name in ("predicted", "label", "seed_id", "seed_predicted")
    )
    failed = _booleans(cases, "failed")
    one_case_a_seed = not cases["seed_id"].duplicated().any()
    rate = _plain(F.failure_rate(predicted, label))
    answered = table.assign(seed_predicted=table["seed_predicted"].where(table["seed_p_true"].notna(), -1))
    viability = F.seed_viability(*(_integers(answered, name) for name in ("seed_predicted", "label", "seed_id")))
    return {
        "n_cases": len(cases),
        "failed": int(failed.sum()),
        "failure_rate": rate,
        "error_rate": rate,
        "confident_failure_rate": _confident(cases),
        "success": int(cases["success"].sum()),
        "success_rate": _plain(F.success_rate(failed, seed)),
        "misclassification_rate": _plain(F.misclassification_rate(predicted, at_first, label, seed)),
        "label_diversity": _plain(F.label_diversity(predicted, label, label if one_case_a_seed else seed)),
        "distinct_pairs": int(F.distinct_pairs(predicted, label)),
        "robustness": _plain(F.robustness(at_first, predicted, label)),
        "effectiveness": _effective(cases),
        "seed_viability": _plain(viability),
        "queries": int(table["queries"].sum()),
        "backward_queries": int(table["backward_queries"].sum()),
        "queries_per_failure": _plain(F.cost_per_failure(_integers(table, "queries"), failed)),
        "retired": int(table["retired"].sum()),
        **{key: _plain(cases[column].astype("float64").mean()) for key, column in MEANS.items()},
    }


def _confident(cases: pd.DataFrame) -> float | None:
    """Share of failures by more than the usual margin; unknown where the likeliest class's probability is."""
    if "p_predicted" not in cases or cases["p_predicted"].isna().any():
        return None
    return _plain((cases["p_predicted"] - cases["p_true"] > F.CONFIDENT).mean())


def _effective(cases: pd.DataFrame) -> float | None:
    """Share that fails, is valid and shows its label; unknown where an oracle has not looked at all that matters."""
    if cases["valid"].isna().all():
        return None
    columns = [_booleans(cases, "failed")]
    for name in ("valid", "preserved"):  # oracles may look only at what is still in the running
        asked = torch.stack(columns).all(dim=0)
        if bool((asked & torch.tensor(cases[name].isna().to_numpy(bool))).any()):
            return None
        columns.append(_booleans(cases, name))
    return _plain(F.effectiveness(*columns))


def _integers(table: pd.DataFrame, column: str) -> Tensor:
    return torch.tensor(table[column].to_numpy("int64"))


def _booleans(table: pd.DataFrame, column: str) -> Tensor:
    return torch.tensor(table[column].fillna(False).to_numpy(bool))


def _plain(value: Any) -> float | None:
    """A float that JSON can hold; None for NaN and missing values."""
    number = math.nan if value is None or value is pd.NA else float(value)
    return None if math.isnan(number) else number
