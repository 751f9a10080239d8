"""VQ-VAE with two discriminators (ARGUS): a search mixes encodings, decoding snaps the mixture to learnt codes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric
from torchmetrics.functional.image import structural_similarity_index_measure

from lsgen.errors import InputError
from lsgen.generators.autoencoder import kl_to_standard_normal
from lsgen.generators.base import Generator
from lsgen.generators.gan import non_saturating_discriminator, non_saturating_generator
from lsgen.types import LatentSpec

Quantiser = Literal["codebook", "none"]
FIRST_LOG_VAR = -4.0  # of the plain VAE's posterior, a standard deviation of 0.14

SHRINK = 4  # image side over latent side: two strided convolutions
RESIDUALS = 2  # residual blocks at the bottom of encoder and decoder, as in the first VQ-VAE
LR_DECAY = 0.1  # published
FIRST_PHASE = 2.0  # larger than two mean squared errors of images can be together
SSIM_KERNEL = 11  # smaller images have no SSIM


class VQVAE(Generator):
    """VQ-VAE whose images stay realistic when its latents are mixed with those of other classes (ARGUS).

    A latent is the continuous output of the encoder, [embedding_dim, H/4, W/4]. :meth:`decode` replaces the vector at
    each of its positions by the nearest learnt code; gradients pass this step unchanged (straight-through). So
    interpolation, genetic search and gradient steps all work on it. There is no prior: seeds come from data.

    One ``fit`` runs two phases. The first ``pretrain_epochs`` epochs minimise Eq. 4 of the paper,
    ‖x - x̂‖² + alpha ‖z - sg(z_q)‖² + beta ‖sg(z) - z_q‖² (sg: no gradient). All later epochs add, for mixtures
    (1 - λ) z + λ z' with z' of another class, the losses of two discriminators: one tells mixed from real latents
    (Eq. 12, 13), one decoded mixtures from real images (Eq. 16, 17). Phase and learning rate follow from the number of
    the epoch alone, so a stopped run resumes in the right one.

    Norms are sums over one image or latent, as written in the paper: with means, the reconstruction would weigh a
    thousandth of it, and nothing beside the discriminators. Code and encoder are pulled to each other with the
    published weights; the paper calls the alpha term codebook loss and the beta term commitment loss, and most others
    swap these names.

    A code that goes unused is moved onto a random encoder output. At the start all count as unused, so the first batch
    spreads them over the latents.

    Args:
        image_shape: Channels, height, width of the images; sides are multiples of 4.
        num_classes: Number of classes of the data; the networks make no use of labels, only mixing in training does.
        embedding_dim: Length of a code.
        num_codes: Codes in the codebook.
        width: Channels after the first halving of the image; the second doubles them.
        quantiser: ``codebook``, or ``none`` for the paper's ablation: a plain VAE, whose KL to a standard normal stands
            in for the two codebook terms. Its latent is the posterior mean.
        discriminators: Whether there is a second phase; False is the paper's other ablation.
        interpolation: The paper's λ, share of the other class in a mixture. A search should use the same.
        pretrain_epochs: Epochs of the first phase; the second lasts until ``trainer.max_epochs``.
        alpha: Weight that pulls encoder outputs to their codes, Eq. 6.
        beta: Weight that pulls codes to the encoder outputs they stand for, Eq. 7.
        kl_weight: Weight of the KL term where ``quantiser`` is ``none``. 0.02 is a pixel with a standard deviation of
            0.1, as in ``VAE``; at 1 the latent switches off, and all images become one.
        adversarial_weight: Weight of Eq. 13 and 17 beside Eq. 4; the paper names none, which is 1.
        discriminator_width: Channels of the image discriminator's first convolution.
        revive_after: Training steps without use after which a code is moved.
        lr: Learning rate of Adam for encoder, codes and decoder, at the start of each phase.
        lr_discriminator: The same for both discriminators; the paper names none.
        lr_decay_epochs: Epochs of a phase after which learning rates fall to a tenth, again and again.
        gradient_clip: Largest norm of the gradient of each of the two optimizers; None: any.

    Raises:
        InputError: An unknown quantiser, a number outside its range, or image sides that are no multiples of 4.
    """

    conditional: ClassVar[bool] = False
    encodes: ClassVar[bool] = True

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        num_classes: int = 10,
        embedding_dim: int = 16,
        num_codes: int = 256,
        width: int = 32,
        quantiser: Quantiser = "codebook",
        discriminators: bool = True,
        interpolation: float = 0.1,
        pretrain_epochs: int = 50,
        alpha: float = 0.25,
        beta: float = 0.75,
        kl_weight: float = 0.02,
        adversarial_weight: float = 1.0,
        discriminator_width: int = 8,
        revive_after: int = 50,
        lr: float = 1e-3,
        lr_discriminator: float = 1e-4,
        lr_decay_epochs: int = 20,
        gradient_clip: float | None = None,
    ) -> None:
        super().__init__()
        channels, height, wide = image_shape
        self.image_shape, self.num_classes = (channels, height, wide), num_classes
        self.embedding_dim, self.num_codes, self.width = embedding_dim, num_codes, width
        self.quantiser, self.discriminators, self.interpolation = quantiser, discriminators, interpolation
        self.pretrain_epochs, self.alpha, self.beta, self.kl_weight = pretrain_epochs, alpha, beta, kl_weight
        self.adversarial_weight, self.discriminator_width = adversarial_weight, discriminator_width
        self.revive_after, self.lr, self.lr_discriminator = revive_after, lr, lr_discriminator
        self.lr_decay_epochs, self.gradient_clip = lr_decay_epochs, gradient_clip
        self._check()
        self.has_prior = quantiser == "none"  # a plain VAE has one, codes have none
        self.automatic_optimization = False  # two optimizers take turns
        self.codebook = Codebook(num_codes, embedding_dim, revive_after) if quantiser == "codebook" else None
        outputs = embedding_dim if quantiser == "codebook" else 2 * embedding_dim
        self.encoder = _lively(_encoder(channels, width, outputs))
        self.decoder = _lively(_decoder(channels, width, embedding_dim))
        if quantiser == "none":
            _nearly_sure(self.encoder[-1], embedding_dim)
        if discriminators:
            self.latent_discriminator = _latent_discriminator(math.prod(self.latent_shape))
            self.image_discriminator = _image_discriminator(self.image_shape, discriminator_width)
        self.perplexity = Perplexity(num_codes)
        self.interpolation_ssim = MeanMetric()

    def _check(self) -> None:
        if self.quantiser not in get_args(Quantiser):
            raise InputError(f"quantiser must be one of {', '.join(get_args(Quantiser))}, got {self.quantiser!r}")
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not (least <= value <= most and value < math.inf):
                known = f"at least {least}" if most == math.inf else f"between {least} and {most}"
                raise InputError(f"{name} must be {known}, got {value}")
        for name in ("lr", "lr_discriminator", "gradient_clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be above 0 and finite, got {value}")
        if min(self.image_shape) < 1 or any(side % SHRINK for side in self.image_shape[1:]):
            raise InputError(
                f"VQVAE cannot reach images of {self.image_shape} (channels, height, width): sides must be multiples "
                f"of {SHRINK}, e.g. 28 or 32; set image_size of the data and image_shape of the model"
            )

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """(embedding_dim, H/4, W/4)."""
        return self.embedding_dim, self.image_shape[1] // SHRINK, self.image_shape[2] // SHRINK

    @property
    def latent(self) -> LatentSpec:
        """Encoder outputs that decoding snaps to codes; of the kind ``normal`` where there is no codebook."""
        return super().latent if self.codebook is None else replace(super().latent, kind="codes")

    @property
    def stages(self) -> list[nn.Module]:
        """The codebook, where there is one, and the decoder's modules; the last gives pixels before the sigmoid."""
        return [*self._quantisers(), *self.decoder]

    def _quantisers(self) -> list[nn.Module]:
        return [] if self.codebook is None else [self.codebook]

    def encode(self, x: Tensor, y: Tensor) -> Tensor:
        """Images [N, C, H, W] -> latents [N, embedding_dim, H/4, W/4], before quantisation; labels are ignored."""
        return self._posterior(x)[0]

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents [N, embedding_dim, H/4, W/4] -> images [N, C, H, W] of their nearest codes; labels are ignored."""
        for stage in self.stages:
            z = stage(z)
        return z.sigmoid()

    def sample_prior(self, n: int, y: Tensor, rng: torch.Generator) -> Tensor:
        """Standard normal latents [n, *L] of the plain VAE that stands in where there is no codebook; else refuses.

        Raises:
            InputError: There is a codebook: nothing was learnt about which codes belong together.
        """
        if self.codebook is None:
            return super().sample_prior(n, y, rng)
        raise InputError("VQVAE has no prior, and random codes are no image: take seeds from data with DataSeeds")

    def _posterior(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Latents, and without a codebook the logarithm of their variance, [N, *L] each."""
        hidden: Tensor = self.encoder(x)
        if self.codebook is not None:
            return hidden, None
        mean, log_var = hidden.chunk(2, dim=1)
        return mean, log_var

    # training

    @property
    def joint(self) -> bool:
        """Whether this epoch trains with the discriminators."""
        return self.discriminators and self.current_epoch >= self.pretrain_epochs

    def setup(self, stage: str) -> None:
        """Refuses data of another shape, and prepares for two optimizers."""
        super().setup(stage)
        epochs, strategy = self.trainer.max_epochs, self.trainer.strategy
        if stage == "fit" and self.discriminators and epochs is not None and 0 <= epochs <= self.pretrain_epochs:
            rank_zero_warn(
                f"pretrain_epochs {self.pretrain_epochs} leaves none of the {epochs} epochs (trainer.max_epochs) for "
                f"training with the discriminators"
            )
        if self.discriminators and isinstance(strategy, DDPStrategy):  # else ddp waits for gradients of all networks
            strategy._ddp_kwargs.setdefault("find_unused_parameters", True)

    def on_train_epoch_start(self) -> None:
        """Sets the learning rates of this epoch."""
        epoch = self.current_epoch - (self.pretrain_epochs if self.joint else 0)
        share = LR_DECAY ** (epoch // self.lr_decay_epochs)
        self.set_rates(self.lr * share, self.lr_discriminator * share)
        self.log("train/lr", self.lr * share, rank_zero_only=True)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """A step of the autoencoder; in the second phase, one of the discriminators before it."""
        x, y = batch
        given = self.optimizers()
        optimizer, *others = given if isinstance(given, list) else [given]
        z, hidden, terms = self._embed(x)
        if not self.joint:
            terms["reconstruction"] = squared_distance(self._pixels(hidden), x)
            self._step(optimizer, terms, "loss")
            return
        mixed = z.lerp(z[partners(y)], self.interpolation)
        rebuilt, fake = self._pixels(torch.cat([hidden, self._quantised(mixed)])).chunk(2)
        with self.toggled_optimizer(others[0]):
            self._step(others[0], self._judging(x, fake.detach(), z.detach(), mixed.detach()), "discriminator_loss")
        with self.toggled_optimizer(optimizer):
            terms["reconstruction"] = squared_distance(rebuilt, x)
            self._step(optimizer, terms | self._fooling(fake, mixed), "loss")

    def _embed(self, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Images -> latents, what the decoder takes of them [N, *L] each, and the weighted loss terms of the latent."""
        z, log_var = self._posterior(x)
        if self.codebook is None:
            assert log_var is not None
            kl = kl_to_standard_normal(z.flatten(1), log_var.flatten(1)).mean()
            return z, z + torch.randn_like(z) * (0.5 * log_var).exp(), {"kl": self.kl_weight * kl}
        self._revive(z)
        index = self.codebook.nearest(z)
        self.codebook.count(self._over_all_processes(self.codebook.uses(index)))
        codes = self.codebook.look_up(index)
        terms = {
            "codebook": self.alpha * squared_distance(z, codes.detach()),
            "commitment": self.beta * squared_distance(z.detach(), codes),
        }
        return z, straight_through(z, codes), terms

    def _revive(self, z: Tensor) -> None:
        assert self.codebook is not None
        if n := int(self.codebook.dead().sum()):  # the same in all processes, so all of them get here
            vectors = self.trainer.strategy.broadcast(random_vectors(z, n))
            self.codebook.revive(vectors.to(z.device))

    def _over_all_processes(self, counts: Tensor) -> Tensor:
        total = self.trainer.strategy.reduce(counts, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def _quantised(self, z: Tensor) -> Tensor:
        return z if self.codebook is None else self.codebook(z)

    def _pixels(self, hidden: Tensor) -> Tensor:
        """What the decoder takes, [N, *L] -> images [N, C, H, W]."""
        pixels: Tensor = self.decoder(hidden)
        return pixels.sigmoid()

    def _judging(self, x: Tensor, fake: Tensor, z: Tensor, mixed: Tensor) -> dict[str, Tensor]:
        """Eq. 12 and 16, for real and mixed images [N, C, H, W] and latents [N, *L]."""
        return {
            "latent_discriminator": non_saturating_discriminator(*map(self.latent_discriminator, (z, mixed))),
            "image_discriminator": non_saturating_discriminator(*map(self.image_discriminator, (x, fake))),
        }

    def _fooling(self, fake: Tensor, mixed: Tensor) -> dict[str, Tensor]:
        """Eq. 13 and 17, weighted, for mixed images [N, C, H, W] and latents [N, *L]."""
        return {
            "latent_generator": self.adversarial_weight * non_saturating_generator(self.latent_discriminator(mixed)),
            "image_generator": self.adversarial_weight * non_saturating_generator(self.image_discriminator(fake)),
        }

    def _step(self, optimizer: LightningOptimizer, terms: dict[str, Tensor], name: str) -> None:
        """One optimizer step on the sum of the terms."""
        loss = self.finite(torch.stack([term.float() for term in terms.values()]).sum(), name)
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.gradient_clip is not None:
            self.clip_gradients(optimizer.optimizer, self.gradient_clip, "norm")
        optimizer.step()
        self.log(f"train/{name}", loss, prog_bar=True)
        self.log_dict({f"train/{key}": value for key, value in terms.items()})

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Adam for the autoencoder with its codes and, where there are discriminators, Adam for both of them."""
        parts = [self.encoder, self.decoder, *self._quantisers()]
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(_parameters(parts), lr=self.lr)]
        if self.discriminators:
            judges = [self.latent_discriminator, self.image_discriminator]
            betas = 0.5, 0.999  # the usual ones against a moving target
            optimizers.append(torch.optim.Adam(_parameters(judges), lr=self.lr_discriminator, betas=betas))
        return optimizers

    # evaluation

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs how well images and mixtures are rebuilt, and how many codes are in use.

        ``loss``, by which the best checkpoint is kept, is the mean squared error of reconstructions and of decoded
        mixtures against the image, added. Both phases and both ablations have it, other than codebook and adversarial
        terms, and it measures what a search needs: realism of mixtures, in the terms of the paper's Table 1. While a
        fit with discriminators is still in its first phase, 2 is added: blurring a mixture towards the image lowers
        the error, so the first phase would win, and the best checkpoint must be one of the second.

        ``reconstruction`` is the first of these errors, ``ssim`` the similarity of reconstructions, ``perplexity``
        that of the codes over all images, ``interpolation_ssim`` the similarity of mixtures with another class to the
        image (images in batches of a single class do not count there).
        """
        self._evaluate(batch, batch_idx, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs what :meth:`validation_step` does on test data."""
        self._evaluate(batch, batch_idx, "test")

    def _evaluate(self, batch: tuple[Tensor, Tensor], batch_idx: int, stage: str) -> None:
        x, y = batch
        z = self.encode(x, y)
        other = partners(y, torch.Generator().manual_seed(batch_idx))  # the same mixtures in each epoch
        both = torch.cat([z, z.lerp(z[other], self.interpolation)])
        rebuilt, mixed = self.decode(both, y.repeat(2)).float().chunk(2)
        error = F.mse_loss(rebuilt, x)
        early = self.trainer.state.fn == TrainerFn.FITTING and self.discriminators and not self.joint
        values = {"loss": error + F.mse_loss(mixed, x) + FIRST_PHASE * early, "reconstruction": error}
        if min(x.shape[2:]) >= SSIM_KERNEL:
            values["ssim"] = _ssim(rebuilt, x).mean()
            different = y[other] != y
            self.interpolation_ssim.update(_ssim(mixed[different], x[different]))
            self.log(f"{stage}/interpolation_ssim", self.interpolation_ssim)
        if self.codebook is not None:
            self.perplexity.update(self.codebook.uses(self.codebook.nearest(z)))
            self.log(f"{stage}/perplexity", self.perplexity)
        self.log_dict({f"{stage}/{k}": v for k, v in values.items()}, batch_size=len(y), sync_dist=True)


LIMITS: dict[str, tuple[float, float]] = {  # smallest and largest values that make sense
    "num_classes": (1, math.inf),
    "embedding_dim": (1, math.inf),
    "num_codes": (2, math.inf),
    "width": (2, math.inf),
    "discriminator_width": (1, math.inf),
    "interpolation": (0, 1),
    "pretrain_epochs": (0, math.inf),
    "alpha": (0, math.inf),
    "beta": (0, math.inf),
    "kl_weight": (0, math.inf),
    "adversarial_weight": (0, math.inf),
    "revive_after": (1, math.inf),
    "lr_decay_epochs": (1, math.inf),
}


class Codebook(nn.Module):
    """Learnt codes; its forward pass puts the nearest one in the place of each vector.

    Plain torch rather than the package vector-quantize-pytorch: by default that learns codes as moving averages,
    ARGUS by the gradient of a term with a weight of its own, and what remains is these few lines.

    Args:
        num_codes: K.
        dim: D, length of a code.
        revive_after: Training steps without use after which a code counts as dead.
    """

    idle: Tensor

    def __init__(self, num_codes: int, dim: int, revive_after: int) -> None:
        super().__init__()
        self.revive_after = revive_after
        self.codes = nn.Parameter(torch.randn(num_codes, dim))
        # steps since the last use; all start as dead, so that the first training batch gives them their places
        self.register_buffer("idle", torch.full((num_codes,), revive_after))

    def forward(self, z: Tensor) -> Tensor:
        """[N, D, h, w] -> the same, made of codes; gradients go to z unchanged, and none to the codes."""
        return straight_through(z, self.look_up(self.nearest(z)))

    @torch.no_grad()
    def nearest(self, z: Tensor) -> Tensor:
        """[N, D, h, w] -> numbers of the nearest codes [N, h, w]; of equally near ones the first."""
        with torch.autocast(z.device.type, enabled=False):  # bf16 could not tell near codes apart
            codes = self.codes.float()
            # |z - c|² without |z|², which is the same for all codes
            distance = torch.addmm(codes.square().sum(1), _vectors(z).float(), codes.T, alpha=-2)
        return distance.argmin(dim=1).view(len(z), *z.shape[2:])

    def look_up(self, index: Tensor) -> Tensor:
        """Numbers of codes [N, h, w] -> codes [N, D, h, w]."""
        return F.embedding(index, self.codes).movedim(-1, 1).contiguous()

    def uses(self, index: Tensor) -> Tensor:
        """Numbers of codes, any shape -> how often each occurs [K]."""
        return index.flatten().bincount(minlength=len(self.codes))

    def count(self, uses: Tensor) -> None:
        """Takes note of one training step that used each code so often, [K]."""
        self.idle.add_(1).masked_fill_(uses > 0, 0)

    def dead(self) -> Tensor:
        """Which codes went unused for too long, [K] bool."""
        return self.idle >= self.revive_after

    @torch.no_grad()
    def revive(self, vectors: Tensor) -> None:
        """Moves the dead codes onto ``vectors`` [number of dead codes, D], with a new window before them."""
        dead = self.dead()
        self.codes[dead] = vectors.to(self.codes.dtype)
        self.idle[dead] = 0


class Perplexity(Metric):
    """How many codes are in use: the number of equally frequent ones that would have the same entropy.

    Args:
        num_codes: K.

    Example:
        >>> metric = Perplexity(4)
        >>> metric.update(torch.tensor([5, 0, 2, 0]))
        >>> metric.update(torch.tensor([0, 0, 3, 0]))
        >>> metric.compute()
        tensor(2.)
    """

    higher_is_better = True
    full_state_update = False
    uses: Tensor

    def __init__(self, num_codes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("uses", torch.zeros(num_codes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, uses: Tensor) -> None:
        """Adds how often each code was used, [K]."""
        self.uses += uses

    def compute(self) -> Tensor:
        """Exponential of the entropy of the shares, between 1 and K."""
        share = self.uses / self.uses.sum()
        return torch.special.entr(share).sum().exp()


class _StraightThrough(torch.autograd.Function):
    """Exactly the codes going forward, where z + (codes - z) would be off in the last bits; gradients back to z."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, codes: Tensor) -> Tensor:
        return codes.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def straight_through(z: Tensor, codes: Tensor) -> Tensor:
    """``codes`` going forward, while the gradient goes to ``z`` of the same shape.

    Example:
        >>> z = torch.tensor([0.3], requires_grad=True)
        >>> out = straight_through(z, torch.tensor([1.0]))
        >>> (2 * out).sum().backward()
        >>> out.tolist(), z.grad
        ([1.0], tensor([2.]))
    """
    quantised: Tensor = _StraightThrough.apply(z, codes)
    return quantised


def partners(y: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """For each label [N] the index of a random other one that differs, [N]; of any where all are the same.

    Example:
        >>> y = torch.tensor([0, 0, 1, 2])
        >>> bool((y[partners(y)] != y).all())
        True
    """
    chance = torch.rand(len(y), len(y), generator=rng).to(y.device)
    return (chance + (y[:, None] != y)).argmax(dim=1)


def random_vectors(z: Tensor, n: int) -> Tensor:
    """``n`` vectors [n, D] of latents [N, D, h, w], each as seldom repeated as their number allows."""
    vectors = _vectors(z.detach())
    order = torch.randperm(len(vectors), device=z.device)
    return vectors[order.repeat(math.ceil(n / len(vectors)))[:n]].cpu()


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """‖a - b‖², summed over all but the first axis, mean over that.

    Example:
        >>> squared_distance(torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 3.0]]))
        tensor(6.)
    """
    return (a.float() - b.float()).square().flatten(1).sum(dim=1).mean()


def _vectors(z: Tensor) -> Tensor:
    """[N, D, h, w] -> [N h w, D]."""
    return z.movedim(1, -1).flatten(0, -2)


def _ssim(a: Tensor, b: Tensor) -> Tensor:
    """Similarity of images [N, C, H, W] in [0, 1] -> [N]."""
    if not len(a):
        return a.new_zeros(0)
    with torch.autocast(a.device.type, enabled=False):  # variances cancel in half precision
        similarity = structural_similarity_index_measure(a.float(), b.float(), data_range=1.0, reduction="none")
    assert isinstance(similarity, Tensor)
    return similarity.reshape(-1)


def _parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]


class _Residual(nn.Module):
    """3×3, then 1×1 convolution, around which the input passes unchanged. [N, C, H, W] -> [N, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = channels // 2
        layers = [nn.ReLU(), nn.Conv2d(channels, inner, 3, padding=1), nn.ReLU(), nn.Conv2d(inner, channels, 1)]
        self.change = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = x + self.change(x)
        return changed


def _lively(network: nn.Sequential) -> nn.Sequential:
    """The network with weights that keep the spread of what passes through.

    With torch's own it fades layer by layer: encodings of the first batches were nearly alike, one code took them all,
    and (on white squares, 250 steps) images stayed black.
    """
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return network


def _residuals(channels: int) -> list[nn.Module]:
    return [*(_Residual(channels) for _ in range(RESIDUALS)), nn.ReLU()]


def _encoder(channels: int, width: int, outputs: int) -> nn.Sequential:
    """[N, C, H, W] -> [N, outputs, H/4, W/4]."""
    return nn.Sequential(
        *(nn.Conv2d(channels, width, 4, stride=2, padding=1), nn.ReLU()),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        *_residuals(2 * width),
        nn.Conv2d(2 * width, outputs, 1),
    )


def _nearly_sure(layer: nn.Module, means: int) -> None:
    """Makes a posterior's first log variances small: noise that drowns the means leaves the decoder blank."""
    assert isinstance(layer, nn.Conv2d)
    assert layer.bias is not None
    with torch.no_grad():
        layer.weight[means:].zero_()
        layer.bias[means:].fill_(FIRST_LOG_VAR)


def _decoder(channels: int, width: int, inputs: int) -> nn.Sequential:
    """[N, inputs, H/4, W/4] -> pixels before the sigmoid [N, C, H, W], in three stages."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(inputs, 2 * width, 3, padding=1), *_residuals(2 * width)),
        nn.Sequential(nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), nn.ReLU()),
        nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
    )


def _latent_discriminator(inputs: int) -> nn.Sequential:
    """Three fully connected layers, [N, *L] -> logits [N, 1]."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(inputs, 256), nn.LeakyReLU(0.2)),
        *(nn.Linear(256, 64), nn.LeakyReLU(0.2)),
        nn.Linear(64, 1),
    )


def _image_discriminator(image_shape: tuple[int, int, int], width: int) -> nn.Sequential:
    """Five convolutions, the first three halve, and two fully connected layers; [N, C, H, W] -> logits [N, 1]."""
    channels = [image_shape[0], width, 2 * width, 4 * width, 4 * width, 4 * width]
    layers: list[nn.Module] = []
    for (inputs, outputs), stride in zip(pairwise(channels), (2, 2, 2, 1, 1), strict=True):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.LeakyReLU(0.2)]
    flat = channels[-1] * math.ceil(image_shape[1] / 8) * math.ceil(image_shape[2] / 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
