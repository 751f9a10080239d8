"""What every family must hold to; one table."""

import pytest
import torch
from scipy.stats import norm

from lsgen import checkpoints, generators
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import CVAE, GAN, VAE, Diffusion, Generator
from lsgen.generators.autoencoder import kl_to_standard_normal

FAMILIES = {
    "cvae 28": lambda: CVAE(width=4),
    "cvae 32 rgb": lambda: CVAE(image_shape=(3, 32, 32), num_classes=4, width=4, latent_dim=5),
    "cvae 64 rgb": lambda: CVAE(image_shape=(3, 64, 64), num_classes=3, width=2),
    "cvae odd": lambda: CVAE(image_shape=(1, 19, 13), width=4),
    "vae linear": lambda: VAE(hidden=32, latent_dim=6),
    "vae conv": lambda: VAE(architecture="conv", image_shape=(3, 32, 32), hidden=32, width=4, latent_dim=6),
    "vae odd": lambda: VAE(architecture="conv", image_shape=(1, 29, 17), hidden=16, width=4, latent_dim=6),
    "vae residual": lambda: VAE(architecture="residual", image_shape=(3, 32, 32), hidden=32, width=4, latent_dim=6),
    "gan cdcgan": lambda: GAN(width=4),
    "gan cdcgan 32 rgb": lambda: GAN(image_shape=(3, 32, 32), num_classes=4, width=4, latent_dim=5),
    "gan cdcgan 24×20": lambda: GAN(image_shape=(1, 24, 20), width=4),
    "gan resnet": lambda: GAN(architecture="resnet", width=4),
    "gan resnet 64 rgb": lambda: GAN(architecture="resnet", image_shape=(3, 64, 64), num_classes=3, width=2),
    "diffusion": lambda: Diffusion(channels=(8, 16), steps=3),
    "diffusion 32 rgb": lambda: Diffusion(image_shape=(3, 32, 32), num_classes=4, channels=(8, 8), steps=2, patch=4),
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def generator(request) -> Generator:
    torch.manual_seed(0)
    return request.param().eval()


def latents(generator: Generator, n: int = 6):
    y = torch.arange(n) % generator.num_classes
    return generator.sample_prior(n, y, torch.Generator().manual_seed(0)), y


@torch.no_grad()
def test_decodes_to_images_in_range(generator):
    x = generator.decode(*latents(generator))
    assert x.shape == (6, *generator.image_shape)
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1


def test_latent_spec_tells_the_shape(generator):
    z, _ = latents(generator)
    assert z.shape[1:] == generator.latent.shape
    assert generator.latent.kind == "normal"
    assert generator.latent.bounds is None


def test_encodes_to_latents_or_says_that_it_cannot(generator):
    z, y = latents(generator)
    x = generator.decode(z, y)
    if generator.encodes:
        assert generator.encode(x, y).shape == z.shape
    else:
        with pytest.raises(InputError, match="no encoder"):
            generator.encode(x, y)


def test_gradients_reach_the_latent(generator):
    z, y = latents(generator)
    z.requires_grad_()
    generator.decode(z, y).sum().backward()
    assert bool((z.grad.abs().flatten(1).sum(1) > 0).all())


@torch.no_grad()
def test_stages_run_once_each_in_order_and_can_be_perturbed(generator):
    z, y = latents(generator)
    plain, order = generator.decode(z, y), []
    for i, stage in enumerate(generator.stages):
        with stage.register_forward_hook(lambda _module, _in, out, i=i: order.append(i) or out + 0.5):
            assert not torch.equal(generator.decode(z, y), plain)
    assert order == list(range(len(generator.stages)))
    assert torch.equal(generator.decode(z, y), plain)


def test_is_deterministic_and_independent_of_the_batch(generator):
    z, y = latents(generator)
    torch.testing.assert_close(generator.decode(z, y)[2:3], generator.decode(z[2:3], y[2:3]), atol=1e-6, rtol=1e-5)
    assert torch.equal(generator.decode(z, y), generator.decode(z, y))


def test_the_label_matters_just_where_the_family_says_so(generator):
    z, y = latents(generator)
    same = torch.equal(generator.decode(z, y), generator.decode(z, (y + 1) % generator.num_classes))
    assert same != generator.conditional


def test_survives_a_checkpoint(generator, tmp_path):
    generator.latent_bounds.copy_(torch.tensor([-3.0, 4.0]))
    about = {"role": generator.role, **checkpoints.describe(generator)}
    torch.save({"state_dict": generator.state_dict(), checkpoints.KEY: about}, tmp_path / "g.ckpt")
    again = generators.pretrained(tmp_path / "g.ckpt")
    assert torch.equal(again.decode(*latents(generator)), generator.decode(*latents(generator)))
    assert again.latent.bounds == (-3.0, 4.0)
    assert again.clamp(torch.tensor([-9.0, 9.0])).tolist() == [-3.0, 4.0]
    assert checkpoints.weights_sha256(again) == checkpoints.weights_sha256(generator)


def test_kl_matches_an_estimate_by_sampling():
    mean, log_var = torch.tensor([[0.7, -0.2]]), torch.tensor([[-0.5, 0.3]])
    std = (0.5 * log_var).exp()
    z = mean + std * torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))
    log_ratio = norm.logpdf(z, mean, std) - norm.logpdf(z)
    assert float(kl_to_standard_normal(mean, log_var)) == pytest.approx(log_ratio.sum(1).mean(), abs=0.01)


def test_bounds_are_the_extremes_of_a_thousand_encodings():
    generator, data = CVAE(width=4), ImageData(name="mnist5k")
    generator.train()
    generator.measure_bounds(data)
    assert generator.training
    x, y = data["train"].spread(1000)
    assert len(y) == 1000
    assert set(y.tolist()) == set(range(10))  # the data is sorted by class
    z = generator.eval().encode(x.float() / 255, y).detach()
    assert generator.latent.bounds == pytest.approx((float(z.min()), float(z.max())), rel=1e-4)


@pytest.mark.parametrize("bad", [{"latent_dim": 0}, {"image_shape": (1, 4, 4)}])
def test_refuses_what_it_cannot_build(bad):
    with pytest.raises(InputError):
        CVAE(**bad)
