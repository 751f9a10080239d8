"""The real W&B client, offline: what `--trainer.logger WandbLogger` leaves in the run file, read back."""

import gc
import json
import socket
import struct
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb
import yaml
from lightning.pytorch.loggers import WandbLogger
from PIL import Image
from wandb.proto import wandb_internal_pb2

from lsgen import load_suite
from lsgen.cli import main
from lsgen.data import ImageData
from lsgen.loggers import RunLabels, sink_of
from lsgen.loggers import wandb as tracking
from lsgen.search.tracking import track_report
from lsgen.trainer import Trainer
from lsgen.types import to_uint8
from tests.conftest import QUIET, ROOT
from tests.toys import write_npz
from tests.unit.test_callbacks import CLASSES, SIDE, toy_task

BLOCK, HEADER = 32768, 7
SWEEPS = sorted((ROOT / "configs/sweeps").glob("*.yaml"))


def records(folder: Path):
    """The records of the one run below a folder: LevelDB's log format around protocol buffers."""
    (file,) = folder.rglob("*.wandb")
    content, at, parts = file.read_bytes(), HEADER, b""
    assert content[:4] == b":W&B"
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:  # too little room for another header
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        at += HEADER + length
        if at > len(content):  # not yet written to the end
            return
        parts += content[at - length : at]
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def finished(folder: Path) -> list:
    """The same once the last one is there: W&B's own process may still be writing when ``finish`` returns."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = list(records(folder))
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"the run below {folder} never ended")


class RunFile:
    """What dashboards would show of a run."""

    def __init__(self, folder: Path) -> None:
        self.history, self.config, self.artifacts = [], {}, {}
        for record in finished(folder):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                self._configure(record.run.config.update)
            elif kind == "config":
                self._configure(record.config.update)
            elif kind == "history":
                self.history.append({_key(i): json.loads(i.value_json) for i in record.history.item})
            elif kind == "artifact":
                self.artifacts[record.artifact.type, record.artifact.name] = record.artifact

    def _configure(self, items) -> None:
        self.config |= {item.key: json.loads(item.value_json) for item in items if item.key}

    def last(self, name: str):
        return next(row[name] for row in reversed(self.history) if name in row)


def _key(item) -> str:
    return item.key or "/".join(item.nested_key)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A SUT and a CVAE trained for one batch, and a search, each with `--trainer.logger WandbLogger` only."""
    folder = tmp_path_factory.mktemp("runs")
    data = ["--data.name=npz", f"--data.path={write_npz(folder / 'data', n=40, side=28, classes=CLASSES)}"]
    common = ["--trainer.logger=WandbLogger", *data, *QUIET]
    few = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1"]
    few += ["--trainer.num_sanity_val_steps=0", "--trainer.callbacks=null", f"--model.num_classes={CLASSES}"]
    search = [f"--model.{part}.path={folder}/{part}/best.ckpt" for part in ("generator", "sut")]
    search += ["--model.seeds.per_class=4", "--model.searcher.steps=11", "--model.block_size=6"]
    search += ["--model.eval_batch_size=32", f"--out={folder}/suite"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        nobody_is_logged_in(patch, folder)
        for part, config in (("sut", "sut.yaml"), ("generator", "cvae.yaml")):
            args = ["fit", f"--config=configs/mnist5k/{config}", f"--trainer.default_root_dir={folder}/{part}"]
            assert main([*args, *common, *few]) == 0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the SUT reads only")
            args = ["search", "--config=configs/mnist5k/search/pgd.yaml", f"--trainer.default_root_dir={folder}/search"]
            assert main([*args, *common, *search]) == 0
        wandb.finish()
    return folder


def nobody_is_logged_in(patch, folder):
    """And nobody says that runs are offline; files of W&B's own go to ``folder``."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "PL_GLOBAL_SEED"):
        patch.delenv(name, raising=False)
    patch.setenv("NETRC", str(folder / "netrc"))
    for kind in ("DATA", "CACHE", "CONFIG"):
        patch.setenv(f"WANDB_{kind}_DIR", str(folder / "home"))


def test_a_run_that_stays_on_this_disk_says_how_to_sync_it(tmp_path, capsys, monkeypatch):
    nobody_is_logged_in(monkeypatch, tmp_path)
    tracking.Wandb(WandbLogger()).begin(tracking.RunLabels("fit"), tmp_path)
    wandb.finish()
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("W&B: "))
    assert "not logged in (`wandb login`)" in said
    assert f"wandb sync {tmp_path}/wandb/offline-run-" in said


def test_groups_tags_and_project_tell_runs_apart(runs):
    search, fit = RunFile(runs / "search").run, RunFile(runs / "generator").run
    assert (search.project, search.run_group, search.job_type) == ("lsgen", "npz-CVAE-LatentPGD", "search")
    assert list(search.tags) == ["npz", "CVAE", "LatentPGD"]
    assert (fit.run_group, fit.job_type, list(fit.tags)) == ("npz-CVAE", "fit", ["npz", "CVAE"])


def test_the_config_has_every_setting_code_data_and_hardware(runs):
    fingerprint = ImageData(name="npz", path=str(runs / "data")).fingerprint
    for part in ("sut", "generator", "search"):
        config = RunFile(runs / part).config
        about = config["run"]
        assert about["data_fingerprint"] == fingerprint
        assert about["lsgen"]
        assert {"processor", "cores", "memory_gb", "gpus", "precision", "processes"} <= set(about["hardware"])
        assert "git_commit" in about
        assert config["seed_everything"] == 0
    assert config["model"]["init_args"]["searcher"]["init_args"]["steps"] == 11
    assert about["command"] == "search"


def test_the_numbers_of_the_search_are_those_of_the_suite(runs):
    suite, file = load_suite(runs / "suite"), RunFile(runs / "search")
    for name, value in suite.summary.items():
        if isinstance(value, (int, float)):
            assert file.last(name) == pytest.approx(value), name
    live = [row for row in file.history if "active_seeds" in row]
    assert [row["trainer/global_step"] for row in live] == [1, 11, 13, 23]  # two blocks of 11 rounds, each a step more
    assert {"failure_rate", "mean_p_true", "best_fitness", "active_seeds", "queries_per_second"} <= set(live[-1])
    assert "val/loss" in {name for row in RunFile(runs / "generator").history for name in row}


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_shown_as_they_are(tmp_path, monkeypatch, channels):
    nobody_is_logged_in(monkeypatch, tmp_path)
    sink, image = tracking.Wandb(WandbLogger()), torch.rand(channels, 12, 16)
    sink.begin(tracking.RunLabels("fit"), tmp_path)
    sink.image("val/samples", image, 0)
    wandb.finish()
    (file,) = tmp_path.rglob("samples_*.png")
    shown = torch.from_numpy(np.array(Image.open(file))).view(12, 16, channels).permute(2, 0, 1)
    assert torch.equal(shown, to_uint8(image))


def test_tables_and_pictures_are_there_and_limited(runs):
    file, suite = RunFile(runs / "search"), load_suite(runs / "suite")
    for name in ("per_class", "escape_rate", "gallery"):
        assert file.last(f"{name}/_type") == "images/separated"
    for name in ("cases", "per_class_table", "escape_rate_table"):
        assert file.last(f"{name}/_type") == "table-file"
    (table,) = runs.glob("search/wandb/offline-run-*/files/media/table/cases_*.json")
    content = json.loads(table.read_text())
    assert content["columns"] == ["seed", "found", "difference", "id", "label", "predicted", "p_true", "iterations"]
    assert len(content["data"]) == min(200, suite.summary["failed"]) > 0
    (pictures,) = (a for (kind, name), a in file.artifacts.items() if kind == "run_table" and name.endswith("-cases"))
    stored = [entry.path for entry in pictures.manifest.contents if entry.path.endswith(".png")]
    assert len(content["data"]) < len(stored) <= 3 * len(content["data"])  # equal pictures are stored once


def test_lineage_goes_from_checkpoints_to_the_suite(runs):
    made = {part: RunFile(runs / part).artifacts for part in ("sut", "generator", "search")}
    for part, name in (("generator", "npz-CVAE"), ("sut", "npz-Classifier")):
        output, used = made[part]["model", name], made["search"]["model", name]
        assert used.use_after_commit
        assert not output.use_after_commit
        assert output.digest == used.digest  # one and the same version
        assert [entry.path for entry in output.manifest.contents] == ["best.ckpt"]
    suite = made["search"]["suite", "npz-CVAE-LatentPGD"]
    assert not suite.use_after_commit
    paths = {entry.path for entry in suite.manifest.contents}
    assert {"manifest.json", "config.yaml", "summary.json", "cases.parquet"} < paths
    assert {f"arrays/block-{n:05d}.safetensors" for n in (0, 1)} < paths
    assert json.loads(suite.metadata)["identity"] == load_suite(runs / "suite").manifest["identity"]


def test_a_report_comes_from_its_suites(runs, tmp_path):
    page = tmp_path / "report.html"
    page.write_text("<p>all about it")
    track_report(page, [load_suite(runs / "suite")], WandbLogger())
    wandb.finish()
    artifacts = RunFile(tmp_path).artifacts
    suite = RunFile(runs / "search").artifacts["suite", "npz-CVAE-LatentPGD"]
    assert artifacts["suite", "npz-CVAE-LatentPGD"].use_after_commit
    assert artifacts["suite", "npz-CVAE-LatentPGD"].digest == suite.digest
    assert not artifacts["report", "report"].use_after_commit


def test_settings_of_the_user_come_before_those_of_lsgen(tmp_path):
    logger = WandbLogger(name="mine", project="ours", group="these", tags=["own"], save_dir=tmp_path / "here")
    (tmp_path / "here").mkdir()
    tracking.Wandb(logger).begin(tracking.RunLabels("search", "mnist", "CVAE", "LatentPGD"), tmp_path / "there")
    wandb.finish()
    run = RunFile(tmp_path / "here").run
    assert (run.display_name, run.project, run.run_group) == ("mine", "ours", "these")
    assert list(run.tags) == ["own", "mnist", "CVAE", "LatentPGD"]


# --- nothing that W&B does ends a run ---------------------------------------------------------------------------------


class NotFound(BaseHTTPRequestHandler):
    """Answers, though not kindly."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *args):
        pass


def test_a_run_is_online_only_where_somebody_is_logged_in_and_the_server_answers(tmp_path, monkeypatch):
    nobody_is_logged_in(monkeypatch, tmp_path)
    server, silent = HTTPServer(("127.0.0.1", 0), NotFound), socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=server.handle_request, daemon=True).start()
    settings = type("Settings", (), {"base_url": f"http://127.0.0.1:{server.server_port}"})
    monkeypatch.setattr(wandb, "setup", lambda: type("Session", (), {"settings": settings}))
    assert "not logged in" in tracking._why_offline()
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password none")
    assert tracking._why_offline() is None
    monkeypatch.setattr(tracking, "ANSWER", 0.2)
    settings.base_url = f"http://127.0.0.1:{silent.getsockname()[1]}"  # takes the call and says nothing
    assert "does not answer" in tracking._why_offline()
    silent.close()
    server.server_close()
    settings.base_url = f"http://127.0.0.1:{server.server_port}"  # nobody there
    assert "does not answer" in tracking._why_offline()


