"""The same suite, bit for bit: in one process or two, killed or not."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from lsgen import load_suite
from lsgen.cli import main
from tests.conftest import ROOT
from tests.integration import every_search
from tests.toys import write_npz


def check_equal(a, b):
    assert (a / "cases.parquet").read_bytes() == (b / "cases.parquet").read_bytes()
    names = sorted(p.name for p in (a / "arrays").iterdir())
    assert names == sorted(p.name for p in (b / "arrays").iterdir())
    for name in names:
        left, right = load_file(a / "arrays" / name), load_file(b / "arrays" / name)
        assert left.keys() == right.keys()
        assert all(np.array_equal(left[k], right[k]) for k in left)


@pytest.fixture(scope="module")
def small():
    """Enough blocks, each slow enough to be interrupted."""
    return ("--model.seeds.per_class=16", "--model.block_size=32", "--model.searcher.steps=15")


@pytest.fixture
def reference(search_args, small, tmp_path):
    out = tmp_path / "reference"
    assert main(search_args(*small, f"--out={out}")) == 0
    return out


def start(args) -> subprocess.Popen:
    """The command in a process of its own, which heeds Ctrl-C even where the tests run in the background."""
    return subprocess.Popen(
        [sys.executable, "-m", "lsgen", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def kill_when(process, condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_killed_at_several_points_and_resumed(search_args, small, reference, tmp_path):
    out = tmp_path / "killed"
    args = search_args(*small, f"--out={out}")
    parts = out / "parts"
    points = {
        "before the first block": lambda: (out / "manifest.json").exists(),
        "between the two files of a block": lambda: any((out / "arrays").glob("block-*")),
        "after some blocks": lambda: len(list(parts.glob("block-*"))) >= 3,
    }
    for condition in points.values():
        kill_when(start(args), condition)
        assert not load_suite(out).finished
    last = max(parts.glob("block-*"))
    os.truncate(last, last.stat().st_size // 2)  # as after a power cut
    done = load_suite(out).blocks
    assert 0 < len(done) < 5
    kept = [(parts / f"block-{n:05d}.parquet").stat().st_mtime_ns for n in done]
    assert main(args) == 0
    assert [(parts / f"block-{n:05d}.parquet").stat().st_mtime_ns for n in done] == kept  # nothing was done twice
    check_equal(reference, out)


def test_two_processes_write_the_suite_of_one(search_args, small, reference, tmp_path):
    out = tmp_path / "two"
    two = ("--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu")
    process = start(search_args(*small, f"--out={out}", *two))
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    check_equal(reference, out)
    assert load_suite(out).summary["failure_rate"] == load_suite(reference).summary["failure_rate"]


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """A suite of every searcher, made in one go by one process, and the data it was made with."""
    folder = tmp_path_factory.mktemp("every")
    data = write_npz(folder / "data", n=60, classes=3)
    every_search.run(data, folder / "one")
    return folder


def test_every_searcher_does_the_same_in_two_processes(every):
    command = [sys.executable, "-m", "tests.integration.every_search", every / "data", every / "two", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in every_search.searches():
        check_equal(every / "one" / name, every / "two" / name)


def test_every_searcher_does_the_same_when_it_goes_on_after_a_loss(every):
    shutil.copytree(every / "one", every / "again")
    for name in every_search.searches():
        for number in (0, 2):  # as if the process had been killed before they were written
            (every / "again" / name / f"parts/block-{number:05d}.parquet").unlink()
    every_search.run(every / "data", every / "again")
    for name in every_search.searches():
        check_equal(every / "one" / name, every / "again" / name)


def test_two_processes_train_a_generator_and_judge_it(trained, tmp_path):
    quality = f"""[{{class_path: GeneratorQuality, init_args: {{samples: 20, judge: {{class_path: lsgen.suts.pretrained,
        init_args: {{path: {trained}/sut/best.ckpt}}}}}}}}]"""
    args = ["fit", f"--config={ROOT}/configs/mnist5k/cvae.yaml", f"--trainer.callbacks={quality}"]
    args += [f"--trainer.default_root_dir={tmp_path}", "--trainer.max_epochs=1", "--trainer.limit_train_batches=2"]
    process = start([*args, "--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu"])
    output, _ = process.communicate(timeout=240)  # waits for ever where one process waits for the other
    assert process.returncode == 0, output
    assert "val/frechet_distance" in (tmp_path / "logs/version_0/metrics.csv").read_text()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_search_and_keeps_what_was_finished(search_args, small, tmp_path, kind):
    out = tmp_path / "interrupted"
    process = start(search_args(*small, f"--out={out}"))
    deadline = time.monotonic() + 120
    while not any((out / "parts").glob("block-*")):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(kind)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert len(load_suite(out).blocks) >= 1
