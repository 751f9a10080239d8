"""``lsgen retrain``: fine-tunes a suite's SUT on its failures, beside controls, and searches again (ARGUS, RQ3)."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lsgen.analysis import parts, statistics
from lsgen.analysis.repair import FAILURES, MOST, VARIANTS, Repair, prepare
from lsgen.analysis.replay import replay
from lsgen.errors import InputError
from lsgen.files import replacing
from lsgen.suite import Suite, load_suite, lock, occupied

if TYPE_CHECKING:
    from lsgen.search import SearchTask

MEASURES = {  # of one trained SUT, as columns of the table
    "accuracy": "accuracy",
    "ica": "ICA",
    "used_failing": "used failures",
    "others_failing": "other failures",
    "fresh_failure_rate": "fresh FR",
    "new_confusions": "new confusions",
}
COMPARED = ("ica", "fresh_failure_rate")


def main(args: list[str]) -> None:
    """Runs the command.

    Args:
        args: Command line after ``retrain``.
    """
    options = _parser().parse_args(args)
    for name in ("failures", "epochs", "repeats"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise InputError(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.lr is not None and not 0 < options.lr < math.inf:
        raise InputError(f"--lr must be above 0 and finite, got {options.lr}")
    repair = prepare(load_suite(options.suite), options.failures, options.epochs, options.lr)
    run(repair, Path(options.out), options.repeats)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lsgen retrain",
        description="Fine-tunes the SUT of a suite on its training images and some of the suite's failures with their "
        "intended labels, and measures ICA: how much accuracy on the test images rises. Beside it stand three controls "
        "with as many images of the same classes: nothing added, real images held back from training (validation "
        "images), random samples of the generator. Then the same search runs on each repaired SUT with another seed. "
        "Searches come last; running the command again goes on where it stopped.",
    )
    parser.add_argument("suite", help="folder that `lsgen search` wrote")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder for retrain.json, retrain.md and a folder for each training"
    )
    parser.add_argument(
        "--failures",
        type=int,
        metavar="N",
        help=f"failures to train on, spread evenly over classes (default: as many as can be matched, at most {MOST:,})",
    )
    parser.add_argument("--epochs", type=int, default=10, help="of each fine-tuning (default: %(default)s)")
    parser.add_argument("--lr", type=float, help="learning rate (default: the one that the SUT was trained with)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="of each variant, with other seeds (default: %(default)s)"
    )
    return parser


# --- running -------------------------------------------------------------------------------------------------------


def run(repair: Repair, out: Path, repeats: int) -> dict[str, Any]:
    """Trains and searches what is not done yet, writes and prints the results, and gives them.

    Args:
        repair: What :func:`prepare` gave.
        out: Folder for results and checkpoints.
        repeats: Of each variant.

    Raises:
        InputError: ``out`` holds something else.
    """
    held = _claim(out, repair)
    try:
        todo = [(v, r) for r in range(repeats) for v in repair.variants]
        print(f"SUT: accuracy {repair.accuracy:.2%} of {len(repair.test):,} test images")
        print(f"added: {repair.counts.sum():,} images each, of {len(repair.rows):,} different failures in the suite")
        for action in ACTIONS:
            for number, (variant, repeat) in enumerate(todo, 1):
                print(f"\n{action} {number}/{len(todo)}: {VARIANTS[variant]} added, repeat {repeat + 1}", flush=True)
                _once(action, repair, variant, repeat, out / f"{variant}-{repeat}")
            results = _write(out, repair, repeats)
            print("", *_table(results["mean"]), sep="\n")
    finally:
        os.close(held)
    print(f"\nmore, and what it means: {out / 'retrain.md'}")
    return results


def _claim(out: Path, repair: Repair) -> int:
    """Makes the folder, or finds it to be that of an earlier start; gives the descriptor of its lock."""
    file, settings = out / "retrain.json", repair.settings()
    try:
        if file.is_file():
            if _read(file).get("settings") != settings:
                raise InputError(f"{out} holds a repair with other settings: choose another --out")
        elif occupied(out):
            raise InputError(f"{out} exists and is not a repair: choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        held = lock(out)
        if not file.is_file():
            _save(file, {"settings": settings})
        return held
    except OSError as error:
        raise InputError(f"--out: cannot write to {out} ({error.strerror})") from error


def _once(action: str, repair: Repair, variant: str, repeat: int, folder: Path) -> None:
    """Does what is not done yet and keeps its numbers in ``result.json``."""
    folder.mkdir(exist_ok=True)
    file = folder / "result.json"
    done = _read(file) if file.is_file() else {}
    if action in done:
        print("already done")
        return
    began = time.perf_counter()
    numbers = ACTIONS[action](repair, variant, repeat, folder)
    _save(file, {**done, action: {**numbers, "seconds": round(time.perf_counter() - began, 1)}})


def _train(repair: Repair, variant: str, repeat: int, folder: Path) -> dict[str, Any]:
    """Fine-tunes the SUT with this variant's extra images, and measures it."""
    from lsgen import suts

    _fit(repair, variant, repeat, folder)
    sut = suts.pretrained(folder / "best.ckpt")
    clean = suts.accuracy(sut, repair.test.images, repair.test.labels)
    old = replay(repair.suite, sut, variant)
    used = old.table["id"].isin(repair.suite.table["id"].iloc[repair.chosen(repeat)]).to_numpy(bool)
    failed = (old.table["recorded"] != old.table["label"]).to_numpy(bool)
    return {
        "seed": repair.seed(repeat),
        "accuracy": clean,
        "ica": clean - repair.accuracy,
        "used_failing": _share(old.failing[used]),
        "others_failing": _share(old.failing[failed & ~used]),
        "newly_failing": _share(old.failing[~failed]),
    }


