"""Diffusion: DDIM by hand, what guidance does, what a gradient costs in memory, and training through a Trainer."""

import math

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from lsgen.data import ImageData
from lsgen.errors import Diverged, InputError
from lsgen.generators import Diffusion, pretrained
from lsgen.trainer import Trainer
from tests.toys import write_npz

TINY = {"image_shape": (1, 8, 8), "num_classes": 2, "channels": (8, 8), "steps": 4}


@pytest.fixture
def model() -> Diffusion:
    torch.manual_seed(0)
    return Diffusion(**TINY).eval()


def start(n: int = 3):
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 2


def cosine(t: int) -> float:
    """Share of the variance that is signal after noise level t (Nichol and Dhariwal), before the end is set to 0."""
    product = 1.0
    for i in range(t + 1):
        a, b = (math.cos((j / 1000 + 0.008) / 1.008 * math.pi / 2) ** 2 for j in (i, i + 1))
        product *= 1 - min(1 - b / a, 0.999)
    return product


def rescaled(t: int) -> float:
    """The same with the last level moved to exactly no signal (Lin et al.)."""
    first, last, root = (math.sqrt(cosine(level)) for level in (0, 999, t))
    return ((root - last) * first / (first - last)) ** 2


@torch.no_grad()
def test_decode_is_ddim_by_hand(model):
    z, y = start()
    x = z.clone()
    for t, to in ((999, 749), (749, 499), (499, 249), (249, None)):
        signal, wanted = rescaled(t), 1.0 if to is None else rescaled(to)
        level = torch.full_like(y, t)
        with_label, without = model.velocity(x, level, y), model.velocity(x, level, torch.full_like(y, 2))
        v = without + 2.0 * (with_label - without)
        clean = math.sqrt(signal) * x - math.sqrt(1 - signal) * v
        noise = math.sqrt(signal) * v + math.sqrt(1 - signal) * x
        x = math.sqrt(wanted) * clean + math.sqrt(1 - wanted) * noise
    torch.testing.assert_close(model.decode(z, y), ((x + 1) / 2).clamp(0, 1), atol=1e-4, rtol=1e-3)


@torch.no_grad()
def test_guidance_one_needs_half_the_passes_and_none_hides_the_label(model, monkeypatch):
    z, y = start()
    seen, plain = [], model.velocity
    monkeypatch.setattr(model, "velocity", lambda x, t, labels: seen.append(len(labels)) or plain(x, t, labels))
    model.decode(z, y)
    model.guidance = 1.0
    model.decode(z, y)
    assert seen == [6] * 4 + [3] * 4
    model.guidance = 0.0
    assert torch.allclose(model.decode(z, y), model.decode(z, 1 - y), atol=1e-6)


def saved_bytes(model: Diffusion, steps: int) -> int:
    """What autograd keeps for the way back."""
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    model.steps = steps
    z, y = start()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        image = model.decode(z.requires_grad_(), y)
    assert image.requires_grad
    return sum(kept.values())


def test_each_step_more_keeps_one_latent_more(model):
    latent = start()[0].numel() * 4
    few, many = saved_bytes(model, 4), saved_bytes(model, 12)
    assert many - few == 8 * latent
    one_pass = {}
    with saved_tensors_hooks(lambda t: one_pass.setdefault(t.data_ptr(), t), lambda t: t):
        model.velocity(start()[0].requires_grad_(), torch.zeros(3).long(), start()[1])
    assert sum(t.numel() * 4 for t in one_pass.values()) > 50 * latent  # what a step would keep without checkpoints


def test_gradient_matches_finite_differences(model):
    model.double()
    z, y = start(1)
    z = z.double().requires_grad_()
    weight = torch.randn(1, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inside = model.decode(z, y).detach()
    weight *= (inside > 0) & (inside < 1)  # the cut at the end passes gradients where the image does not move
    (model.decode(z, y) * weight).sum().backward()
    step = torch.randn(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        up, down = ((model.decode(z + s * 1e-5 * step, y) * weight).sum() for s in (1, -1))
    assert float((z.grad * step).sum()) == pytest.approx(float((up - down) / 2e-5), rel=1e-3)


def test_trains_saves_and_resumes(tmp_path):
    torch.manual_seed(0)
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data", side=8)), batch_size=8)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path / "run"}
    model = Diffusion(**TINY, lr=1e-2, ema=0.9)
    before = model.average.conv_in.weight.clone()
    run = Trainer(max_epochs=2, log_every_n_steps=1, **quiet)
    run.fit(model, datamodule=data)
    assert {"train/loss", "val/loss"} <= set(run.callback_metrics)
    assert not torch.equal(model.average.conv_in.weight, before)
    assert not torch.equal(model.average.conv_in.weight, model.network.conv_in.weight)
    again = pretrained(tmp_path / "run/last.ckpt")
    assert torch.equal(again.decode(*start()), model.eval().decode(*start()))
    low, high = again.latent.bounds
    assert -6 < low < -2 < 2 < high < 6
    more = Trainer(max_epochs=3, **quiet)
    more.fit(Diffusion(**TINY), datamodule=data, ckpt_path=tmp_path / "run/last.ckpt", weights_only=True)
    assert more.current_epoch == 3
    assert more.global_step == run.global_step * 3 // 2


def test_steps_and_guidance_of_a_checkpoint_can_be_changed(model, tmp_path):
    from lsgen import checkpoints

    about = {"role": model.role, **checkpoints.describe(model)}
    torch.save({"state_dict": model.state_dict(), checkpoints.KEY: about}, tmp_path / "d.ckpt")
    changed = pretrained(tmp_path / "d.ckpt", {"steps": 2, "guidance": 1.0})
    assert (changed.steps, changed.guidance) == (2, 1.0)
    with pytest.raises(InputError, match=r"Diffusion has no setting step; it has .*steps"):
        pretrained(tmp_path / "d.ckpt", {"step": 2})
    with pytest.raises(InputError, match=r"weights do not fit a Diffusion with .*blocks"):
        pretrained(tmp_path / "d.ckpt", {"blocks": 2})


def test_a_loss_that_is_no_number_stops(model, tmp_path):
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data", side=8)), batch_size=8)
    torch.nn.init.constant_(model.train().network.conv_out.bias, math.nan)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
    with pytest.raises(Diverged, match=r"train/loss is nan in epoch 0, step 0"):
        Trainer(max_epochs=1, num_sanity_val_steps=0, **quiet).fit(model, datamodule=data)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"image_shape": (1, 30, 30)}, "30×30.*multiples of 4"),
        ({"channels": (12, 16)}, "multiples of 8"),
        ({"channels": ()}, "channels"),
        ({"steps": 0}, "steps"),
        ({"label_dropout": 1.0}, "label_dropout"),
        ({"guidance": -1.0}, "guidance"),
        ({"guidance": math.inf}, "guidance.*finite"),
        ({"lr": math.nan}, "lr above 0"),
        ({"lr": math.inf}, "lr.*finite"),
        ({"label_dropout": 0.0}, "guidance 2.0 needs predictions without a label"),
    ],
)
def test_refuses_what_it_cannot_build(bad, says):
    with pytest.raises(InputError, match=says):
        Diffusion(**bad)


def test_without_hidden_labels_there_is_no_guidance():
    assert Diffusion(**TINY, label_dropout=0.0, guidance=1.0).label_dropout == 0
