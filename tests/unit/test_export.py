import os

import numpy as np
import pytest
from PIL import Image

from lsgen.analysis.export import diverse, export
from lsgen.cli import main
from lsgen.suite import Suite
from tests.unit.test_suite import MANIFEST, cases


@pytest.fixture
def suite(tmp_path) -> Suite:
    suite = Suite(tmp_path / "s")
    os.close(suite.open({**MANIFEST, "data": {"class_names": ["zero", "one/two", "2", "drei ü"]}}, ""))
    for block in range(3):
        filled = cases(block)
        filled.arrays["image"] = (filled.arrays["image"] + filled.columns["id"].view(-1, 1, 1, 1)).byte()
        filled.columns["failed"][0] = False
        suite.write(filled)
    suite.finish()
    return suite


def test_failures_become_files_that_hold_the_stored_images(suite, tmp_path):
    assert main(["export", str(suite.path), "--out", str(tmp_path / "out")]) == 0
    table = suite.table
    files = sorted((tmp_path / "out").rglob("*.png"))
    assert len(files) == table["failed"].sum() == 12
    for file in files:
        row = int(file.name.split("-")[1].split("_")[0])
        assert np.array_equal(np.asarray(Image.open(file)), suite.images[row, 0])
        assert file.parent.name == ["000_zero", "001_one-two", "002", "003_drei-ü"][row % 4]
    with np.load(tmp_path / "out/failures.npz", allow_pickle=False) as content:
        assert content["images"].shape == (12, 2, 2)
        assert content["labels"].tolist() == table.loc[table["failed"], "label"].tolist()


def test_a_few_of_each_class(suite, tmp_path):
    rows = export(suite, tmp_path / "out", per_class=1)
    assert sorted(suite.table["label"].iloc[rows]) == [0, 1, 2, 3]


def test_given_cases_failed_or_not(suite, tmp_path, capsys):
    assert main(["export", str(suite.path), "--ids", "6", "0", "--out", str(tmp_path / "out")]) == 0
    assert "2 of 15 cases" in capsys.readouterr().out
    with np.load(tmp_path / "out/cases.npz", allow_pickle=False) as content:
        assert content["ids"].tolist() == [0, 6]
        assert np.array_equal(content["latents"], suite.latents[[0, 6]])
    assert [f.name for f in sorted((tmp_path / "out").rglob("*.png"))] == [
        "case-000000_read-as-0.png",
        "case-000006_read-as-2.png",
    ]


def test_a_diverse_choice_has_no_image_twice_and_spreads():
    rng = np.random.default_rng(0)
    latents = np.concatenate([rng.normal(c, 0.01, (20, 3)) for c in (-5, 0, 5)])
    images = rng.integers(0, 255, (60, 1, 4, 4), dtype=np.uint8)
    images[1] = images[0]
    chosen = diverse(images, latents, 3)
    assert sorted(chosen // 20) == [0, 1, 2]  # one of each clump
    assert 1 not in diverse(images, latents, 60)
    assert len(diverse(images, latents, 60)) == 59


def test_nothing_failed(suite, tmp_path, capsys):
    part = cases(0)
    part.columns["failed"][:] = False
    other = Suite(tmp_path / "none")
    os.close(other.open({**MANIFEST, "blocks": 1}, ""))
    other.write(part)
    other.finish()
    assert main(["export", str(other.path), "--out", str(tmp_path / "out")]) == 0
    assert "no failures" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["{s}", "--out", "{s}"], "not an empty folder"),
        (["{s}/nothing", "--out", "{s}/o"], "no suite"),
        (["{s}", "--out", "{s}/o", "--per-class", "0"], "--per-class"),
        (["{s}", "--out", "{s}/manifest.json/o"], "cannot write"),
        (["{s}"], "--out"),
        (["{s}", "--out", "{s}/o", "--ids", "3", "99"], "no case 99; it has 0 to 14"),
        (["{s}", "--out", "{s}/o", "--ids", "3", "--per-class", "2"], "not allowed with"),
    ],
)
def test_bad_input(suite, args, words, capsys):
    assert main(["export", *(a.format(s=suite.path) for a in args)]) == 2
    assert words in capsys.readouterr().err
