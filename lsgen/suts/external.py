"""Anybody's own classifier as the system under test: a torch module by name or file, with its weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgen.errors import InputError
from lsgen.own_code import first_few, told
from lsgen.suts import foreign
from lsgen.suts.base import SUT

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601, what Pillow's "L" uses


class ExternalSUT(SUT):
    """A torch module of the user's, with its weights and the preprocessing that it expects.

    Images in [0, 1] are resized to ``input_size``, brought to ``input_channels``, then normalised with ``mean`` and
    ``std``; all of it lets gradients through. The module always runs in eval mode.

    Args:
        model: ``path/to/file.py:Class`` or ``package.module.Class``; a function that returns a module will do as well.
            The file is run as Python code: use only files that you trust.
        num_classes: Number of classes.
        image_shape: Channels, height, width of the data that it will be given.
        model_args: What its constructor is called with.
        weights: Its weights: a .safetensors file, or a state dict that ``torch.save`` wrote. None: those that the
            constructor leaves.
        mean: What is subtracted from each channel, in [0, 1]; one value for all channels or one for each.
        std: What each channel is then divided by.
        input_size: Height and width that the module takes, one number if they are equal. None: those of the data.
        input_channels: 1 (gray) or 3 (RGB) where the module takes the other than the data has. None: as the data.
        feature_layer: Dotted name of the layer whose output counts as its features. None: what goes into its last
            linear layer.
        differentiable: False for a black box, which is asked for its outputs only.
    """

    runs_code = True

    def __init__(
        self,
        *,
        model: str,
        num_classes: int,
        image_shape: tuple[int, int, int],
        model_args: dict[str, Any] | None = None,
        weights: str | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        input_size: int | list[int] | None = None,
        input_channels: int | None = None,
        feature_layer: str | None = None,
        differentiable: bool = True,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.model, self.model_args, self.weights = model, model_args, weights
        self.num_classes, self.image_shape = num_classes, (channels, height, width)
        self.mean, self.std = mean or [0.0], std or [1.0]
        self.input_size, self.input_channels = input_size, input_channels
        self.feature_layer, self.differentiable = feature_layer, differentiable
        self._size, self._channels = self._input_shape()
        self._check_normalisation()
        self.register_buffer("_mean", torch.tensor(self.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(self.std).view(-1, 1, 1), persistent=False)

        self.net, source = foreign.build(model, model_args or {})
        if weights is not None:
            foreign.load_weights(self.net, weights, model)
        self.register_buffer("settings_sha256", self._settings_sha256(source))
        self.requires_grad_(False)
        self.eval()
        self._tapped = self._tapped_layer()
        self._squeezes = False  # whether an image alone loses its axis
        self._try_out()

    # --- what a SUT does -------------------------------------------------------------------------------------------

    def logits(self, x: Tensor) -> Tensor:
        """Class scores, [N, C, H, W] in [0, 1] -> [N, K]."""
        alone = len(x) == 1 and self._squeezes
        if alone:
            x = x.expand(2, *x.shape[1:])
        with self._gradients():
            output = _main_output(self.net(self._prepared(x)))
        if output is None:
            raise InputError(f"{self.model} must return logits: a tensor, a tuple that begins with one, or .logits")
        return output[:1] if alone else output

    def settings(self) -> Any:
        """Nothing beyond the weights: among them is a hash of the settings and of the model's code."""
        return None

    def features(self, x: Tensor) -> Tensor:
        """Activations of the feature layer, [N, C, H, W] -> [N, F].

        Raises:
            InputError: No feature layer is named and the module has no linear layer, or the layer is not used.
        """
        if self._tapped is None:
            raise InputError(f"{self.model} has no linear layer: name its feature_layer, one of {self._layer_names()}")
        seen: list[Any] = []

        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            seen.append(inputs[0] if self.feature_layer is None else output)

        hook = self.net.get_submodule(self._tapped).register_forward_hook(keep)
        try:
            self.logits(x)
        finally:
            hook.remove()
        features = _main_output(seen[-1]) if seen else None
        if features is None:
            raise InputError(
                f"feature_layer: {self.model} does not run its layer {self._tapped!r}, or gets no tensor there"
            )
        return features.flatten(1)[: len(x)]

    def train(self, mode: bool = True) -> ExternalSUT:
        """Stays in eval mode: it is tested, not trained, and dropout would change its answers from call to call."""
        return super().train(False)

    # --- preprocessing -----------------------------------------------------------------------------------------------

    def _prepared(self, x: Tensor) -> Tensor:
        """[N, C, H, W] in [0, 1] -> what the module takes."""
        if tuple(x.shape[-2:]) != self._size:
            x = F.interpolate(x, self._size, mode="bilinear", align_corners=False, antialias=True)
        if x.shape[1] == 3 and self._channels == 1:
            x = (x * x.new_tensor(LUMINANCE).view(3, 1, 1)).sum(dim=1, keepdim=True)
        elif x.shape[1] != self._channels:
            x = x.expand(-1, self._channels, -1, -1)
        return (x - self._mean) / self._std  # type: ignore[operator]

    @contextmanager
    def _gradients(self) -> Iterator[None]:
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()):
            yield

    # --- checks, once, at construction -------------------------------------------------------------------------------

    def _input_shape(self) -> tuple[tuple[int, int], int]:
        """Size and channels that the module takes."""
        channels, height, width = self.image_shape
        given = self.input_size
        size = [height, width] if given is None else [given, given] if isinstance(given, int) else list(given)
        if len(size) != 2 or min(size) < 1:
            raise InputError(f"input_size must be one number or [height, width], at least 1, got {given}")
        wanted = channels if self.input_channels is None else self.input_channels
        if wanted != channels and {wanted, channels} != {1, 3}:
            raise InputError(
                f"input_channels: images of {channels} channels cannot be given to a model that takes {wanted}; "
                "only gray (1) and RGB (3) are converted"
            )
        return (size[0], size[1]), wanted

    def _check_normalisation(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self._channels) or not all(math.isfinite(v) for v in values):
                raise InputError(
                    f"{name} must have one number, or one for each of the {self._channels} channels, got {values}"
                )
        if min(self.std) <= 0:
            raise InputError(f"std must be above 0, got {self.std}")

    def _settings_sha256(self, source: bytes) -> Tensor:
        """What decides the answers beside weights, as 32 bytes.

        It is a buffer, so that a search over the same weights with another ``mean``, or an edited model file or
        neighbour that it imports, counts as another search.
        """
        names = ("model_args", "mean", "std", "_size", "_channels", "feature_layer")
        settings = json.dumps([getattr(self, name) for name in names], sort_keys=True, default=str)
        return torch.tensor(list(hashlib.sha256(source + settings.encode()).digest()), dtype=torch.uint8)

    def _tapped_layer(self) -> str | None:
        """Name of the layer that features are read at: its output, or the input of the last linear one."""
        modules = dict(self.net.named_modules())
        if self.feature_layer is None:
            linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
            return linear[-1] if linear else None
        if self.feature_layer not in modules:
            raise InputError(
                f"feature_layer: {self.model} has no layer {self.feature_layer!r}; it has {self._layer_names()}"
            )
        return self.feature_layer

    def _layer_names(self) -> str:
        """The last few: features come from the end."""
        names = [name for name, _ in self.net.named_modules() if name]
        return first_few(names[::-1])

    def _try_out(self) -> None:
        """Asks for two zero images, so that a model that does not fit is refused before a search begins."""
        zeros = torch.zeros(2, *self.image_shape, requires_grad=True)  # two: a lost batch axis shows
        shape = (self._channels, *self._size)
        try:
            with torch.enable_grad():
                output = self.logits(zeros)
        except InputError:
            raise
        except Exception as error:
            why = told(error, type(self.net))
            raise InputError(
                f"{self.model} fails on images of {shape} (channels, height, width): {why}; "
                "an ExternalSUT's input_size and input_channels bring images to what it takes"
            ) from error
        if tuple(output.shape) != (2, self.num_classes):
            raise InputError(
                f"{self.model} must give logits of shape [N, {self.num_classes}] (num_classes), "
                f"got {list(output.shape)} for 2 images"
            )
        if self.differentiable and not output.requires_grad:
            raise InputError(f"no gradient flows through {self.model}: set differentiable: false for a black box")
        self._squeezes = not self._takes_one(zeros[:1])

    def _takes_one(self, zero: Tensor) -> bool:
        """Whether an image alone gets an answer of its own; much code squeezes its axis away."""
        try:
            with torch.no_grad():
                return tuple(self.logits(zero).shape) == (1, self.num_classes)
        except Exception:  # of whatever kind: from now on such an image has a copy beside it
            return False


def _main_output(output: Any) -> Tensor | None:
    """The tensor in what a module returned: itself, its ``logits``, or its first item."""
    if isinstance(output, (tuple, list)) and len(output) and not hasattr(output, "logits"):
        output = output[0]
    output = getattr(output, "logits", output)
    return output if isinstance(output, Tensor) else None
