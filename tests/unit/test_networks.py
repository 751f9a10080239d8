"""All networks keep one contract: logits [N, K] from a body with features [N, F], at several image shapes."""

import copy

import pytest
import torch
from torch.nn import functional as F

from lsgen import checkpoints
from lsgen.errors import InputError
from lsgen.suts import SUT, Classifier
from lsgen.suts.augment import random_affine
from lsgen.suts.base import classification_metrics
from lsgen.suts.networks import NETWORKS, build
from lsgen.suts.networks.classic import Spinal
from lsgen.suts.networks.traffic import SpatialTransformer

GRAY, RGB, LARGE = (1, 28, 28), (3, 32, 32), (3, 64, 64)
LIGHT = ("mnist_cnn", "spinalnet", "lenet4", "lenet5", "gtsrb_cnn", "gtsrb_stn")
HEAVY = {  # one or two cases each: they are large
    "alexnet": [GRAY, LARGE],
    "vgg16": [GRAY],
    "vgg19": [RGB],
    "vgg19_bn": [LARGE],
    "resnet18": [GRAY, RGB, LARGE],
    "resnet50": [RGB],
    "efficientnet_b4": [GRAY, LARGE],
}
CASES = [(name, shape) for name in LIGHT for shape in (GRAY, RGB, LARGE, (3, 20, 36))]
CASES += [(name, shape) for name, shapes in HEAVY.items() for shape in shapes]
CLASSES = 7


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Hundreds of small layers: threads would mostly wait for each other, on a busy machine very long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_network_is_in_the_table():
    assert set(NETWORKS) == {*LIGHT, *HEAVY}


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_contract(name, shape):
    torch.manual_seed(0)
    network = build(name, shape, CLASSES).eval()
    x = torch.rand(2, *shape, requires_grad=True)
    features = network.body(x)
    logits = network.head(features)
    assert features.ndim == 2
    assert len(features) == 2
    assert logits.shape == (2, CLASSES)
    (grad,) = torch.autograd.grad(logits[:, 0].sum(), x)
    assert (grad.flatten(1).abs().sum(1) > 0).all()
    with torch.no_grad():
        assert torch.equal(network(x), network(x))


@pytest.mark.parametrize("name", LIGHT)
def test_training_reaches_every_parameter(name):
    network = build(name, RGB, CLASSES).train()
    F.cross_entropy(network(torch.rand(4, *RGB)), torch.tensor([0, 1, 2, 3])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_too_small_images_are_refused(name):
    with pytest.raises(InputError, match=rf"{name} needs images of at least \d+×\d+ pixels, got 32×3"):
        build(name, (3, 32, 3), CLASSES)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("resnet19", RGB, 10, "there is no network 'resnet19'; known: alexnet"),
        ("resnet18", (0, 32, 32), 10, "image_shape"),
        ("resnet18", RGB, 1, "num_classes must be at least 2, got 1"),
    ],
)
def test_bad_input(name, shape, classes, message):
    with pytest.raises(InputError, match=message):
        build(name, shape, classes)


def test_keys_of_mnist_cnn_stay():
    """Checkpoints of earlier versions rely on them."""
    layers = ["body.0", "body.2", "body.5", "body.7", "body.12", "head.1"]
    keys = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert list(build("mnist_cnn", GRAY, 10).state_dict()) == keys


def test_traffic_networks_are_cheap():
    """They are trained on a CPU."""
    from torch.utils.flop_counter import FlopCounterMode

    for name in ("gtsrb_cnn", "gtsrb_stn"):
        network = build(name, RGB, 43).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.zeros(1, *RGB))
        assert counter.get_total_flops() / 2 < 25e6
        assert sum(p.numel() for p in network.parameters()) < 1e6


def test_spinal_layers_take_the_halves_in_turn():
    spinal = Spinal(7, width=2, layers=4).eval()
    assert [layer[1].in_features for layer in spinal.chain] == [3, 4 + 2, 3 + 2, 4 + 2]
    x = torch.rand(1, 7, requires_grad=True)
    spinal(x)[0, :2].sum().backward()  # the first layer sees the first half only
    assert not x.grad[0, 3:].any()


def test_spatial_transformer_starts_as_the_identity():
    x = torch.rand(2, 3, 33, 32)
    torch.testing.assert_close(SpatialTransformer(3)(x), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["mnist_cnn", "spinalnet", "gtsrb_stn", "resnet18"])
def test_checkpoint_round_trip(name, tmp_path):
    sut = Classifier(network=name, image_shape=RGB, num_classes=CLASSES, mean=[0.5], std=[0.25], augment=True).eval()
    checkpoint = {"state_dict": sut.state_dict()}
    sut.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "sut.ckpt")
    again = checkpoints.load(tmp_path / "sut.ckpt", SUT)
    x = torch.rand(2, *RGB)
    assert torch.equal(again.logits(x), sut.logits(x))
    assert torch.equal(again.features(x), sut.features(x))
    assert again.augment is True


def test_checkpoint_without_augment_opens(tmp_path):
    """Checkpoints from before the setting was there."""
    sut = Classifier()
    checkpoint = {"state_dict": sut.state_dict()}
    sut.on_save_checkpoint(checkpoint)
    about = copy.deepcopy(checkpoint[checkpoints.KEY])
    del about["args"]["augment"]
    torch.save({**checkpoint, checkpoints.KEY: about}, tmp_path / "sut.ckpt")
    assert checkpoints.load(tmp_path / "sut.ckpt", SUT).augment is False


def test_the_logged_loss_is_that_of_all_processes(monkeypatch):
    """Else each compares its own share of the images, and best.ckpt is not the one with the lowest val/loss."""
    sut, seen = Classifier(image_shape=(1, 8, 8)).eval(), {}
    sut.measures = classification_metrics(10)
    monkeypatch.setattr(sut, "log", lambda name, value, **more: seen.update({name: more["sync_dist"]}))
    for stage in ("val", "test"):
        sut._measure((torch.rand(4, 1, 8, 8), torch.arange(4)), stage)
    assert seen == {"val/loss": True, "test/loss": True}


def test_top5_is_measured_beside_top1():
    metrics = classification_metrics(10)
    right = torch.eye(10)  # the first batch agrees in both, the second does not
    metrics.update(right, torch.arange(10))
    ranked = torch.arange(10.0).flip(0).expand(10, 10).softmax(-1)  # class 0 first, class 9 last
    metrics.update(ranked, torch.arange(10))
    values = metrics.compute()
    assert values["accuracy"] == pytest.approx((10 + 1) / 20)
    assert values["accuracy_top5"] == pytest.approx((10 + 5) / 20)


def test_top5_needs_more_than_five_classes():
    assert "accuracy_top5" not in classification_metrics(5)
    assert "accuracy_top5" in classification_metrics(6)


def test_random_affine_moves_each_image_on_its_own():
    torch.manual_seed(0)
    x = torch.zeros(2, 1, 20, 30)
    x[:, :, 8:12, 12:18] = 1
    moved = random_affine(x)
    assert moved.shape == x.shape
    assert not torch.equal(moved[0], moved[1])
    assert moved.min() >= 0
    assert moved.max() <= 1
    centre = (moved[:, 0] * torch.arange(30.0)).sum((1, 2)) / moved.sum((1, 2, 3))
    assert ((centre - 14.5).abs() < 0.1 * 30 * 1.25 + 1).all()
