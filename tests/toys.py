"""Networks whose answers can be worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lsgen.generators import Generator
from lsgen.suts import SUT


class Pixels(Generator):
    """Its latent is the image: decode is the identity, in two stages, cut to [0, 1]."""

    encodes = True

    def __init__(self, *, side: int = 4, num_classes: int = 2) -> None:
        super().__init__()
        self.side, self.num_classes, self.image_shape = side, num_classes, (1, side, side)
        self.same, self.shape = nn.Identity(), nn.Unflatten(1, self.image_shape)
        self.latent_bounds.copy_(torch.tensor([0.0, 1.0]))

    @property
    def stages(self) -> list[nn.Module]:
        return [self.same, self.shape]

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.side * self.side,)

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        return self.shape(self.same(z)).clamp(0, 1)

    def encode(self, x: Tensor, y: Tensor) -> Tensor:
        return x.flatten(1)


class Linear(SUT):
    """Logits are a linear function of the pixels, so gradients are its weights."""

    def __init__(self, *, side: int = 4, num_classes: int = 2, differentiable: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.side, self.num_classes, self.image_shape, self.seed = side, num_classes, (1, side, side), seed
        self.differentiable = differentiable
        self.layer = nn.Linear(side * side, num_classes)
        weight = torch.randn(num_classes, side * side, generator=torch.Generator().manual_seed(seed))
        self.layer.weight.data.copy_(weight)
        self.layer.bias.data.zero_()

    def logits(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Asked(Linear):
    """Counts the images that it is asked about, padding left out (the toy decoder makes padding black)."""

    count = 0

    def logits(self, x: Tensor) -> Tensor:
        self.count += int((x.flatten(1).sum(1) > 0).sum())
        return super().logits(x)

    def features(self, x: Tensor) -> Tensor:
        self.count += int((x.flatten(1).sum(1) > 0).sum())
        return super().features(x)


def write_npz(folder: Any, *, n: int = 40, side: int = 4, classes: int = 2, seed: int = 0) -> Any:
    """A data folder with random images."""
    import numpy as np

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        images = rng.integers(0, 256, (n, side, side), dtype=np.uint8)
        np.savez(folder / f"{part}.npz", images=images, labels=np.arange(n) % classes)
    return folder
