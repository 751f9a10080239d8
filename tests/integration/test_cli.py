"""The command line: every shipped configuration, the help, and wrong input."""

import errno
import os

import numpy as np
import pytest
import torch
import yaml

import lsgen
import lsgen.suite
from lsgen import load_suite
from lsgen.cli import main
from tests.conftest import QUIET, ROOT
from tests.toys import write_npz

OTHERS = {"bench", "sweeps"}  # grids of lsgen bench and of W&B, tested with them
CONFIGS = sorted(c for c in (ROOT / "configs").rglob("*.yaml") if c.parent.name not in OTHERS)
SEARCH, SUT = f"{ROOT}/configs/mnist5k/search/pgd.yaml", f"{ROOT}/configs/mnist5k/sut.yaml"


@pytest.mark.parametrize("config", CONFIGS, ids=[str(c.relative_to(ROOT / "configs")) for c in CONFIGS])
def test_every_shipped_configuration_parses(config, capsys):
    command = "search" if config.parent.name == "search" else "fit"
    assert main([command, f"--config={config}", "--print_config"]) == 0
    assert "class_path" in capsys.readouterr().out


@pytest.mark.parametrize("args", [["--help"], [], ["-h"]])
def test_help(args, capsys):
    assert main(args) == 0
    assert "lsgen search --config" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["fit", "validate", "test", "search", "quickstart"])
def test_help_of_each_command(command, capsys):
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    usage, what = said.split("\n\n")[:2]
    assert usage.startswith(f"usage: lsgen {command} ")
    assert what.endswith(".")  # whole sentences
    assert "--out" in said or "--ckpt_path" in said


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lsgen {lsgen.__version__}\n"


