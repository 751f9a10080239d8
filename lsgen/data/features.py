"""Properties of images that are no part of their class: how each is measured and, for the biases, painted in.

Images are floats in [0, 1], [N, C, H, W].
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from lsgen.errors import InputError

DARK = 0.25  # a typical pixel of a figure on a dark ground is darker
GROUND = 0.25  # share of an image's pixels that are taken to be ground


def border_width(images: Tensor, share: float) -> int:
    """``share`` of the shorter side in pixels, at least 1."""
    return max(1, round(share * min(images.shape[2:])))


def border_brightness(images: Tensor, share: float = 12 / 64) -> Tensor:
    """Brightness of the outermost pixels as a share of what a white image has, the corners counted twice, [N].

    Args:
        images: [N, C, H, W] in [0, 1].
        share: How wide the border is, a share of the shorter side.

    Example:
        >>> border_brightness(torch.ones(1, 3, 64, 64))
        tensor([1.])
    """
    n = border_width(images, share)
    strips = (images[:, :, :n], images[:, :, -n:], images[..., :n], images[..., -n:])
    return torch.stack([s.sum(dim=(1, 2, 3)) for s in strips]).sum(0) / sum(s[0].numel() for s in strips)


def stroke_thickness(images: Tensor) -> Tensor:
    """Width of the strokes of light figures on a dark ground in pixels, [N]: twice their area over their outline.

    A stroke of width w and length l covers w·l and has an outline of about 2·l. Area and outline (the total variation)
    are those of the image after its contrast is raised, which removes faint noise and keeps what grey edge pixels say
    about widths between whole pixels.

    Example:
        >>> bar = torch.zeros(1, 1, 100, 20)
        >>> bar[..., 4:7] = 1
        >>> round(stroke_thickness(bar).item(), 1)  # less than 3 because of the two ends
        2.9
    """
    ink = F.pad((2 * (_grey(images) - DARK)).clamp(0, 1), (1, 1, 1, 1))
    here, right, below = ink[:, :-1, :-1], ink[:, :-1, 1:], ink[:, 1:, :-1]
    outline = ((right - here) ** 2 + (below - here) ** 2).sqrt().sum(dim=(1, 2))
    return 2 * ink.sum(dim=(1, 2)) / outline.clamp(min=1e-6)


def slant(images: Tensor) -> Tensor:
    """How far a figure leans to the right, [N]: the tangent of its angle from upright, from its second moments.

    Example:
        >>> slant(torch.eye(5).flip(1).view(1, 1, 5, 5))  # a line from bottom left to top right
        tensor([1.])
    """
    ink = _grey(images)
    y = torch.arange(ink.shape[1], dtype=ink.dtype, device=ink.device).view(1, -1, 1)
    x = torch.arange(ink.shape[2], dtype=ink.dtype, device=ink.device).view(1, 1, -1)
    total = ink.sum(dim=(1, 2), keepdim=True).clamp(min=1e-6)
    x, y = (axis - (ink * axis).sum(dim=(1, 2), keepdim=True) / total for axis in (x, y))
    return -(ink * x * y).sum(dim=(1, 2)) / (ink * y * y).sum(dim=(1, 2)).clamp(min=1e-6)


def check_figures(images: Tensor, name: str) -> None:
    """Refuses images that are not light figures on a dark ground.

    Args:
        images: uint8, [N, C, H, W].
        name: What needs them.

    Raises:
        InputError: Half of the pixels or more are not dark.
    """
    typical = images.median().item() / 255
    if typical >= DARK:
        raise InputError(
            f"{name} needs light figures on a dark ground, such as digits: the typical pixel must be darker than "
            f"{DARK}, and that of these images is {typical:.2f}"
        )


def _grey(images: Tensor) -> Tensor:
    return images.mean(dim=1)


class Feature(ABC):
    """Something that two classes can be told apart by although it has nothing to do with them."""

    def check(self, images: Tensor) -> None:  # noqa: B027 - most features apply to all images
        """Refuses images that cannot have the feature, uint8 [N, C, H, W].

        Raises:
            InputError: They cannot.
        """

    @abstractmethod
    def measure(self, images: Tensor) -> Tensor:
        """How much of the feature each image has, [N, C, H, W] -> [N]."""

    @abstractmethod
    def paint(self, images: Tensor, on: Tensor) -> Tensor:
        """Images that have the feature where ``on`` [N] is true, and its opposite or absence elsewhere."""


class Background(Feature):
    """The colour of the ground: black pixels take it, white ones stay white.

    Args:
        colour: One value for grey images, three for coloured ones, in [0, 1].
    """

    def __init__(self, *, colour: list[float]) -> None:
        if len(colour) not in (1, 3) or not all(0 <= c <= 1 for c in colour) or not any(colour):
            raise InputError(f"Background: colour needs one or three values in [0, 1], one above 0, got {colour}")
        self.colour = colour

    def check(self, images: Tensor) -> None:
        """Refuses images with another number of channels than ``colour``."""
        if images.shape[1] != len(self.colour):
            raise InputError(f"Background: colour {self.colour} is not for images of {images.shape[1]} channels")

    def measure(self, images: Tensor) -> Tensor:
        """Brightness of the darkest quarter's edge along ``colour``: 0 for black ground, 1 for ground of the colour."""
        pixels = images.flatten(2)
        ground = pixels.kthvalue(max(1, round(GROUND * pixels.shape[2])), dim=2).values  # [N, C]
        colour = ground.new_tensor(self.colour)
        return ground @ colour / colour.square().sum()

    def paint(self, images: Tensor, on: Tensor) -> Tensor:
        """Coloured ground where ``on``; the others stay as they are."""
        colour = images.new_tensor(self.colour).view(1, -1, 1, 1)
        return torch.where(_rows(on), images + (1 - images) * colour, images)


