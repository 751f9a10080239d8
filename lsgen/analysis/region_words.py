"""What sets the failure regions of a suite apart, in numbers and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lsgen.analysis.regions import default_size, distances

if TYPE_CHECKING:
    from lsgen.analysis.clusters import Found
    from lsgen.suite import Suite

FORMAT_VERSION = 1
DIRECTIONS = 5  # latent coordinates told of each region
FAR = 0.8  # standard deviations from which Cohen calls a difference large
TOLD = 3  # differences that a sentence names


def describe(suite: Suite, found: Found) -> dict[str, Any]:
    """What ``clusters.json`` holds: settings, regions with their sentences, and the distances between them."""
    ids, seeds = (suite.table[name].to_numpy(int)[found.challenging.row] for name in ("id", "seed_id"))
    names = suite.class_names
    clusters = []
    for region in found.regions:
        text = _about(found, region.members, names)
        if region.chance is not None and region.chance > 0.05:
            text["sentence"] += f" Random seeds form groups as persistent (chance {region.chance:.2f})."
        size, own = len(region.members), len(np.unique(seeds[region.members]))
        if own < size:
            text["sentence"] += f" {size} cases of {own} seed{'s' if own > 1 else ''}."
        head = {"scope": region.scope, "label": region.label, "number": region.number, "size": size, "seeds": own}
        found_by = {"persistence": round(region.persistence, 4), "chance": region.chance}
        clusters.append({**head, **found_by, "medoid_id": int(ids[region.medoid]), **text})
    return {
        "format_version": FORMAT_VERSION,
        "settings": found.settings,
        "challenging": len(ids),
        "noise": int((found.cluster < 0).sum()),
        "notes": found.notes,
        "overall": _about(found, np.arange(len(ids)), names) if len(ids) else None,
        "clusters": clusters,
        "distances": distances(found.regions, found.challenging.latent),
    }


def _about(found: Found, members: np.ndarray, names: list[str] | None) -> dict[str, Any]:
    """What some challenging cases, rows [M], are, and what sets them apart from passing cases of their classes."""
    from lsgen.analysis.properties import shifts

    cases, passing = found.challenging, found.passing
    labels = cases.label[members]
    properties, words = _properties(found, members)
    shifted = shifts(cases.flat[members], labels, passing.flat, passing.label)
    directions = []
    if shifted is not None:
        directions = _directions(shifted[0], cases.latent.shape[1:])
        far = [d for d in directions if abs(d["difference"]) > max(FAR, shifted[1])]
        words += [f"latent {d['index']} {d['difference']:+.1f} sd" for d in far[:TOLD]]
    classes, read = _shares(labels), _shares(cases.predicted[members])
    who = f"{'Class' if len(classes) == 1 else 'Classes'} {_listed(classes, names)}, read as {_listed(read, names)}. "
    if not properties and shifted is None:
        what = "There are too few passing cases of these classes to compare with."
    elif not words:
        what = "Nothing measured sets them clearly apart from passing cases."
    else:
        what = f"Compared with passing cases: {', '.join(words)}."
    return {
        "sentence": who + what,
        "classes": classes,
        "predicted": read,
        "compared_with": int(np.isin(passing.label, labels).sum()),
        "properties": properties,
        "directions": directions,
    }


def _properties(found: Found, members: np.ndarray) -> tuple[list[dict[str, Any]], list[str]]:
    """Image properties of some challenging cases against passing ones, largest effect first, and words on the clear."""
    from lsgen.analysis.properties import PROPERTIES, compare

    cases, passing, told = found.challenging, found.passing, []
    for p in (p for p in PROPERTIES if p.name in cases.properties):
        own, usual = cases.properties[p.name][members], passing.properties[p.name]
        difference = compare(own, cases.label[members], usual, passing.label)
        if difference is not None:
            told.append((p, difference))
    told.sort(key=lambda pair: -abs(pair[1].effect))
    entries = [
        {
            "name": p.name,
            "delta": round(d.effect, 4),
            "chance": round(d.chance, 4),
            "cluster": round(d.group, 4),
            "passing": round(d.others, 4),
        }
        for p, d in told
    ]
    words = [
        f"{p.more if d.effect > 0 else p.less} ({d.group:.2g}{p.unit} against {d.others:.2g}, δ {d.effect:+.2f})"
        for p, d in told
        if d.clear
    ]
    return entries, words[:TOLD]


def _directions(differences: np.ndarray, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """The latent coordinates with the largest differences [D], in standard deviations of passing cases."""
    order = np.argsort(-np.abs(np.nan_to_num(differences)), kind="stable")[:DIRECTIONS]
    places = [[int(i) for i in np.unravel_index(flat, shape)] for flat in order]
    return [
        {"index": place[0] if len(place) == 1 else place, "difference": round(float(differences[flat]), 4)}
        for flat, place in zip(order, places, strict=True)
        if np.isfinite(differences[flat])
    ]


def _shares(labels: np.ndarray) -> dict[str, int]:
    """How many of each class, the most frequent first."""
    classes, counts = np.unique(labels, return_counts=True)
    return {str(classes[i]): int(counts[i]) for i in np.argsort(-counts, kind="stable")}


def _listed(counts: dict[str, int], names: list[str] | None) -> str:
    """Classes in words.

    Example:
        >>> _listed({"3": 6, "5": 3, "8": 1}, None), _listed({"1": 4}, ["no entry", "stop"])
        ('3 (60 %), 5 (30 %) and others', '1 “stop”')
    """
    total, shown = sum(counts.values()), list(counts.items())[:TOLD]
    shown = [(k, n) for k, n in shown if n >= 0.15 * total] or shown[:1]
    words = []
    for label, count in shown:
        name = f" “{names[int(label)]}”" if names and names[int(label)] != label else ""
        words.append(f"{label}{name}" + (f" ({count / total:.0%})".replace("%", " %") if count < total else ""))
    return ", ".join(words) + (" and others" if len(shown) < len(counts) else "")


def notes(suite: Suite, found: Found, min_cluster_size: int | None) -> list[str]:
    """Sentences on what is missing, and why."""
    labels, threshold = found.challenging.label, found.settings["threshold"]
    notes = []
    if not suite.finished:
        notes.append(f"the suite is unfinished: {len(suite.blocks)} of {suite.manifest['blocks']} blocks are there")
    if not len(labels):
        return [*notes, f"no challenging case: none gives its true class less than {threshold:g}"]
    if right := int((found.challenging.predicted == labels).sum()):
        notes.append(f"{right:,} of the {len(labels):,} challenging cases are read rightly all the same")
    smallest = found.settings["min_cluster_size"]
    if len(labels) < smallest:
        notes.append(f"{len(labels)} challenging cases are fewer than a region must have, {smallest}: all are noise")
    elif (found.cluster < 0).all():
        notes.append(
            "over all classes, all challenging cases are noise: no group of them is denser than its surroundings"
        )
    counts = {int(k): int((labels == k).sum()) for k in np.unique(suite.table["label"].to_numpy(int))}
    few = {k: n for k, n in counts.items() if 0 < n < (min_cluster_size or default_size(n))}
    if few:
        listed = ", ".join(f"{k} ({n})" for k, n in few.items())
        notes.append(f"classes with too few challenging cases for a region of their own: {listed}")
    if none := [str(k) for k, n in counts.items() if not n]:
        notes.append(f"classes without a challenging case: {', '.join(none)}")
    if not len(found.passing):
        notes.append("the suite has no passing case, so nothing says what sets a region apart")
    return notes
