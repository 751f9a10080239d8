"""Speth's Tab. IV, measured: random sampling against latent PGD, with the shipped configurations and checkpoints.

    LSGEN_DATA=... python scripts/speth_table4.py --data mnist --per-class 200 --repeats 3

Needs the checkpoints that `lsgen fit --config configs/<data>/{sut_…,cvae}.yaml` leave. Every cell is a suite in
runs/table4, so that a stopped run goes on; the table goes to runs/table4/<data>.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean, stdev

from lsgen import load_suite
from lsgen.cli import main

SUTS = {"mnist": ("sut_cnn", "sut_spinalnet"), "gtsrb32": ("sut_cnn", "sut_stn")}
# FR and mP_t in percent: baseline, ours (Tab. IV)
PUBLISHED = {
    ("mnist", "sut_cnn"): ("0.21 ± 0.06", "99.77 ± 0.05", "14.73 ± 0.66", "83.87 ± 0.69", "70×"),
    ("mnist", "sut_spinalnet"): ("0.32 ± 0.15", "99.60 ± 0.12", "23.86 ± 0.50", "74.57 ± 0.70", "75×"),
    ("gtsrb32", "sut_cnn"): ("7.78 ± 0.30", "90.96 ± 0.25", "75.87 ± 0.07", "24.39 ± 0.08", "10×"),
    ("gtsrb32", "sut_stn"): ("1.74 ± 0.14", "98.07 ± 0.14", "44.17 ± 0.20", "55.77 ± 0.13", "25×"),
}
HEADER = "| SUT | | random FR % | random mP_t % | PGD FR % | PGD mP_t % | factor |\n|---|---|---|---|---|---|---|\n"


def search(data: str, sut: str, method: str, seed: int, tag: str, *more: str) -> dict:
    """One suite, run unless it is there; gives its summary."""
    out = Path("runs/table4") / data / f"{sut}-{method}-{tag}-{seed}"
    args = ["search", f"--config=configs/{data}/search/{method}.yaml", f"--out={out}", f"--seed_everything={seed}"]
    args += [f"--model.sut.path=runs/{data}/{sut}/best.ckpt", "--trainer.logger=false", *more]
    if (status := main(args)) != 0:
        sys.exit(status)
    return load_suite(out).summary


def percent(values: list[float]) -> str:
    """Mean and standard deviation over repeats, in percent."""
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{spread}"


def factor(random: list[float], pgd: list[float]) -> str:
    """How many times as often PGD fails the SUT."""
    return f"{mean(pgd) / mean(random):.0f}×" if mean(random) else "∞ (random found none)"


def row(data: str, sut: str, repeats: int, tag: str, sizes: dict[str, int], *more: str) -> str:
    """One measured line of the table."""
    runs = {
        m: [search(data, sut, m, s, f"{tag}-{n}", f"--model.seeds.per_class={n}", *more) for s in range(repeats)]
        for m, n in sizes.items()
    }
    rates = {m: [r["failure_rate"] for r in rs] for m, rs in runs.items()}
    cells = [f(runs[m]) for m in ("random", "pgd") for f in (_fr, _mpt)]
    return f"| {sut} | {tag} | " + " | ".join(cells) + f" | {factor(rates['random'], rates['pgd'])} |\n"


def _fr(runs: list[dict]) -> str:
    return percent([r["failure_rate"] for r in runs])


def _mpt(runs: list[dict]) -> str:
    return percent([r["mean_p_true"] for r in runs])


def robustness(data: str, sut: str, per_class: int) -> str:
    """r = accuracy on test images − accuracy after latent PGD from those images, with the reconstructions between."""
    from lsgen import suts
    from lsgen.data import ImageData

    test = ImageData(name=data)["test"]
    clean = suts.accuracy(suts.pretrained(f"runs/{data}/{sut}/best.ckpt"), test.images, test.labels)
    seeds = f"--model.seeds={{class_path: DataSeeds, init_args: {{per_class: {per_class}}}}}"
    s = search(data, sut, "pgd", 0, "data", seeds)
    rebuilt, moved = s["seed_viability"], 1 - s["failure_rate"]
    return f"| {sut} | {clean:.2%} | {rebuilt:.2%} | {moved:.2%} | {100 * (clean - moved):.1f} points |\n"


def run() -> None:
    """Makes the tables of one data set."""
    parser = argparse.ArgumentParser(description="Speth's Tab. IV, measured.")
    parser.add_argument("--data", choices=SUTS, required=True)
    parser.add_argument("--per-class", type=int, default=200, help="cases a class for PGD")
    parser.add_argument("--random-per-class", type=int, default=2000, help="for random sampling, whose rate is tiny")
    parser.add_argument("--suts", nargs="+", help="some of the data set's SUTs; all by default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds-per-class", type=int, default=20, help="test images a class for the robustness r")
    options = parser.parse_args()
    sizes = {"random": options.random_per_class, "pgd": options.per_class}
    options.suts = options.suts or list(SUTS[options.data])
    text = HEADER
    for sut in options.suts:
        text += row(options.data, sut, options.repeats, "uniform", sizes)
        text += row(options.data, sut, options.repeats, "normal", sizes, "--model.seeds.distribution=normal")
        text += f"| {sut} | published | " + " | ".join(PUBLISHED[options.data, sut]) + " |\n"
    text += "\n| SUT | test accuracy | reconstructions | after PGD | r |\n|---|---|---|---|---|\n"
    for sut in options.suts:
        text += robustness(options.data, sut, options.seeds_per_class)
    plain = {k: " ".join(v) if isinstance(v, list) else v for k, v in vars(options).items()}
    given = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in plain.items())
    text = f"`python scripts/speth_table4.py {given}`\n\n{text}"
    Path(f"runs/table4/{options.data}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    run()
