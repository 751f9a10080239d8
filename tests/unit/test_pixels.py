"""PixelSpace: the latent is the image."""

import pytest
import torch

from lsgen import checkpoints, generators
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators.pixels import PixelSpace


@pytest.fixture
def space() -> PixelSpace:
    return PixelSpace(image_shape=(3, 6, 5), num_classes=4)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(7, 3, 6, 5, generator=torch.Generator().manual_seed(0))


LABELS = torch.arange(7) % 4


def test_says_what_it_is(space):
    assert space.latent.shape == space.image_shape == (3, 6, 5)
    assert space.latent.kind == "pixels"
    assert space.latent.bounds == (0.0, 1.0)
    assert space.encodes
    assert not space.conditional
    assert space.stages == []


def test_decode_and_encode_change_nothing(space, images):
    assert torch.equal(space.encode(images, LABELS), images)
    assert torch.equal(space.decode(images, LABELS), images)
    assert torch.equal(space.decode(images, LABELS), space.decode(images, (LABELS + 1) % 4))
    assert torch.equal(space.decode(images[2:3], LABELS[2:3]), images[2:3])


def test_decode_and_clamp_cut_to_the_range_of_pixels(space, images):
    wild = 4 * images - 2
    for cut in (space.decode(wild, LABELS), space.clamp(wild)):
        assert torch.equal(cut, wild.clamp(0, 1))


def test_gradients_reach_black_and_white_pixels_too(space):
    z = torch.tensor([0.0, 0.5, 1.0, -0.1, 1.1]).repeat(18).reshape(1, 3, 6, 5).requires_grad_()
    space.decode(z, LABELS[:1]).sum().backward()
    assert torch.equal(z.grad, torch.ones_like(z))


def test_has_no_prior(space):
    with pytest.raises(InputError, match="take seeds from data"):
        space.sample_prior(2, LABELS[:2], torch.Generator())


def test_survives_a_checkpoint(space, images, tmp_path):
    assert list(space.state_dict()) == ["latent_bounds"]
    about = {"role": space.role, **checkpoints.describe(space)}
    torch.save({"state_dict": space.state_dict(), checkpoints.KEY: about}, tmp_path / "g.ckpt")
    again = generators.pretrained(tmp_path / "g.ckpt")
    assert isinstance(again, PixelSpace)
    assert checkpoints.describe(again) == checkpoints.describe(space)
    assert torch.equal(again.decode(images, LABELS), images)
    assert checkpoints.weights_sha256(again) == checkpoints.weights_sha256(space)


def test_data_do_not_move_its_bounds():
    space = PixelSpace()
    space.measure_bounds(ImageData(name="mnist5k"))
    assert space.latent_bounds.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("bad", [{"image_shape": (1, 0, 4)}, {"num_classes": 0}])
def test_refuses_what_it_cannot_build(bad):
    with pytest.raises(InputError, match="at least 1"):
        PixelSpace(**bad)
