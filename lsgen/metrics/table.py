"""The table of all metrics in docs/metrics.md, made from the classes themselves."""

from __future__ import annotations

import inspect
import re

from lsgen import metrics
from lsgen.metrics.base import CaseMetric
from lsgen.metrics.summary import COUNTS

HEAD = """\
# Metrics

Made by `python scripts/metric_table.py` from the classes in `lsgen.metrics`; a test keeps it current.

`key` is the name in `summary.json` and in every logger. Rates are 0 to 1, and undefined values are null. *Better* is
meant for the tester: the direction in which a test says more (for MSE, SSIM and LPIPS: is closer to a real image).
Every number is taken on the stored 8-bit image. A summary has all but those marked †, which need more than the cases:
the features of the SUT (logged at the end of a search, of up to {look:,} failures), a second SUT, or a file of weights.
Classes and their functional twins in `lsgen.metrics.functional` take tensors; their docstrings give shapes and an
example. Sources: Speth (latent PGD with a CVAE), SINVAD, ARGUS, Dunn (GAN activations), ICST25 (benchmark).

| key | short | definition | range | better | source | class |
|---|---|---|---|---|---|---|
"""
OUTSIDE = ("feature_distance", "feature_coverage", "improved_accuracy", "detection_rate", "lpips")
LOOK = 500  # failures, and real images, whose features are compared at the end of a search


def all_metrics() -> list[type[CaseMetric]]:
    """Every metric class, in the order of the modules they are in."""
    found = [value for value in vars(metrics).values() if inspect.isclass(value) and issubclass(value, CaseMetric)]
    order = ["failure", "images", "diversity", "comparison"]
    return sorted(found, key=lambda m: (order.index(m.__module__.rsplit(".", 1)[1]), inspect.getsourcelines(m)[1]))


def markdown() -> str:
    """The whole page."""
    rows = [_row(metric) for metric in all_metrics()]
    details = [f"**`{m.key}`** {more}" for m in all_metrics() if (more := _paragraphs(m)[1])]
    counts = [f"| `{key}` | {meaning} |" for key, meaning in COUNTS.items()]
    parts = [HEAD.format(look=LOOK) + "\n".join(rows), "## Details", *details]
    parts += ["## Counts and times in a summary", "| key | meaning |\n|---|---|\n" + "\n".join(counts)]
    return "\n\n".join(parts) + "\n"


def _row(metric: type[CaseMetric]) -> str:
    better = {True: "higher", False: "lower", None: "–"}[metric.higher_is_better]
    mark = " †" if metric.key in OUTSIDE else ""
    cells = (f"`{metric.key}`{mark}", metric.symbol, _paragraphs(metric)[0], _range(metric), better, metric.source)
    return f"| {' | '.join(cells)} | `{metric.__name__}` |"


def _range(metric: type[CaseMetric]) -> str:
    """An interval, open where there is no limit."""
    low, high = metric.plot_lower_bound, metric.plot_upper_bound
    return f"{low:g} to {'∞' if high is None else f'{high:g}'}"


def _paragraphs(metric: type[CaseMetric]) -> tuple[str, str]:
    """The definition, and what is said beyond it, of a docstring; sections such as Args are left out."""
    text = re.split(r"\n(?:Args|Example|Raises):\n", inspect.getdoc(metric) or "")[0]
    first, *more = (" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
    return first.replace("``", "`"), " ".join(more).replace("``", "`")
