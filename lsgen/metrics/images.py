"""How far a found image is from the one it came from."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lsgen.errors import InputError
from lsgen.metrics import functional as F
from lsgen.metrics.base import CaseMean

ALEXNET = (0, 3, 6, 8, 10)  # its convolutions
LPIPS_SIDE = 64  # pixels; smaller images are enlarged, since AlexNet would leave nothing of them


class ImageMSE(CaseMean):
    """Mean squared difference of the pixels, in [0, 1], of image and reference.

    The reference is the data set image that the seed was encoded from; where the seed comes from a prior, the decoded
    seed. Null for RandomSampling, whose cases are the seeds.

    Example:
        >>> metric = ImageMSE()
        >>> metric.update(torch.full((1, 1, 2, 2), 0.5), torch.zeros(1, 1, 2, 2))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "mse", "MSE", "ARGUS 4.3", False

    def update(self, image: Tensor, reference: Tensor) -> None:
        """Adds pairs of images, [N, C, H, W] each."""
        self._add(F.mse(image, reference))


class ImageSSIM(CaseMean):
    """Mean structural similarity of image and reference.

    The reference is that of the MSE. The window is Gaussian, 11 pixels wide (standard deviation 1.5), the covariance
    that of the population. **Border rule**: as in torchmetrics, images are mirrored at their edges and the mean goes
    over all pixels; scikit-image (with ``gaussian_weights=True, sigma=1.5, use_sample_covariance=False``) leaves out a
    border of 5 pixels. Where borders are empty, as in MNIST, its numbers are far lower: a horizontal line that moves
    by one pixel in an image of 28×28 has 0.73 here and 0.40 there (the example of ``lsgen.metrics.functional.ssim``).
    Images below 11 pixels have no SSIM.

    Example:
        >>> metric = ImageSSIM()
        >>> metric.update(torch.ones(1, 1, 16, 16), torch.ones(1, 1, 16, 16))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "ssim", "SSIM", "ARGUS 4.3; Wang et al. 2004", True
    plot_lower_bound = -1.0

    def update(self, image: Tensor, reference: Tensor) -> None:
        """Adds pairs of images, [N, C, H, W] each, in [0, 1]."""
        self._add(F.ssim(image, reference))


class PixelL2(CaseMean):
    """Mean L2 norm of the change in pixels from the decoded seed to the found image.

    Example:
        >>> metric = PixelL2()
        >>> metric.update(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
        >>> metric.compute()
        tensor(2., dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "pixel_l2", "ℓ₂", "Dunn Fig. 2", None
    plot_upper_bound = None

    def update(self, image: Tensor, reference: Tensor) -> None:
        """Adds pairs of images, [N, C, H, W] each."""
        self._add(F.pixel_norm(image, reference))


class PixelLinf(CaseMean):
    """Mean largest change of one pixel from the decoded seed to the found image.

    Example:
        >>> metric = PixelLinf()
        >>> metric.update(torch.full((1, 1, 2, 2), 0.5), torch.zeros(1, 1, 2, 2))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    key, symbol, source, higher_is_better = "pixel_linf", "ℓ∞", "Dunn Fig. 2", None

    def update(self, image: Tensor, reference: Tensor) -> None:
        """Adds pairs of images, [N, C, H, W] each."""
        self._add(F.pixel_norm(image, reference, order=torch.inf))


class LPIPS(CaseMean):
    """Mean learned perceptual distance of image and reference, in the features of an AlexNet trained on ImageNet.

    Optional: it needs the weights of torchvision's AlexNet (``alexnet-owt-7be5be79.pth``) as a local file, since lsgen
    downloads nothing. Gray images count as colour images; those below 64 pixels are enlarged.

    Args:
        weights: Path of that file.
        **kwargs: Those of torchmetrics.

    Raises:
        InputError: There is no such file, or it holds something else.

    Example:
        >>> LPIPS()
        Traceback (most recent call last):
        ...
        lsgen.errors.InputError: LPIPS needs weights: the path of torchvision's alexnet-owt-7be5be79.pth on this disk
    """

    key, symbol, source, higher_is_better = "lpips", "LPIPS", "Zhang et al. 2018", False
    plot_upper_bound = None

    def __init__(self, *, weights: str | Path | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weights = weights
        self.network = lpips_network(weights)

    @torch.no_grad()
    def update(self, image: Tensor, reference: Tensor) -> None:
        """Adds pairs of images, [N, C, H, W] each, in [0, 1]."""
        self._add(lpips(image, reference, self.network))


def lpips(image: Tensor, reference: Tensor, network: nn.Module) -> Tensor:
    """Learned perceptual distance, two of [N, C, H, W] in [0, 1] and what :func:`lpips_network` gave -> [N]."""
    pairs = [x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x for x in (image.float(), reference.float())]
    if (side := min(image.shape[2:])) < LPIPS_SIDE:
        pairs = [nn.functional.interpolate(x, scale_factor=LPIPS_SIDE / side, mode="bilinear") for x in pairs]
    distance: Tensor = network(*pairs, normalize=True)
    return distance.flatten()


def lpips_network(weights: str | Path | None) -> nn.Module:
    """The network of LPIPS with an AlexNet from a local file.

    Raises:
        InputError: There is no such file, or it holds something else.
    """
    from torchmetrics.functional.image.lpips import _LPIPS  # the public class would download the AlexNet

    if weights is None:
        raise InputError("LPIPS needs weights: the path of torchvision's alexnet-owt-7be5be79.pth on this disk")
    if not Path(weights).is_file():
        raise InputError(f"LPIPS: there is no file {weights}; it needs torchvision's alexnet-owt-7be5be79.pth")
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        own = {f"{i}.{kind}": state[f"features.{i}.{kind}"] for i in ALEXNET for kind in ("weight", "bias")}
        network = _LPIPS(net="alex", pnet_rand=True)
        network.net.load_state_dict({name: own[name.split(".", 1)[1]] for name in network.net.state_dict()})
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise InputError(f"LPIPS: {weights} does not hold the weights of torchvision's AlexNet") from error
    return network
