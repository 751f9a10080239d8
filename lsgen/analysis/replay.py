"""``lsgen replay``: a suite's stored images on other SUTs: what is fixed, what still fails, what newly fails."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lsgen.analysis.parts import read_config, task_settings
from lsgen.errors import InputError
from lsgen.suite import Suite, load_suite

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from lsgen.suts import SUT

STATES = ("fixed", "still failing", "newly failing", "still passing")
HELD = 2**28  # bytes of images, as floats, that are held at once
SHOWN = 15  # classes in the terminal; files have all
PREPROCESSING = ("model_args", "mean", "std", "input_size", "input_channels")  # of an ExternalSUT
NONE = -1  # predicted class where the logits are no numbers; also the region of a case that is in none


def main(args: list[str]) -> None:
    """Runs the command.

    Args:
        args: Command line after ``replay``.
    """
    options = _parser().parse_args(args)
    limit = options.max_failure_rate
    if limit is not None and not 0 <= limit <= 1:
        raise InputError(f"--max-failure-rate must lie between 0 and 1, got {limit}")
    if twice := [spec for spec in options.sut if options.sut.count(spec) > 1]:
        raise InputError(f"--sut {twice[0]} is given twice")
    suite = load_suite(options.suite)
    replays = [replay(suite, open_sut(spec, suite), spec) for spec in options.sut]
    show(suite, replays)
    if options.out:
        write(suite, replays, Path(options.out))
        print(f"written: {options.out}/{{replay.json, summary.csv, cases.csv}}")
    if options.junit:
        write_junit(suite, replays, Path(options.junit), limit or 0.0)
        print(f"written: {options.junit}")
    if limit is not None:
        _hold(replays, limit)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lsgen replay",
        description="Runs the stored 8-bit images of a suite's viable cases on other SUTs and says which failures are "
        "fixed, which stay and which are new, relative to what the suite recorded of the SUT it was searched on.",
        epilog="Exit status: 0 done, 1 a SUT fails more often than --max-failure-rate, 2 the input is wrong.",
    )
    parser.add_argument("suite", help="folder that `lsgen search` wrote, finished or not")
    parser.add_argument(
        "--sut",
        action="append",
        required=True,
        metavar="SUT",
        help="a checkpoint that `lsgen fit` left, or package.module:factory=weights or file.py:Class=weights: a torch "
        "module of your own and its state dict (.safetensors, .pt); its code is run. It takes images in [0, 1], or, if "
        "the suite was searched on an ExternalSUT, what that one's model_args, mean, std and input size make of them. "
        "May be given several times",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for replay.json, summary.csv and cases.csv")
    parser.add_argument(
        "--junit",
        metavar="FILE",
        help="JUnit XML with one test for each failure region of each class, and one for each class's cases that "
        "passed; a test fails when more than --max-failure-rate (default 0) of its cases do. Regions are those of "
        "`lsgen cluster`, or else the class that was wrongly read",
    )
    parser.add_argument(
        "--max-failure-rate",
        type=float,
        metavar="X",
        help="exit with status 1 if a SUT fails on more than this share (0 to 1) of the replayed viable cases",
    )
    return parser


def _hold(replays: list[Replay], limit: float) -> None:
    """Ends the process with status 1 where a SUT fails too often."""
    over = [r for r in replays if r.failure_rate > limit]
    for one in over:
        print(
            f"failure rate of {one.name}: {one.failure_rate:.2%} of {len(one.table):,} replayed viable cases, above "
            f"--max-failure-rate {limit:.2%}"
        )
    if over:
        raise SystemExit(1)
    print(f"no failure rate (share of the replayed viable cases) is above --max-failure-rate {limit:.2%}")


# --- the SUT -------------------------------------------------------------------------------------------------------


def open_sut(spec: str, suite: Suite) -> SUT:
    """The SUT that ``spec`` names, checked to fit the suite.

    Args:
        spec: A checkpoint of lsgen, or ``module=weights``: an import path or file with a class or function, and a
            state dict. The module's code is run.
        suite: Whose images it will be given.

    Raises:
        InputError: It is not there, cannot be built, or takes other images or classes.
    """
    from lsgen import suts

    model, equals, weights = spec.rpartition("=")
    if equals and not Path(spec).is_file():
        return _own_model(model, weights, suite)
    if not Path(spec).is_file():
        raise InputError(
            f"--sut: there is no file {spec}; give a checkpoint that `lsgen fit` left, or "
            f"file.py:Class=weights for a model of your own"
        )
    try:
        sut = suts.pretrained(spec)
    except InputError as error:
        raise InputError(f"--sut: {error}; a model of your own is given as file.py:Class={spec}") from error
    shape, classes = _images(suite), suite.manifest["num_classes"]
    if sut.image_shape != shape:
        raise InputError(f"--sut {spec} takes images of {sut.image_shape}, those of {suite.path} are {shape}")
    if sut.num_classes != classes:
        raise InputError(f"--sut {spec} has {sut.num_classes} classes, the suite {suite.path} has {classes}")
    return sut


def _own_model(model: str, weights: str, suite: Suite) -> SUT:
    """A torch module of the user's, with the preprocessing of the suite's SUT where that was such a module too."""
    from lsgen.suts import ExternalSUT

    place, _, name = model.rpartition(":")
    if place and not place.endswith(".py"):
        model = f"{place}.{name}"  # package.module:factory, as entry points are written
    return ExternalSUT(
        model=model,
        weights=weights,
        num_classes=suite.manifest["num_classes"],
        image_shape=_images(suite),
        differentiable=False,
        **_preprocessing(suite),
    )


def _preprocessing(suite: Suite) -> dict[str, Any]:
    """What the suite's SUT did to images before its module saw them, where it was an ExternalSUT."""
    sut = task_settings(suite).get("sut")
    if not isinstance(sut, dict) or not str(sut.get("class_path")).endswith(".ExternalSUT"):
        return {}
    return {k: v for k, v in sut.get("init_args", {}).items() if k in PREPROCESSING}


