"""Trainings that stop and go on, and trainings that begin from a checkpoint."""

from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Callback

from lsgen.cli import main
from lsgen.data import ImageData
from lsgen.generators import CVAE, VAE
from lsgen.suts import Classifier
from lsgen.trainer import Trainer
from tests.conftest import QUIET
from tests.toys import write_npz

SHAPE = {"image_shape": (1, 8, 8), "num_classes": 2, "lr": 0.01}
MODELS = {
    "classifier": lambda: Classifier(**SHAPE),
    "cvae": lambda: CVAE(width=2, **SHAPE),
    "vae": lambda: VAE(hidden=8, latent_dim=2, **SHAPE),
}


class Rates(Callback):
    """Keeps the learning rate of each epoch, and can end the training at the start of one as a crash would."""

    def __init__(self, crash: int | None = None) -> None:
        self.crash, self.seen = crash, {}

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.crash:
            raise RuntimeError("crash")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.setdefault(trainer.current_epoch, set()).add(trainer.optimizers[0].param_groups[0]["lr"])


def run(make, folder, data, *, epochs: int = 5, resume=None, crash: int | None = None) -> dict[int, set[float]]:
    rates = Rates(crash)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    trainer = Trainer(default_root_dir=folder, max_epochs=epochs, num_sanity_val_steps=0, callbacks=[rates], **quiet)
    with nullcontext() if crash is None else pytest.raises(RuntimeError, match="crash"):
        trainer.fit(make(), datamodule=data, ckpt_path=resume, weights_only=True)
    return rates.seen


def of_torch(epochs: int) -> dict[int, set[float]]:
    """The rates of torch's own scheduler."""
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    schedule, rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs), {}
    for epoch in range(epochs):
        rates[epoch] = {optimizer.param_groups[0]["lr"]}
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_training_goes_on_with_the_learning_rates_of_a_whole_one(make, tmp_path):
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data", side=8)), batch_size=16)
    whole, last = of_torch(5), tmp_path / "stopped/last.ckpt"
    assert run(make, tmp_path / "whole", data) == whole
    first = run(make, last.parent, data, crash=2)
    second = run(make, last.parent, data, resume=last)
    assert (list(first), list(second)) == ([0, 1], [2, 3, 4])
    assert first | second == whole
    assert run(make, last.parent, data, epochs=7, resume=last) == {k: v for k, v in of_torch(7).items() if k > 4}


def test_a_model_from_a_checkpoint_is_trained_in_training_mode(trained, tmp_path, monkeypatch):
    plain, seen = Classifier.training_step, []

    def training_step(self, batch, batch_idx):
        seen.append(all(module.training for module in self.modules()))
        return plain(self, batch, batch_idx)

    monkeypatch.setattr(Classifier, "training_step", training_step)
    config = tmp_path / "more.yaml"
    config.write_text(
        f"model:\n  class_path: lsgen.suts.pretrained\n  init_args:\n    path: {trained}/sut/best.ckpt\n"
        f"data:\n  class_path: ImageData\n  init_args:\n    name: mnist5k\n"
        f"trainer:\n  default_root_dir: {tmp_path}\n  max_epochs: 1\n  limit_train_batches: 2\n  limit_val_batches: 1\n"
    )
    assert main(["fit", f"--config={config}", *QUIET]) == 0
    assert seen == [True, True]
