"""What every generative model offers to a search."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lsgen import checkpoints
from lsgen.data import ImageData, check_fits
from lsgen.errors import Diverged, InputError
from lsgen.types import LatentSpec, from_uint8

BOUNDS_FROM = 1000  # latents over which the stored bounds are measured


class Generator(checkpoints.SavedModule):
    """A generative model: latents in, images in [0, 1] out.

    A family implements :meth:`decode`, :attr:`latent_shape` and, where it can, :meth:`encode`; the rest has defaults
    that suit a standard normal prior.

    Attributes:
        image_shape: (C, H, W) of its images.
        num_classes: K.
        conditional: Whether :meth:`decode` makes use of the label.
        encodes: Whether :meth:`encode` works.
        has_prior: Whether :meth:`sample_prior` works.
    """

    role = "generator"
    conditional: ClassVar[bool] = True
    encodes: ClassVar[bool] = False
    has_prior: bool = True
    image_shape: tuple[int, int, int]
    num_classes: int
    latent_bounds: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("latent_bounds", torch.full((2,), torch.nan))

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of one latent, ``*L``."""

    @property
    def latent(self) -> LatentSpec:
        """Shape, kind and learnt bounds of the latent space."""
        low, high = self.latent_bounds.tolist()
        return LatentSpec(shape=self.latent_shape, bounds=None if low != low else (low, high))

    @property
    def stages(self) -> list[nn.Module]:
        """The modules that :meth:`decode` calls once each, in this order, so that a hook can change activations."""
        return []

    @abstractmethod
    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Latents [N, *L] and labels [N] -> images [N, C, H, W] in [0, 1]."""

    def encode(self, x: Tensor, y: Tensor) -> Tensor:
        """Images [N, C, H, W] and labels [N] -> latents [N, *L].

        Raises:
            InputError: This family has no encoder.
        """
        raise InputError(f"{type(self).__name__} has no encoder: take seeds from the prior")

    def sample_prior(self, n: int, y: Tensor, rng: torch.Generator) -> Tensor:
        """``n`` latents [n, *L] from the prior; ``y`` [n] for families whose prior depends on the label."""
        return torch.randn(n, *self.latent_shape, generator=rng, device=rng.device).to(y.device)

    def clamp(self, z: Tensor) -> Tensor:
        """Latents cut to the learnt bounds, or unchanged where none were learnt."""
        bounds = self.latent.bounds
        return z if bounds is None else z.clamp(*bounds)

    @torch.no_grad()
    def measure_bounds(self, data: ImageData) -> None:
        """Sets the bounds to the extremes over 1,000 latents: encodings of training images, or prior samples."""
        images, labels = data["train"].spread(BOUNDS_FROM)
        x, y = from_uint8(images.to(self.device)), labels.to(self.device)
        training = self.training
        self.eval()
        if self.encodes:
            z = torch.cat([self.encode(a, b) for a, b in zip(x.split(250), y.split(250), strict=True)])
        else:
            z = self.sample_prior(len(y), y, torch.Generator().manual_seed(0))
        self.train(training)
        self.latent_bounds.copy_(torch.stack([z.min(), z.max()]))

    def finite(self, loss: Tensor, name: str = "loss") -> Tensor:
        """The loss [] as it is, unless it is no number: then training ends before weights and checkpoints are spoilt.

        Raises:
            Diverged: It is NaN or infinite.
        """
        if not bool(loss.isfinite()):
            raise Diverged(
                f"train/{name} is {loss.item()} in epoch {self.current_epoch}, step {self.global_step}: training has "
                f"diverged and stopped; the checkpoints of earlier epochs are good; try a lower learning rate"
            )
        return loss

    def setup(self, stage: str) -> None:
        """Refuses data of another shape before the first batch does."""
        check_fits(self, self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Measures the latent bounds on the weights that are being saved, so that every checkpoint carries them."""
        super().on_save_checkpoint(checkpoint)
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, ImageData):
            self.measure_bounds(data)
            checkpoint["state_dict"]["latent_bounds"] = self.latent_bounds.clone()


def pretrained(path: str | Path, change: dict[str, Any] | None = None) -> Generator:
    """A generator that ``lsgen fit`` left.

    Args:
        path: Its checkpoint.
        change: Constructor arguments that differ from those it was trained with and leave its weights as they are,
            such as ``{steps: 25}`` of a Diffusion or ``{truncation: 1.0}`` of a GAN.
    """
    return checkpoints.load(path, Generator, change)  # type: ignore[type-abstract]
