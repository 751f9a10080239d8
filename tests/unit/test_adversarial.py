"""Adversarial training: what the adversary does to images, and what training against it gives."""

import pytest
import torch
from torch import nn

from lsgen import checkpoints
from lsgen.errors import InputError
from lsgen.suts import Classifier, pretrained
from lsgen.suts.adversarial import fast_linf, l2

SIDE = 6


@pytest.fixture
def linear():
    """Two logits that are linear in the pixels: the gradient points the same way everywhere."""
    torch.manual_seed(0)
    layer = nn.Linear(SIDE * SIDE, 2)
    return layer, lambda x: layer(x.flatten(1))


def batch(n=32):
    return 0.4 + 0.2 * torch.rand(n, 1, SIDE, SIDE), torch.arange(n) % 2


def test_l2_finds_the_worst_point_of_the_ball(linear):
    """For two linear logits it lies along the difference of their weights."""
    layer, logits = linear
    x, y = batch()
    direction = nn.functional.normalize(layer.weight[1] - layer.weight[0], dim=0).view(1, SIDE, SIDE)
    worst = x + 0.3 * torch.where(y.view(-1, 1, 1, 1) == 0, direction, -direction)
    torch.testing.assert_close(l2(logits, x, y, radius=0.3, steps=7), worst.detach(), atol=1e-5, rtol=0)


def test_fast_linf_moves_every_pixel_the_worst_way(linear):
    layer, logits = linear
    x, y = batch()
    sign = (layer.weight[1] - layer.weight[0]).sign().view(1, SIDE, SIDE)
    sign = torch.where(y.view(-1, 1, 1, 1) == 0, sign, -sign)
    moved = sign * (fast_linf(logits, x, y, radius=0.1) - x)
    # from a uniform start in [-0.1, 0.1] a step of 0.125 ends at the edge unless it began within 0.025 of the other
    assert moved.max() <= 0.1 + 1e-6
    assert moved.min() >= 0.025 - 1e-6
    assert (moved > 0.1 - 1e-6).double().mean().item() == pytest.approx(1 - 0.075 / 0.2, abs=0.05)


@pytest.mark.parametrize("radius", [0.05, 0.5, 3.0])
def test_images_stay_images_inside_the_ball(linear, radius):
    _, logits = linear
    x, y = torch.rand(64, 1, SIDE, SIDE).round(), torch.arange(64) % 2
    for moved, size in (
        (l2(logits, x, y, radius, steps=3), lambda d: d.flatten(1).norm(dim=1)),
        (fast_linf(logits, x, y, radius), lambda d: d.flatten(1).abs().amax(dim=1)),
    ):
        assert not moved.requires_grad
        assert moved.min() >= 0
        assert moved.max() <= 1
        assert size(moved - x).max() <= radius + 1e-5


class Flat(Classifier):
    """The classifier with a network that trains in a moment."""

    def __init__(self, *layers, **options):
        super().__init__(network="lenet4", num_classes=2, **options)
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(SIDE * SIDE, 2))

    def log(self, *args, **kwargs):
        """There is no trainer here."""


@pytest.mark.parametrize("adversarial", ["l2", "fast_linf"])
def test_the_adversary_leaves_network_and_gradients_as_they_were(adversarial):
    sut = Flat(nn.BatchNorm2d(1), nn.Dropout(), adversarial=adversarial, radius=0.1).train()
    x, y = batch()
    before = {k: v.clone() for k, v in sut.state_dict().items()}
    torch.manual_seed(0)
    moved = sut._attacked(x, y)
    torch.manual_seed(0)
    assert torch.equal(sut._attacked(x, y), moved)
    assert not torch.equal(moved, x)
    assert sut.net.training
    assert all(p.grad is None for p in sut.parameters())
    assert all(torch.equal(v, before[k]) for k, v in sut.state_dict().items())  # nor batch norm's averages


def test_without_an_adversary_images_are_untouched():
    x = torch.rand(2, 1, 28, 28)
    assert Classifier()._attacked(x, torch.tensor([0, 1])) is x


def separable(n):
    """One pixel that tells the classes apart by far, and many that do so a little, which an adversary can turn."""
    y = torch.arange(n) % 2
    side = (2.0 * y - 1).view(-1, 1, 1, 1)
    x = 0.5 + 0.04 * side + 0.01 * torch.randn(n, 1, SIDE, SIDE)
    strong = torch.where(torch.rand(n) < 0.9, 1, -1)  # right nine times in ten
    x[:, 0, 0, 0] = 0.5 + 0.45 * side.view(-1) * strong
    return x, y


def trained(**options):
    torch.manual_seed(0)
    sut = Flat(mean=[0.5], std=[0.1], **options)
    optimizer = torch.optim.Adam(sut.parameters(), lr=0.1)
    data = separable(200)
    for _ in range(60):
        optimizer.zero_grad()
        sut.training_step(data, 0).backward()
        optimizer.step()
    return sut


@pytest.mark.parametrize(("adversarial", "radius"), [("l2", 0.3), ("fast_linf", 0.1)])
def test_training_against_the_adversary_makes_robust(adversarial, radius):
    """The plain classifier uses the weak pixels and an attack turns it; the robust one keeps to the strong pixel."""
    x, y = separable(500)
    right = {}
    for name, sut in {"plain": trained(), "robust": trained(adversarial=adversarial, radius=radius)}.items():
        attacked = l2(sut.logits, x, y, radius, 10) if adversarial == "l2" else fast_linf(sut.logits, x, y, radius)
        right[name] = [(sut.logits(images).argmax(1) == y).double().mean().item() for images in (x, attacked)]
    assert right["plain"][0] > 0.97
    assert right["plain"][1] < 0.6
    assert right["robust"][1] > 0.8


def test_checkpoint_round_trip(tmp_path):
    sut = Classifier(adversarial="l2", radius=1.5, attack_steps=3)
    checkpoint = {"state_dict": sut.state_dict()}
    sut.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "sut.ckpt")
    again = pretrained(tmp_path / "sut.ckpt")
    assert (again.adversarial, again.radius, again.attack_steps) == ("l2", 1.5, 3)
    for name in ("adversarial", "radius", "attack_steps"):  # as checkpoints were before
        del checkpoint[checkpoints.KEY]["args"][name]
    torch.save(checkpoint, tmp_path / "old.ckpt")
    assert pretrained(tmp_path / "old.ckpt").adversarial == "none"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adversarial": "l1", "radius": 1}, "adversarial must be one of none, l2, fast_linf, got 'l1'"),
        ({"adversarial": "l2"}, "needs a radius above 0.*adversarial=l2, radius=0"),
        ({"adversarial": "fast_linf", "radius": -1}, "radius=-1"),
        ({"adversarial": "l2", "radius": float("nan")}, "radius=nan"),
        ({"adversarial": "l2", "radius": 1, "attack_steps": 0}, "attack_steps=0"),
        ({"radius": 0.3}, "training without it a radius of 0, got adversarial=none, radius=0.3"),
    ],
)
def test_wrong_input(options, message):
    with pytest.raises(InputError, match=message):
        Classifier(**options)