def _fit(repair: Repair, variant: str, repeat: int, folder: Path) -> None:
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader

    from lsgen.data.images import InMemory, as_is
    from lsgen.lightning_cli import quieten
    from lsgen.trainer import Trainer

    quieten()
    warnings.filterwarnings("ignore", message=".*have no `val_dataloader`")  # on purpose: see the notes
    pl.seed_everything(repair.seed(repeat), verbose=False)
    sut, train, extra = parts.load_sut(repair.suite).train(), repair.data["train"], repair.extra(variant, repeat)
    sut.fault = None if repair.data.fault is None else repair.data.fault.about()
    if repair.lr is not None:
        setattr(sut, "lr", repair.lr)  # noqa: B010 (not every SUT has one; prepare has looked)
    mixed = InMemory(torch.cat([train.images, extra.images]), torch.cat([train.labels, extra.labels]))
    loader = DataLoader(dataset=mixed, batch_size=repair.data.batch_size, shuffle=True, collate_fn=as_is)
    trainer: pl.Trainer = Trainer(
        default_root_dir=folder, max_epochs=repair.epochs, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(sut, train_dataloaders=loader)
    if trainer.interrupted or trainer.received_sigterm:
        raise KeyboardInterrupt
    trainer.save_checkpoint(folder / "best.ckpt", weights_only=True)


def _search(repair: Repair, variant: str, repeat: int, folder: Path) -> dict[str, Any]:
    """The suite's search again, with another seed, on the SUT of this training."""
    from lightning.pytorch import seed_everything

    from lsgen import suts
    from lsgen.trainer import Trainer

    suite, checkpoint = repair.suite, folder / "best.ckpt"
    seed_everything(repair.seed(repeat), verbose=False)
    task = parts.load_task(suite, sut=suts.pretrained(checkpoint))
    task.eval_batch_size = suite.manifest.get("eval_batch_size") or "auto"
    task.max_seconds = task.max_failures = None  # a whole search: of what a clock cuts short, rates do not compare
    task.seeds = task.seeds.others(repair.data) or task.seeds  # the SUT was trained on changes of the suite's
    trainer = Trainer(default_root_dir=folder, logger=False, enable_checkpointing=False, enable_model_summary=False)
    trainer.search_config = _config(suite, checkpoint, task, folder / "suite")
    fresh = trainer.search(task, datamodule=repair.data, out=str(folder / "suite"))
    known, new = set(_confusions(suite)), _confusions(fresh)
    return {
        "suite": str(fresh.path),
        "fresh_failure_rate": fresh.summary["failure_rate"],
        "fresh_failed": fresh.summary["failed"],
        "new_confusions": _share(np.array([pair not in known for pair in new])),
    }


def _config(suite: Suite, checkpoint: Path, task: SearchTask, out: Path) -> str:
    """The suite's configuration with what a fresh search changes."""
    import yaml

    content = parts.read_config(suite)
    content |= {"seed_everything": task.seed, "out": str(out)}
    settings = content["model"]["init_args"]
    settings |= {
        "sut": {"class_path": "lsgen.suts.pretrained", "init_args": {"path": str(checkpoint)}},
        "eval_batch_size": task.eval_batch_size,
    }
    if skip := getattr(task.seeds, "skip", 0):
        settings["seeds"].setdefault("init_args", {})["skip"] = skip
    text: str = yaml.safe_dump(content, sort_keys=False)
    return text


def _confusions(suite: Suite) -> list[tuple[int, int]]:
    """Label and predicted class of each failure."""
    failed = suite.table.iloc[suite.failures]
    return list(zip(failed["label"], failed["predicted"], strict=True))


def _share(flags: np.ndarray) -> float | None:
    return float(flags.mean()) if len(flags) else None


ACTIONS = {"training": _train, "search": _search}


# --- results -------------------------------------------------------------------------------------------------------


def _write(out: Path, repair: Repair, repeats: int) -> dict[str, Any]:
    """Gathers what is done, writes ``retrain.json`` and ``retrain.md``."""
    runs = {v: [_numbers(out / f"{v}-{r}" / "result.json") for r in range(repeats)] for v in repair.variants}
    summary = repair.suite.summary
    content = {
        "settings": repair.settings(),
        "suite": str(repair.suite.path),
        "test_images": len(repair.test),
        "before": {"accuracy": repair.accuracy, "failure_rate": summary["failure_rate"]},
        "runs": runs,
        "mean": {v: {m: mean([r.get(m) for r in each]) for m in MEASURES} for v, each in runs.items()},
        "comparisons": compare(runs),
        "notes": list(repair.notes),
    }
    _save(out / "retrain.json", content)
    (out / "retrain.md").write_text(markdown(content), encoding="utf-8")
    return content


def _numbers(file: Path) -> dict[str, Any]:
    """All numbers of one run."""
    done = _read(file)
    return {**done["training"], **{k: v for k, v in done.get("search", {}).items() if k != "seconds"}}


def mean(values: list[float | None]) -> dict[str, float | None]:
    """Mean and half of its 95 % interval (Student's t), which needs two values.

    Example:
        >>> {k: round(v, 4) for k, v in mean([0.25, 0.5, 0.75]).items()}
        {'mean': 0.5, 'half': 0.621}
    """
    from scipy.stats import t

    known = np.array([v for v in values if v is not None], dtype=float)
    if len(known) < 2:
        return {"mean": float(known[0]) if len(known) else None, "half": None}
    half = t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known))
    return {"mean": float(known.mean()), "half": float(half)}


