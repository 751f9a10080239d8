"""The tensors that travel between generators, SUTs, objectives and searchers, and how a component is described.

Shapes use S (seeds), P (candidates per seed), N (candidates, flattened), K (classes), ``*L`` (one latent) and C×H×W.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

RowsT = TypeVar("RowsT", bound="Rows")


@dataclass(frozen=True)
class LatentSpec:
    """What a generator's latent space looks like.

    Attributes:
        shape: Shape of one latent.
        kind: ``"normal"`` (a standard normal prior), ``"noise"`` (the same, and only latents as spread out as that give
            whole images), ``"pixels"`` (the latent is the image) or ``"codes"`` (encoder outputs that decoding rounds
            to codes; no prior).
        bounds: Smallest and largest coordinate over 1,000 latents, measured at the end of fit; None before.
    """

    shape: tuple[int, ...]
    kind: str = "normal"
    bounds: tuple[float, float] | None = None

    def __str__(self) -> str:
        return "×".join(map(str, self.shape))


@dataclass(frozen=True)
class Rows:
    """Tensors that share their first axis; a subclass adds them as fields, and some may be None."""

    def take(self: RowsT, index: Tensor) -> RowsT:
        """The rows at ``index`` [M] only."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: None if value is None else value[index] for name, value in values.items()})

    @classmethod
    def join(cls: type[RowsT], parts: Sequence[RowsT]) -> RowsT:
        """The rows of all parts, one part after the other."""
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        return cls(**{name: None if values[0] is None else torch.cat(values) for name, values in columns.items()})


@dataclass(frozen=True)
class Seeds(Rows):
    """Where the searches of one block start."""

    latent: Tensor  # [S, *L]
    label: Tensor  # [S] the class that a person would give
    target: Tensor | None = None  # [S] the class that is aimed at
    other: Tensor | None = None  # [S, *L] latent of an image of another class, to be mixed in


@dataclass(frozen=True)
class Candidates:
    """What an objective or criterion sees of N candidates."""

    latent: Tensor  # [N, *L]
    image: Tensor  # [N, C, H, W] in [0, 1], already rounded to 8 bits
    logits: Tensor  # [N, K]
    label: Tensor  # [N]
    target: Tensor  # [N], -1 where no class is aimed at
    origin: Tensor  # [N, *L] latent of the seed
    answers: dict[Any, Tensor] = field(default_factory=dict, init=False)  # so that nobody is asked twice

    def answer(self, key: Any, ask: Callable[[], Tensor]) -> Tensor:
        """What was said of the candidates under this name, [N, ...], asked the first time only."""
        if key not in self.answers:
            self.answers[key] = ask()
        return self.answers[key]

    def logits_of(self, sut: Any) -> Tensor:
        """What another SUT says of the images, [N, K]."""
        return self.answer(("logits", id(sut)), lambda: sut.logits(self.image).float())

    def features_of(self, sut: Any) -> Tensor:
        """A SUT's activations for the images, [N, F]."""
        return self.answer(("features", id(sut)), lambda: sut.features(self.image).float())


@dataclass(frozen=True)
class Evaluation(Rows):
    """What the networks said about one round of candidates."""

    latent: Tensor  # [S, P, *L]
    logits: Tensor  # [S, P, K]
    fitness: Tensor  # [S, P], lower is closer to failure; infinite where a candidate does not count
    success: Tensor  # [S, P] bool, the criterion on the 8-bit image
    grad: Tensor | None  # [S, P, *L] d fitness / d latent, where the searcher asked for it
    asked: Tensor | None = None  # [S, P] bool, who was shown to the networks, where not all were

    @property
    def shown(self) -> int | Tensor:
        """How many candidates were shown to the networks; a tensor where telling would make a GPU wait."""
        return self.fitness.numel() if self.asked is None else self.asked.sum()


@dataclass(frozen=True)
class SearchState(Rows):
    """What a searcher knows, the seed axis first, so that any subset of seeds can go on alone."""


class _Cut(torch.autograd.Function):
    """Cuts to [0, 1] going forward, passes gradients unchanged going back.

    From torch 2.14, ``clamp`` has no gradient at its bounds: most pixels of a digit, black or white, could never move.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z.clamp(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _Round8(torch.autograd.Function):
    """Rounds to 8 bits going forward, passes gradients unchanged going back."""

    @staticmethod
    def forward(ctx: Any, image: Tensor) -> Tensor:
        return from_uint8(to_uint8(image))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def to_uint8(image: Tensor) -> Tensor:
    """[0, 1] floats to the 8-bit image that is stored."""
    return (image.detach() * 255).round().clamp(0, 255).to(torch.uint8)


def from_uint8(image: Tensor) -> Tensor:
    """A stored 8-bit image back to [0, 1] floats."""
    return image.float() / 255


def round8(image: Tensor) -> Tensor:
    """The image as it will be stored and read back; differentiable (straight-through).

    Example:
        >>> round8(torch.tensor([0.5])) * 255
        tensor([128.])
    """
    rounded: Tensor = _Round8.apply(image)
    return rounded


def cut(x: Tensor) -> Tensor:
    """Images cut to [0, 1] going forward; gradients pass unchanged going back.

    Example:
        >>> x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
        >>> cut(x).sum().backward()
        >>> x.grad
        tensor([1., 1., 1.])
    """
    image: Tensor = _Cut.apply(x)
    return image


def describe(obj: Any, inner: Callable[[Any], Any] | None = None) -> Any:
    """A component as plain data: its class and constructor arguments, nested, enough to build or to hash it.

    Every lsgen component keeps each constructor argument as an attribute of the same name; this relies on it.

    Args:
        obj: The component, or a plain value.
        inner: What describes its arguments; this function by default.

    Example:
        >>> describe(LatentSpec(shape=(16,)))
        {'class': 'LatentSpec', 'args': {'shape': [16], 'kind': 'normal', 'bounds': None}}
    """
    if obj is None or isinstance(obj, (bool, int, float, str)):
        return obj
    if isinstance(obj, Path):
        return str(obj)
    inner = inner or describe
    if isinstance(obj, (list, tuple)):
        return [inner(item) for item in obj]
    if isinstance(obj, dict):
        return {str(key): inner(value) for key, value in obj.items()}
    names = [n for n in inspect.signature(type(obj)).parameters if n not in ("args", "kwargs")]
    return {"class": type(obj).__name__, "args": {n: inner(getattr(obj, n)) for n in names}}
