"""``lsgen retrain`` from end to end, on a SUT that learns in a second."""

import json
import shutil
from pathlib import Path

import pytest

from lsgen import suts
from lsgen.analysis import retrain
from lsgen.analysis.parts import load_sut
from lsgen.checkpoints import weights_sha256
from lsgen.cli import main
from lsgen.suite import load_suite
from tests.unit.test_parts import CLASSES, config, searched
from tests.unit.test_retrain import NEAR, Learner, write_rows

pytestmark = pytest.mark.filterwarnings("ignore:the SUT reads only")
ARGS = ["retrain", "runs/s", "--out", "out", "--epochs", "3", "--repeats", "2", "--failures", "15"]
FOLDERS = [f"{variant}-{repeat}" for variant in ("none", "real", "random", "failures") for repeat in (0, 1)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A suite, and what the command left."""
    folder = tmp_path_factory.mktemp("repair")
    write_rows(folder / "data")
    searched(folder, config(searcher=NEAR), Learner(num_classes=CLASSES))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(ARGS) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(workplace, tmp_path, monkeypatch):
    shutil.copytree(workplace, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def content():
    return json.loads(Path("out/retrain.json").read_text())


def test_every_training_leaves_a_checkpoint_that_lsgen_opens_and_numbers_that_it_has():
    results = content()
    repair = retrain.prepare(load_suite("runs/s"), failures=15, epochs=3)
    for folder in FOLDERS:
        sut = suts.pretrained(f"out/{folder}/best.ckpt")
        variant, repeat = folder.split("-")
        numbers = results["runs"][variant][int(repeat)]
        assert suts.accuracy(sut, repair.test.images, repair.test.labels) == pytest.approx(numbers["accuracy"])
        assert numbers["ica"] == pytest.approx(numbers["accuracy"] - results["before"]["accuracy"])
        assert 0 <= numbers["used_failing"] <= 1
        assert numbers["seed"] == 1 + int(repeat)  # the suite's was 0
    before = weights_sha256(load_sut(load_suite("runs/s")))
    assert len({weights_sha256(suts.pretrained(f"out/{f}/best.ckpt")) for f in FOLDERS} | {before}) == 9


def test_training_on_failures_fixes_more_of_them_than_training_on_nothing():
    means = content()["mean"]
    assert means["failures"]["used_failing"]["mean"] < means["none"]["used_failing"]["mean"] <= 1
    assert means["failures"]["others_failing"]["mean"] is not None  # 15 of 24 were used


def test_fresh_searches_are_suites_of_the_repaired_sut_that_can_be_replayed(capsys):
    fresh, old = load_suite("out/failures-1/suite"), load_suite("runs/s")
    assert fresh.finished
    assert fresh.manifest["seed"] == 2
    assert fresh.manifest["eval_batch_size"] == old.manifest["eval_batch_size"]
    assert weights_sha256(load_sut(fresh)) == fresh.manifest["sut"]["sha256"] != old.manifest["sut"]["sha256"]
    numbers = content()["runs"]["failures"][1]
    assert numbers["fresh_failure_rate"] == fresh.summary["failure_rate"]
    assert main(["replay", "out/failures-1/suite", "--sut", "out/failures-1/best.ckpt", "--out", "replayed"]) == 0
    states = json.loads(Path("replayed/replay.json").read_text())["suts"]["out/failures-1/best.ckpt"]
    assert states["fixed"] == states["newly_failing"] == 0


def test_the_table_has_all_variants_and_says_where_real_images_come_from():
    text = Path("out/retrain.md").read_text()
    for words in ("nothing", "real images", "random samples", "failures", "validation split", "ARGUS", "±"):
        assert words in text
    assert len(content()["comparisons"]) == 6


def test_running_again_does_only_what_is_missing(capsys):
    before, trained = content(), Path("out/random-1/best.ckpt").read_bytes()
    file = Path("out/random-1/result.json")
    done = json.loads(file.read_text())
    file.write_text(json.dumps({"training": done["training"]}))  # as if stopped before its search
    assert main(ARGS) == 0
    assert capsys.readouterr().out.count("already done") == 15
    after = content()
    assert before["mean"] == after["mean"]
    assert Path("out/random-1/best.ckpt").read_bytes() == trained
    assert main([*ARGS, "--lr", "0.1"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_the_same_seed_gives_the_same_repair():
    args = [*ARGS, "--out", "again", "--repeats", "1"]
    assert main(args) == 0
    for folder in FOLDERS[::2]:
        pair = [weights_sha256(suts.pretrained(f"{out}/{folder}/best.ckpt")) for out in ("out", "again")]
        assert pair[0] == pair[1]
    one, two = (json.loads(Path(f"{out}/failures-0/result.json").read_text())["search"] for out in ("out", "again"))
    assert one["fresh_failure_rate"] == two["fresh_failure_rate"]