def compare(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Failures against each control: Welch's test and A12, p-values corrected (Holm) within each measure."""
    rows: list[dict[str, Any]] = []
    for measure in COMPARED:
        values = {v: [r.get(measure) for r in each] for v, each in runs.items()}
        controls = [v for v in runs if v != FAILURES]
        tests = [statistics.welch(values[FAILURES], values[v]) for v in controls]
        corrected = statistics.holm([test.p_value for test in tests])
        for control, test, p in zip(controls, tests, corrected, strict=True):
            effect = statistics.a12(values[FAILURES], values[control])
            rows.append({"measure": measure, "control": control, **asdict(test), "p_holm": p, "a12": effect})
    return rows


def markdown(content: dict[str, Any]) -> str:
    """The results for people."""
    before, runs = content["before"], content["runs"]
    n, repeats = sum(content["settings"]["per_class"]), len(runs[FAILURES])
    lines = [
        f"# Repair of {content['suite']}",
        "",
        f"Images added to the training images: {n:,}; epochs: {content['settings']['epochs']}; repeats: {repeats}. "
        f"Before: accuracy {before['accuracy']:.2%} of {content['test_images']:,} test images, failure rate "
        f"{before['failure_rate']:.2%} in the suite. Mean ± 95 % interval of the mean over repeats; that other "
        f"test images would give other accuracies comes on top.",
        "",
        *_table(content["mean"]),
        "",
        "ICA: accuracy after minus accuracy before, in percentage points. Used, other failures: share of the suite's "
        "failures that still fail, of those that the last row was trained on and of the rest. Fresh FR: failure rate "
        "of the same search from other seeds. New confusions: share of its failures that are read as a class which "
        "the suite's failures of their class never were. A region is closed if old failures pass and a fresh search "
        "finds fewer, moved if old ones pass and it finds as many.",
        "",
        _row(["failures against", "ICA, difference", "p (Welch, Holm)", "fresh FR, difference", "p (Welch, Holm)"]),
        _row(["---", *["---:"] * 4]),
        *_comparisons(content["comparisons"]),
        "",
        *(f"- {note}" for note in content["notes"]),
    ]
    return "\n".join(lines) + "\n"


def _table(means: dict[str, dict[str, Any]]) -> Iterator[str]:
    """One row a variant, in columns of one width each, so that it can be read as it is."""
    rows = [["added", *MEASURES.values()]]
    rows += [[VARIANTS[v], *(_cell(m, cells[m]) for m in MEASURES)] for v, cells in means.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    for first, *cells in rows:
        yield _row([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))])


def _comparisons(rows: list[dict[str, Any]]) -> Iterator[str]:
    for control in dict.fromkeys(row["control"] for row in rows):
        cells = []
        for row in (row for row in rows if row["control"] == control):
            difference, p = row["difference"], row["p_holm"]
            half = None if difference["low"] is None else difference["estimate"] - difference["low"]
            cells += [_cell("ica", {"mean": difference["estimate"], "half": half}), "–" if p is None else f"{p:.3f}"]
        yield _row([VARIANTS[control], *cells])


def _cell(measure: str, value: dict[str, float | None]) -> str:
    """A mean and its interval as text, percent, or percentage points with their sign."""
    if value["mean"] is None:
        return "–"
    signed = "+" if measure == "ica" else ""
    unit = "" if measure == "ica" else " %"
    half = "" if value["half"] is None else f" ± {100 * value['half']:.2f}"
    return f"{100 * value['mean']:{signed}.2f}{half}{unit}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}): delete it, and what it tells of is done again") from error
    return content if isinstance(content, dict) else {}


def _save(file: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
