"""The two conditional GANs: their losses by hand, and training through a Trainer."""

import math

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy.stats import kstest, truncnorm
from torch import nn

from lsgen import checkpoints
from lsgen.data import ImageData
from lsgen.errors import Diverged, InputError
from lsgen.generators import Generator
from lsgen.generators.ema import follow
from lsgen.generators.gan import (
    GAN,
    energy_distance,
    hinge_discriminator,
    non_saturating_discriminator,
    non_saturating_generator,
    truncated_normal,
)
from lsgen.trainer import Trainer
from tests.toys import write_npz

BOTH = pytest.mark.parametrize("architecture", ["cdcgan", "resnet"])


def latents(gan: GAN, n: int = 6):
    y = torch.arange(n) % gan.num_classes
    return gan.sample_prior(n, y, torch.Generator().manual_seed(0)), y


def trainer(folder, **more) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, log_every_n_steps=1, **quiet, **more)


@pytest.fixture
def data(tmp_path) -> ImageData:
    return ImageData(name="npz", path=str(write_npz(tmp_path / "data", side=8)), batch_size=8)


def test_channels_are_the_published_ones():
    def channels(gan):
        return [m.out_channels for m in gan.network.modules() if isinstance(m, nn.ConvTranspose2d)]

    assert channels(GAN(width=128)) == [128, 1]
    assert GAN(width=128).stages[0][0].weight.shape == (256 * 7 * 7, 110)
    assert channels(GAN(width=64, image_shape=(3, 32, 32))) == [128, 64, 3]


# losses, average, truncation


def test_hinge_loss_by_hand():
    real, fake = torch.tensor([2.0, 0.0, -1.0]), torch.tensor([-3.0, 0.5, 1.0])
    assert float(hinge_discriminator(real, fake)) == pytest.approx((0 + 1 + 2) / 3 + (0 + 1.5 + 2) / 3)
    assert float(GAN(architecture="resnet", width=2)._loss_g(fake)) == pytest.approx(1.5 / 3)


def test_non_saturating_loss_by_hand():
    def p(logit):
        return 1 / (1 + math.exp(-logit))

    real, fake = [2.0, -1.0], [-3.0, 0.5]
    wanted = -sum(math.log(p(r)) for r in real) / 2 - sum(math.log(1 - p(f)) for f in fake) / 2
    assert float(non_saturating_discriminator(torch.tensor(real), torch.tensor(fake))) == pytest.approx(wanted)
    wanted = -sum(math.log(p(f)) for f in fake) / 2
    assert float(non_saturating_generator(torch.tensor(fake))) == pytest.approx(wanted)


def test_average_follows_weights_and_statistics_by_hand():
    average, network = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for value in (1.0, 5.0):
        network.weight.data.fill_(value)
        network.running_mean.fill_(2 * value)
        network.num_batches_tracked += 7
        follow(average, network, 0.9, steps=10_000)
    # 1 -> 0.9 · 1 + 0.1 · 1 = 1 -> 0.9 · 1 + 0.1 · 5 = 1.4;  0 -> 0.2 -> 0.18 + 1
    assert average.weight.item() == pytest.approx(1.4)
    assert float(average.running_mean) == pytest.approx(1.18)
    assert int(average.num_batches_tracked) == 14
    assert network.weight.item() == 5


def test_the_average_forgets_its_start_at_once():
    average, network = nn.Linear(1, 1), nn.Linear(1, 1)
    follow(average, network, 0.999, steps=0)
    assert torch.equal(average.weight, network.weight)


def test_truncation_bounds_the_prior():
    gan, y = GAN(width=2, truncation=0.7), torch.zeros(500, dtype=torch.long)
    z = gan.sample_prior(500, y, torch.Generator().manual_seed(0))
    assert z.dtype == torch.float32
    assert float(z.abs().max()) <= 0.7
    assert kstest(z.flatten().numpy(), truncnorm(-0.7, 0.7).cdf).pvalue > 0.01
    assert torch.equal(z, gan.sample_prior(500, y, torch.Generator().manual_seed(0)))


def test_truncation_far_out_is_the_plain_normal():
    share = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(truncated_normal(share, 9.0), torch.special.ndtri(share))


def test_energy_distance_by_hand_and_what_it_tells_apart():
    # two images of one pixel, one class: 2 (|0-1| + |1-0|)/2 - |0-1| - |0-1|, pairs (i, i) left out
    x, y = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1), torch.tensor([0, 0])
    assert float(energy_distance(x, x, y)) == pytest.approx(0)
    assert float(energy_distance(x, torch.full_like(x, 0.5), y)) == pytest.approx(2 * 0.5 - 1)
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    make = lambda y: (0.5 * torch.rand(len(y), 1, 4, 4, generator=rng) + 0.5 * y.view(-1, 1, 1, 1)).float()  # noqa: E731
    real, same, swapped, one = make(y), make(y), make(1 - y), make(y[:2])[y]
    scores = [float(energy_distance(real, other, y)) for other in (same, swapped, one)]
    assert abs(scores[0]) < 0.02
    assert min(scores[1:]) > 5 * abs(scores[0]) + 0.05


# training