# arguments -> what the message must say. @search: a search that would run; !command: with its shipped configuration;
# {trained} and {tmp} are folders
BAD = {
    "unknown command": (["serach"], ["no command 'serach'", "did you mean search?"]),
    "no configuration": (["search"], ["missing data, model", "give --config FILE"]),
    "a configuration without its flag": (["search", str(SUT)], ["is given as --config", "sut.yaml"]),
    "misspelt part": (["search", "--config={tmp}/dta.yaml"], ["no setting 'dta'", "'data'"]),
    "misspelt flag": (["!search", "--modl.searcher=LatentPGD"], ["--modl", "did you mean '--model'?"]),
    "missing file": (["search", "--config=nowhere.yaml"], ["nowhere.yaml"]),
    "misspelt key": (["!search", "--model.sercher=LatentPGD"], ["sercher", "'searcher'"]),
    "misspelt nested key": (["!search", "--model.searcher.stepz=1"], ["model.searcher.stepz", "'steps'"]),
    "misspelt class": (["!search", "--model.searcher=LatentPDG"], ["model.searcher", "'LatentPGD'"]),
    "wrong type": (["!search", "--model.searcher.steps=many"], ["model.searcher.steps", "int", "many"]),
    "no type of several": (
        ["!search", "--model.eval_batch_size=foo"], ["model.eval_batch_size: expected int or 'auto', got 'foo'"],
    ),
    "no kind of target": (["!search", "--model.seeds.target=x"], ["seeds.target: expected int or 'each' or null"]),
    "precision": (["!search", "--trainer.precision=foo"], ["trainer.precision: expected", "'bf16-mixed'", "got 'foo'"]),
    "no class": (["search", "--config={tmp}/three.yaml"], ["model: expected a class_path with its init_args", "'3'"]),
    "null": (["@search", "--model.block_size=null"], ["model.block_size: expected int, got null"]),
    "null batch size": (
        ["@search", "--model.eval_batch_size=null"], ["model.eval_batch_size: expected int or 'auto', got null"],
    ),
    "nested null": (["@search", "--model.searcher.steps=null"], ["model.searcher.steps: expected int, got null"]),
    "null of a kind": (["@search", "--model.seeds.per_class", "~"], ["model.seeds.per_class: expected int, got null"]),
    "null in a table": (["@search", "--model.searcher.settings.x=null"], ["settings.x", "in a configuration file"]),
    "huge number": (["@search", "--model.searcher.radius=1e39"], ["model.searcher.radius", "1e+39", "32 bits"]),
    "huge count": (["@search", "--model.searcher.steps=10000000000000000000"], ["model.searcher.steps", "too large"]),
    "abstract class": (["@search", "--model.searcher=Searcher"], ["model.searcher: Searcher is only", "LatentPGD"]),
    "abstract class of a setting": (["@search", "--model.objective=Objective"], ["Objective is only", "LogitMargin"]),
    "criterion that always holds": (
        ["@search", "--model.criterion=Within", "--model.criterion.radius=1"], ["Within holds for every seed", "Both"],
    ),
    "nobody aims": (
        ["@search", "--model.searcher=RandomSampling", "--model.seeds.target=each", "--model.criterion=Misclassified"],
        ["the seeds have targets", "leave seeds.target out"],
    ),
    "broken configuration": (["search", "--config={tmp}/broken.yaml"], ["broken.yaml is no YAML"]),
    "binary configuration": (["search", "--config", "{tmp}/foreign.ckpt"], ["foreign.ckpt is no YAML"]),
    "empty configuration": (["fit", "--config={tmp}/empty.yaml"], ["empty.yaml holds no settings"]),
    "wrong choice": (["!search", "--model.seeds.distribution=flat"], ["distribution", "'uniform'"]),
    "trainer key": (["!search", "--trainer.devicez=2"], ["devicez"]),
    "missing keys": (["search", "--model=SearchTask", "--data=ImageData"], ["model", "generator", "sut"]),
    "no target": (["@search", "--model.objective=ConfidentTarget"], ["ConfidentTarget", "seeds.target"]),
    "target is a label": (["@search", "--model.seeds.target=3"], ["target 3 is the label"]),
    "lambda": (["@search", "--model.searcher=Interpolation", "--model.searcher.share=1.5"], ["between 0 and 1"]),
    "pairs": (["@search", "--model.searcher=Interpolation"], ["PairSeeds"]),
    "stages": (["@search", "--model.searcher=ActivationPerturbation", "--model.searcher.stages=9"], ["4 stages"]),
    "block size": (["@search", "--model.block_size=0"], ["block_size", "at least 1"]),
    "batch size": (["@search", "--model.eval_batch_size=33"], ["eval_batch_size", "1, 4, 8, 16, a multiple of 32"]),
    "negative steps": (["@search", "--model.searcher.steps=-1"], ["steps >= 0"]),
    "no number": (["@search", "--model.seeds.scale=.nan"], ["scale must be finite"]),
    "seed": (["@search", "--seed_everything=-1"], ["-1"]),
    "strategy": (["@search", "--trainer.strategy=foo"], ["foo"]),
    "learning rate": (["!fit", "--model.lr=-1"], ["lr must be above 0"]),
    "standard deviation": (["!fit", "--model.std=[0.0]"], ["std must be above 0"]),
    "unwritable run": (["!fit", "--trainer.default_root_dir={tmp}/file.txt/x", *QUIET], ["file.txt", "another place"]),
    "untrained model": (["!test"], ["untrained", "--ckpt_path"]),
    "another kind": (["@search", "--model.objective=LSA"], ["model.objective", "LSA is not of the kind"]),
    "class index": (["@search", "--model.seeds.classes=[3,10]"], ["no class 10", "0 to 9"]),
    "no seeds": (["@search", "--model.seeds.per_class=0"], ["per_class"]),
    "data set name": (["@search", "--data.name=mnits"], ["mnits"]),
    "no checkpoint": (["@search", "--model.sut.path={tmp}/none.ckpt"], ["none.ckpt", "lsgen fit"]),
    "no checkpoint of a shipped configuration": (
        ["@search", "--model.sut.path=runs/mnist5k/sut_lenet5/none.ckpt"],
        ["train it first with `lsgen fit --config", "configs/mnist5k/sut_lenet5.yaml`"],
    ),
    "checkpoint of wrong kind": (["@search", "--model.sut.path={trained}/cvae/best.ckpt"], ["CVAE", "SUT is needed"]),
    "not a checkpoint": (["@search", f"--model.sut.path={ROOT}/README.md"], ["README.md", "cannot be read"]),
    "foreign checkpoint": (["@search", "--model.sut.path={tmp}/foreign.ckpt"], ["not a checkpoint of lsgen"]),
    "code in a checkpoint": (["@search", "--model.sut.path={tmp}/evil.ckpt"], ["evil.ckpt", "cannot be read"]),
    "other images": (["@search", "--data.name=npz", "--data.path={tmp}/small"], ["(1, 28, 28)", "(1, 4, 4)"]),
    "other classes": (["@search", "--data.name=npz", "--data.path={tmp}/few"], ["10 classes", "2"]),
    "no arrays": (["@search", "--data.name=npz", "--data.path={tmp}"], ["train.npz"]),
    "occupied folder": (["@search", "--out={tmp}/small"], ["small", "not a suite"]),
    "unwritable folder": (["@search", "--out={tmp}/file.txt/x"], ["file.txt", "choose another --out"]),
    "a model that is no search": (["search", f"--config={SUT}"], ["SearchTask", "Classifier"]),
    "a search to be trained": (["@fit"], ["lsgen search"]),
    "network name": (["!fit", "--model.network=lent5"], ["lent5", "mnist_cnn"]),
    "model and data differ": (["!fit", "--model.num_classes=9", *QUIET], ["9 classes", "10"]),
    "no checkpoint to test": (["!test", "--ckpt_path=none.ckpt"], ["none.ckpt"]),
    "checkpoint of another model": (
        ["!test", "--ckpt_path={trained}/cvae/best.ckpt"], ["holds a CVAE", "is a Classifier"],
    ),
    "checkpoint of another network": (
        ["!test", "--model.network=lenet5", "--ckpt_path={trained}/sut/best.ckpt"], ["does not fit"],
    ),
    "text as a checkpoint": (["!test", "--ckpt_path={tmp}/metrics.csv"], ["metrics.csv", "cannot be read"]),
    "weights as a checkpoint": (["!test", "--ckpt_path={tmp}/weights.pt"], ["weights.pt", "lsgen fit"]),
    "weights to go on from": (["!fit", "--ckpt_path={tmp}/only.ckpt"], ["only.ckpt", "weights only"]),
    "checkpoint that says nothing": (["!test", "--ckpt_path={tmp}/says.ckpt"], ["says.ckpt", "lsgen fit"]),
    "sut that says nothing": (["@search", "--model.sut.path={tmp}/says.ckpt"], ["says.ckpt", "lsgen fit"]),
    "sut without weights": (["@search", "--model.sut.path={tmp}/bare.ckpt"], ["bare.ckpt", "lsgen fit"]),
    "quickstart into a file": (["quickstart", "--out={tmp}/file.txt"], ["file.txt"]),
}  # fmt: skip


