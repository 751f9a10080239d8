"""What a report says, as plain data for its template: sentences, tables of numbers with their units, settings."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lsgen.report.compare import Ratio, below, compare_all, compare_classes, interval, mark, times_as_often
from lsgen.report.entry import Entry, class_titles

NOTHING = "–"
CONFUSIONS = 8  # pairs of classes that are shown with examples
EXAMPLES = 6  # pictures of each


def percent(value: float | None) -> str:
    """A share with its sign; small ones keep two more digits.

    Example:
        >>> percent(0.205), percent(0.0012), percent(0), percent(1), percent(None)
        ('20.5%', '0.12%', '0%', '100%', '–')
        >>> percent(0.00001), percent(0.99999)
        ('<0.01%', '>99.9%')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value in (0, 1):
        return f"{value:.0%}"
    if 0 < value < 0.0001 or 0.999 < value < 1:
        return "<0.01%" if value < 0.5 else ">99.9%"
    return f"{value:.2%}" if abs(value) < 0.01 else f"{value:.1%}"


def number(value: float | None, unit: str = "") -> str:
    """A number of three digits with its unit, in the singular where it is one.

    Example:
        >>> number(1234.5, "queries"), number(1, "queries"), number(1, "classes"), number(0.8), number(None, "s")
        ('1,234 queries', '1 query', '1 class', '0.800', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:#.3g}"
    if text == "1" and len(unit) > 1:
        unit = re.sub("(?<=ss)es$|(?<!/)s$", "", re.sub("ies$", "y", unit))
    return f"{text} {unit}".strip()


class Metric(NamedTuple):
    """One row of the table of numbers."""

    title: str
    note: str  # what it means
    show: Callable[[Entry], str]


def _mean(key: str, unit: str = "", share: bool = False) -> Callable[[Entry], str]:
    return lambda entry: percent(entry.summary.get(key)) if share else number(entry.summary.get(key), unit)


def _share_of_failures(column: str) -> Callable[[Entry], str]:
    def show(entry: Entry) -> str:
        values = entry.failures[column].dropna()
        return percent(float(values.astype(float).mean())) if len(values) else NOTHING

    return show


def _rate(entry: Entry) -> str:
    low, high = interval(**entry.independent())
    if not entry.summary["n_cases"]:
        return NOTHING
    return f"{percent(entry.summary['failure_rate'])} ({percent(low)} to {percent(high)})"


METRICS = (
    Metric("Failure rate, FR", "share of cases that the SUT gets wrong, with its 95% interval", _rate),
    Metric("Failures", "predicted class is not the true one", lambda e: number(e.summary["failed"], "failures")),
    Metric("Cases", "viable ones, the denominator of all rates", lambda e: number(e.summary["n_cases"], "cases")),
    Metric("Success rate, SR", "share of seeds with at least one failure", _mean("success_rate", share=True)),
    Metric(
        "Confident failures",
        "share of cases whose answer leads the true class by more than half",
        _mean("confident_failure_rate", share=True),
    ),
    Metric("Mean P_t", "probability of the true class, mean over cases", _mean("mean_p_true", share=True)),
    Metric(
        "Label diversity, LD",
        "different wrong answers for each failing seed or class",
        _mean("label_diversity", "classes"),
    ),
    Metric("Confused pairs", "different pairs true class → answer among failures", _mean("distinct_pairs", "pairs")),
    Metric("Boundary gap, U", "difference of the two largest probabilities, mean", _mean("boundary_gap", share=True)),
    Metric("Robustness, r", "accuracy on seeds minus accuracy on cases", _mean("robustness", share=True)),
    Metric("SSIM", "likeness to the seed or the image it was encoded from, mean; 1 is the same image", _mean("ssim")),
    Metric("MSE", "squared difference of pixels (range 0–1) from that image, mean", _mean("mse", "intensity²")),
    Metric("Pixel change, L2", "from the seed (pixels in 0–1), mean", _mean("pixel_l2", "intensity")),
    Metric("Pixel change, L∞", "largest change of one pixel, mean", _mean("pixel_linf", share=True)),
    Metric("Steps", "to the first success; a seed without one counts the budget", _mean("iterations_mean", "steps")),
    Metric("Queries for a failure", "SUT forward passes divided by failures", _mean("queries_per_failure", "queries")),
    Metric("Time for a failure", "search time divided by failures", _mean("seconds_per_failure", "s")),
    Metric("Search time", "added up over blocks", _mean("seconds", "s")),
    Metric("Speed", "SUT forward passes", _mean("queries_per_second", "queries/s")),
    Metric("Seed viability", "share of seeds that the SUT reads rightly", _mean("seed_viability", share=True)),
    Metric(
        "Effectiveness", "share of cases that fail, are valid and keep their label", _mean("effectiveness", share=True)
    ),
    Metric("Valid", "share of failures that an oracle calls valid", _share_of_failures("valid")),
    Metric("Label preserved", "share of failures that keep their label", _share_of_failures("preserved")),
    Metric("Retired", "seeds given up because a value was no number", _mean("retired", "seeds")),
)


def metric_rows(entries: list[Entry]) -> list[dict[str, Any]]:
    """Every metric of every suite; those that no suite has are left out."""
    rows = [{"title": m.title, "note": m.note, "values": [m.show(e) for e in entries]} for m in METRICS]
    return [row for row in rows if any(value not in (NOTHING, "0 seeds") for value in row["values"])]


# --- headline --------------------------------------------------------------------------------------------------------


def lead(entries: list[Entry]) -> Entry:
    """The suite with the highest failure rate, of those that have cases and are not the baseline, if any."""
    searched = [entry for entry in entries if entry.summary["n_cases"]] or entries
    candidates = [entry for entry in searched if not entry.baseline] or searched
    return max(candidates, key=lambda entry: entry.summary["failure_rate"] or 0.0)


def headline(entries: list[Entry]) -> tuple[str, str]:
    """The most important result in one sentence, and what stands behind it."""
    best = lead(entries)
    s = best.summary
    if not s["n_cases"]:
        return "No cases yet", f"{best.name} has no finished case: there is nothing to report so far."
    cases = number(s["n_cases"], "cases")
    known = _accuracy(best.manifest.get("preflight") or {})
    clean = f" The classifier {known}." if known else ""
    if not s["failed"]:
        high = below(best.independent()["n_cases"])
        return (
            f"No failures in {cases}",
            f"With 95% confidence, the true failure rate of {best.name} is below {percent(high)}.{clean}",
        )
    title = f"The classifier fails on {percent(s['failure_rate'])} of {cases}"
    detail = (
        f"{best.name} ({best.searcher}) found {number(s['failed'], 'failures')} in {number(s.get('seconds'), 's')}."
    )
    baseline = next((entry for entry in entries if entry.baseline), None)
    if baseline is not None and (said := against_baseline(best, baseline)):
        detail += f" {said}"
    return title, detail + clean


def unjudged(entries: list[Entry]) -> str:
    """A sentence where no oracle has said whether the failures of the leading suite still show their class."""
    failures = lead(entries).failures
    if not len(failures) or failures["valid"].notna().any():
        return ""
    return "No oracle has judged whether these still show their true class: look before you count on them."


def against_baseline(best: Entry, baseline: Entry) -> str:
    """How the best suite compares with random sampling, in a sentence; empty where it cannot be said."""
    if best is baseline or not best.comparable(baseline):
        return ""
    ratio, s = times_as_often(best.independent(), baseline.independent()), baseline.summary
    if ratio is None:
        return ""
    if ratio.at_least:
        none = f"Random sampling found none in {number(s['n_cases'], 'cases')}"
        sure = f"(95% confidence: below {percent(ratio.rate)})"
        return f"{none} {sure}, so that this is at least {number(ratio.times)} times as often."
    return (
        f"That is {number(ratio.times)} times as often as random sampling ({s['failed']:,} in {s['n_cases']:,} cases; "
        f"95% interval {number(ratio.low)} to {number(ratio.high)} times)."
    )


def subject(entries: list[Entry]) -> str:
    """What the page is about, in a few words: data, SUT and generator, as far as all suites share them."""
    parts = []
    for key, inner in (("data", "name"), ("sut", "class"), ("generator", "class")):
        values = {str((entry.manifest.get(key) or {}).get(inner) or "") for entry in entries}
        parts += [value for value in values if len(values) == 1 and value]
    return " · ".join(parts)


def constant_queries(entries: list[Entry]) -> list[str]:
    """Sentences about suites whose cases all cost the same, which no figure has to show."""
    said = []
    for entry in entries:
        values = np.unique(entry.numbers("queries"))
        if len(values) == 1:
            said.append(f"Every case of {entry.name} took {number(float(values[0]), 'SUT queries')}.")
    return said


def scoreboard(entries: list[Entry]) -> dict[str, Any]:
    """Failure rates as bars on one scale, with intervals, ratios to the baseline and marks."""
    reference = reference_of(entries)
    tests = {(p.first.number, p.second.number): p.p for p in compare_all(entries)}
    rows = [_score(entry, reference, tests) for entry in entries]
    scale = next(top for top in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1) if top >= max(row["high"] for row in rows))
    return {"rows": rows, "scale": scale, "reference": reference, "baseline": reference.baseline}


def _score(entry: Entry, reference: Entry, tests: dict[tuple[int, int], float | None]) -> dict[str, Any]:
    s = entry.summary
    low, high = interval(**entry.independent()) if s["n_cases"] else (0.0, 0.0)
    fair = reference.baseline and entry is not reference and entry.comparable(reference)
    ratio = times_as_often(entry.independent(), reference.independent()) if fair and s["failed"] else None
    first, second = sorted((entry.number, reference.number))
    return {
        "entry": entry,
        "rate": s["failure_rate"] or 0.0,
        "low": low,
        "high": high,
        "text": percent(s["failure_rate"]),
        "times": "" if ratio is None else _times(ratio),
        "mark": mark(tests.get((first, second))),
    }


def _times(ratio: Ratio) -> str:
    if ratio.at_least:
        return f"≥ {number(ratio.times)}× as often"
    return f"{number(ratio.times)}× as often ({number(ratio.low)} to {number(ratio.high)})"


def reference_of(entries: list[Entry]) -> Entry:
    """What the others are compared with: the baseline where there is one, else the first suite."""
    return next((entry for entry in entries if entry.baseline), entries[0])


def pair_tests(entries: list[Entry]) -> list[dict[str, Any]]:
    """Every pair of suites with its corrected p."""
    found = []
    for pair in compare_all(entries):
        rates = [percent(entry.summary["failure_rate"]) for entry in (pair.first, pair.second)]
        p = NOTHING if pair.p is None else "p < 0.001" if pair.p < 0.001 else f"p = {pair.p:.3f}"
        found.append({"first": pair.first.name, "second": pair.second.name, "rates": rates, "p": p, "mark": pair.mark})
    return found


def notices(entries: list[Entry]) -> list[str]:
    """What a reader must know before the numbers: parts that are missing or no numbers."""
    said, reference = [], reference_of(entries)
    for entry in entries:
        m = entry.manifest
        if not entry.suite.finished:
            why = f" It was stopped by its budget ({m['stopped_by']})." if m.get("stopped_by") else ""
            blocks = f"{len(entry.suite.blocks):,} of {m['blocks']:,} blocks"
            said.append(f"{entry.name} is unfinished: {blocks} are there, and this report shows only those.{why}")
        elif not len(entry.table):
            said.append(f"{entry.name} has no cases.")
        if entry.suite.doubt:
            said.append(f"{entry.name}: {entry.suite.doubt}.")
        if reference.baseline and not entry.comparable(reference):
            said.append(
                f"{entry.name} was made with another classifier, generator or data set than {reference.name}: it is "
                f"not said how many times as often it fails."
            )
        values = entry.table[["p_true", "seed_p_true", "boundary_gap"]].to_numpy("float64", na_value=np.nan)
        broken = int((~np.isfinite(values)).any(axis=1).sum())
        if broken:
            said.append(
                f"{entry.name}: {number(broken, 'cases')} with values that are no finite number, left out of figures."
            )
    return said


# --- classes and confusions ------------------------------------------------------------------------------------------


def class_rows(entries: list[Entry]) -> list[dict[str, Any]]:
    """One row a class, one cell a suite; marks tell a difference from the reference."""
    titles, reference = class_titles(entries), reference_of(entries)
    tests = compare_classes(reference, [entry for entry in entries if entry is not reference])
    rows = []
    for k, title in enumerate(titles):
        cells = [_class_cell(entry, k, mark(tests.get((entry.number, str(k))))) for entry in entries]
        if any(cell["n"] for cell in cells):
            rows.append({"number": k, "title": title, "cells": cells, **_answers(entries, k, titles)})
    return rows


def _class_cell(entry: Entry, k: int, stars: str) -> dict[str, Any]:
    s = entry.summary["per_class"].get(str(k)) or {"n_cases": 0, "failed": 0}
    return {
        "n": s["n_cases"],
        "failed": s["failed"],
        "rate": s["failed"] / s["n_cases"] if s["n_cases"] else None,
        "mark": stars,
        "mean_p_true": s.get("mean_p_true"),
        "steps": s.get("iterations_mean"),
        "ssim": s.get("ssim"),
    }


def _answers(entries: list[Entry], k: int, titles: list[str]) -> dict[str, Any]:
    """What the failures of a class are read as most often."""
    wrong = [e.failures.loc[e.failures["label"] == k, "predicted"].to_numpy("int64") for e in entries]
    counts = np.bincount(np.concatenate(wrong), minlength=1)
    often = int(counts.argmax())
    return {"often": titles[often] if counts[often] else NOTHING, "often_count": int(counts[often])}


def confusions(entries: list[Entry], places: list[dict[int, int]]) -> list[dict[str, Any]]:
    """The pairs of classes behind most failures, with examples.

    Args:
        entries: The suites.
        places: For each suite, where a case id stands in its gallery.
    """
    groups: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for entry in entries:
        columns = (entry.failures[name].tolist() for name in ("label", "predicted", "p_true", "id"))
        for label, predicted, p_true, case in zip(*columns, strict=True):
            groups.setdefault((label, predicted), []).append((p_true, entry.number, case))
    titles, rows = class_titles(entries), []
    for (label, predicted), group in sorted(groups.items(), key=lambda item: -len(item[1]))[:CONFUSIONS]:
        surest = sorted(group, key=lambda item: math.inf if math.isnan(item[0]) else item[0])
        shown = [(suite, places[suite][case]) for _, suite, case in surest if case in places[suite]]
        counts = [sum(suite == entry.number for _, suite, _ in group) for entry in entries]
        names = {"from": titles[label], "to": titles[predicted], "label": label, "predicted": predicted}
        rows.append({**names, "counts": counts, "examples": shown[:EXAMPLES]})
    return rows


# --- what was tested -------------------------------------------------------------------------------------------------


def settings_rows(entries: list[Entry]) -> list[dict[str, Any]]:
    """SUT, generator, data, method, budget, hashes: title and one list of lines for each suite."""
    rows = []
    for title, show in SETTINGS:
        values = [[line for line in show(entry) if line] for entry in entries]
        if any(values):
            same = all(value == values[0] for value in values)
            rows.append({"title": title, "values": values[:1] if same else values, "same": same})
    return rows


def component(node: Any) -> tuple[str, str]:
    """Class and settings of a part of a configuration, in words.

    Example:
        >>> component({"class_path": "lsgen.search.LatentPGD", "init_args": {"steps": 20, "radius": 0.5}})
        ('LatentPGD', 'steps 20, radius 0.5')
    """
    if not isinstance(node, dict):
        return ("", "") if node is None else (str(node), "")
    name = str(node.get("class_path") or node.get("class") or "").rsplit(".", 1)[-1]
    args = node.get("init_args") or node.get("args") or {}
    given = {key: value for key, value in args.items() if value is not None} if isinstance(args, dict) else {}
    return name, ", ".join(f"{key} {_plain(value)}" for key, value in given.items())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        name, args = component(value)
        return f"{name}({args})" if name else ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    return str(value)


def _model(entry: Entry) -> dict[str, Any]:
    """The search task's settings, as the command line or a Python program left them."""
    model = entry.config.get("model") or {}
    inner = model.get("init_args") if isinstance(model, dict) and "class_path" in model else model
    return inner if isinstance(inner, dict) else {}