@BOTH
def test_trains_saves_and_resumes(architecture, data, tmp_path):
    torch.manual_seed(0)
    args = {"architecture": architecture, "image_shape": (1, 8, 8), "num_classes": 2, "width": 4, "latent_dim": 6}
    gan = GAN(**args, discriminator_steps=2, lr_generator=1e-2, truncation=1.5)
    start = {k: v.clone() for k, v in gan.state_dict().items()}
    # one that writes after every epoch; lsgen's own waits for a better val/loss
    each = {"callbacks": [ModelCheckpoint(tmp_path / "run", filename="epoch", enable_version_counter=False)]}
    run = trainer(tmp_path / "run", max_epochs=2, **each)
    run.fit(gan, datamodule=data)
    assert {"train/g_loss", "train/d_loss", "val/loss"} <= set(run.callback_metrics)
    changed = {k for k, v in gan.state_dict().items() if not torch.equal(v, start[k])}
    assert {"network", "average", "discriminator"} <= {k.split(".")[0] for k in changed}
    assert not torch.equal(gan.network.stages[0][0].weight, gan.average.stages[0][0].weight)

    last = tmp_path / "run/epoch.ckpt"
    again = checkpoints.load(last, Generator)
    z, y = latents(gan)
    assert torch.equal(again.decode(z, y), gan.average.eval()(z, y).sigmoid())
    assert not torch.equal(again.decode(z, y), gan.network.eval()(z, y).sigmoid())
    assert again.latent.bounds == pytest.approx((-1.5, 1.5), abs=0.05)

    stored = checkpoints.read(last)
    assert len(stored["optimizer_states"]) == 2
    assert all(state["state"] for state in stored["optimizer_states"])
    batches = int(gan.batches)
    longer, more = GAN(**args, discriminator_steps=2), trainer(tmp_path / "run", max_epochs=3, **each)
    more.fit(longer, datamodule=data, ckpt_path=last)
    assert more.current_epoch == 3
    assert int(longer.batches) == batches * 3 // 2
    adam_g, adam_d = more.optimizers
    turns = [int(next(iter(adam.state.values()))["step"]) for adam in (adam_g, adam_d)]
    assert turns == [int(longer.batches) // 2, int(longer.batches)]


@BOTH
def test_testing_logs_the_distance(architecture, data, tmp_path):
    gan = GAN(architecture=architecture, image_shape=(1, 8, 8), num_classes=2, width=2)
    first, second = (trainer(tmp_path, logger=False).test(gan, datamodule=data, verbose=False) for _ in range(2))
    assert first == second
    assert first[0]["test/loss"] > 0


@BOTH
def test_learning_moves_images_towards_the_data(architecture, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 128, (256, 8, 8), np.uint8)
    images[::2, :, :4] += 128  # class 0 is bright on the left, class 1 on the right
    images[1::2, :, 4:] += 128
    for part in ("train", "test"):
        np.savez(folder / f"{part}.npz", images=images, labels=np.arange(256) % 2)
    torch.manual_seed(0)
    shape = {"image_shape": (1, 8, 8), "num_classes": 2, "width": 8, "latent_dim": 4}
    gan = GAN(architecture=architecture, **shape, lr_generator=2e-3, lr_discriminator=2e-3, ema=0.9)
    trainer(tmp_path, max_epochs=14, logger=False, enable_checkpointing=False).fit(
        gan, datamodule=ImageData(name="npz", path=str(folder), batch_size=16)
    )
    with torch.no_grad():
        x = gan.eval().decode(*latents(gan))
    contrast = x[..., :4].mean(dim=(1, 2, 3)) - x[..., 4:].mean(dim=(1, 2, 3))
    assert float(contrast[::2].min()) > 0.1
    assert float(contrast[1::2].max()) < -0.1


def test_a_loss_that_is_no_number_stops_and_keeps_the_checkpoint(data, tmp_path):
    gan = GAN(image_shape=(1, 8, 8), num_classes=2, width=2)
    trainer(tmp_path, max_epochs=1).fit(gan, datamodule=data)
    before = (tmp_path / "best.ckpt").read_bytes()
    nn.init.constant_(gan.discriminator.layers[-1].bias, math.nan)
    kept = gan.network.stages[0][0].weight.clone()
    with pytest.raises(Diverged, match=r"train/d_loss is nan in epoch 0, step 0"):
        trainer(tmp_path, max_epochs=1).fit(gan, datamodule=data)
    assert (tmp_path / "best.ckpt").read_bytes() == before
    assert torch.equal(gan.network.stages[0][0].weight, kept)


def test_several_processes_may_train_one_network_at_a_time(data, tmp_path):
    gan, run = GAN(image_shape=(1, 8, 8), num_classes=2, width=2), trainer(tmp_path, strategy="ddp", devices=2)
    run.datamodule, gan.trainer = data, run
    gan.setup("fit")
    assert run.strategy._ddp_kwargs == {"find_unused_parameters": True}


# wrong input


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"architecture": "stylegan"}, "cdcgan, resnet"),
        ({"latent_dim": 0}, "latent_dim"),
        ({"discriminator_steps": 0}, "discriminator_steps"),
        ({"ema": 1.0}, "ema"),
        ({"lr_generator": 0.0}, "lr_generator"),
        ({"betas": (0.5, 1.0)}, "betas"),
        ({"truncation": 0.0}, "truncation"),
        ({"image_shape": (1, 30, 30)}, "30×30"),
        ({"image_shape": (1, 4, 4)}, "4×4"),
        ({"image_shape": (1, 28, 56)}, "28×56"),
        ({"image_shape": (3, 36, 36), "architecture": "resnet"}, "36×36"),
    ],
)
def test_refuses_what_it_cannot_build(bad, says):
    with pytest.raises(InputError, match=says):
        GAN(**bad)


def test_refuses_data_of_another_shape(data, tmp_path):
    with pytest.raises(InputError, match="image_shape"):
        trainer(tmp_path, max_epochs=1).fit(GAN(width=2), datamodule=data)
