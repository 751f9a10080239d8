"""Networks by name. Each has a ``body`` that ends in the penultimate activations and a ``head`` that gives logits."""

from __future__ import annotations

from collections.abc import Callable

from lsgen.errors import InputError
from lsgen.suts.networks import classic, traffic, vision
from lsgen.suts.networks.base import ImageShape, Network

NETWORKS: dict[str, Callable[[ImageShape, int], Network]] = {
    "mnist_cnn": classic.mnist_cnn,
    "spinalnet": classic.spinalnet,
    "lenet4": classic.lenet4,
    "lenet5": classic.lenet5,
    "gtsrb_cnn": traffic.gtsrb_cnn,
    "gtsrb_stn": traffic.gtsrb_stn,
    "alexnet": vision.alexnet,
    "vgg16": vision.vgg16,
    "vgg19": vision.vgg19,
    "vgg19_bn": vision.vgg19_bn,
    "resnet18": vision.resnet18,
    "resnet50": vision.resnet50,
    "efficientnet_b4": vision.efficientnet_b4,
}


def build(name: str, image_shape: ImageShape, num_classes: int) -> Network:
    """The network called ``name``, untrained.

    Args:
        name: One of ``NETWORKS``.
        image_shape: Channels, height, width of the images.
        num_classes: K, the number of logits.

    Raises:
        InputError: There is none of that name, or the images are too small for it.
    """
    if name not in NETWORKS:
        raise InputError(f"network: there is no network {name!r}; known: {', '.join(sorted(NETWORKS))}")
    if min(image_shape) < 1:
        raise InputError(f"image_shape must be channels, height, width, each at least 1, got {tuple(image_shape)}")
    if num_classes < 2:
        raise InputError(f"num_classes must be at least 2, got {num_classes}")
    return NETWORKS[name](image_shape, num_classes)


__all__ = ["NETWORKS", "Network", "build"]
