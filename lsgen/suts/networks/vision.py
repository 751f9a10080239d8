"""torchvision's networks, untrained, for any number of channels, with another stem where images are small.

Their stems shrink an image to a quarter before anything is looked at. Below ``SMALL`` pixels that would leave next to
nothing, so the first layers keep the resolution there, and fully connected layers made for ImageNet get smaller.
"""

from __future__ import annotations

from torch import nn

from lsgen.suts.networks.base import ImageShape, Network, check_size

SMALL = 64  # pixels; images with a shorter side get the small stem


def _small(image_shape: ImageShape) -> bool:
    return min(image_shape[1:]) < SMALL


def _first_conv(channels: int, like: nn.Conv2d, kernel: int | None = None, stride: int | None = None) -> nn.Conv2d:
    """A first convolution for ``channels``, otherwise ``like`` the given one."""
    if kernel is None:
        size, padding = like.kernel_size, like.padding
    else:
        size, padding = (kernel, kernel), (kernel // 2, kernel // 2)
    strides = like.stride if stride is None else (stride, stride)
    return nn.Conv2d(channels, like.out_channels, size, strides, padding, bias=like.bias is not None)  # type: ignore[arg-type]


def alexnet(image_shape: ImageShape, num_classes: int) -> Network:
    """AlexNet; small images: first convolution 5×5 without stride, hidden layers of 1,024."""
    from torchvision import models

    check_size("alexnet", image_shape, 16)
    net = models.alexnet(weights=None)
    small = _small(image_shape)
    net.features[0] = _first_conv(image_shape[0], net.features[0], *((5, 1) if small else ()))
    if not small:
        *hidden, last = net.classifier
        body = nn.Sequential(net.features, net.avgpool, nn.Flatten(), *hidden)
        return Network(body, nn.Linear(last.in_features, num_classes))
    body = nn.Sequential(net.features, nn.AdaptiveAvgPool2d(2), nn.Flatten(), *_hidden(256 * 2 * 2, 1024))
    return Network(body, nn.Linear(1024, num_classes))


def vgg16(image_shape: ImageShape, num_classes: int) -> Network:
    """VGG-16; small images: global average pooling and hidden layers of 512."""
    return _vgg("vgg16", image_shape, num_classes)


def vgg19(image_shape: ImageShape, num_classes: int) -> Network:
    """VGG-19; small images: global average pooling and hidden layers of 512."""
    return _vgg("vgg19", image_shape, num_classes)


def vgg19_bn(image_shape: ImageShape, num_classes: int) -> Network:
    """VGG-19 with batch normalisation; small images: global average pooling and hidden layers of 512."""
    return _vgg("vgg19_bn", image_shape, num_classes)


def _vgg(name: str, image_shape: ImageShape, num_classes: int) -> Network:
    from torchvision import models

    check_size(name, image_shape, 16)
    net = getattr(models, name)(weights=None)
    if image_shape[0] != 3:
        net.features[0] = _first_conv(image_shape[0], net.features[0])
        nn.init.kaiming_normal_(net.features[0].weight, mode="fan_out", nonlinearity="relu")  # as torchvision's others
    if not _small(image_shape):
        *hidden, last = net.classifier
        body = nn.Sequential(net.features, net.avgpool, nn.Flatten(), *hidden)
        return Network(body, nn.Linear(last.in_features, num_classes))
    for layer in net.features:
        if isinstance(layer, nn.MaxPool2d):
            layer.ceil_mode = True  # five halvings leave nothing of 28 pixels when each rounds down
    body = nn.Sequential(net.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *_hidden(512, 512))
    return Network(body, nn.Linear(512, num_classes))


def _hidden(inputs: int, width: int) -> list[nn.Module]:
    """The two hidden layers of AlexNet and VGG, at another width."""
    return [
        *(nn.Dropout(0.5), nn.Linear(inputs, width), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(width, width), nn.ReLU()),
    ]


def resnet18(image_shape: ImageShape, num_classes: int) -> Network:
    """ResNet-18; small images: first convolution 3×3 without stride, no max pooling."""
    return _resnet("resnet18", image_shape, num_classes)


def resnet50(image_shape: ImageShape, num_classes: int) -> Network:
    """ResNet-50; small images: first convolution 3×3 without stride, no max pooling."""
    return _resnet("resnet50", image_shape, num_classes)


def _resnet(name: str, image_shape: ImageShape, num_classes: int) -> Network:
    from torchvision import models

    check_size(name, image_shape, 8)
    net = getattr(models, name)(weights=None)
    small = _small(image_shape)
    net.conv1 = _first_conv(image_shape[0], net.conv1, *((3, 1) if small else ()))
    if small:
        net.maxpool = nn.Identity()
    features = net.fc.in_features
    net.fc = nn.Identity()
    return Network(net, nn.Linear(features, num_classes))


def efficientnet_b4(image_shape: ImageShape, num_classes: int) -> Network:
    """EfficientNet-B4; small images: first convolution without stride."""
    from torchvision import models

    check_size("efficientnet_b4", image_shape, 16)
    net = models.efficientnet_b4(weights=None)
    stem = net.features[0]
    stem[0] = _first_conv(image_shape[0], stem[0], *((3, 1) if _small(image_shape) else ()))
    dropout, last = net.classifier
    body = nn.Sequential(net.features, net.avgpool, nn.Flatten())
    return Network(body, nn.Sequential(nn.Dropout(dropout.p), nn.Linear(last.in_features, num_classes)))
