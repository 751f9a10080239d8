"""The unconditional VAE: the contract of every generator, its likelihoods, its KL warm-up."""

import lightning.pytorch as pl
import pytest
import torch
from torch.distributions import Bernoulli, Normal
from torch.utils.data import DataLoader, TensorDataset

from lsgen.errors import InputError
from lsgen.generators.autoencoder import kl_weight, negative_log_likelihood
from lsgen.generators.vae import VAE

SMALL = {"latent_dim": 6, "hidden": 20, "width": 4}
MODELS = {
    "linear 28": lambda: VAE(**SMALL),
    "linear tiny rgb": lambda: VAE(image_shape=(3, 5, 4), num_classes=3, **SMALL),
    "conv 32 rgb": lambda: VAE(architecture="conv", image_shape=(3, 32, 32), likelihood="gaussian", **SMALL),
    "conv odd": lambda: VAE(architecture="conv", image_shape=(1, 29, 17), **SMALL),
    "residual 32 rgb": lambda: VAE(architecture="residual", image_shape=(3, 32, 32), num_classes=4, **SMALL),
    "residual 28": lambda: VAE(architecture="residual", likelihood="gaussian", **SMALL),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def vae(request) -> VAE:
    torch.manual_seed(0)
    return request.param().eval()


def blobs(n: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """Soft discs at random places, [n, *shape] in [0, 1]."""
    rng = torch.Generator().manual_seed(0)
    _, height, width = shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centre = torch.rand(n, 2, 1, 1, generator=rng) * torch.tensor([height, width]).view(2, 1, 1)
    distance = (rows - centre[:, 0]).square() + (columns - centre[:, 1]).square()
    return (-distance / 20).exp().unsqueeze(1).expand(n, *shape).contiguous()


def fit(vae: VAE, *, epochs: int, batches: int) -> pl.Trainer:
    """A real, short training; its trainer."""
    x = blobs(4 * batches, vae.image_shape)
    data = TensorDataset(x, torch.zeros(len(x), dtype=torch.long))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(vae, DataLoader(dataset=data, batch_size=4), DataLoader(dataset=data, batch_size=8))
    return trainer


@pytest.mark.parametrize(
    ("likelihood", "distribution"),
    [
        ("bernoulli", lambda logits: Bernoulli(logits=logits, validate_args=False)),  # takes grey values as well
        ("gaussian", lambda logits: Normal(logits.sigmoid(), 0.3)),
    ],
)
def test_negative_log_likelihood_is_the_one_of_torch(likelihood, distribution):
    rng = torch.Generator().manual_seed(0)
    logits, x = torch.randn(5, 3, 4, 6, generator=rng), torch.rand(5, 3, 4, 6, generator=rng)
    expected = -distribution(logits).log_prob(x).sum(dim=(1, 2, 3))
    torch.testing.assert_close(negative_log_likelihood(logits, x, likelihood, 0.3), expected)


def test_at_sigma_of_root_half_the_gaussian_is_summed_squared_error():
    logits, x, other = (torch.randn(3, 1, 4, 4), torch.rand(3, 1, 4, 4), torch.rand(3, 1, 4, 4))
    a, b = (negative_log_likelihood(logits, t, "gaussian", 0.5**0.5) for t in (x, other))
    squared = [(t - logits.sigmoid()).square().sum(dim=(1, 2, 3)) for t in (x, other)]
    torch.testing.assert_close(a - b, squared[0] - squared[1], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_loss_is_likelihood_plus_weighted_kl(vae):
    x = blobs(4, vae.image_shape)
    losses = vae.losses((x, torch.zeros(4)), sample=False, weight=0.25)
    mean = vae.encode(x, torch.zeros(4))
    expected = negative_log_likelihood(vae.decoder(mean), x, vae.likelihood, vae.sigma).mean()
    torch.testing.assert_close(losses["reconstruction"], expected)
    torch.testing.assert_close(losses["loss"], expected + 0.25 * losses["kl"])
    assert float(losses["kl"]) > 0


def test_weights_of_the_kl_term():
    assert kl_weight(0.5, 0, 0) == 0.5  # no warm-up
    assert kl_weight(0.5, 2, 0) == 0
    assert kl_weight(0.5, 2, 1) == 0.25
    assert kl_weight(0.5, 2, 2) == kl_weight(0.5, 2, 7) == 0.5


def test_warm_up_rises_batch_by_batch_in_training_and_not_in_validation(monkeypatch):
    vae = VAE(image_shape=(1, 5, 5), beta=3.0, kl_warmup=2, **SMALL)
    seen = {True: [], False: []}
    original = vae.losses

    def watch(batch, *, sample, weight):
        seen[sample].append(weight)
        return original(batch, sample=sample, weight=weight)

    monkeypatch.setattr(vae, "losses", watch)
    trainer = fit(vae, epochs=3, batches=4)
    rising = [3 * step / 8 for step in range(8)]
    assert seen[True] == pytest.approx([*rising, 3, 3, 3, 3])
    assert set(seen[False]) == {3.0}
    metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
    assert {"train/loss", "train/kl_weight", "val/loss", "val/reconstruction", "val/kl"} <= set(metrics)
    assert metrics["val/loss"] == pytest.approx(metrics["val/reconstruction"] + 3 * metrics["val/kl"], rel=1e-4)


def test_logs_the_same_terms_in_test(vae):
    x = blobs(4, vae.image_shape)
    data = DataLoader(dataset=TensorDataset(x, torch.zeros(4, dtype=torch.long)), batch_size=4)
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    (metrics,) = trainer.test(vae, data, verbose=False)
    assert set(metrics) == {"test/loss", "test/reconstruction", "test/kl"}


def test_training_reduces_the_loss(vae):
    torch.manual_seed(0)
    x = blobs(16, vae.image_shape)
    optimizer = torch.optim.Adam(vae.train().parameters(), lr=5e-3)
    values = []
    for _ in range(25):
        loss = vae.losses((x, torch.zeros(16)), sample=True, weight=1.0)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    pixels = x[0].numel()
    assert (values[0] - values[-1]) / pixels > 0.1  # nats a pixel


def test_published_sizes():
    channels = [m.out_channels for m in VAE(architecture="conv", hidden=8).encoder.modules() if hasattr(m, "stride")]
    assert channels == [64, 128, 256, 512]
    dense = [tuple(m.weight.shape) for m in VAE().modules() if isinstance(m, torch.nn.Linear)]
    assert dense == [(1600, 784), (1600, 400), (784, 1600), (800, 1600)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"architecture": "transformer"}, "architecture must be one of linear, conv, residual, got 'transformer'"),
        ({"likelihood": "laplace"}, "likelihood must be one of bernoulli, gaussian"),
        ({"latent_dim": 0}, "latent_dim"),
        ({"hidden": 0}, "hidden"),
        ({"sigma": 0.0}, "sigma and lr must be above 0"),
        ({"lr": -1.0}, "sigma and lr must be above 0"),
        ({"kl_warmup": -1}, "kl_warmup"),
        ({"architecture": "conv", "image_shape": (3, 32, 15)}, "at least 16×16 pixels"),
        ({"architecture": "residual", "image_shape": (1, 8, 8)}, "residual VAE needs images of at least 16×16"),
        ({"image_shape": (1, 0, 5)}, "at least 1×1"),
    ],
)
def test_refuses_what_it_cannot_build(bad, message):
    with pytest.raises(InputError, match=message):
        VAE(**bad)
