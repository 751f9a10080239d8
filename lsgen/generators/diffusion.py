"""Class-conditional diffusion: a denoising UNet, and deterministic sampling in which the first noise is the latent."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lsgen.errors import InputError
from lsgen.generators.base import Generator
from lsgen.generators.ema import follow
from lsgen.types import LatentSpec, cut

NOISE_LEVELS = 1000  # of the forward process
WARMUP = 500  # steps over which the learning rate rises
GROUPS = 8  # of group norm; channels are multiples of it


class Diffusion(Generator):
    """A UNet that removes noise, trained as a DDPM and sampled with DDIM.

    The latent is the noise that sampling starts from, one number a pixel. DDIM adds none on the way, so a latent and a
    label give one image. Sampling runs the network ``steps`` times (twice that with guidance), and keeps for the
    gradient just the intermediate image of each step: activations are computed again going back.

    The noise schedule is a cosine that ends in pure noise, and the network predicts the velocity, which is defined
    there; both are what sampling in few steps needs.

    Args:
        image_shape: Channels, height, width of the images; each side must divide by ``patch`` and then halve evenly at
            every level but the last.
        num_classes: Number of classes.
        channels: Of the UNet's levels, from full size down, each a multiple of 8; the last level has attention.
        blocks: Residual blocks in each level.
        patch: Side of the squares of pixels that the network takes as one position with more channels. 2 leaves a
            quarter of the positions and so affords wider levels at the same cost.
        steps: DDIM steps of a sample (ICST25: 15 on MNIST, 25 elsewhere).
        guidance: How far to go from the prediction without a label to that with it; 1 takes the latter as it is and
            costs half.
        label_dropout: Share of training images whose label is hidden, from which the former is learnt; 0 needs
            guidance 1.
        ema: Decay of the running average of weights, which makes all images.
        lr: Learning rate of AdamW after a warm-up; it falls to zero along a cosine over the training.
        compile: Whether to compile the network: more speed after a minute's wait.

    Raises:
        InputError: A value out of range, or an image size that the levels cannot reach.
    """

    compile: bool  # type: ignore[assignment]  # nn.Module's method of this name is not used

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        num_classes: int = 10,
        channels: tuple[int, ...] = (48, 96),
        blocks: int = 1,
        patch: int = 2,
        steps: int = 15,
        guidance: float = 2.0,
        label_dropout: float = 0.1,
        ema: float = 0.999,
        lr: float = 1e-3,
        compile: bool = False,
    ) -> None:
        super().__init__()
        depth, height, wide = image_shape
        self.image_shape, self.num_classes = (depth, height, wide), num_classes
        self.channels, self.blocks, self.patch = tuple(channels), blocks, patch
        self.steps, self.guidance = steps, guidance
        self.label_dropout, self.ema, self.lr, self.compile = label_dropout, ema, lr, compile
        self._check()
        self.network = self._build()
        self.average = self._build().requires_grad_(False)
        self.average.load_state_dict(self.network.state_dict())
        if compile:
            self.network.compile()
            self.average.compile()
        self._schedule = _scheduler()

    @property
    def latent(self) -> LatentSpec:
        """Noise."""
        return replace(super().latent, kind="noise")

    def _check(self) -> None:
        if min(*self.image_shape, self.num_classes, self.blocks, self.patch) < 1 or not self.channels:
            raise InputError("image_shape, num_classes, channels, blocks and patch must be at least 1")
        if any(c < 1 or c % GROUPS for c in self.channels):
            raise InputError(f"channels must be multiples of {GROUPS}, got {list(self.channels)}")
        if not 1 <= self.steps <= NOISE_LEVELS:
            raise InputError(f"steps must lie between 1 and {NOISE_LEVELS}, got {self.steps}")
        if not (0 <= self.label_dropout < 1 and 0 <= self.ema < 1):
            raise InputError(f"label_dropout and ema must lie in [0, 1), got {self.label_dropout} and {self.ema}")
        if not (0 <= self.guidance < math.inf and 0 < self.lr < math.inf):
            raise InputError(
                f"guidance must not be negative, lr above 0, both finite, got guidance={self.guidance}, lr={self.lr}"
            )
        if self.label_dropout == 0 and self.guidance != 1:
            raise InputError(
                f"guidance {self.guidance} needs predictions without a label, which label_dropout 0 never trains: set "
                f"guidance to 1, or label_dropout above 0"
            )
        part = self.patch * 2 ** (len(self.channels) - 1)
        if any(side % part for side in self.image_shape[1:]):
            raise InputError(
                f"a Diffusion of {len(self.channels)} levels and patch {self.patch} cannot reach {self.image_shape[1]}×"
                f"{self.image_shape[2]} pixels: sides must be multiples of {part}; change image_size of the data, or "
                f"use fewer levels"
            )

    def _build(self) -> nn.Module:
        """The UNet; one class more than the data has stands for a hidden label."""
        from diffusers import UNet2DModel  # slow to import

        plain, depth = len(self.channels) - 1, self.image_shape[0] * self.patch**2
        network: Any = UNet2DModel(
            sample_size=tuple(side // self.patch for side in self.image_shape[1:]),
            in_channels=depth,
            out_channels=depth,
            block_out_channels=self.channels,
            layers_per_block=self.blocks,
            down_block_types=plain * ("DownBlock2D",) + ("AttnDownBlock2D",),
            up_block_types=("AttnUpBlock2D",) + plain * ("UpBlock2D",),
            norm_num_groups=GROUPS,
            attention_head_dim=GROUPS,
            num_class_embeds=self.num_classes + 1,
        )
        return network.to(memory_format=torch.channels_last)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """(C, H, W), noise of the size of an image."""
        return self.image_shape

    def velocity(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Noisy images [N, C, H, W] at noise levels [N] for labels [N] -> velocities; ``y`` = K hides the label."""
        network = self.network if self.training else self.average
        patches = F.pixel_unshuffle(x, self.patch).contiguous(memory_format=torch.channels_last)
        return F.pixel_shuffle(network(patches, t, class_labels=y, return_dict=False)[0], self.patch)

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Noise [N, C, H, W] and labels [N] -> images [N, C, H, W]."""
        scheduler = _scheduler()
        scheduler.set_timesteps(self.steps)
        x = z
        for t in scheduler.timesteps.tolist():
            if torch.is_grad_enabled() and x.requires_grad:
                x = checkpoint(self._denoise, x, y, t, scheduler, use_reentrant=False)
            else:
                x = self._denoise(x, y, t, scheduler)
        return cut((x + 1) / 2)

    def _denoise(self, x: Tensor, y: Tensor, t: int, scheduler: Any) -> Tensor:
        """One DDIM step from noise level ``t``."""
        level = torch.full_like(y, t)
        if self.guidance == 1:
            velocity = self.velocity(x, level, y)
        else:
            hidden = torch.full_like(y, self.num_classes)
            both = self.velocity(torch.cat([x, x]), torch.cat([level, level]), torch.cat([y, hidden]))
            with_label, without = both.chunk(2)
            velocity = without + self.guidance * (with_label - without)
        less_noisy: Tensor = scheduler.step(velocity, t, x).prev_sample
        return less_noisy

    def _loss(self, batch: tuple[Tensor, Tensor], rng: torch.Generator | None, dropout: float) -> Tensor:
        """Squared error of the predicted velocity at noise and levels drawn from ``rng``."""
        x, y = batch[0] * 2 - 1, batch[1]
        noise = torch.randn(x.shape, generator=rng).to(x.device)
        # every level range once in a batch: less noise in the gradient than independent draws
        spread = (torch.rand(1, generator=rng) + torch.arange(len(y)) / len(y)) % 1
        t = (spread * NOISE_LEVELS).long()[torch.randperm(len(y), generator=rng)].to(x.device)
        hide = (torch.rand(len(y), generator=rng) < dropout).to(x.device)
        noisy = self._schedule.add_noise(x, noise, t)
        target = self._schedule.get_velocity(x, noise, t)
        return F.mse_loss(self.velocity(noisy, t, y.where(~hide, self.num_classes)), target)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss at fresh noise."""
        loss = self.finite(self._loss(batch, None, self.label_dropout))
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, *args: Any) -> None:
        """The average follows."""
        follow(self.average, self.network, self.ema, self.global_step)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs the loss of the averaged weights at the same noise every time, so that epochs can be compared."""
        loss = self._loss(batch, torch.Generator().manual_seed(batch_idx), 0.0)
        self.log("val/loss", loss, prog_bar=True, batch_size=len(batch[1]), sync_dist=True)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs what :meth:`validation_step` does on test data."""
        loss = self._loss(batch, torch.Generator().manual_seed(batch_idx), 0.0)
        self.log("test/loss", loss, batch_size=len(batch[1]), sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW, warmed up, with a cosine to zero, step by step."""
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=self.lr)
        self.epochs()  # refuses a training without an end
        total = max(int(self.trainer.estimated_stepping_batches), 2)
        warmup = min(WARMUP, total // 2)
        rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=warmup)
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup)
        schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _scheduler() -> Any:
    """Noise levels, and DDIM without added noise; images are not clipped on the way, which would stop gradients."""
    from diffusers import DDIMScheduler  # slow to import

    return DDIMScheduler(
        num_train_timesteps=NOISE_LEVELS,
        beta_schedule="squaredcos_cap_v2",
        rescale_betas_zero_snr=True,
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
    )
