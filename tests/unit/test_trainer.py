import inspect
import re
import warnings
from datetime import timedelta

import lightning.pytorch as pl
import pytest
import rich
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.strategies import DDPStrategy
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset

import lsgen.trainer
from lsgen import Trainer
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.loggers import Sink
from lsgen.search import PriorSeeds, RandomSampling, SearchTask
from tests.toys import Linear, Pixels, write_npz


class Worsening(LightningModule):
    """Its validation loss grows with every epoch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", float(self.current_epoch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_last_is_the_last_epoch_also_when_the_best_came_earlier(tmp_path):
    data = DataLoader(dataset=TensorDataset(torch.zeros(4, 1)))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(default_root_dir=tmp_path, max_epochs=4, **quiet).fit(Worsening(), data, data)
    epochs = {n: torch.load(tmp_path / f"{n}.ckpt", weights_only=True)["epoch"] for n in ("best", "last")}
    assert epochs == {"best": 0, "last": 3}
    assert sorted(p.name for p in tmp_path.glob("*.ckpt")) == ["best.ckpt", "last.ckpt"]


def test_a_training_whose_output_goes_to_a_file_writes_a_line_an_epoch(tmp_path, monkeypatch, capsys):
    data, seen = DataLoader(dataset=TensorDataset(torch.zeros(4, 1))), {}
    for terminal in (False, True):
        monkeypatch.setattr(rich, "get_console", lambda seen=terminal: Console(force_terminal=seen))
        quiet = {"logger": False, "enable_model_summary": False, "enable_checkpointing": False}
        Trainer(default_root_dir=tmp_path, max_epochs=2, **quiet).fit(Worsening(), data, data)
        seen[terminal] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert [re.sub(r", \d+ s", "", line) for line in seen[False]] == [
        "epoch 1 of 2: val/loss 0",
        "epoch 2 of 2: val/loss 1",
    ]
    assert seen[True] == []


def test_an_epoch_without_validation_does_not_repeat_the_last_ones_loss(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rich, "get_console", lambda: Console(force_terminal=False))
    data = DataLoader(dataset=TensorDataset(torch.zeros(4, 1)))
    quiet = {"logger": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(default_root_dir=tmp_path, max_epochs=3, check_val_every_n_epoch=2, **quiet)
    trainer.fit(Worsening(), data, data)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert [re.sub(r", \d+ s", "", x) for x in lines] == ["epoch 1 of 3", "epoch 2 of 3: val/loss 1", "epoch 3 of 3"]


@pytest.mark.parametrize("name", ["fit", "validate", "test"])
def test_the_command_line_sees_the_arguments_of_lightning(name):
    assert inspect.signature(getattr(Trainer, name)) == inspect.signature(getattr(pl.Trainer, name))


def test_loggers_are_told_what_a_run_is_about_before_they_are_opened(tmp_path, monkeypatch):
    begun = []

    class Recorder(Sink):
        def begin(self, labels, folder):
            begun.append((labels.command, labels.tags, folder))

    monkeypatch.setattr(lsgen.trainer, "sinks", lambda trainer: [Recorder(None)])
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data")))
    trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_progress_bar=False)
    trainer.test(Linear(), datamodule=data, verbose=False)
    trainer.validate(Linear(), data, verbose=False)
    assert begun == [("test", ["npz", "Linear"], tmp_path), ("validate", ["npz", "Linear"], tmp_path)]


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar])
def test_a_bar_that_is_switched_off_stays_off(bar, tmp_path, capsys):
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data")))
    task = SearchTask(generator=Pixels(), sut=Linear(), searcher=RandomSampling(), seeds=PriorSeeds(per_class=2))
    for rate in (0, 1):
        trainer = Trainer(default_root_dir=tmp_path, logger=False, callbacks=[bar(refresh_rate=rate)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the SUT reads only")
            trainer.search(task, datamodule=data, out=str(tmp_path / str(rate)))
        assert ("searching" in capsys.readouterr().out) == bool(rate)


def test_processes_of_a_search_wait_for_each_other(tmp_path):
    task = SearchTask(generator=Pixels(), sut=Linear(), searcher=RandomSampling(), seeds=PriorSeeds())
    spawning = Trainer(default_root_dir=tmp_path, strategy="ddp_spawn", accelerator="cpu", devices=2, logger=False)
    with pytest.raises(InputError, match="needs strategy: ddp"):
        spawning.search(task)
    strategy = DDPStrategy(timeout=timedelta(minutes=1))
    Trainer._settle(strategy)
    assert strategy._timeout >= timedelta(days=1)
