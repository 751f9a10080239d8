import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
import yaml

from lsgen import Trainer, generators, suts
from lsgen.analysis.parts import load_data, load_generator, load_sut, load_task, resolve
from lsgen.checkpoints import weights_sha256
from lsgen.cli import main
from lsgen.errors import InputError
from lsgen.search import DataSeeds, LatentPGD, SearchTask
from lsgen.suite import Suite, load_suite
from tests.conftest import QUIET
from tests.toys import Linear, Pixels, write_npz

pytestmark = pytest.mark.filterwarnings("ignore:the SUT reads only")
CLASSES = 3


def save(module, file: Path) -> None:
    """A checkpoint as ``lsgen fit`` would leave it."""
    checkpoint = {"state_dict": module.state_dict()}
    suts.SUT.on_save_checkpoint(module, checkpoint)
    torch.save(checkpoint, file)


def config(**model) -> dict:
    """A search of toys; ``model`` are settings of the task."""
    toys = {
        "generator": {"class_path": "tests.toys.Pixels", "init_args": {"num_classes": CLASSES}},
        "sut": {"class_path": "lsgen.suts.pretrained", "init_args": {"path": "sut.ckpt"}},
        "searcher": {"class_path": "LatentPGD", "init_args": {"steps": 5, "radius": 1.0, "step_size": 0.1}},
        "seeds": {"class_path": "DataSeeds", "init_args": {"per_class": 8}},
        "block_size": 10,
        "eval_batch_size": 32,
    }
    return {
        "seed_everything": 0,
        "model": {"class_path": "SearchTask", "init_args": toys | model},
        "data": {"class_path": "ImageData", "init_args": {"name": "npz", "path": "data"}},
    }


def searched(folder: Path, content: dict, sut=None) -> Suite:
    """The suite that ``lsgen search`` leaves in ``folder/runs/s``, run in ``folder``."""
    if not (folder / "data").exists():
        write_npz(folder / "data", n=60, classes=CLASSES)
    save(sut or Linear(num_classes=CLASSES), folder / "sut.ckpt")
    (folder / "search.yaml").write_text(yaml.safe_dump(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["search", "--config", "search.yaml", "--out", "runs/s", *QUIET]) == 0
    return load_suite(folder / "runs/s")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    searched(folder, config())
    return folder


def copied(original: Path, folder: Path) -> Suite:
    """A suite of one's own, with all that it needs."""
    shutil.copytree(original, folder, dirs_exist_ok=True)
    return load_suite(folder / "runs/s")


@pytest.fixture
def suite(original, tmp_path) -> Suite:
    return copied(original, tmp_path)


def change(suite: Suite, edit) -> None:
    """Edits the configuration that the suite keeps."""
    file = suite.path / "config.yaml"
    content = yaml.safe_load(file.read_text())
    edit(content)
    file.write_text(yaml.safe_dump(content))


def test_the_parts_are_those_of_the_search_wherever_one_stands(suite, tmp_path, monkeypatch):
    for place in (tmp_path, Path("/")):
        monkeypatch.chdir(place)
        assert weights_sha256(load_sut(suite)) == suite.manifest["sut"]["sha256"]
        assert isinstance(load_generator(suite), Pixels)
        assert load_data(suite).fingerprint == suite.manifest["data"]["fingerprint"]
        task = load_task(suite)
        assert (task.searcher.steps, task.searcher.radius, task.seeds.per_class) == (5, 1.0, 8)


def test_the_whole_task_is_the_same_search(suite, capsys):
    trainer = Trainer(default_root_dir=suite.path.parent, logger=False)
    trainer.search(load_task(suite), datamodule=load_data(suite), out=str(suite.path))  # refuses any other
    assert "already finished" in capsys.readouterr().out


def test_nested_parts_and_another_sut(tmp_path):
    other = {"class_path": "lsgen.suts.pretrained", "init_args": {"path": "other.ckpt"}}
    save(Linear(num_classes=CLASSES, seed=1), tmp_path / "other.ckpt")
    searcher = {"class_path": "Differential", "init_args": {"other": other, "generations": 2}}
    task = load_task(searched(tmp_path, config(searcher=searcher)), sut=Linear(num_classes=CLASSES, seed=5))
    assert isinstance(task.searcher.other, Linear)
    assert (task.searcher.other.seed, task.sut.seed) == (1, 5)


def test_a_copied_suite_looks_in_the_current_folder(suite, tmp_path, monkeypatch):
    moved = tmp_path / "elsewhere"
    suite.path.rename(moved)
    with pytest.raises(InputError, match=r"sut\.ckpt, which has gone"):
        load_sut(load_suite(moved))
    monkeypatch.chdir(tmp_path)
    assert isinstance(load_sut(load_suite(moved)), Linear)


def test_what_has_gone_or_changed_is_named(suite, tmp_path):
    save(Linear(num_classes=CLASSES, seed=9), tmp_path / "sut.ckpt")
    with pytest.warns(UserWarning, match="weights of the sut have changed"):
        load_sut(suite)
    write_npz(tmp_path / "data", n=60, classes=CLASSES, seed=3)
    with pytest.warns(UserWarning, match="content has changed"):
        load_data(suite)
    (tmp_path / "sut.ckpt").unlink()
    with pytest.raises(InputError, match=r"sut\.ckpt, which has gone"):
        load_sut(suite)


def test_nothing_is_downloaded(suite):
    change(suite, lambda c: c["data"]["init_args"].update(download=True))
    assert not load_data(suite).download


@pytest.mark.parametrize(
    "class_path",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "torch.load",
        "lsgen.cli.main",
        "lsgen.load_suite",
        "lsgen.search.pgd.replace",
        "lsgen",
        "",
        7,
        None,
    ],
)
def test_a_suite_cannot_name_code_to_call(class_path):
    with pytest.raises(InputError, match="no part of lsgen"):
        resolve(class_path)


