"""From stored images to the uint8 tensors that are served: reading files, channels, size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor

from lsgen.data.arrays import Arrays
from lsgen.errors import InputError

BAR = 2000  # files from which reading them gets a progress bar
CHUNK = 4096  # images resized at once: bounds the memory that resizing a large data set takes


def tensors(
    parts: dict[str, Arrays], size: tuple[int, int] | None, channels: int | None
) -> dict[str, tuple[Tensor, Tensor]]:
    """Images uint8 [M, C, H, W] and labels int64 [M] of each part; M < N where files could not be read.

    Raises:
        InputError: Files are not 8-bit images, or differ in size while ``size`` is None.
    """
    done: dict[str, tuple[Tensor, Tensor]] = {}
    for name, part in parts.items():
        if part.images.dtype == np.uint8:
            done[name] = convert(torch.from_numpy(part.images), size, channels), torch.from_numpy(part.labels)
        else:
            images, readable = _read(part.images, size, channels)
            done[name] = images, torch.from_numpy(part.labels[readable])
    if all(part.images.dtype != np.uint8 for part in parts.values()):
        # a few coloured files among grey ones may all have gone to one part
        most = max(images.shape[1] for images, _ in done.values())
        done = {name: (convert(images, None, most), labels) for name, (images, labels) in done.items()}
    return done


def convert(images: Tensor, size: tuple[int, int] | None, channels: int | None) -> Tensor:
    """Brings uint8 images [N, C, h, w] to ``channels`` (luma, or repeated) and ``size`` (antialiased bilinear)."""
    from torchvision.transforms.v2 import functional

    if channels == 3 and images.shape[1] == 1:
        images = images.repeat(1, 3, 1, 1)
    if channels == 1 and images.shape[1] == 3:
        images = functional.rgb_to_grayscale(images)
    if size is None or tuple(images.shape[2:]) == size:
        return images
    return torch.cat([functional.resize(chunk, list(size), antialias=True) for chunk in images.split(CHUNK)])


def _read(files: NDArray[Any], size: tuple[int, int] | None, channels: int | None) -> tuple[Tensor, NDArray[np.intp]]:
    """Images of the readable files, uint8 [M, C, H, W], and which files those are, [M].

    Without ``channels``, images have one channel if all of them are grey, else three.
    """
    images: list[Tensor] = []
    readable: list[int] = []
    console = Console(stderr=True)
    few = len(files) < BAR or not console.is_terminal
    for k, file in enumerate(track(files, "reading images", console=console, transient=True, disable=few)):
        image = _decode(file)
        if image is None:
            continue
        image = convert(image[None], size, channels)
        if images and image.shape[2:] != images[0].shape[2:]:
            raise InputError(
                f"{file} has {image.shape[2]}×{image.shape[3]} pixels, {files[readable[0]]} has "
                f"{images[0].shape[2]}×{images[0].shape[3]}: set image_size, to which all are then resized"
            )
        images.append(image)
        readable.append(k)
    if not images:
        raise InputError(f"none of {len(files)} images can be read; the first is {files[0]}")
    most = max(image.shape[1] for image in images)
    together = torch.empty(len(images), most, *images[0].shape[2:], dtype=torch.uint8)
    for i, image in enumerate(images):
        together[i], images[i] = convert(image, None, most)[0], image[:0]  # not everything twice in memory
    return together, np.array(readable)


def _decode(file: str) -> Tensor | None:
    """The image in a file, uint8 [C, h, w] with one or three channels; None if it is corrupt."""
    try:
        with Image.open(file) as image:
            mode = image.mode
            pixels = np.array(image.convert("L" if mode in ("1", "L") else "RGB"))
    except Exception:  # a broken file makes a decoder raise almost anything
        return None
    if mode[0] in "IF":  # Pillow would clip these to white without a word
        raise InputError(f"{file} has more than 8 bits per channel (mode {mode}); images must have 8")
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def image_files(folder: Path) -> dict[str, list[str]]:
    """Image files of every class folder in ``folder``, both in alphabetical order.

    Raises:
        InputError: There are no class folders, or one of them has no images.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    found: dict[str, list[str]] = {}
    for each in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        found[each.name] = [str(f) for f in sorted(each.rglob("*")) if f.suffix.lower() in IMG_EXTENSIONS]
        if not found[each.name]:
            raise InputError(f"class folder {each} has no images ({', '.join(IMG_EXTENSIONS)})")
    if not found:
        raise InputError(f"{folder} has no class folders; expected {folder}/<class>/<image>")
    return found
