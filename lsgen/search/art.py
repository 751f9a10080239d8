"""Attacks of the adversarial-robustness-toolbox on raw pixels, as baselines: Carlini-Wagner, DeepFool and others."""

from __future__ import annotations

import difflib
import inspect
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lsgen.errors import InputError, out_of_memory
from lsgen.generators import Generator
from lsgen.search.base import SeedRandom, Solution
from lsgen.search.evaluator import Evaluator
from lsgen.search.random import RandomSampling
from lsgen.types import Seeds, round8

AIMED = {"SaliencyMapMethod", "LowProFool", "TargetedUniversalPerturbation", "GRAPHITEBlackbox"}
AIMED |= {"GRAPHITEWhiteboxPyTorch"}  # their y is always the target


class ArtAttack(RandomSampling):
    """Lets an attack of the adversarial-robustness-toolbox loose on images; needs PixelSpace.

    The attack asks the SUT by itself, as often as it likes. Its queries are counted, for a block as a whole: each case
    is given its equal share. Cases are judged on the stored 8-bit image as everywhere: an attack that ends just beyond
    the boundary, as Carlini-Wagner without ``confidence``, often fails there.

    The global random streams are set for each block, and so are those that a few attacks (HopSkipJump and others) open
    for themselves, so that a suite can be made again.

    Args:
        attack: Name of a class in ``art.attacks.evasion``, e.g. ``CarliniL2Method``, ``DeepFool``, ``HopSkipJump``.
        settings: Its arguments; ``targeted`` is set by whether the seeds have targets. Whatever an attack asks goes
            through the SUT in passes of ``eval_batch_size`` images: 32, unless it is given. A ``batch_size`` near it
            is fastest; for attacks that ask about one image at a time, ``eval_batch_size: 1`` is.

    Raises:
        InputError: The toolbox is not installed, has no such attack, or the attack no such setting.
    """

    has_seed = True
    revision = 1

    def __init__(self, *, attack: str, settings: dict[str, Any] | None = None) -> None:
        self.attack, self.settings = attack, settings or {}
        self._class = _attack_class(attack)
        self._check_settings()
        needed = [getattr(mixin, "__name__", "") for mixin in self._class._estimator_requirements]
        self.needs_grad = any("Gradient" in name for name in needed)  # type: ignore[misc]  # it depends on the attack

    def _check_settings(self) -> None:
        known = [n for n in self._parameters if n not in ("estimator", "classifier", "targeted")]
        if unknown := [name for name in self.settings if name not in known]:
            raise InputError(f"settings: {self.attack} has no {unknown[0]!r}; it has {', '.join(known)}")

    @property
    def _parameters(self) -> list[str]:
        return list(inspect.signature(self._class).parameters)

    def check(self, *, targeted: bool) -> None:
        """Refuses targets for an attack that cannot aim, and none for one that must.

        Raises:
            InputError: It cannot, or must.
        """
        if targeted and "targeted" not in self._parameters and self.attack not in AIMED:
            raise InputError(f"{self.attack} cannot aim at a class: leave seeds.target out, or take another attack")
        if not targeted and self.attack in AIMED:
            raise InputError(f"{self.attack} aims at a class: set seeds.target, or take another attack")

    def bind(self, generator: Generator) -> Generator:
        """Refuses latent spaces.

        Raises:
            InputError: The latent is not the image.
        """
        if generator.latent.kind != "pixels":
            raise InputError(f"ArtAttack changes pixels, not latents of a {type(generator).__name__}: use PixelSpace")
        return generator

    def solve(self, seeds: Seeds, evaluator: Evaluator, rng: SeedRandom) -> Solution:
        """Attacks all seeds of a block at once."""
        asked = _Counting(evaluator)
        own = {"targeted": seeds.target is not None} if "targeted" in self._parameters else {}  # some aim by default
        goal = (seeds.label if seeds.target is None else seeds.target).cpu().numpy()
        if self.attack == "TargetedUniversalPerturbation":  # the only one that does not take numbers of classes
            goal = np.eye(evaluator.sut.num_classes, dtype=np.float32)[goal]
        with torch.enable_grad(), _seeded(int(rng.uniform()[0].item() * 2**31)):
            attack = self._build(_estimator(asked, evaluator), self.settings | own)
            with self._explained("ends with an error"):
                found = attack.generate(x=seeds.latent.cpu().numpy(), y=goal)
        if not isinstance(found, np.ndarray) or found.shape != seeds.latent.shape:  # such as a patch and its mask
            raise InputError(f"{self.attack} does not give an image for each seed: take another attack")
        latent = torch.from_numpy(found).to(seeds.latent)
        return Solution(latent, _shares(asked.forward_images, seeds.label), _shares(asked.backward_images, seeds.label))

    def _build(self, estimator: Any, settings: dict[str, Any]) -> Any:
        with self._explained("does not take its settings"):
            return self._class(estimator, **settings)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turns errors of the toolbox, which says by them what an attack cannot do, into a sentence."""
        try:
            yield
        except (InputError, OSError):
            raise
        except Exception as error:  # attacks trip in many ways over what they were not made for
            if out_of_memory(error):
                raise
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(f"{self.attack} {what}: {said}") from error


def _attack_class(name: str) -> Any:
    try:
        from art.attacks import evasion
    except ImportError as error:
        raise InputError(
            "ArtAttack needs the adversarial-robustness-toolbox: pip install 'lsgen[baselines]'"
        ) from error
    if not inspect.isclass(getattr(evasion, name, None)):
        near = difflib.get_close_matches(name, [n for n in vars(evasion) if n[:1].isupper()], n=1)
        raise InputError(f"attack: the toolbox has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return getattr(evasion, name)


class _Counting(nn.Module):
    """The SUT on the stored image, as the toolbox calls it; counts images going forward and back."""

    def __init__(self, evaluator: Evaluator) -> None:
        super().__init__()
        self.evaluator = [evaluator]  # in a list, so that its modules are not taken for this one's
        self.forward_images = self.backward_images = 0

    def forward(self, x: Tensor) -> Tensor:
        evaluator, x = self.evaluator[0], x.float()  # some attacks go on in double precision
        self.forward_images += len(x)
        label = torch.zeros(len(x), dtype=torch.long, device=x.device)  # pixels have none
        parts = [evaluator.logits(round8(evaluator.decode(z, y).float()))[:n] for n, z, y in evaluator.chunks(x, label)]
        logits = torch.cat(parts).float()
        if logits.requires_grad:
            logits.register_hook(self._count_back)
        return logits

    def _count_back(self, grad: Tensor) -> None:
        self.backward_images += len(grad)


def _estimator(model: nn.Module, evaluator: Evaluator) -> Any:
    from art.estimators.classification import PyTorchClassifier

    sut = evaluator.sut
    return PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=sut.image_shape,
        nb_classes=sut.num_classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if sut.device.type == "cuda" else "cpu",
    )


class _Stream(np.random.RandomState):
    """A stream that begins where the global one says, unless it is told where."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(np.random.randint(2**31) if seed is None else seed)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The toolbox draws from the global streams, or opens its own: these are set for it, and put back."""
    of_numpy, of_python, stream = np.random.get_state(), random.getstate(), np.random.RandomState
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        np.random.RandomState = _Stream  # type: ignore[misc]
        try:
            yield
        finally:
            np.random.RandomState = stream  # type: ignore[misc]
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def _shares(total: int, like: Tensor) -> Tensor:
    """``total`` split over as many as ``like`` [S] has, as evenly as whole numbers allow."""
    n = len(like)
    return total // n + (torch.arange(n, device=like.device) < total % n).long()
