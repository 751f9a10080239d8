"""Quality of generators: every number against a reference, and which numbers each family gets."""

import math

import pytest
import torch
from scipy.linalg import sqrtm
from sklearn.neighbors import NearestNeighbors
from torch import nn

from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import CVAE, GAN, VAE, GeneratorQuality, PixelSpace
from lsgen.generators.quality import frechet_distance, measure
from lsgen.metrics.functional import density_coverage
from lsgen.trainer import Trainer
from tests.toys import Linear, write_npz

ALWAYS = {"parameters", "latent_size"}
REBUILT = {"reconstruction_mse", "reconstruction_ssim", "reconstruction_accuracy"}
SAMPLED = {"sample_ms", "frechet_distance", "density", "coverage"}


def points(seed: int, n: int, shift: float = 0.0):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)) + shift


def test_density_and_coverage_match_nearest_neighbours():
    real, fake, k = points(0, 40), points(1, 30, 0.5), 4
    near = NearestNeighbors(n_neighbors=k + 1).fit(real.numpy())
    radius = near.kneighbors(real.numpy())[0][:, -1]
    inside = torch.cdist(real.double(), fake.double()).numpy() <= radius[:, None]
    density, coverage = density_coverage(real, fake, k)
    assert float(density) == pytest.approx(inside.sum() / k / len(fake))
    assert float(coverage) == pytest.approx(inside.any(axis=1).mean())


def test_coverage_falls_when_a_kind_is_missing_and_density_does_not():
    real = torch.cat([points(0, 200), points(1, 200, 50.0)])
    both, one = torch.cat([points(2, 200), points(3, 200, 50.0)]), points(4, 400)
    assert float(density_coverage(real, both)[1]) > 0.9
    density, coverage = density_coverage(real, one)
    assert float(coverage) == pytest.approx(0.5, abs=0.03)
    assert float(density) > 0.8


def test_frechet_distance_is_the_closed_form():
    class Corner(nn.Module):
        def forward(self, images):
            return images[:, 0, 0, :3].float()

    rng = torch.Generator().manual_seed(0)
    real = torch.randint(0, 256, (300, 1, 8, 8), generator=rng, dtype=torch.uint8)
    made = torch.randint(0, 100, (300, 1, 8, 8), generator=rng, dtype=torch.uint8)
    a, b = (Corner()(x).double() for x in (real, made))
    cov_a, cov_b = a.T.cov(), b.T.cov()
    root = torch.from_numpy(sqrtm((cov_a @ cov_b).numpy()).real)
    wanted = (a.mean(0) - b.mean(0)).square().sum() + (cov_a + cov_b - 2 * root).trace()
    assert frechet_distance(Corner(), real, made) == pytest.approx(float(wanted), rel=1e-4)
    assert frechet_distance(Corner(), real, real) == pytest.approx(0, abs=1e-2)


@pytest.mark.parametrize(
    ("generator", "wanted"),
    [
        (CVAE(image_shape=(1, 12, 12), num_classes=2, width=4), REBUILT | SAMPLED | {"sample_accuracy"}),
        (VAE(image_shape=(1, 12, 12), num_classes=2, hidden=8, latent_dim=3), REBUILT | SAMPLED),
        (GAN(image_shape=(1, 12, 12), num_classes=2, width=4), SAMPLED | {"sample_accuracy"}),
        (PixelSpace(image_shape=(1, 12, 12), num_classes=2), REBUILT),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
def test_every_family_gets_what_it_can_be_judged_by(generator, wanted, tmp_path):
    data = ImageData(name="npz", path=str(write_npz(tmp_path, side=12)))
    generator.eval()
    values = measure(generator, Linear(side=12), data, "test", 20)
    assert set(values) == ALWAYS | wanted
    assert all(math.isfinite(v) for v in values.values())
    without = set(measure(generator, None, data, "test", 20))
    assert without == {k for k in values if k in ALWAYS or k.endswith(("mse", "ssim", "_ms"))}


def test_an_identity_rebuilds_perfectly(tmp_path):
    data = ImageData(name="npz", path=str(write_npz(tmp_path, side=12)))
    values = measure(PixelSpace(image_shape=(1, 12, 12), num_classes=2), None, data, "test", 20)
    assert values["reconstruction_mse"] == 0
    assert values["reconstruction_ssim"] == pytest.approx(1)
    assert values["latent_size"] == 144


def test_minutes_are_kept_in_the_checkpoint_and_shown_by_validate(tmp_path):
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data", side=12)))
    args = {"image_shape": (1, 12, 12), "num_classes": 2, "width": 4}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path / "run"}
    first = GeneratorQuality(samples=10)
    Trainer(max_epochs=1, callbacks=[first], **quiet).fit(CVAE(**args), datamodule=data)
    second = GeneratorQuality(samples=10)
    values = Trainer(callbacks=[second], **quiet).validate(
        CVAE(**args), datamodule=data, ckpt_path=tmp_path / "run/best.ckpt", verbose=False, weights_only=True
    )[0]
    assert 0 < values["val/minutes"] <= first.state_dict()["minutes"]
    pictures = {p.name.rsplit("_", 1)[0] for p in (tmp_path / "run/logs").rglob("*.png")}
    assert pictures == {"val_samples", "val_reconstructions"}


def test_too_few_samples_are_refused():
    with pytest.raises(InputError, match="samples"):
        GeneratorQuality(samples=5)
