"""Networks by name. Each has a ``body`` that ends in the penultimate activations and a linear ``head``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from lsgen.errors import InputError


class Network(nn.Module):
    """A body that gives features [N, F], and a head that turns them into logits [N, K]."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images [N, C, H, W] -> logits [N, K]."""
        logits: Tensor = self.head(self.body(x))
        return logits


def mnist_cnn(image_shape: tuple[int, int, int], num_classes: int) -> Network:
    """Conv 32-32-pool-64-64-pool and one hidden layer of 512, with dropout."""
    channels, height, width = image_shape
    if height < 4 or width < 4:
        raise InputError(f"mnist_cnn halves images twice and needs at least 4×4 pixels, got {height}×{width}")

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    body = nn.Sequential(
        *block(channels, 32),
        *block(32, 64),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return Network(body, nn.Sequential(nn.Dropout(0.5), nn.Linear(512, num_classes)))


NETWORKS: dict[str, Callable[[tuple[int, int, int], int], Network]] = {"mnist_cnn": mnist_cnn}


def build(name: str, image_shape: tuple[int, int, int], num_classes: int) -> Network:
    """The network called ``name``.

    Raises:
        InputError: There is none of that name.
    """
    if name not in NETWORKS:
        raise InputError(f"network: there is no network {name!r}; known: {', '.join(sorted(NETWORKS))}")
    return NETWORKS[name](image_shape, num_classes)
