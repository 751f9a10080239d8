"""What every family must hold to; one table."""

import pytest
import torch
from scipy.stats import norm
from torchmetrics import Metric

from lsgen import checkpoints, generators
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import CVAE, GAN, VAE, VQVAE, Diffusion, Generator, PixelSpace
from lsgen.generators.autoencoder import kl_to_standard_normal
from lsgen.search import LatentPGD, MarginGA
from lsgen.trainer import Trainer
from tests.toys import write_npz

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
    "vqvae": lambda: VQVAE(width=4, num_codes=8, embedding_dim=3),
    "vqvae 32 rgb": lambda: VQVAE(image_shape=(3, 32, 32), num_classes=4, width=4, num_codes=8, embedding_dim=3),
    "vqvae without codes": lambda: VQVAE(width=4, embedding_dim=3, quantiser="none", discriminators=False),
    "pixels": lambda: PixelSpace(),
}
# small enough to be trained for a step
SMALL = {
    "cvae": lambda: CVAE(image_shape=(1, 16, 16), num_classes=2, width=4),
    "vae": lambda: VAE(image_shape=(1, 16, 16), num_classes=2, hidden=16, latent_dim=3),
    "vqvae": lambda: VQVAE(image_shape=(1, 16, 16), num_classes=2, width=4, num_codes=8, pretrain_epochs=0),
    "gan cdcgan": lambda: GAN(image_shape=(1, 16, 16), num_classes=2, width=4),
    "gan resnet": lambda: GAN(architecture="resnet", image_shape=(1, 16, 16), num_classes=2, width=4),
    "diffusion": lambda: Diffusion(image_shape=(1, 16, 16), num_classes=2, channels=(8, 8), steps=2),
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def generator(request) -> Generator:
    torch.manual_seed(0)
    return request.param().eval()


def latents(generator: Generator, n: int = 6):
    y, rng = torch.arange(n) % generator.num_classes, torch.Generator().manual_seed(0)
    if generator.has_prior:
        return generator.sample_prior(n, y, rng), y
    return generator.encode(torch.rand(n, *generator.image_shape, generator=rng), y).detach(), y


@torch.no_grad()
def test_decodes_to_images_in_range(generator):
    x = generator.decode(*latents(generator))
    assert x.shape == (6, *generator.image_shape)
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1


def test_latent_spec_tells_the_shape_and_the_kind(generator):
    z, _ = latents(generator)
    assert z.shape[1:] == generator.latent.shape
    assert (generator.latent.kind in ("normal", "noise")) == generator.has_prior
    assert generator.latent.kind in ("normal", "noise", "codes", "pixels")
    assert (generator.latent.kind == "noise") == isinstance(generator, Diffusion)
    if generator.latent.kind != "pixels":  # whose bounds hold for all images; others learn theirs
        assert generator.latent.bounds is None


def test_samples_its_prior_or_says_that_it_cannot(generator):
    if not generator.has_prior:
        with pytest.raises(InputError, match="DataSeeds"):
            generator.sample_prior(1, torch.tensor([0]), torch.Generator())


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
    bounds = (0.0, 1.0) if generator.latent.kind == "pixels" else (-3.0, 4.0)
    assert again.latent.bounds == bounds
    assert tuple(again.clamp(torch.tensor([-9.0, 9.0])).tolist()) == bounds
    assert checkpoints.weights_sha256(again) == checkpoints.weights_sha256(generator)


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_trains_in_full_and_in_mixed_precision(make, precision, tmp_path):
    torch.manual_seed(0)
    generator = make()
    before = {k: v.clone() for k, v in generator.named_parameters() if v.requires_grad}
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data", side=16)), batch_size=16)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(default_root_dir=tmp_path, max_epochs=1, precision=precision, num_sanity_val_steps=0, **quiet)
    trainer.fit(generator, datamodule=data)
    after = dict(generator.named_parameters())
    assert any(not torch.equal(after[k], before[k]) for k in before)
    assert all(bool(p.isfinite().all()) for p in after.values())
    again = generators.pretrained(tmp_path / "best.ckpt")
    assert torch.equal(again.decode(*latents(again)), generator.eval().decode(*latents(again)))


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_what_is_logged_in_validation_is_that_of_all_processes(make, monkeypatch, tmp_path):
    """Else each compares its own share of the images, and best.ckpt is not the one with the lowest val/loss."""
    torch.manual_seed(0)
    generator, seen = make().eval(), {}
    generator.trainer = Trainer(default_root_dir=tmp_path, accelerator="cpu", logger=False)
    monkeypatch.setattr(generator, "log", lambda name, value, **more: seen.update({name: (value, more)}))
    with torch.no_grad():
        for step in (generator.validation_step, generator.test_step):
            step((torch.rand(6, 1, 16, 16), torch.arange(6) % 2), 0)
    assert {"val/loss", "test/loss"} <= set(seen)
    for name, (value, more) in seen.items():
        assert more.get("sync_dist", False) != isinstance(value, Metric), name  # a metric sees to it itself


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


def test_an_old_checkpoint_without_bounds_is_opened_and_who_needs_them_says_so(tmp_path):
    model = CVAE(width=4)
    state = {k: v for k, v in model.state_dict().items() if k != "latent_bounds"}
    about = {"role": model.role, **checkpoints.describe(model)}
    torch.save({"state_dict": state, checkpoints.KEY: about}, tmp_path / "old.ckpt")
    opened = generators.pretrained(tmp_path / "old.ckpt")
    assert opened.latent.bounds is None
    LatentPGD().bind(opened)
    with pytest.raises(InputError, match="this CVAE has none: fit it again"):
        MarginGA().bind(opened)