class Saturation(Feature):
    """Strong against pale colours.

    Args:
        low: What the distance of each pixel from grey is multiplied by to make an image pale.
        high: And to make it colourful.
    """

    def __init__(self, *, low: float = 0.2, high: float = 2.0) -> None:
        if not 0 <= low < high:
            raise InputError(f"Saturation needs 0 <= low < high, got low={low}, high={high}")
        self.low, self.high = low, high

    def check(self, images: Tensor) -> None:
        """Refuses images without colour."""
        if images.shape[1] != 3 or not (images.amax(1) - images.amin(1)).any():
            raise InputError(f"Saturation needs coloured images; these have {images.shape[1]} channels and no colour")

    def measure(self, images: Tensor) -> Tensor:
        """Difference between the strongest and the weakest channel as a share of the strongest, each averaged first.

        So it does not depend on how bright an image is, nor on the noise in its dark pixels.
        """
        strongest, weakest = images.amax(1).mean(dim=(1, 2)), images.amin(1).mean(dim=(1, 2))
        return (strongest - weakest) / strongest.clamp(min=1e-6)

    def paint(self, images: Tensor, on: Tensor) -> Tensor:
        """Colourful where ``on``, pale elsewhere."""
        grey = images.mean(dim=1, keepdim=True)
        return (grey + torch.where(_rows(on), self.high, self.low) * (images - grey)).clamp(0, 1)


class Frame(Feature):
    """A frame along the border of the image.

    Args:
        width: A share of the shorter side.
        level: Its brightness.
    """

    def __init__(self, *, width: float = 1 / 14, level: float = 1.0) -> None:
        _check_shape("Frame", width=width, level=level)
        self.width, self.level = width, level

    def measure(self, images: Tensor) -> Tensor:
        """1 less the mean distance of the frame's pixels from ``level``: their mean brightness for a white frame."""
        return 1 - (images[..., self._ring(images)] - self.level).abs().mean(dim=(1, 2))

    def paint(self, images: Tensor, on: Tensor) -> Tensor:
        """The frame where ``on``; the others stay as they are."""
        return torch.where(_rows(on) & self._ring(images), self.level, images)

    def _ring(self, images: Tensor) -> Tensor:
        n = border_width(images, self.width)
        ring = torch.ones(images.shape[2:], dtype=torch.bool, device=images.device)
        ring[n:-n, n:-n] = False
        return ring


class CornerPatch(Feature):
    """A square in the upper left corner.

    Args:
        size: Its side, a share of the image's shorter side.
        level: Its brightness.
    """

    def __init__(self, *, size: float = 1 / 7, level: float = 1.0) -> None:
        _check_shape("CornerPatch", size=size, level=level)
        self.size, self.level = size, level

    def measure(self, images: Tensor) -> Tensor:
        """1 less the mean distance of the patch's pixels from ``level``."""
        n = border_width(images, self.size)
        return 1 - (images[..., :n, :n] - self.level).abs().mean(dim=(1, 2, 3))

    def paint(self, images: Tensor, on: Tensor) -> Tensor:
        """The patch where ``on``; the others stay as they are."""
        n = border_width(images, self.size)
        painted = images.clone()
        painted[on, :, :n, :n] = self.level
        return painted


class Orientation(Feature):
    """Leaning to the right against leaning to the left.

    Args:
        slant: Tangent of the angle by which figures are made to lean.
    """

    def __init__(self, *, slant: float = 0.4) -> None:
        if not 0 < slant <= 1:
            raise InputError(f"Orientation: slant must lie above 0 and be at most 1, got {slant}")
        self.slant = slant

    def check(self, images: Tensor) -> None:
        """Refuses images that are no figures on a dark ground: a photo as a whole does not lean."""
        check_figures(images, "Orientation")

    def measure(self, images: Tensor) -> Tensor:
        """Tangent of the angle from upright, positive to the right."""
        return slant(images)

    def paint(self, images: Tensor, on: Tensor) -> Tensor:
        """Sheared to the right where ``on``, to the left elsewhere."""
        height, width = images.shape[2:]
        shear = torch.where(on, self.slant, -self.slant).to(images.dtype)
        shear = shear * height / width  # the grid's coordinates stretch images that are not square
        zero, one = torch.zeros_like(shear), torch.ones_like(shear)
        rows = torch.stack([one, shear, zero, zero, one, zero], dim=1).view(-1, 2, 3)
        grid = F.affine_grid(rows, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)


def _rows(on: Tensor) -> Tensor:
    return on.view(-1, 1, 1, 1)


def _check_shape(name: str, level: float, **share: float) -> None:
    (what, value), *_ = share.items()
    if not (0 < value < 0.5 and 0 <= level <= 1):
        raise InputError(
            f"{name}: {what} must lie between 0 and 0.5 and level between 0 and 1, got {what}={value}, level={level}"
        )
