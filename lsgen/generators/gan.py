"""Conditional GANs: the cDCGAN of ICST25, and BigGAN's recipe at small size, whose blocks Dunn et al. perturb."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, get_args

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from lsgen.errors import InputError
from lsgen.generators.base import Generator
from lsgen.generators.ema import follow

Architecture = Literal["cdcgan", "resnet"]
BOTTOM = range(4, 8)  # sides from which images grow by doubling: 28 = 4 × 7, 32 = 8 × 4


class GAN(Generator):
    """Class-conditional GAN; its images come from a running average (EMA) of the generating network's weights.

    There are two copies of that network: ``network`` is trained, ``average`` follows it. ``decode`` runs ``network``
    in training mode and ``average`` in eval mode, so also whenever a checkpoint is opened for a search.

    The label enters ``cdcgan`` before the first stage, as an embedding that joins z, and ``resnet`` in every residual
    block, as class-conditional batch norm.

    Args:
        architecture: ``cdcgan``: transposed convolutions with batch norm, a DCGAN discriminator that sees the label as
            one more channel, and the non-saturating loss. ``resnet``: residual blocks, class-conditional batch norm, a
            projection discriminator with spectral norm, and the hinge loss (BigGAN without attention and without
            spectral norm in the generating network).
        image_shape: Channels, height, width of the images; sides are 4 to 7, doubled equally often, e.g. 28 or 32.
        num_classes: Number of classes.
        latent_dim: Size of the latent vector.
        embedding_dim: Size of the class embedding that joins the latent of ``cdcgan``.
        width: Channels at half the image size in ``cdcgan`` and at full size in ``resnet``; each halving doubles them.
        lr_generator: Learning rate of Adam for the generating network.
        lr_discriminator: Learning rate of Adam for the discriminator.
        betas: Adam's decay rates.
        discriminator_steps: Batches on which the discriminator learns for each one on which the generator does.
        ema: Decay of the running average of weights; it is smaller in the first steps, so that the start is forgotten.
        truncation: Prior samples are drawn from a normal cut to ±this; None: from a plain normal. Training always
            uses a plain one.
    """

    def __init__(
        self,
        *,
        architecture: Architecture = "cdcgan",
        image_shape: tuple[int, int, int] = (1, 28, 28),
        num_classes: int = 10,
        latent_dim: int = 100,
        embedding_dim: int = 10,
        width: int = 32,
        lr_generator: float = 2e-4,
        lr_discriminator: float = 2e-4,
        betas: tuple[float, float] = (0.5, 0.999),
        discriminator_steps: int = 1,
        ema: float = 0.999,
        truncation: float | None = None,
    ) -> None:
        super().__init__()
        if architecture not in get_args(Architecture):
            raise InputError(f"architecture must be one of {', '.join(get_args(Architecture))}, got {architecture!r}")
        if min(latent_dim, embedding_dim, width, num_classes, discriminator_steps) < 1:
            raise InputError("latent_dim, embedding_dim, width, num_classes, discriminator_steps must be at least 1")
        if not (0 < lr_generator < math.inf and 0 < lr_discriminator < math.inf):
            raise InputError(
                f"lr_generator and lr_discriminator must be above 0 and finite, got {lr_generator} and "
                f"{lr_discriminator}"
            )
        if not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"betas must be at least 0 and below 1, got {tuple(betas)}")
        if not 0 <= ema < 1:
            raise InputError(f"ema must be at least 0 and below 1, got {ema}")
        if truncation is not None and not truncation > 0:
            raise InputError(f"truncation must be above 0, or null for a plain normal, got {truncation}")
        channels, height, wide = image_shape
        self.architecture, self.image_shape, self.num_classes = architecture, (channels, height, wide), num_classes
        self.latent_dim, self.embedding_dim, self.width = latent_dim, embedding_dim, width
        self.lr_generator, self.lr_discriminator = lr_generator, lr_discriminator
        self.betas, self.discriminator_steps = (betas[0], betas[1]), discriminator_steps
        self.ema, self.truncation = ema, truncation
        self.automatic_optimization = False  # two optimizers take turns
        self.network = self._build_network()
        self.average = self._build_network().requires_grad_(False)
        self.average.load_state_dict(self.network.state_dict())
        discriminator = _DCDiscriminator if architecture == "cdcgan" else _ResDiscriminator
        self.discriminator: nn.Module = discriminator(self.image_shape, num_classes, width)
        self.batches: Tensor
        self.register_buffer("batches", torch.tensor(0))  # seen in training; says whose turn it is, also after resuming

    def _build_network(self) -> _Network:
        if self.architecture == "cdcgan":
            return _DCNetwork(self.image_shape, self.num_classes, self.latent_dim, self.embedding_dim, self.width)
        return _ResNetwork(self.image_shape, self.num_classes, self.latent_dim, self.width)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """(latent_dim,)."""
        return (self.latent_dim,)

    @property
    def _decoder(self) -> _Network:
        return self.network if self.training else self.average

    @property
    def stages(self) -> list[nn.Module]:
        """The generating network's blocks in order; the last gives pixels before the sigmoid."""
        return list(self._decoder.stages)

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents [N, latent_dim] and labels [N] -> images [N, C, H, W]."""
        logits: Tensor = self._decoder(z, y)
        return logits.sigmoid()

    def sample_prior(self, n: int, y: Tensor, rng: torch.Generator) -> Tensor:
        """``n`` latents [n, latent_dim] from the normal prior, cut to ±truncation where that is set."""
        if self.truncation is None:
            return super().sample_prior(n, y, rng)
        share = torch.rand(n, self.latent_dim, generator=rng, device=rng.device, dtype=torch.float64)
        return truncated_normal(share, self.truncation).float().to(y.device)

    def setup(self, stage: str) -> None:
        """Refuses data of another shape, and lets several processes train a part of the weights at a time."""
        super().setup(stage)
        strategy = self.trainer.strategy
        if isinstance(strategy, DDPStrategy):  # else `--trainer.strategy ddp` waits for gradients of both networks
            strategy._ddp_kwargs.setdefault("find_unused_parameters", True)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """The discriminator's step and, when it is its turn, the generator's, on the same generated images."""
        x, y = batch
        optimizer_g, optimizer_d = self.optimizers()  # type: ignore[attr-defined]
        self.batches += 1
        turn = int(self.batches) % self.discriminator_steps == 0
        with torch.set_grad_enabled(turn):
            fake = self.decode(torch.randn(len(y), self.latent_dim, device=x.device), y)

        with self.toggled_optimizer(optimizer_d):
            loss = self._loss_d(self.discriminator(x, y), self.discriminator(fake.detach(), y))
            self._step(optimizer_d, loss, "d_loss")
        if turn:
            with self.toggled_optimizer(optimizer_g):
                self._step(optimizer_g, self._loss_g(self.discriminator(fake, y)), "g_loss")
            follow(self.average, self.network, self.ema, int(self.batches) // self.discriminator_steps)

    def _loss_d(self, real: Tensor, fake: Tensor) -> Tensor:
        hinge = self.architecture == "resnet"
        return hinge_discriminator(real, fake) if hinge else non_saturating_discriminator(real, fake)

    def _loss_g(self, fake: Tensor) -> Tensor:
        return -fake.mean() if self.architecture == "resnet" else non_saturating_generator(fake)

    def _step(self, optimizer: LightningOptimizer, loss: Tensor, name: str) -> None:
        optimizer.zero_grad()
        self.manual_backward(self.finite(loss, name))
        optimizer.step()
        self.log(f"train/{name}", loss, prog_bar=True)

    def _distance(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Energy distance of a batch to images generated for its labels, from the same latents each time."""
        x, y = batch
        rng = torch.Generator().manual_seed(batch_idx)
        z = torch.randn(len(y), self.latent_dim, generator=rng).to(x.device)
        return energy_distance(x, self.decode(z, y), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs the energy distance to real images as ``val/loss``, by which the best checkpoint is kept.

        A GAN's own losses say who is winning, not how good the images are; and accuracy as read by a judge alone
        prefers a generator that makes one easy image a class. This distance is zero only for the right distribution.
        """
        distance = self._distance(batch, batch_idx)
        self.log("val/loss", distance, prog_bar=True, batch_size=len(batch[1]), sync_dist=True)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs what :meth:`validation_step` does on test data."""
        self.log("test/loss", self._distance(batch, batch_idx), batch_size=len(batch[1]), sync_dist=True)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Adam for the generating network, Adam for the discriminator, in this order."""
        return [
            torch.optim.Adam(self.network.parameters(), lr=self.lr_generator, betas=self.betas),
            torch.optim.Adam(self.discriminator.parameters(), lr=self.lr_discriminator, betas=self.betas),
        ]


def non_saturating_discriminator(real: Tensor, fake: Tensor) -> Tensor:
    """Binary cross entropy of logits [N] for real and generated images.

    Example:
        >>> non_saturating_discriminator(torch.zeros(2), torch.zeros(2))  # undecided: 2 log 2
        tensor(1.3863)
    """
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def non_saturating_generator(fake: Tensor) -> Tensor:
    """-log D of logits [N] for generated images, whose gradient stays large where the discriminator is sure."""
    return F.softplus(-fake).mean()


def hinge_discriminator(real: Tensor, fake: Tensor) -> Tensor:
    """Hinge loss of scores [N]: real ones are pushed above 1, generated ones below -1, and no further.

    Example:
        >>> hinge_discriminator(torch.tensor([3.0, 0.5]), torch.tensor([-2.0, -1.0]))
        tensor(0.2500)
    """
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def truncated_normal(share: Tensor, limit: float) -> Tensor:
    """Uniform numbers in [0, 1] -> a standard normal cut to ±``limit``, one to one, so no draw is ever rejected.

    Example:
        >>> truncated_normal(torch.tensor([0.0, 0.25, 1.0]), 2.0)
        tensor([-2.0000, -0.6391,  2.0000])
    """
    outside = torch.special.ndtr(torch.tensor(-limit, dtype=share.dtype, device=share.device))
    return torch.special.ndtri(outside + share * (1 - 2 * outside)).clamp(-limit, limit)


def energy_distance(real: Tensor, fake: Tensor, y: Tensor) -> Tensor:
    """Energy distance 2 E|a - b| - E|a - a'| - E|b - b'| of two sets of images [N, C, H, W] with the same labels [N].

    Distances are Euclidean over pixels and label together, a different label counting as a quarter of the way from a
    black to a white image: images that are fine but of the wrong class are far away, too. Pairs (i, i) share a label
    and are left out, which makes the estimate unbiased; it can so be slightly negative.
    """
    pixels = real[0].numel()
    label = F.one_hot(y) * (0.25 * (pixels / 2) ** 0.5)  # two different one-hot vectors are √2 apart
    a, b = (torch.cat([images.flatten(1).float(), label], dim=1) for images in (real, fake))
    total = 2 * torch.cdist(a, b) - torch.cdist(a, a) - torch.cdist(b, b)
    n = len(y)
    return (total.sum() - total.diagonal().sum()) / max(n * (n - 1), 1)


def _bottom(image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Height and width of the smallest feature map, and how often they are doubled.

    Raises:
        InputError: The sides are not 4 to 7 times the same power of two.
    """
    _, height, wide = image_shape
    for doublings in range(1, 10):
        sides = height >> doublings, wide >> doublings
        if all(s in BOTTOM for s in sides) and (sides[0] << doublings, sides[1] << doublings) == (height, wide):
            return *sides, doublings
    raise InputError(
        f"GAN cannot reach images of {height}×{wide} pixels: both sides must be 4 to 7, doubled equally often, "
        f"e.g. 28×28 or 32×32; set image_size of the data and image_shape of the model"
    )


class _Stage(nn.Sequential):
    """A part of the decoder that takes the label like the others and makes no use of it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        out: Tensor = super().forward(x)
        return out


class _Network(nn.Module):
    """Latents and labels to pixel logits."""

    stages: nn.ModuleList

    def first(self, z: Tensor, y: Tensor) -> Tensor:
        return z

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        hidden = self.first(z, y)
        for stage in self.stages:
            hidden = stage(hidden, y)
        return hidden


class _DCNetwork(_Network):
    """ICST25's generator: z and class embedding, then transposed convolutions.

    Weights start as torch has them. With DCGAN's N(0, 0.02) the discriminator won at once in short runs at width 48,
    and all samples of a class were alike.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], num_classes: int, latent_dim: int, embedding_dim: int, width: int
    ) -> None:
        super().__init__()
        *sides, doublings = _bottom(image_shape)
        channels = [width * 2**i for i in reversed(range(doublings))]
        self.embedding = nn.Embedding(num_classes, embedding_dim)
        # a linear layer is the transposed convolution of a 1×1 image
        bottom = channels[0], *sides
        flat = nn.Linear(latent_dim + embedding_dim, bottom[0] * bottom[1] * bottom[2], bias=False)
        stages = [_Stage(flat, nn.Unflatten(1, bottom), nn.BatchNorm2d(channels[0]), nn.ReLU())]
        for inputs, outputs in pairwise(channels):
            up = nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1, bias=False)
            stages.append(_Stage(up, nn.BatchNorm2d(outputs), nn.ReLU()))
        stages.append(_Stage(nn.ConvTranspose2d(channels[-1], image_shape[0], 4, stride=2, padding=1)))
        self.stages = nn.ModuleList(stages)

    def first(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.cat([z, self.embedding(y)], dim=1)


class _DCDiscriminator(nn.Module):
    """Strided convolutions; the label is a learnt picture beside the image. [N, C, H, W], [N] -> logits [N]."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, width: int) -> None:
        super().__init__()
        inputs, *self.size = image_shape
        *sides, halvings = _bottom(image_shape)
        self.label = nn.Embedding(num_classes, self.size[0] * self.size[1])
        channels = [width * 2**i for i in range(halvings)]
        layers: list[nn.Module] = [nn.Conv2d(inputs + 1, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        for fewer, more in pairwise(channels):
            layers += [nn.Conv2d(fewer, more, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(more)]
            layers += [nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * sides[0] * sides[1], 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        label = self.label(y).unflatten(1, (1, *self.size))
        logits: Tensor = self.layers(torch.cat([2 * x - 1, label], dim=1))
        return logits.squeeze(1)


class _ClassNorm(nn.Module):
    """Batch norm whose gain and bias belong to the class. [N, C, H, W], [N] -> [N, C, H, W]."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.gain, self.bias = nn.Embedding(num_classes, channels), nn.Embedding(num_classes, channels)
        # classes differ from the start: else the generator first learns to ignore the label
        nn.init.normal_(self.gain.weight, 1, 0.1)
        nn.init.normal_(self.bias.weight, 0, 0.1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        gain, bias = self.gain(y)[:, :, None, None], self.bias(y)[:, :, None, None]
        scaled: Tensor = self.norm(x) * gain + bias
        return scaled


class _UpBlock(nn.Module):
    """Residual block that doubles the sides. [N, inputs, H, W], [N] -> [N, outputs, 2H, 2W]."""

    def __init__(self, inputs: int, outputs: int, num_classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _ClassNorm(inputs, num_classes), _ClassNorm(outputs, num_classes)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.conv1(_double(self.norm1(x, y).relu()))
        hidden = self.conv2(self.norm2(hidden, y).relu())
        return hidden + _double(self.skip(x))


class _ResNetwork(_Network):
    """BigGAN's generator at small size: a linear layer, residual blocks that know the class, one convolution."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, latent_dim: int, width: int) -> None:
        super().__init__()
        *sides, doublings = _bottom(image_shape)
        channels = [width * 2**i for i in reversed(range(doublings + 1))]
        bottom = channels[0], *sides
        stages: list[nn.Module] = [
            _Stage(nn.Linear(latent_dim, bottom[0] * bottom[1] * bottom[2]), nn.Unflatten(1, bottom))
        ]
        stages += [_UpBlock(inputs, outputs, num_classes) for inputs, outputs in pairwise(channels)]
        stages += [_Stage(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, image_shape[0], 3, padding=1))]
        self.stages = nn.ModuleList(stages)


class _DownBlock(nn.Module):
    """Residual block that may halve the sides. [N, inputs, H, W] -> [N, outputs, H/2, W/2]."""

    def __init__(self, inputs: int, outputs: int, *, first: bool = False, halve: bool = True) -> None:
        super().__init__()
        self.first, self.halve = first, halve
        self.conv1 = _normed(nn.Conv2d(inputs, outputs, 3, padding=1))
        self.conv2 = _normed(nn.Conv2d(outputs, outputs, 3, padding=1))
        self.skip = _normed(nn.Conv2d(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(x if self.first else x.relu())  # pixels are not activations: no ReLU on them
        hidden = self.conv2(hidden.relu())
        if self.halve:
            x, hidden = F.avg_pool2d(x, 2), F.avg_pool2d(hidden, 2)
        shortcut: Tensor = self.skip(x)
        return hidden + shortcut


class _ResDiscriminator(nn.Module):
    """Projection discriminator with spectral norm everywhere. [N, C, H, W], [N] -> scores [N]."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, width: int) -> None:
        super().__init__()
        *_, halvings = _bottom(image_shape)
        channels = [image_shape[0], *(width * 2**i for i in range(halvings + 1))]
        blocks = [
            _DownBlock(inputs, outputs, first=i == 0, halve=i < halvings)
            for i, (inputs, outputs) in enumerate(pairwise(channels))
        ]
        self.blocks = nn.Sequential(*blocks)
        self.score = _normed(nn.Linear(channels[-1], 1))
        self.label = _normed(nn.Embedding(num_classes, channels[-1]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.blocks(2 * x - 1).relu().sum(dim=(2, 3))
        scores: Tensor = self.score(features).squeeze(1) + (self.label(y) * features).sum(dim=1)
        return scores


def _normed(module: nn.Conv2d | nn.Linear | nn.Embedding) -> nn.Module:
    """Spectral norm over weights that start orthogonal, as in BigGAN."""
    nn.init.orthogonal_(module.weight)
    return spectral_norm(module)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0)