class Evil:
    """Would run code if it were unpickled."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.fixture(scope="module")
def places(tmp_path_factory, trained):
    tmp = tmp_path_factory.mktemp("bad")
    write_npz(tmp / "small", classes=10)
    write_npz(tmp / "few", side=28)
    (tmp / "file.txt").write_text("a file")
    (tmp / "broken.yaml").write_text("model: [1\ndata: 2\n")
    (tmp / "empty.yaml").write_text("")
    (tmp / "dta.yaml").write_text("dta: {class_path: ImageData, init_args: {name: mnist5k}}\n")
    (tmp / "three.yaml").write_text("model: 3\ndata: {class_path: ImageData, init_args: {name: mnist5k}}\n")
    torch.save({"weights": torch.zeros(1)}, tmp / "foreign.ckpt")
    torch.save({"state_dict": Evil()}, tmp / "evil.ckpt")
    (tmp / "metrics.csv").write_text("epoch,step,val/loss\n0,10,0.5\n")
    whole = torch.load(trained / "sut/best.ckpt", weights_only=True)
    torch.save(whole["state_dict"], tmp / "weights.pt")
    torch.save({k: v for k, v in whole.items() if k not in ("optimizer_states", "lr_schedulers")}, tmp / "only.ckpt")
    torch.save({**whole, "lsgen": {}}, tmp / "says.ckpt")
    torch.save({"lsgen": whole["lsgen"]}, tmp / "bare.ckpt")
    return {"tmp": str(tmp), "trained": str(trained)}


@pytest.mark.parametrize(("args", "words"), BAD.values(), ids=BAD)
def test_wrong_input_ends_with_2_and_a_sentence(args, words, places, search_args, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where shipped configurations leave their logs
    command, *rest = (a.format(**places) for a in args)
    if command.startswith("@"):
        full = [command[1:], *search_args(*rest)[1:]]
    elif command.startswith("!"):
        full = [command[1:], f"--config={SEARCH if command == '!search' else SUT}", *rest]
    else:
        full = [command, *rest]
    assert main(full) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("lsgen: ")
    assert len(said) < 400
    for word in words:
        assert word in said
    assert not os.path.exists("pwned")


@pytest.mark.parametrize(
    "args",
    [
        ["--model.seeds.target=null"],
        ["--model.seeds.init_args.target", "~"],
        ["--model.seeds.target=3", "--model.seeds.per_class=7", "--model.seeds.target=null"],
    ],
)
def test_a_setting_can_be_nulled_however_deep_it_is(args, capsys):
    escape = f"{ROOT}/configs/mnist5k/search/escape.yaml"
    assert main(["search", f"--config={escape}", *args, "--print_config"]) == 0
    seeds = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["seeds"]["init_args"]
    assert seeds["target"] is None
    assert seeds["per_class"] == (7 if len(args) == 3 else 1)  # the others stay


def test_a_search_that_ends_before_its_first_block_leaves_no_folder(search_args, tmp_path, capsys):
    surprise = ["--model.searcher=HillClimb", "--model.searcher.step=1", "--model.objective=SurpriseDistance"]
    surprise += ["--model.objective.surprise=LSA", "--model.objective.target=1", "--model.objective.images=200"]
    out = f"--out={tmp_path}/s"
    assert main(search_args(out, *surprise, "--model.objective.surprise.min_std=1000")) == 2
    assert "min_std" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
    assert main(search_args(out)) == 0  # another search may have the place


def test_a_training_that_is_refused_does_not_describe_the_checkpoints_of_another(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("of the training that is there")
    args = [f"--config={SUT}", "--model.num_classes=9", f"--trainer.default_root_dir={tmp_path}", *QUIET]
    assert main(["fit", *args]) == 2
    assert (tmp_path / "config.yaml").read_text() == "of the training that is there"
    assert "9 classes" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--trainer.enable_checkpointing=false"]])
def test_it_is_said_when_a_training_replaces_another(more, tmp_path, capsys):
    args = ["fit", f"--config={SUT}", f"--trainer.default_root_dir={tmp_path}", "--trainer.max_epochs=0", *QUIET, *more]
    said = []
    for _ in range(2):
        assert main(args) == 0
        said.append("will be replaced" in capsys.readouterr().out)
        (tmp_path / "best.ckpt").touch()
    assert said == [False, not more]


def test_a_sut_that_does_not_fit_the_generator_is_refused(trained, search_args, tmp_path, capsys):
    from lsgen import checkpoints
    from lsgen.suts import Classifier

    other = Classifier(num_classes=9)
    about = {"role": "SUT", **checkpoints.describe(other)}
    torch.save({"state_dict": other.state_dict(), checkpoints.KEY: about}, tmp_path / "nine.ckpt")
    assert main(search_args(f"--model.sut.path={tmp_path}/nine.ckpt")) == 2
    assert "10 classes, the SUT takes (1, 28, 28) in 9" in capsys.readouterr().err


def test_a_full_disk_ends_with_1_and_keeps_what_was_finished(search_args, tmp_path, monkeypatch, capsys):
    out, real = tmp_path / "s", lsgen.suite.pq.write_table

    def full_after_two(table, file, *args, **kwargs):
        if "block-00002" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(table, file, *args, **kwargs)

    monkeypatch.setattr(lsgen.suite.pq, "write_table", full_after_two)
    assert main(search_args(f"--out={out}", method="random")) == 1
    said = capsys.readouterr().err
    assert "No space left" in said
    assert "Traceback" not in said
    assert load_suite(out).blocks == [0, 1]
    monkeypatch.undo()
    assert main(search_args(f"--out={out}", method="random")) == 0
    assert load_suite(out).finished


def test_quickstart_goes_the_whole_way_and_has_nothing_to_do_the_second_time(tmp_path, monkeypatch, capsys):
    """The shipped configurations, cut short."""
    import lsgen.quickstart

    short = tmp_path / "configs/mnist5k"
    for name in ("sut.yaml", "cvae.yaml", "search/random.yaml", "search/pgd.yaml"):
        text = (ROOT / "configs/mnist5k" / name).read_text()
        text = text.replace("max_epochs: 8", "max_epochs: 1\n  limit_train_batches: 30")
        text = text.replace("max_epochs: 40", "max_epochs: 1\n  limit_train_batches: 30")
        (short / name).parent.mkdir(parents=True, exist_ok=True)
        (short / name).write_text(text.replace("per_class: 100", "per_class: 20"))
    monkeypatch.setattr(lsgen.quickstart, "shipped_configs", lambda: tmp_path / "configs")
    out = tmp_path / "out: # odd"
    assert main(["quickstart", f"--out={out}"]) == 0
    said = capsys.readouterr().out
    for words in (
        "clean accuracy",
        "CVAE samples read as intended",
        "PGD f",
        "failures.png",
        f"report: {out}/report.html",
    ):
        assert words in said
    assert load_suite(out / "random").finished
    assert load_suite(out / "pgd").summary["n_cases"] == load_suite(out / "random").summary["n_cases"] == 200
    assert np.array_equal(load_suite(out / "random").latents, load_suite(out / "pgd").array("seed_latent"))
    assert (out / "failures.png").stat().st_size > 10_000
    assert (out / "report.html").read_text(encoding="utf-8").count("<section") >= 7
    assert main(["quickstart", f"--out={out}"]) == 0
    said = capsys.readouterr().out
    assert said.count("already trained") == 2
    assert said.count("already finished") == 2
