"""Small networks for digits: a plain CNN, SpinalNet and two LeNets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lsgen.suts.networks.base import ImageShape, Network, check_size

SPINAL_LAYERS, SPINAL_WIDTH = 4, 64


def mnist_cnn(image_shape: ImageShape, num_classes: int) -> Network:
    """Conv 32-32-pool-64-64-pool and one hidden layer of 512, with dropout."""
    check_size("mnist_cnn", image_shape, 4)
    channels, height, width = image_shape
    body = nn.Sequential(
        *_double_conv(channels, 32),
        *_double_conv(32, 64),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return Network(body, nn.Sequential(nn.Dropout(0.5), nn.Linear(512, num_classes)))


def _double_conv(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


class Spinal(nn.Module):
    """Fully connected layers in a chain, as in SpinalNet (Kabir et al.).

    The inputs are split into two halves. The layers take them in turn, each together with the output of the layer
    before, so that the last one has seen everything. The outputs of all layers, joined, are the result.

    Args:
        inputs: Size of the input.
        width: Units of each layer.
        layers: Length of the chain.
    """

    def __init__(self, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.halves = [inputs // 2, inputs - inputs // 2]
        self.chain = nn.ModuleList(
            nn.Sequential(nn.Dropout(0.5), nn.Linear(self.halves[i % 2] + width * (i > 0), width), nn.ReLU())
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] -> [N, width * layers]."""
        halves = x.split(self.halves, dim=1)
        outputs: list[Tensor] = []
        for i, layer in enumerate(self.chain):
            outputs.append(layer(torch.cat([halves[i % 2], *outputs[-1:]], dim=1)))
        return torch.cat(outputs, dim=1)


def spinalnet(image_shape: ImageShape, num_classes: int) -> Network:
    """The convolutions of ``mnist_cnn`` and a chain of spinal layers in place of the hidden one."""
    check_size("spinalnet", image_shape, 4)
    channels, height, width = image_shape
    flat = 64 * (height // 4) * (width // 4)
    spinal = Spinal(flat, SPINAL_WIDTH, SPINAL_LAYERS)
    body = nn.Sequential(*_double_conv(channels, 32), *_double_conv(32, 64), nn.Flatten(), spinal)
    return Network(body, nn.Sequential(nn.Dropout(0.5), nn.Linear(SPINAL_WIDTH * SPINAL_LAYERS, num_classes)))


def lenet4(image_shape: ImageShape, num_classes: int) -> Network:
    """LeNet-4 with max pooling and ReLU: conv 6-pool-16-pool and one hidden layer of 84."""
    return _lenet("lenet4", image_shape, num_classes, hidden=(84,))


def lenet5(image_shape: ImageShape, num_classes: int) -> Network:
    """LeNet-5 with max pooling and ReLU: conv 6-pool-16-pool and hidden layers of 120 and 84."""
    return _lenet("lenet5", image_shape, num_classes, hidden=(120, 84))


def _lenet(name: str, image_shape: ImageShape, num_classes: int, hidden: tuple[int, ...]) -> Network:
    """Padding of 2 in the first convolution only: LeCun's digits lay in a frame of that width."""
    check_size(name, image_shape, 12)
    channels, height, width = image_shape
    layers: list[nn.Module] = [
        *(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
    ]
    sizes = [16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2), *hidden]
    for inputs, outputs in zip(sizes, hidden, strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return Network(nn.Sequential(*layers), nn.Linear(sizes[-1], num_classes))