def _images(suite: Suite) -> tuple[int, int, int]:
    """Shape of the suite's images."""
    if not len(suite.table):
        raise InputError(f"the suite {suite.path} has no cases yet: finish its search first")
    return suite.image_shape


# --- running -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """What a SUT made of a suite's viable cases.

    Attributes:
        name: How the SUT was given.
        sha256: Hash of its weights.
        table: One row a case: ``id``, ``label``, ``recorded`` (the class that the suite's own SUT predicted),
            ``predicted`` (−1 where its logits are no numbers), ``p_true`` and ``state``, one of :data:`STATES`.
    """

    name: str
    sha256: str
    table: pd.DataFrame

    @cached_property
    def failing(self) -> np.ndarray:
        """Which cases the SUT fails on, bool [N]."""
        return (self.table["predicted"] != self.table["label"]).to_numpy(bool)

    @property
    def failure_rate(self) -> float:
        """Failing share of the replayed viable cases."""
        return float(self.failing.mean())


def replay(suite: Suite, sut: SUT, name: str) -> Replay:
    """Runs the stored images of the viable cases on ``sut``, in passes of the size that the search used.

    Args:
        suite: The cases, and what was recorded of them.
        sut: Any SUT for the suite's images and classes.
        name: What the SUT is called.

    Raises:
        InputError: The suite has no viable case.
    """
    import pandas as pd

    from lsgen.checkpoints import weights_sha256

    cases = suite.table
    viable = cases["viable"].to_numpy(bool)
    if not viable.any():
        raise InputError(f"the suite {suite.path} has no viable case to replay")
    label, recorded = (cases[c].to_numpy("int64")[viable] for c in ("label", "predicted"))
    sha256 = weights_sha256(sut)
    probability = _probabilities(suite, sut, np.flatnonzero(viable))
    broken = ~np.isfinite(probability).all(1)
    predicted = np.where(broken, NONE, np.nan_to_num(probability).argmax(1))
    now, before = predicted != label, recorded != label
    table = pd.DataFrame({"id": cases["id"].to_numpy("int64")[viable], "label": label, "recorded": recorded})
    table["predicted"] = predicted
    table["p_true"] = np.where(broken, np.nan, probability[np.arange(len(label)), label])
    table["state"] = np.select([before & ~now, before & now, ~before & now], STATES[:3], STATES[3])
    return Replay(name, sha256, table)


def _probabilities(suite: Suite, sut: SUT, rows: np.ndarray) -> np.ndarray:
    """Softmax over classes, [N, K], judged the way a search judges, layout of convolutions and batch shape included."""
    import torch

    from lsgen.generators import PixelSpace
    from lsgen.objectives import CrossEntropy, Misclassified
    from lsgen.search.evaluator import Evaluator, use_channels_last
    from lsgen.types import from_uint8

    device = "cuda" if torch.cuda.is_available() else "cpu"
    sut = sut.to(device).eval()
    if _channels_last(suite):
        use_channels_last(sut, lambda: sut.logits(torch.zeros(2, *sut.image_shape, device=device)))
    space = PixelSpace(image_shape=sut.image_shape, num_classes=sut.num_classes)
    chunk = suite.manifest.get("eval_batch_size") or 256
    evaluator = Evaluator(space, sut, CrossEntropy(), Misclassified(), chunk)
    parts, held = [], chunk * max(1, HELD // (4 * chunk * math.prod(sut.image_shape)))
    with torch.no_grad():
        for start in range(0, len(rows), held):
            pixels = from_uint8(torch.from_numpy(suite.take("image", rows[start : start + held])).to(device))
            label = torch.zeros(len(pixels), dtype=torch.long, device=device)  # pixels have none
            parts.append(evaluator.look(pixels, label)[1].softmax(1).cpu())
    return torch.cat(parts).numpy()


def _channels_last(suite: Suite) -> bool:
    """Whether the search laid convolutions out for speed; those that do not say so came before that was possible."""
    settings = task_settings(suite)
    return bool(settings.get("channels_last", not settings))


# --- tables --------------------------------------------------------------------------------------------------------


def counts(one: Replay) -> dict[str, Any]:
    """How many cases of each state, overall and for each class, with failure rates before and now."""
    table = one.table.assign(failing=one.failing, failed=one.table["recorded"] != one.table["label"])
    per_class = {str(k): _count(group) for k, group in table.groupby("label")}
    return {**_count(table), "per_class": per_class}


def _count(table: pd.DataFrame) -> dict[str, Any]:
    states = table["state"].value_counts()
    return {
        "cases": len(table),
        **{state.replace(" ", "_"): int(states.get(state, 0)) for state in STATES},
        "recorded_failure_rate": float(table["failed"].mean()),
        "failure_rate": float(table["failing"].mean()),
    }


def transfer(replays: list[Replay]) -> list[list[float | None]]:
    """Of the cases that fail one SUT, the share that fails another, [1 + R, 1 + R]; the suite's own SUT comes first.

    None where a SUT fails on nothing.
    """
    first = replays[0].table
    failing = np.stack([(first["recorded"] != first["label"]).to_numpy(bool), *(r.failing for r in replays)])
    both, own = failing.astype(float) @ failing.T, failing.sum(1)
    return [[float(n / total) if total else None for n in row] for row, total in zip(both, own, strict=True)]


def show(suite: Suite, replays: list[Replay]) -> None:
    """Prints all tables."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    results = [counts(r) for r in replays]
    left_out = len(suite.table) - results[0]["cases"]
    console.print(
        f"{escape(str(suite.path))}: {results[0]['cases']:,} viable cases"
        + (f" ({left_out:,} others left out)" if left_out else "")
        + f"; the SUT they were searched on fails on {results[0]['recorded_failure_rate']:.2%} of them"
        + ("" if suite.finished else " (the suite is unfinished)")
    )
    if note := _other_arithmetic(suite):
        console.print(note)
    console.print()
    console.print(_state_table("SUT", dict(zip((r.name for r in replays), results, strict=True))))
    for one, result in zip(replays, results, strict=True):
        _show_classes(console, suite, one, result["per_class"])
    if len(replays) > 1:
        console.print("\ntransfer: of the cases that fail the SUT of a row, the share that fails the SUT of a column")
        console.print(_transfer_table(replays))


def _other_arithmetic(suite: Suite) -> str | None:
    """A sentence where the search's own arithmetic was not that of a replay."""
    precision = (read_config(suite).get("trainer") or {}).get("precision")
    odd = [f"in {precision}"] if precision not in (None, 32, "32", "32-true") else []
    odd += ["with compiled networks"] if task_settings(suite).get("compile") else []
    if not odd:
        return None
    return f"note: searched {' and '.join(odd)}, replayed in plain fp32: cases on the boundary may differ by rounding"


def _show_classes(console: Any, suite: Suite, one: Replay, per_class: dict[str, dict[str, Any]]) -> None:
    """Prints the classes in which something fails or failed, the worst first."""
    from rich.markup import escape

    touched = {k: c for k, c in per_class.items() if c["still_passing"] < c["cases"]}
    worst = sorted(touched, key=lambda k: -touched[k]["failure_rate"])
    if not worst:
        return
    console.print(f"\n{escape(one.name)}, by class")
    console.print(_state_table("class", {_class_name(suite, int(k)): touched[k] for k in worst[:SHOWN]}))
    if len(worst) > SHOWN:
        console.print(f"… and {len(worst) - SHOWN} more classes; --out writes all")


def _state_table(what: str, rows: dict[str, dict[str, Any]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(what, min_width=max(map(len, rows)))  # headings may break, names are to be copied
    for name in ("cases", "FR before", "FR now", *STATES):
        table.add_column(name, justify="right")
    for name, row in rows.items():
        rates = (f"{row[k]:.2%}" for k in ("recorded_failure_rate", "failure_rate"))
        states = (f"{row[state.replace(' ', '_')]:,}" for state in STATES)
        table.add_row(escape(name), f"{row['cases']:,}", *rates, *states)
    return table


def _transfer_table(replays: list[Replay]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    names = ["the suite's own", *(r.name for r in replays)]
    table.add_column("SUT", min_width=max(map(len, names)) + 4)
    for number in range(len(replays) + 1):
        table.add_column(f"({number})", justify="right")
    for number, (name, row) in enumerate(zip(names, transfer(replays), strict=True)):
        cells = ("–" if share is None else f"{share:.1%}" for share in row)
        table.add_row(f"({number}) {escape(name)}", *cells)
    return table


def _class_name(suite: Suite, label: int) -> str:
    names = suite.class_names
    return f"{label} {names[label]}" if names and names[label] != str(label) else str(label)


# --- files ---------------------------------------------------------------------------------------------------------


def write(suite: Suite, replays: list[Replay], out: Path) -> None:
    """Writes ``replay.json`` (everything but single cases), ``summary.csv`` and ``cases.csv`` into ``out``.

    Raises:
        InputError: It cannot be written.
    """
    import pandas as pd

    results = {r.name: counts(r) for r in replays}
    content = {
        "suite": str(suite.path),
        "identity": suite.manifest["identity"],
        "finished": suite.finished,
        "suts": {r.name: {"sha256": r.sha256, **results[r.name]} for r in replays},
        "transfer": {"suts": ["recorded", *(r.name for r in replays)], "share": transfer(replays)},
    }
    rows = [
        {"sut": name, "class": label, **{k: v for k, v in row.items() if k != "per_class"}}
        for name, result in results.items()
        for label, row in [("all", result), *result["per_class"].items()]
    ]
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "replay.json").write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        pd.DataFrame(rows).to_csv(out / "summary.csv", index=False)
        pd.concat([r.table.assign(sut=r.name) for r in replays]).to_csv(out / "cases.csv", index=False)
    except OSError as error:
        raise InputError(f"--out: cannot write to {out} ({error.strerror})") from error


def write_junit(suite: Suite, replays: list[Replay], file: Path, limit: float) -> None:
    """Writes JUnit XML: a test suite for each SUT, a test for each failure region of each class.

    Args:
        suite: Where the cases come from.
        replays: What became of them.
        file: XML to write.
        limit: A test fails when more than this share of its cases does.

    Raises:
        InputError: It cannot be written.
    """
    from xml.etree import ElementTree

    root = ElementTree.Element("testsuites", name="lsgen replay")
    for one in replays:
        node = ElementTree.SubElement(root, "testsuite", name=_printable(f"{suite.path} on {one.name}"))
        for title, name, rows in _tests(suite, one):
            test = ElementTree.SubElement(node, "testcase", classname=_printable(title), name=_printable(name))
            failing = one.failing[rows]
            if failing.mean() > limit:
                ids = one.table["id"].to_numpy()[rows[failing]]
                message = f"{len(ids)} of {len(rows)} cases fail"
                listed = " ".join(map(str, ids[:100])) + (" …" if len(ids) > 100 else "")
                ElementTree.SubElement(test, "failure", message=message).text = f"ids of failing cases: {listed}"
        node.set("tests", str(len(node)))
        node.set("failures", str(len(node.findall("testcase/failure"))))
    ElementTree.indent(root)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise InputError(f"--junit: cannot write {file} ({error.strerror})") from error


def _tests(suite: Suite, one: Replay) -> Iterator[tuple[str, str, np.ndarray]]:
    """Class, name and rows of each test: failure regions of a class, then the cases that passed when recorded."""
    table = one.table
    failed = (table["recorded"] != table["label"]).to_numpy(bool)
    region = _regions(suite, table)
    for label, group in table.groupby("label"):
        title, rows = f"class {_class_name(suite, int(str(label)))}", group.index.to_numpy()
        for name in sorted(set(region[rows[failed[rows]]])):
            yield title, name, rows[failed[rows] & (region[rows] == name)]
        if (~failed[rows]).any():
            yield title, "cases that passed", rows[~failed[rows]]


def _regions(suite: Suite, table: pd.DataFrame) -> np.ndarray:
    """The name of each case's failure region, [N]."""
    import pandas as pd

    file = suite.path / "clusters" / "cases.parquet"
    if not file.is_file():
        return np.array([f"read as {k}" for k in table["recorded"]])
    try:
        known = pd.read_parquet(file, columns=["id", "class_cluster"]).set_index("id")["class_cluster"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{file} cannot be read; `lsgen cluster {suite.path}` writes it anew") from error
    numbers = table["id"].map(known).fillna(NONE).astype("int64")
    return np.array([f"region {k}" if k != NONE else "in no region" for k in numbers])


def _printable(text: str) -> str:
    """Without characters that XML cannot hold."""
    return re.sub(r"[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
