import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lsgen.analysis.replay import STATES, counts, open_sut, replay, transfer
from lsgen.cli import main
from lsgen.suite import Suite, load_suite
from lsgen.suts import Classifier
from tests.toys import Linear, write_npz
from tests.unit.test_parts import CLASSES, change, config, copied, save, searched

pytestmark = pytest.mark.filterwarnings("ignore:the SUT reads only")
AS_IS = {"class_path": "RandomSampling"}  # some fail, some do not
TWENTY = {"class_path": "DataSeeds", "init_args": {"per_class": 20}}
MODEL = """
from torch import nn

def build(scale=1.0):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("replayed")
    searched(folder, config(searcher=AS_IS, seeds=TWENTY))
    save(Linear(num_classes=CLASSES, seed=1), folder / "other.ckpt")
    save(Linear(num_classes=CLASSES, seed=2), folder / "third.ckpt")
    save(Linear(num_classes=4), folder / "classes.ckpt")
    save(Linear(side=5, num_classes=CLASSES), folder / "size.ckpt")
    (folder / "model.py").write_text(MODEL)
    save_file({"1.weight": Linear(num_classes=CLASSES, seed=1).layer.weight.data}, folder / "model.safetensors")
    return folder


@pytest.fixture
def suite(original, tmp_path, monkeypatch) -> Suite:
    copied(original, tmp_path)
    monkeypatch.chdir(tmp_path)
    return load_suite("runs/s")


def viable(suite):
    return suite.table["viable"].to_numpy(bool)


def test_on_its_own_sut_nothing_changes_not_even_the_last_bit(suite, capsys):
    again = replay(suite, open_sut("sut.ckpt", suite), "own")
    result = counts(again)
    assert result["fixed"] == result["newly_failing"] == 0
    assert result["still_failing"] == suite.summary["failed"] > 0
    assert again.failure_rate == result["recorded_failure_rate"] == suite.summary["failure_rate"]
    assert np.array_equal(again.table["p_true"].to_numpy("float32"), suite.table["p_true"].to_numpy()[viable(suite)])
    assert again.sha256 == suite.manifest["sut"]["sha256"]


def test_convolutions_are_laid_out_as_in_the_search(tmp_path):
    torch.manual_seed(0)
    sut = Classifier(network="lenet5", image_shape=(1, 28, 28), num_classes=CLASSES).eval()
    write_npz(tmp_path / "data", n=60, side=28, classes=CLASSES)
    generator = {"class_path": "PixelSpace", "init_args": {"num_classes": CLASSES}}
    made = searched(tmp_path, config(generator=generator, searcher=AS_IS), sut)
    again = replay(made, open_sut(str(tmp_path / "sut.ckpt"), made), "own")
    assert np.array_equal(again.table["p_true"].to_numpy("float32"), made.table["p_true"].to_numpy()[viable(made)])


def test_every_pass_has_the_size_of_the_search(suite):
    sizes = []

    class Noting(Linear):
        def logits(self, x):
            sizes.append(len(x))
            return super().logits(x)

    replay(suite, Noting(num_classes=CLASSES), "noting")
    assert sizes == [suite.manifest["eval_batch_size"]] * 2  # 60 cases


def test_states_are_those_that_arithmetic_gives(suite):
    rows, other = viable(suite), Linear(num_classes=CLASSES, seed=1)
    again = replay(suite, other, "other")
    with torch.no_grad():
        now = other.logits(torch.from_numpy(suite.images[rows]).float() / 255).argmax(1).numpy()
    table = suite.table[rows]
    label, before = table["label"].to_numpy(), table["predicted"].to_numpy()
    expected = np.select(
        [(before != label) & (now == label), (before != label) & (now != label), (before == label) & (now != label)],
        STATES[:3],
        STATES[3],
    )
    assert again.table["state"].tolist() == expected.tolist()
    assert len(set(expected)) == 4
    result = counts(again)
    assert sum(result[s.replace(" ", "_")] for s in STATES) == result["cases"] == len(table)
    for name in ("cases", "fixed", "newly_failing"):
        assert sum(c[name] for c in result["per_class"].values()) == result[name]


def test_transfer_is_the_share_of_failures_in_common(suite):
    both = [replay(suite, Linear(num_classes=CLASSES, seed=k), str(k)) for k in (1, 2)]
    matrix = transfer(both)
    recorded = suite.table["failed"].to_numpy(bool)[viable(suite)]
    failing = [set(np.flatnonzero(f)) for f in (recorded, both[0].failing, both[1].failing)]
    for i, row in enumerate(matrix):
        assert row == pytest.approx([len(failing[i] & failing[j]) / len(failing[i]) for j in range(3)])
    perfect = replace(both[0], table=both[0].table.assign(predicted=both[0].table["label"]))
    assert transfer([perfect])[1] == [None, None]


def test_the_command_prints_and_writes(suite, capsys):
    assert main(["replay", "runs/s", "--sut", "sut.ckpt", "--sut", "other.ckpt", "--out", "deep/out"]) == 0
    text = capsys.readouterr().out
    assert "transfer" in text
    assert "other.ckpt, by class" in text
    content = json.loads(Path("deep/out/replay.json").read_text())
    expected = counts(replay(suite, Linear(num_classes=CLASSES, seed=1), "other.ckpt"))
    assert expected.items() <= content["suts"]["other.ckpt"].items()
    assert content["transfer"]["suts"] == ["recorded", "sut.ckpt", "other.ckpt"]
    assert content["transfer"]["share"][0][1] == 1.0
    summary = pd.read_csv("deep/out/summary.csv").set_index(["sut", "class"])
    assert summary.loc[("other.ckpt", "all"), "fixed"] == expected["fixed"]
    assert len(summary) == 2 * (1 + CLASSES)
    cases = pd.read_csv("deep/out/cases.csv")
    assert (cases[cases["sut"] == "sut.ckpt"]["recorded"] == cases[cases["sut"] == "sut.ckpt"]["predicted"]).all()
    assert main(["replay", "runs/s", "--sut", "sut.ckpt", "--out", "deep/out"]) == 0  # a CI job does it again and again


def read_junit(file):
    return {(t.get("classname"), t.get("name")): t.find("failure") for t in ElementTree.parse(file).iter("testcase")}


def test_junit_has_a_test_for_each_confusion_of_each_class(suite):
    assert main(["replay", "runs/s", "--sut", "sut.ckpt", "--junit", "ci/out.xml"]) == 0
    tests, table = read_junit("ci/out.xml"), suite.table[viable(suite)]
    failed = table[table["failed"]]
    pairs = {(f"class {a}", f"read as {b}") for a, b in zip(failed["label"], failed["predicted"], strict=True)}
    passed = {(f"class {k}", "cases that passed") for k in table[~table["failed"]]["label"]}
    assert set(tests) == pairs | passed
    assert all((tests[key] is None) == (key in passed) for key in tests)
    root = ElementTree.parse("ci/out.xml").getroot()[0]
    assert (int(root.get("tests")), int(root.get("failures"))) == (len(tests), len(pairs))
    assert main(["replay", "runs/s", "--sut", "sut.ckpt", "--junit", "out.xml", "--max-failure-rate", "1"]) == 0
    assert not any(failure is not None for failure in read_junit("out.xml").values())


def test_junit_uses_the_regions_of_a_clustering(suite):
    table = suite.table[viable(suite) & suite.table["failed"].to_numpy(bool)]
    ids = table["id"].to_numpy()[:-1]  # one is not challenging enough to be clustered
    region = np.where(np.arange(len(ids)) % 3 == 0, -1, np.arange(len(ids)) % 3)
    regions = pd.DataFrame({"id": ids, "label": table["label"].to_numpy()[:-1], "cluster": 0, "class_cluster": region})
    (suite.path / "clusters").mkdir()
    regions.to_parquet(suite.path / "clusters/cases.parquet")
    assert main(["replay", "runs/s", "--sut", "sut.ckpt", "--junit", "out.xml"]) == 0
    names = {name for _, name in read_junit("out.xml")}
    assert names == {"region 1", "region 2", "in no region", "cases that passed"}
    first = regions[(regions["class_cluster"] == 1) & (regions["label"] == regions["label"].iloc[1])]["id"]
    failure = read_junit("out.xml")[f"class {regions['label'].iloc[1]}", "region 1"]
    assert failure.get("message") == f"{len(first)} of {len(first)} cases fail"
    assert set(failure.text.split(": ")[1].split()) == set(map(str, first))
    (suite.path / "clusters/cases.parquet").write_text("no parquet")
    assert main(["replay", "runs/s", "--sut", "sut.ckpt", "--junit", "out.xml"]) == 2


def test_a_rate_that_is_too_high_ends_with_status_1(suite, capsys):
    rate = suite.summary["failure_rate"]
    for limit, status in ((rate + 0.01, 0), (rate, 0), (rate - 0.01, 1)):
        assert main(["replay", "runs/s", "--sut", "sut.ckpt", "--max-failure-rate", str(limit)]) == status
        text = capsys.readouterr().out
        assert "replayed viable cases" in text
        assert (f"failure rate of sut.ckpt: {rate:.2%}" in text) == (status == 1)


@pytest.mark.parametrize("spec", ["model.py:build=model.safetensors", "tests.unit.test_replay:own=model.safetensors"])
def test_a_torch_module_of_ones_own(suite, spec):
    ours = replay(suite, open_sut(spec, suite), spec)
    theirs = replay(suite, open_sut("other.ckpt", suite), "other")
    assert ours.table["predicted"].tolist() == theirs.table["predicted"].tolist()


def own():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))


def test_a_new_version_of_an_external_sut_keeps_its_preprocessing(suite):
    old = {"model": "old.py:Gone", "weights": "gone.pt", "mean": [0.5], "std": [0.25], "model_args": {"scale": 2.0}}
    sut = {"class_path": "lsgen.suts.ExternalSUT", "init_args": old}
    change(suite, lambda c: c["model"]["init_args"].update(sut=sut))
    opened = open_sut("model.py:build=model.safetensors", suite)
    assert (opened.mean, opened.std, opened.model_args) == ([0.5], [0.25], {"scale": 2.0})


def test_answers_that_are_no_numbers_fail(suite):
    broken = Linear(num_classes=CLASSES)
    broken.layer.bias.data[0] = torch.nan
    again = replay(suite, broken, "broken")
    assert again.failure_rate == 1.0
    assert set(again.table["predicted"]) == {-1}


def test_another_precision_is_told(suite, capsys):
    change(suite, lambda c: c["trainer"].update(precision="bf16-mixed"))
    assert main(["replay", "runs/s", "--sut", "sut.ckpt"]) == 0
    assert "searched in bf16-mixed, replayed in plain fp32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["runs/s", "--sut", "classes.ckpt"], "has 4 classes, the suite runs/s has 3"),
        (["runs/s", "--sut", "size.ckpt"], "takes images of (1, 5, 5), those of runs/s are (1, 4, 4)"),
        (["runs/s", "--sut", "nowhere.ckpt"], "there is no file nowhere.ckpt"),
        (["runs/s", "--sut", "model.py"], "cannot be read as a checkpoint"),
        (["runs/s", "--sut", "model.py:build=nowhere.pt"], "there is no file nowhere.pt"),
        (["runs/s", "--sut", "model.py:nothing=model.safetensors"], "there is no 'nothing'"),
        (["runs/s", "--sut", "no.such:thing=model.safetensors"], "there is no module 'no'"),
        (["runs/s", "--sut", "torch.nn:Flatten=model.safetensors"], "does not fit"),
        (["runs/s", "--sut", "sut.ckpt", "--sut", "sut.ckpt"], "given twice"),
        (["runs/s", "--sut", "sut.ckpt", "--max-failure-rate", "20"], "between 0 and 1"),
        (["runs/s", "--sut", "sut.ckpt", "--max-failure-rate", "nan"], "between 0 and 1"),
        (["runs/s", "--sut", "sut.ckpt", "--out", "sut.ckpt"], "cannot write"),
        (["runs/s", "--sut", "sut.ckpt", "--junit", "runs"], "cannot write"),
        (["runs", "--sut", "sut.ckpt"], "no suite at runs"),
        (["runs/s"], "--sut"),
    ],
)
def test_bad_input(suite, args, words, capsys):
    assert main(["replay", *args]) == 2
    assert words in capsys.readouterr().err


def test_suites_without_cases(suite, capsys):
    suite.update_manifest(finished=False)
    for file in [*suite.path.glob("parts/*"), *suite.path.glob("arrays/*")]:
        file.unlink()
    assert main(["replay", "runs/s", "--sut", "sut.ckpt"]) == 2
    assert "has no cases yet" in capsys.readouterr().err


def test_suites_without_a_viable_case(suite, capsys, monkeypatch):
    table = suite.table.assign(viable=False)
    monkeypatch.setattr(Suite, "table", table)
    assert main(["replay", "runs/s", "--sut", "sut.ckpt"]) == 2
    assert "no viable case" in capsys.readouterr().err
