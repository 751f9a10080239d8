"""Thumbnails of many images in a few picture files, as small as they must be and as exact as they can be."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

SHEET_PIXELS = 2**18  # of one sheet: quick to decode alone, and the browser keeps only some of them
SIDES = (96, 64, 48, 32, 24)  # longest side of a thumbnail, pixels
QUALITIES = (None, 90, 75, 50)  # of WebP; None is lossless


@dataclass(frozen=True)
class Encoding:
    """How thumbnails are made.

    Attributes:
        height: Of one thumbnail, pixels.
        width: Of one thumbnail, pixels.
        quality: Of WebP, up to 100; None for lossless.
        scaled: Whether the images are larger than the thumbnails.
    """

    height: int
    width: int
    quality: int | None
    scaled: bool

    @property
    def exact(self) -> bool:
        """Whether the thumbnails are the stored images, pixel by pixel."""
        return self.quality is None and not self.scaled


@dataclass(frozen=True)
class Sprites:
    """Sheets of thumbnails, tile after tile, row by row.

    Attributes:
        encoding: Size and quality of the tiles.
        columns: Tiles in one row of a sheet.
        per_sheet: Cases on one sheet; the last may hold fewer.
        sheets: WebP files, base64.
    """

    encoding: Encoding
    columns: int
    per_sheet: int
    sheets: list[str]


def make_sprites(arrays: Iterable[np.ndarray], budget: int) -> Sprites:
    """Thumbnails that fit into ``budget`` characters, or the smallest there are.

    Args:
        arrays: One or more uint8 [N, C, H, W]; their images i stand side by side as case i (seed and found image, say).
            They are taken one after the other, so that a generator keeps only one large array in memory.
        budget: Characters of base64 for all of them.
    """
    small, scaled = [], False
    for array in arrays:
        height, width = _size(array, SIDES[0])
        scaled |= (height, width) != array.shape[2:]
        small.append(_shrink(array, height, width))
    images = np.stack(small, axis=1)
    encoding = _choose(images, budget, scaled)
    columns, per_sheet = _layout(encoding, images.shape[1])
    parts = (images[start : start + per_sheet] for start in range(0, len(images), per_sheet))
    return Sprites(encoding, columns, per_sheet, [_encode(part, encoding, columns) for part in parts])


def picture(image: np.ndarray) -> str:
    """One image uint8 [C, H, W] as a data URI, lossless, no larger than a thumbnail."""
    encoding = Encoding(*_size(image, SIDES[0]), None, False)
    return f"data:image/webp;base64,{_encode(image[None, None], encoding, 1)}"


def _choose(images: np.ndarray, budget: int, scaled: bool) -> Encoding:
    """The best encoding whose size, measured on some of the images [N, T, C, H, W], stays within the budget."""
    some = images[np.linspace(0, len(images) - 1, min(len(images), 96)).astype(int)]
    for encoding in _encodings(images, scaled):
        columns, _ = _layout(encoding, images.shape[1])
        if len(_encode(some, encoding, columns)) / len(some) * len(images) <= budget:
            break
    return encoding


def _encodings(images: np.ndarray, scaled: bool) -> Iterator[Encoding]:
    """From the best to the smallest; images that are small already keep their size."""
    longest = max(images.shape[-2:])
    for side in [longest, *(side for side in SIDES if side < longest)]:
        for quality in QUALITIES:
            yield Encoding(*_size(images, side), quality, scaled or side < longest)


def _size(images: np.ndarray, side: int) -> tuple[int, int]:
    """Height and width with the proportions of the images [..., H, W] whose longer one is at most ``side``."""
    height, width = images.shape[-2:]
    scale = min(1.0, side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _layout(encoding: Encoding, tiles: int) -> tuple[int, int]:
    """Tiles in a row (a whole number of cases) and cases on a sheet, for sheets that are about square."""
    area = encoding.height * encoding.width * tiles
    per_sheet = max(1, SHEET_PIXELS // area)
    in_a_row = max(1, round((per_sheet * encoding.height / (encoding.width * tiles)) ** 0.5))
    return in_a_row * tiles, per_sheet


def _encode(images: np.ndarray, encoding: Encoding, columns: int) -> str:
    """One sheet: cases [N, T, C, H, W] side by side, then below, base64 of a WebP file."""
    from PIL import Image

    tiles = _shrink(images.reshape(-1, *images.shape[2:]), encoding.height, encoding.width)
    n, channels, height, width = tiles.shape
    rows = -(-n // columns)
    padded = np.zeros((rows * columns, channels, height, width), np.uint8)
    padded[:n] = tiles
    grid = padded.reshape(rows, columns, channels, height, width).transpose(0, 3, 1, 4, 2)
    pixels = grid.reshape(rows * height, columns * width, channels)
    sheet = Image.fromarray(pixels[..., 0] if channels == 1 else pixels).convert("RGB")
    file = io.BytesIO()
    quality = {"lossless": True} if encoding.quality is None else {"quality": encoding.quality}
    sheet.save(file, "WEBP", method=2, **quality)
    return base64.b64encode(file.getvalue()).decode("ascii")


def _shrink(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Images uint8 [N, C, H, W] at another size; the same array where the size is right."""
    from PIL import Image

    if images.shape[2:] == (height, width):
        return images
    small = np.empty((*images.shape[:2], height, width), np.uint8)
    for i, image in enumerate(images):
        for channel, pixels in enumerate(image):
            small[i, channel] = Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX)
    return small
