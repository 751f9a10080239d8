"""What all networks share."""

from __future__ import annotations

from torch import Tensor, nn

from lsgen.errors import InputError

ImageShape = tuple[int, int, int]  # channels, height, width


class Network(nn.Module):
    """A body that gives features [N, F], and a head that turns them into logits [N, K]."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images [N, C, H, W] -> logits [N, K]."""
        logits: Tensor = self.head(self.body(x))
        return logits


def check_size(name: str, image_shape: ImageShape, smallest: int) -> None:
    """Refuses images of which the network's halvings would leave nothing.

    Raises:
        InputError: A side is shorter than ``smallest`` pixels.
    """
    _, height, width = image_shape
    if min(height, width) < smallest:
        raise InputError(f"{name} needs images of at least {smallest}×{smallest} pixels, got {height}×{width}")
