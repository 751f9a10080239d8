"""Simple properties of images, and how far a group of cases differs in them from others of the same classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lsgen.analysis.statistics import cliffs_delta
from lsgen.data.features import DARK, border_brightness, border_width, slant, stroke_thickness
from lsgen.types import from_uint8

CHUNK = 1000  # images measured at once
LARGE = 0.42  # |Cliff's delta| from which Vargha and Delaney speak of a large effect
FEW = 5  # others that a class needs at least, to be compared with
FLAT = 1 / 255  # below this spread an image has no contrast, and below this strength no hue


@dataclass(frozen=True)
class Property:
    """Something that images have more or less of.

    Attributes:
        name: How it is called.
        measure: Images [N, C, H, W] in [0, 1] -> [N], NaN where an image does not have it.
        more: What images with more of it are.
        less: What images with less of it are.
        unit: Of its values.
        channels: Only images with so many have it; None for all.
    """

    name: str
    measure: Callable[[Tensor], Tensor]
    more: str
    less: str
    unit: str = ""
    channels: int | None = None


@dataclass(frozen=True)
class Difference:
    """How a group of cases differs from others in one property.

    Attributes:
        effect: Cliff's delta, the mean over the group, each member against the others of its own class.
        chance: What |effect| rarely exceeds where there is no difference: 3 standard errors.
        group: Median of the group, the mean over its classes.
        others: Median of the others, classes weighted as in the group.
    """

    effect: float
    chance: float
    group: float
    others: float

    @property
    def clear(self) -> bool:
        """Whether the effect is large and beyond chance."""
        return abs(self.effect) > max(self.chance, LARGE)


def brightness(images: Tensor) -> Tensor:
    """Mean of all pixels, [N]."""
    return images.mean(dim=(1, 2, 3))


def contrast(images: Tensor) -> Tensor:
    """Standard deviation of the grey pixels, [N]."""
    return images.mean(1).flatten(1).std(1, correction=0)


def size(images: Tensor) -> Tensor:
    """Twice the root mean square distance of the figure from its own centre, a share of the shorter side, [N].

    What differs from the ground, the median of the border, is the figure; NaN where nothing does.

    Example:
        >>> dot, ring = torch.zeros(2, 1, 1, 64, 64)
        >>> dot[..., 30:34, 30:34] = 1
        >>> ring[..., 16:48, 16] = ring[..., 16:48, 47] = ring[..., 16, 16:48] = ring[..., 47, 16:48] = 1
        >>> size(torch.cat([dot, ring])).tolist()  # doctest: +ELLIPSIS
        [0.049..., 0.55...]
    """
    grey = images.mean(1)
    n = border_width(images, 12 / 64)
    edge = torch.ones(grey.shape[1:], dtype=torch.bool, device=grey.device)
    edge[n:-n, n:-n] = False
    weight = (grey - grey[:, edge].median(1).values.view(-1, 1, 1)).square()  # squared: noise weighs little
    total = weight.sum(dim=(1, 2))
    square = torch.zeros_like(total)
    for axis in (1, 2):
        place = torch.arange(grey.shape[axis], dtype=grey.dtype, device=grey.device)
        mass = weight.sum(dim=3 - axis)
        centre = (mass * place).sum(1) / total
        square += (mass * (place - centre.unsqueeze(1)).square()).sum(1) / total
    return (2 * square.sqrt() / min(grey.shape[1:])).where(contrast(images) > FLAT, torch.nan)


def sharpness(images: Tensor) -> Tensor:
    """Spread of the Laplacian over that of the grey pixels, so that contrast does not count, [N]; NaN where flat."""
    grey = images.mean(1, keepdim=True)
    kernel = grey.new_tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]]).view(1, 1, 3, 3)
    edges = F.conv2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), kernel).flatten(1).std(1, correction=0)
    return (edges / contrast(images)).where(contrast(images) > FLAT, torch.nan)


def hue(images: Tensor) -> Tensor:
    """Angle of the mean colour in degrees (red 0, green 120, blue 240), strong colours counting most, [N].

    Example:
        >>> hue(torch.eye(3).view(3, 3, 1, 1)).round().tolist()
        [0.0, 120.0, 240.0]
    """
    red, green, blue = images.mean(dim=(2, 3)).unbind(1)
    along, across = red - (green + blue) / 2, (green - blue) * 3**0.5 / 2
    degrees = torch.rad2deg(torch.atan2(across, along)).remainder(360)
    return degrees.where(torch.hypot(along, across) > FLAT, torch.nan)


def of_figures(measure: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same measure for light figures on a dark ground only; NaN for images that are no such thing."""
    return lambda images: measure(images).where(images.flatten(1).median(1).values < DARK, torch.nan)


PROPERTIES = (
    Property("brightness", brightness, "brighter", "darker"),
    Property("border brightness", border_brightness, "brighter at the border", "darker at the border"),
    Property("contrast", contrast, "higher in contrast", "lower in contrast"),
    Property("stroke thickness", of_figures(stroke_thickness), "thicker in stroke", "thinner in stroke", " px", 1),
    Property("size", size, "larger", "smaller"),
    Property("slant", of_figures(slant), "leaning more to the right", "leaning more to the left", "", 1),
    Property("sharpness", sharpness, "sharper", "more blurred"),
    Property("hue", hue, "turned in hue", "turned in hue", "°", 3),
)