def _part(name: str) -> Callable[[Entry], list[str]]:
    return lambda entry: list(component(_model(entry).get(name)))


def _network(name: str, quality: Callable[[dict[str, Any]], str]) -> Callable[[Entry], list[str]]:
    def show(entry: Entry) -> list[str]:
        known = entry.manifest.get(name) or {}
        of_config, args = component(_model(entry).get(name))
        weights = f"SHA-256 of the weights {known['sha256']}" if known.get("sha256") else ""
        return [str(known.get("class") or of_config), args, quality(entry.manifest.get("preflight") or {}), weights]

    return show


def _accuracy(look: dict[str, Any]) -> str:
    """How good the SUT is on test images, as it was seen before the search; suites of older versions do not know."""
    return f"reads {percent(look['accuracy'])} of {look['test_images']:,} test images rightly" if look else ""


def _readable(look: dict[str, Any]) -> str:
    """How much of what the generator makes unperturbed the SUT reads as it was meant."""
    known = look.get("readable") is not None
    return f"{percent(look['readable'])} of its {look['readable_of']} are read as intended by the SUT" if known else ""


def _data(entry: Entry) -> list[str]:
    known = entry.manifest.get("data") or {}
    classes = f"{entry.manifest['num_classes']:,} classes"
    mark_ = f"fingerprint {known['fingerprint']}" if known.get("fingerprint") else ""
    return [str(known.get("name") or "unknown data"), classes, mark_]