def test_a_suite_cannot_have_code_imported(suite, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("from tests.toys import Linear\nopen('ran', 'w')\nclass Evil(Linear): pass\n")
    change(suite, lambda c: c["model"]["init_args"]["sut"].update(class_path="evil.Evil", init_args={}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"'evil\.Evil' of a suite is no part of lsgen"):
        load_sut(suite)
    assert not (tmp_path / "ran").exists()
    import evil  # the user's own program may

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the weights")
        assert isinstance(load_sut(suite), evil.Evil)
    del sys.modules["evil"]


def test_a_model_whose_code_the_suite_names_is_refused(suite):
    marker = Path("ran").resolve()
    settings = {"model": "os.system", "model_args": {"command": f"touch {marker}"}, "num_classes": 3}
    foreign = {"class_path": "lsgen.suts.ExternalSUT", "init_args": settings | {"image_shape": [1, 4, 4]}}
    change(suite, lambda c: c["model"]["init_args"].update(sut=foreign))
    for load in (load_sut, load_task):
        with pytest.raises(InputError, match=r"ExternalSUT.*is not run"):
            load(suite)
    own = {"class_path": "lsgen.data.OwnCriterion", "init_args": {"criterion": "os.system"}}
    change(suite, lambda c: c["data"]["init_args"].update(fault=own))
    with pytest.raises(InputError, match=r"OwnCriterion.*is not run"):
        load_data(suite)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda c: c["model"]["init_args"].update(sut="os.system"), "names no class_path"),
        (lambda c: c["model"].pop("init_args"), "put together in Python"),
        (lambda c: c["model"]["init_args"]["sut"].update(init_args=[1]), "no names and values"),
        (lambda c: c["model"]["init_args"]["sut"].update(init_args={"nothing": 1}), "cannot be built"),
        (lambda c: c["model"]["init_args"].update(sut=c["model"]["init_args"]["generator"]), "gives no SUT"),
        (lambda c: c.clear(), "put together in Python"),
    ],
)
def test_bad_configurations(suite, edit, words):
    change(suite, edit)
    with pytest.raises(InputError, match=words):
        load_sut(suite)


@pytest.mark.parametrize("text", ["a: [", "- 1", ""])
def test_no_configuration(suite, text):
    (suite.path / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=r"config\.yaml"):
        load_sut(suite)
    (suite.path / "config.yaml").unlink()
    with pytest.raises(InputError, match=r"config\.yaml cannot be read"):
        load_data(suite)


def test_a_suite_made_in_python_says_that_it_does_not_know(suite, tmp_path):
    task = SearchTask(
        generator=Pixels(num_classes=CLASSES),
        sut=Linear(num_classes=CLASSES),
        searcher=LatentPGD(steps=1),
        seeds=DataSeeds(per_class=2),
        eval_batch_size=32,
    )
    trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_progress_bar=False)
    made = trainer.search(task, datamodule=load_data(suite), out=str(tmp_path / "python"))
    with pytest.raises(InputError, match="put together in Python"):
        load_generator(made)
    assert json.loads((made.path / "manifest.json").read_text())["finished"]
    assert resolve("lsgen.generators.pretrained") is generators.pretrained
