"""``lsgen quickstart``: the whole way on embedded data, in a few minutes, with the shipped configurations."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from lsgen.errors import InputError
from lsgen.runs import fit_once, lsgen
from lsgen.shipped import shipped_configs

STEPS = ("sut", "cvae", "random", "pgd")
SOURCES = {"sut": "sut.yaml", "cvae": "cvae.yaml", "random": "search/random.yaml", "pgd": "search/pgd.yaml"}


def main(args: list[str]) -> None:
    """Trains, searches twice, clusters, reports.

    Args:
        args: Command line after ``quickstart``.
    """
    parser = argparse.ArgumentParser(
        prog="lsgen quickstart",
        description="Trains a small classifier and a CVAE on 5,000 embedded MNIST digits, searches for failures by "
        "random sampling and by latent PGD, groups them, and writes a report about both. Needs no download; a few "
        "minutes on two cores. Running it again goes on where it stopped.",
    )
    parser.add_argument(
        "--out", default="runs/quickstart", help="folder for everything it makes (default: %(default)s)"
    )
    out = Path(parser.parse_args(args).out)
    started = time.perf_counter()
    configs = write_configs(out)

    print("\n1/5  the classifier under test")
    fit_once(configs["sut"], out / "sut")
    print("\n2/5  the generator: a conditional VAE")
    fit_once(configs["cvae"], out / "cvae")
    _judge(out)
    print("\n3/5  random sampling")
    lsgen("search", "--config", str(configs["random"]), "--out", str(out / "random"))
    print("\n4/5  latent PGD")
    lsgen("search", "--config", str(configs["pgd"]), "--out", str(out / "pgd"))
    print("\n5/5  failure regions and the report")
    _report(out)
    print(f"done in {time.perf_counter() - started:.0f} s")


def write_configs(out: Path) -> dict[str, Path]:
    """Copies of the shipped configurations whose paths lie under ``out``."""
    import yaml

    folder = out / "configs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in STEPS:
            text = (shipped_configs() / "mnist5k" / SOURCES[name]).read_text(encoding="utf-8")
            moved = _moved(yaml.safe_load(text), out)
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(moved, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out: cannot write to {out} ({error.strerror})") from error
    return {name: folder / f"{name}.yaml" for name in STEPS}


def _moved(content: Any, out: Path) -> Any:
    """The same settings with every path in runs/mnist5k moved to ``out``."""
    if isinstance(content, dict):
        return {key: _moved(value, out) for key, value in content.items()}
    if isinstance(content, list):
        return [_moved(value, out) for value in content]
    if isinstance(content, str) and content.startswith("runs/mnist5k/"):
        return str(out / content.removeprefix("runs/mnist5k/"))
    return content


def _judge(out: Path) -> None:
    """Prints clean accuracy, and how well the SUT reads what the generator makes."""
    from lsgen import generators, suts
    from lsgen.data import ImageData
    from lsgen.generators.quality import reconstruction_accuracy, sample_accuracy

    sut, cvae = suts.pretrained(out / "sut/best.ckpt"), generators.pretrained(out / "cvae/best.ckpt")
    data = ImageData(name="mnist5k")
    test = data["test"]
    clean = suts.accuracy(sut, test.images, test.labels)
    print(f"clean accuracy of the SUT:          {clean:.1%} of {len(test):,} test images")
    print(f"CVAE samples read as intended:      {sample_accuracy(cvae, sut, 1000):.1%} of 1,000")
    print(f"CVAE reconstructions read rightly:  {reconstruction_accuracy(cvae, sut, data, 'test', 1000):.1%} of 1,000")


def _report(out: Path) -> None:
    """Groups the failures, and shows both suites side by side: in the terminal, as a picture and as a page."""
    from lsgen.analysis import clusters
    from lsgen.report import html
    from lsgen.report.figures import failure_gallery
    from lsgen.report.tables import print_suites
    from lsgen.suite import load_suite

    print(f"$ lsgen cluster {out / 'pgd'}")
    clusters.main([str(out / "pgd")])
    suites = {name: load_suite(out / name) for name in ("random", "pgd")}
    print()
    print_suites(suites)
    print(factor(suites["random"].summary, suites["pgd"].summary))
    picture = failure_gallery(suites["pgd"], out / "failures.png")
    print(f"picture: {picture} – whether its failures still show their digit, no number here says: look")
    html.main([*(str(suite.path) for suite in suites.values()), "--out", str(out / "report.html")])


def factor(random: dict[str, Any], searched: dict[str, Any]) -> str:
    """How many times as often a search fails the SUT as random sampling does, in a sentence.

    Example:
        >>> factor({"failed": 2, "n_cases": 1000}, {"failed": 50, "n_cases": 1000})
        'PGD fails the SUT 25.0 times as often as random sampling (50 and 2 failures; 95 % interval 6.1 to 102.5).'
    """
    from lsgen.report.compare import times_as_often

    ratio = times_as_often(searched, random)
    if ratio is None:
        return "There is no viable case to compare."
    if not ratio.at_least:
        counts = f"{searched['failed']} and {random['failed']} failures"
        sure = f"95 % interval {ratio.low:.1f} to {ratio.high:.1f}"
        return f"PGD fails the SUT {ratio.times:.1f} times as often as random sampling ({counts}; {sure})."
    return (
        f"PGD found {searched['failed']} failures, random sampling none in {random['n_cases']:,} (its rate is below "
        f"{ratio.rate:.2%} with 95 % confidence): PGD fails the SUT at least {ratio.times:.0f} times as often."
    )
