"""What all variational autoencoders share: the loss, its training, and what is logged."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgen.checkpoints import cosine_rate
from lsgen.generators.base import Generator

Likelihood = Literal["bernoulli", "gaussian"]


class Autoencoder(Generator):
    """A generator with an approximate posterior, trained on the evidence lower bound.

    A family gives ``posterior_of`` and ``pixel_logits``, a ``decoder`` of stages, and the attributes below.

    Attributes:
        latent_dim: Size of the latent vector.
        beta: Weight of the KL term.
        lr: Learning rate of Adam, which falls to zero along a cosine over the epochs.
        likelihood: Of a pixel; ``sigma`` is its standard deviation where it is Gaussian.
        kl_warmup: Epochs over which the KL weight rises to beta.
    """

    encodes = True
    decoder: nn.Sequential
    latent_dim: int
    beta: float
    lr: float
    likelihood: Likelihood = "bernoulli"
    sigma: float = 1.0
    kl_warmup: int = 0

    @abstractmethod
    def posterior_of(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Images [N, C, H, W] and labels [N] -> mean and log variance of the latent, [N, D] each."""

    @abstractmethod
    def pixel_logits(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents [N, D] and labels [N] -> pixels before the sigmoid, [N, C, H, W]."""

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """(latent_dim,)."""
        return (self.latent_dim,)

    @property
    def stages(self) -> list[nn.Module]:
        """The decoder's modules in order; the last gives pixels before the sigmoid."""
        return list(self.decoder)

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents [N, latent_dim] and labels [N] -> images [N, C, H, W]."""
        return self.pixel_logits(z, y).sigmoid()

    def encode(self, x: Tensor, y: Tensor) -> Tensor:
        """Images [N, C, H, W] and labels [N] -> posterior means [N, latent_dim]."""
        return self.posterior_of(x, y)[0]

    def losses(self, batch: tuple[Tensor, Tensor], *, sample: bool, weight: float) -> dict[str, Tensor]:
        """Loss and its two terms, summed over pixels and latents, mean over the batch.

        Args:
            batch: Images and labels.
            sample: Whether the latent is drawn from the posterior, or its mean.
            weight: Of the KL term.
        """
        x, y = batch
        mean, log_var = self.posterior_of(x, y)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp() if sample else mean
        reconstruction = negative_log_likelihood(self.pixel_logits(z, y), x, self.likelihood, self.sigma).mean()
        kl = kl_to_standard_normal(mean, log_var).mean()
        return {"loss": reconstruction + weight * kl, "reconstruction": reconstruction, "kl": kl}

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Negative log likelihood plus weighted KL."""
        weight = self.beta
        if self.kl_warmup:
            epochs = self.current_epoch + batch_idx / self.trainer.num_training_batches
            weight = kl_weight(self.beta, self.kl_warmup, epochs)
            self.log("train/kl_weight", weight)
        loss = self.finite(self.losses(batch, sample=True, weight=weight)["loss"])
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs the terms at the posterior mean and the full KL weight: no noise, and epochs can be compared."""
        self._log_losses(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs the terms of :meth:`validation_step` on test data."""
        self._log_losses(batch, "test")

    def _log_losses(self, batch: tuple[Tensor, Tensor], stage: str) -> None:
        losses = self.losses(batch, sample=False, weight=self.beta)
        n = len(batch[1])
        self.log(f"{stage}/loss", losses.pop("loss"), prog_bar=True, batch_size=n, sync_dist=True)
        self.log_dict({f"{stage}/{k}": v for k, v in losses.items()}, batch_size=n, sync_dist=True)

    def on_train_epoch_start(self) -> None:
        """Sets the learning rate of this epoch."""
        self.set_rates(cosine_rate(self.lr, self.current_epoch, self.epochs()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam; each epoch sets its learning rate."""
        self.epochs()  # refuses a training without an end
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def kl_to_standard_normal(mean: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(mean, exp(log_var)) ‖ N(0, 1)), summed over the latent, [N, D], [N, D] -> [N].

    Example:
        >>> kl_to_standard_normal(torch.tensor([[2.0]]), torch.tensor([[0.0]]))
        tensor([2.])
    """
    return 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(dim=1)


def kl_weight(beta: float, warmup: int, epochs: float) -> float:
    """Weight of the KL term after so many epochs (with their fraction): linear from 0 to beta over the warm-up.

    Example:
        >>> [kl_weight(2.0, 4, epochs) for epochs in (0, 1.5, 4, 9)]
        [0.0, 0.75, 2.0, 2.0]
    """
    return beta * min(1.0, epochs / warmup) if warmup else beta


def negative_log_likelihood(logits: Tensor, x: Tensor, likelihood: Likelihood, sigma: float) -> Tensor:
    """-log p(x), summed over pixels; logits and images [N, C, H, W] -> [N].

    The constants of the normal density are kept, so that models with different ``sigma`` can be compared.

    Example:
        >>> white = torch.ones(1, 1, 2, 2)
        >>> negative_log_likelihood(torch.zeros(1, 1, 2, 2), white, "bernoulli", 0.1)  # 4 log 2
        tensor([2.7726])
    """
    if likelihood == "bernoulli":
        return F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(dim=1)
    deviation = (x - logits.sigmoid()) / sigma
    return (0.5 * deviation.square() + math.log(sigma * math.sqrt(2 * math.pi))).flatten(1).sum(dim=1)
