"""Variational autoencoder (SINVAD, ICST25): no label, so a search may walk from one class into another."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from lsgen.errors import InputError
from lsgen.generators.autoencoder import Autoencoder, Likelihood

Architecture = Literal["linear", "conv", "residual"]

HALVINGS = 4  # strided convolutions of the encoder; published channels are 64, 128, 256, 512
SMALLEST = 2**HALVINGS  # below it, the last halvings would have nothing left to halve


class VAE(Autoencoder):
    """Unconditional VAE; fully connected for digits, convolutional for 32×32 colour images and larger.

    ``linear`` has one hidden layer each way (SINVAD: 784-1600-400). ``conv`` halves the image four times and has one
    hidden layer between the bottom and the latent (ICST25 on CIFAR-10: hidden 4000, latent 1024). ``residual`` adds a
    residual block after each convolution (ICST25 on SVHN: hidden 4000, latent 800).

    The reconstruction term is a negative log likelihood, summed over pixels. ``bernoulli`` is the published binary
    cross entropy, right for images that are mostly black or white. ``gaussian`` is for colour: the decoder gives the
    mean and every pixel has the same fixed ``sigma``. It is fixed because a learnt one can fall towards zero without
    bound on pixels that never change. It is a number, rather than the usual summed squared error (which is sigma 0.71),
    because noise that spans most of [0, 1] makes it cheapest to ignore the latent, and images blur.

    Args:
        architecture: ``linear``, ``conv`` or ``residual``.
        image_shape: Channels, height, width of the images.
        num_classes: Number of classes of the data; the model itself makes no use of labels.
        latent_dim: Size of the latent vector.
        hidden: Units of the hidden layer on either side of the latent.
        width: Channels of the first convolution; each halving of the image doubles them. ``linear`` has none.
        likelihood: ``bernoulli`` or ``gaussian``.
        sigma: Standard deviation of a pixel under ``gaussian``, in units of the pixel range [0, 1].
        beta: Weight of the KL term.
        kl_warmup: Epochs over which that weight rises from 0 to beta in training, batch by batch. It keeps large
            latents from switching off before the decoder has learnt to use them. Epochs, not steps, so that it means
            the same for every batch size. Validation always takes beta, so that its losses can be compared.
        lr: Learning rate of Adam, which falls to zero along a cosine over the epochs.

    Raises:
        InputError: An unknown architecture or likelihood, a size below 1, or images too small to halve four times.
    """

    conditional = False

    def __init__(
        self,
        *,
        architecture: Architecture = "linear",
        image_shape: tuple[int, int, int] = (1, 28, 28),
        num_classes: int = 10,
        latent_dim: int = 400,
        hidden: int = 1600,
        width: int = 64,
        likelihood: Likelihood = "bernoulli",
        sigma: float = 0.1,
        beta: float = 1.0,
        kl_warmup: int = 0,
        lr: float = 1e-3,
    ) -> None:
        super().__init__()
        _check_choice("architecture", architecture, get_args(Architecture))
        _check_choice("likelihood", likelihood, get_args(Likelihood))
        if min(latent_dim, hidden, width, num_classes) < 1:
            raise InputError("latent_dim, hidden, width and num_classes must be at least 1")
        if not (0 < sigma < math.inf and 0 < lr < math.inf):
            raise InputError(f"sigma and lr must be above 0 and finite, got sigma={sigma}, lr={lr}")
        if not (0 <= beta < math.inf and kl_warmup >= 0):
            raise InputError(f"beta and kl_warmup must not be negative, got beta={beta}, kl_warmup={kl_warmup}")
        smallest = 1 if architecture == "linear" else SMALLEST
        if min(image_shape) < 1 or min(image_shape[1:]) < smallest:
            raise InputError(
                f"a {architecture} VAE needs images of at least {smallest}×{smallest} pixels, got {tuple(image_shape)}"
            )
        channels, height, wide = image_shape
        self.image_shape, self.num_classes = (channels, height, wide), num_classes
        self.architecture, self.latent_dim, self.hidden, self.width = architecture, latent_dim, hidden, width
        self.likelihood, self.sigma, self.beta, self.kl_warmup, self.lr = likelihood, sigma, beta, kl_warmup, lr
        if architecture == "linear":
            self.encoder, self.decoder = _linear(self.image_shape, latent_dim, hidden)
        else:
            residual = architecture == "residual"
            self.encoder, self.decoder = _convolutional(self.image_shape, latent_dim, hidden, width, residual)
        self.posterior = nn.Linear(hidden, 2 * latent_dim)

    def posterior_of(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Images [N, C, H, W] -> mean and log variance, [N, latent_dim] each; labels are ignored."""
        mean, log_var = self.posterior(self.encoder(x)).chunk(2, dim=1)
        return mean, log_var

    def pixel_logits(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents [N, latent_dim] -> pixels before the sigmoid, [N, C, H, W]; labels are ignored."""
        pixels: Tensor = self.decoder(z)
        return pixels


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _linear(image_shape: tuple[int, int, int], latent_dim: int, hidden: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder to the hidden layer, and decoder to pixel logits."""
    pixels = math.prod(image_shape)
    encoder = nn.Sequential(nn.Flatten(), *_dense(pixels, hidden))
    decoder = nn.Sequential(
        nn.Sequential(*_dense(latent_dim, hidden)),
        nn.Sequential(nn.Linear(hidden, pixels), nn.Unflatten(1, image_shape)),
    )
    return encoder, decoder


def _convolutional(
    image_shape: tuple[int, int, int], latent_dim: int, hidden: int, width: int, residual: bool
) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder to the hidden layer, and decoder to pixel logits: two dense stages, then one for each doubling."""
    sizes = [image_shape[1:]]
    for _ in range(HALVINGS):
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
    channels = [image_shape[0], *(width * 2**level for level in range(HALVINGS))]
    bottom = (channels[-1], *sizes[-1])
    flat = math.prod(bottom)

    down = [_convolution(*pair, stride=2, residual=residual) for pair in pairwise(channels)]
    encoder = nn.Sequential(*down, nn.Flatten(), *_dense(flat, hidden))
    stages = [
        nn.Sequential(*_dense(latent_dim, hidden)),
        nn.Sequential(*_dense(hidden, flat), nn.Unflatten(1, bottom)),
    ]
    for level in range(HALVINGS, 1, -1):
        up = _convolution(channels[level], channels[level - 1], stride=1, residual=residual)
        stages.append(nn.Sequential(nn.Upsample(size=sizes[level - 1]), *up))
    stages.append(nn.Sequential(nn.Upsample(size=sizes[0]), nn.Conv2d(channels[1], channels[0], 3, padding=1)))
    return encoder, nn.Sequential(*stages)


def _dense(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.LeakyReLU(0.1)]


def _convolution(inputs: int, outputs: int, *, stride: int, residual: bool) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)  # the norm brings a bias
    layers = [convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers, _Residual(outputs)) if residual else nn.Sequential(*layers)


class _Residual(nn.Module):
    """Two 3×3 convolutions around which the input passes unchanged."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            *_convolution(channels, channels, stride=1, residual=False),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        return F.leaky_relu(x + self.change(x), 0.1)