def _budget(entry: Entry) -> list[str]:
    s, cases = entry.summary, len(entry.table)
    limits = {key: _model(entry).get(key) for key in ("max_queries", "max_seconds", "max_failures")}
    each = f", {number(s['queries'] / cases)} for each case" if cases else ""
    return [
        f"{s['queries']:,} forward and {s['backward_queries']:,} backward passes of the SUT{each}",
        f"{number(s.get('seconds'), 's')} of search",
        *(f"{key} {value}" for key, value in limits.items() if value is not None),
    ]


def _run(entry: Entry) -> list[str]:
    m = entry.manifest
    state = "finished" if entry.suite.finished else f"unfinished, {len(entry.suite.blocks)} of {m['blocks']} blocks"
    batch = f"batches of {m['eval_batch_size']} images" if m.get("eval_batch_size") else ""
    seed = f"random seed {m['seed']}" if m.get("seed") is not None else ""
    return [str(entry.suite.path), state, seed, batch, f"identity {m['identity']}"]


def _versions(entry: Entry) -> list[str]:
    return [", ".join(f"{name} {version}" for name, version in (entry.manifest.get("versions") or {}).items())]


SETTINGS: tuple[tuple[str, Callable[[Entry], list[str]]], ...] = (
    ("Classifier under test (SUT)", _network("sut", _accuracy)),
    ("Generator", _network("generator", _readable)),
    ("Data", _data),
    ("Method", lambda entry: [entry.searcher, component(_model(entry).get("searcher"))[1]]),
    ("Seeds", _part("seeds")),
    ("Objective", _part("objective")),
    ("Criterion", _part("criterion")),
    ("Budget", _budget),
    ("Suite", _run),
    ("Versions", _versions),
)


def commands(entry: Entry) -> dict[str, str | None]:
    """What to type to get a case out of the suite (the page adds its number), and to make the suite anew.

    The latter is None for a suite that a Python program made: no command knows that program.
    """
    path, model = entry.suite.path, entry.config.get("model")
    path = path if path.name not in ("", "..") else path.resolve()
    again = None
    if isinstance(model, dict) and "class_path" in model:
        config, out = shlex.quote(str(path / "config.yaml")), shlex.quote(str(path.parent / f"{path.name}-again"))
        size = entry.manifest.get("eval_batch_size")  # where it was chosen by itself, it could be another next time
        batch = f" --model.eval_batch_size {size}" if size else ""
        again = f"lsgen search --config {config}{batch} --out {out}"
    return {"export": f"lsgen export {shlex.quote(str(path))}", "suite": again}