@torch.no_grad()
def measure(images: np.ndarray) -> dict[str, np.ndarray]:
    """Properties of images, uint8 [N, C, H, W] -> float64 [N] each; NaN where an image does not have one.

    Only grey figures on a dark ground, such as digits, have strokes and a slant, and only coloured images a hue.
    """
    properties = [p for p in PROPERTIES if p.channels in (None, images.shape[1])]
    values: dict[str, list[Tensor]] = {p.name: [torch.zeros(0)] for p in properties}
    for start in range(0, len(images), CHUNK):
        chunk = from_uint8(torch.from_numpy(images[start : start + CHUNK]))
        for p in properties:
            values[p.name].append(p.measure(chunk))
    return {name: torch.cat(parts).double().numpy() for name, parts in values.items()}


def turns(degrees: np.ndarray, labels: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Angles [N] as turns, -180 to 180, from the mean angle of the usual cases (bool [N]) of the same class [N].

    Example:
        >>> turns(np.array([350.0, 10.0, 30.0]), np.zeros(3, int), np.array([True, True, False])).round().tolist()
        [-10.0, 10.0, 30.0]
    """
    turned = np.full(len(degrees), np.nan)
    for label in np.unique(labels):
        own = labels == label
        angle = np.exp(1j * np.deg2rad(degrees[own & usual]))
        middle = np.rad2deg(np.angle(np.nansum(angle)))
        turned[own] = (degrees[own] - middle + 180) % 360 - 180
    return turned


def compare(
    group: np.ndarray, group_labels: np.ndarray, others: np.ndarray, others_labels: np.ndarray
) -> Difference | None:
    """How a group differs from others in one property, each member compared with the others of its own class.

    Args:
        group: Values [N] of the group; NaN are left out.
        group_labels: Their classes [N].
        others: Values [M] to compare with.
        others_labels: Their classes [M].

    Returns:
        None where no class of the group has at least 5 others.

    Example:
        >>> values, labels = np.arange(5.0), np.zeros(5, int)
        >>> round(compare(values + 2, labels, values, labels).effect, 2)
        0.64
    """
    group, group_labels = group[~np.isnan(group)], group_labels[~np.isnan(group)]
    others, others_labels = others[~np.isnan(others)], others_labels[~np.isnan(others)]
    pairs, weight = _by_class(group, group_labels, others, others_labels)
    if not pairs:
        return None
    delta = np.array([cliffs_delta(a, b) for a, b in pairs])
    variance = np.array([(len(a) + len(b) + 1) / (3 * len(a) * len(b)) for a, b in pairs])  # of delta, by chance
    return Difference(
        effect=float(weight @ delta),
        chance=float(3 * np.sqrt(weight**2 @ variance)),
        group=float(weight @ np.array([np.median(a) for a, _ in pairs])),
        others=float(weight @ np.array([np.median(b) for _, b in pairs])),
    )


def shifts(
    group: np.ndarray, group_labels: np.ndarray, others: np.ndarray, others_labels: np.ndarray
) -> tuple[np.ndarray, float] | None:
    """How far a group lies from others in each latent coordinate, in standard deviations of the others in a class.

    Each member is compared with the others of its own class.

    Args:
        group: Latents [N, D] of the group.
        group_labels: Their classes [N].
        others: Latents [M, D] to compare with.
        others_labels: Their classes [M].

    Returns:
        Standardised mean differences [D] (NaN where the others do not vary), and what their size rarely exceeds where
        there is no difference (3 standard errors). None where no class of the group has at least 5 others.

    Example:
        >>> others, labels = np.array([[-2.0, 5.0], [-2.0, 5.0], [0.0, 5.0], [2.0, 5.0], [2.0, 5.0]]), np.zeros(5, int)
        >>> shifts(others + 2.0, labels, others, labels)[0].tolist()
        [1.0, nan]
    """
    pairs, weight = _by_class(group, group_labels, others, others_labels)
    if not pairs:
        return None
    inside = np.concatenate([b - b.mean(0) for _, b in pairs])  # what varies within the classes
    spread = np.sqrt((inside**2).sum(0) / (len(inside) - len(pairs)))
    shift = weight @ np.stack([a.mean(0) - b.mean(0) for a, b in pairs]) / np.where(spread > 0, spread, np.nan)
    variance = np.array([1 / len(a) + 1 / len(b) for a, b in pairs])
    return shift, float(3 * np.sqrt(weight**2 @ variance))


def _by_class(
    group: np.ndarray, group_labels: np.ndarray, others: np.ndarray, others_labels: np.ndarray
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Group and others class by class, where there are enough others, and the classes' shares in the group."""
    pairs = [(group[group_labels == k], others[others_labels == k]) for k in np.unique(group_labels)]
    pairs = [(a, b) for a, b in pairs if len(b) >= FEW]
    sizes = np.array([len(a) for a, _ in pairs], dtype=float)
    return pairs, sizes / sizes.sum() if pairs else sizes