def test_a_search_goes_on_without_w_and_b(tmp_path, monkeypatch):
    def refuse(**given):
        if given.get("mode") != "disabled":
            raise wandb.errors.CommError("no such thing")
        return real(**given)

    real = wandb.init
    monkeypatch.setattr(wandb, "init", refuse)
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data", n=60, side=SIDE, classes=CLASSES)))
    trainer = Trainer(default_root_dir=tmp_path, logger=WandbLogger(), enable_progress_bar=False)
    with pytest.warns(UserWarning, match="W&B did not start") as warned:
        suite = trainer.search(toy_task(), datamodule=data, out=str(tmp_path / "suite"))
    assert suite.finished
    assert any("going on disabled" in str(w.message) for w in warned)


def test_what_w_and_b_cannot_take_is_a_warning(tmp_path):
    class Refusing:
        def log_table(self, *args, **kwargs):
            raise OSError("disk full")

    import pandas as pd

    with pytest.warns(UserWarning, match=r"table failed \(disk full\); the run goes on"):
        tracking.Wandb(Refusing()).table("cases", tracking.Table(pd.DataFrame({"a": [1]})), 0)


# --- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", SWEEPS, ids=[f.stem for f in SWEEPS])
def test_sweeps_name_settings_that_the_command_takes(file, capsys):
    sweep = yaml.safe_load(file.read_text())
    command = sweep["command"]
    assert command[:3] == ["${env}", "lsgen", "search"]
    assert command[-2:] == ["--trainer.logger=WandbLogger", "${args}"]
    given = {key: choice["values"][-1] for key, choice in sweep["parameters"].items()}
    overrides = [f"--{key}={value}" for key, value in given.items()]
    assert main([*command[2:-1], *overrides, "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    for key, value in given.items():
        _, part, name = key.split(".")
        assert printed["model"]["init_args"][part]["init_args"][name] == value
    assert main([*command[2:-1], "--model.searcher.lambda=1", "--print_config"]) == 2  # a wrong one is told
    capsys.readouterr()


def test_every_sweep_that_was_asked_for_is_there():
    names = {"speth_epsilon_steps", "speth_epsilon_scale", "argus_lambda", "icst25_extent"}
    assert {file.stem for file in SWEEPS} == names


def test_a_logger_that_is_gone_leaves_no_run_to_the_next(tmp_path):
    ids = set()
    for number in range(3):
        logger = WandbLogger(offline=True)
        sink_of(logger).begin(RunLabels("search"), tmp_path / str(number))
        ids.add(logger.experiment.id)
        del logger
        gc.collect()
    wandb.finish()
    assert len(ids) == 3
