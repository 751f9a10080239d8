"""What a checkpoint of lsgen says of itself, and how one is opened without running code from the file."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from lightning.pytorch import LightningModule
from torch import nn

from lsgen.errors import InputError
from lsgen.shipped import training
from lsgen.types import describe

KEY = "lsgen"  # the checkpoint entry that names the class and its constructor arguments
ModuleT = TypeVar("ModuleT", bound="SavedModule")


class SavedModule(LightningModule):
    """A LightningModule whose checkpoints can be opened by path alone."""

    role = "module"  # what a message calls it
    runs_code: ClassVar[bool] = False  # whether its settings name Python code, which a file must never bring about

    def settings(self) -> Any:
        """What decides its answers beside the weights, as plain data; where its files lie is no part of it."""
        return describe(self)

    def epochs(self) -> int:
        """How many epochs the training has, which learning rates fall over.

        Raises:
            InputError: It has no end.
        """
        epochs = self.trainer.max_epochs
        if epochs is None or epochs < 0:
            raise InputError("trainer.max_epochs must be a number of epochs: the learning rate falls to zero over them")
        return max(epochs, 1)

    def set_rates(self, *rates: float) -> None:
        """Gives each optimizer its learning rate; rates beyond the last optimizer are not used.

        By hand, since a scheduler takes its count and its length from the checkpoint that a training goes on from: with
        a larger ``max_epochs``, rates would reach zero where the first training ended, and rise again.
        """
        for optimizer, rate in zip(self.trainer.optimizers, rates, strict=False):
            for group in optimizer.param_groups:
                group["lr"] = rate

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the class and its arguments to the file."""
        checkpoint[KEY] = {"role": self.role, **describe(self)}


def cosine_rate(lr: float, epoch: int, epochs: int) -> float:
    """Learning rate of an epoch, counted from 0, that falls from ``lr`` to zero along a cosine over ``epochs``.

    Factor by factor, like torch's CosineAnnealingLR: in one go the last bits differ, and trainings do not repeat.

    Example:
        >>> [round(cosine_rate(0.1, epoch, 4), 4) for epoch in range(4)]
        [0.1, 0.0854, 0.05, 0.0146]
    """
    for i in range(epoch):
        lr *= (1 + math.cos(math.pi * (i + 1) / epochs)) / (1 + math.cos(math.pi * i / epochs))
    return lr


def load(path: str | Path, base: type[ModuleT], change: dict[str, Any] | None = None) -> ModuleT:
    """The module stored at ``path``, in eval mode, on the CPU.

    Args:
        path: A checkpoint that ``lsgen fit`` left.
        base: What it must be, :class:`~lsgen.generators.Generator` or :class:`~lsgen.suts.SUT`.
        change: Constructor arguments to replace.

    Raises:
        InputError: The file is missing, not a checkpoint of lsgen, holds something else than ``base`` or something that
            would run code, or a changed argument does not exist or needs other weights.
    """
    checkpoint = read(path)
    about = _about(path, checkpoint)
    known = {cls.__name__: cls for cls in _subclasses(base)}
    if about["class"] not in known:
        if about["role"] != base.role:
            raise InputError(f"{path} holds a {about['role']} ({about['class']}), and a {base.role} is needed here")
        raise InputError(
            f"{path} holds a {about['class']}, which is not loaded; known {base.role}s: {', '.join(sorted(known))}"
        )
    if known[about["class"]].runs_code:
        raise InputError(
            f"{path} names a {about['class']}, which runs code that its settings name, and a checkpoint may not: build "
            f"it from settings of your own"
        )
    unknown = set(change or {}) - set(about["args"])
    if unknown:
        raise InputError(
            f"change: a {about['class']} has no setting {', '.join(sorted(unknown))}; it has {', '.join(about['args'])}"
        )
    module = known[about["class"]](**about["args"] | (change or {}))
    state = checkpoint["state_dict"]
    if "latent_bounds" in module.state_dict():  # who needs them says so; a checkpoint of an earlier lsgen has none
        state = {"latent_bounds": torch.full((2,), torch.nan), **state}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        owner = f"a {about['class']} with {change}" if change else f"its own {about['class']}"
        raise InputError(f"{path}: its weights do not fit {owner}: {' '.join(str(error).split())[:300]}") from error
    module.on_load_checkpoint(checkpoint)
    return module.eval()


def read(path: str | Path) -> dict[str, Any]:
    """The raw content of a checkpoint, tensors and plain data only."""
    if not Path(path).is_file():
        raise InputError(f"no checkpoint at {path}: train it first with `{training(path)}`, or correct the path")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler trips over other files in many ways
        raise InputError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}); `lsgen fit` makes one"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a checkpoint: it holds a {type(content).__name__}")
    return content


def check_class(path: str | Path, module: nn.Module, *, resume: bool) -> None:
    """Refuses what Lightning cannot load into ``module``, and the checkpoint of another class than it is of.

    Args:
        path: Given as ``--ckpt_path``.
        module: What it is meant for.
        resume: Whether a training is to go on from there, which takes more than weights.

    Raises:
        InputError: It is one of these.
    """
    checkpoint, own = read(path), type(module).__name__
    if not isinstance(checkpoint.get("state_dict"), dict) or "pytorch-lightning_version" not in checkpoint:
        raise InputError(f"--ckpt_path {path} is not a checkpoint of a training: give one that `lsgen fit` left")
    about = _about(path, checkpoint) if KEY in checkpoint else {"class": own}  # Lightning's own have no such entry
    if about["class"] != own:
        raise InputError(f"--ckpt_path {path} holds a {about['class']}, and the model of this configuration is a {own}")
    if resume and not {"optimizer_states", "lr_schedulers"} <= checkpoint.keys():
        raise InputError(
            f"--ckpt_path {path} holds weights only, and no training can go on from there: give the last.ckpt of one, "
            f"or begin a new one with `pretrained` as the model"
        )


def _about(path: str | Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of itself.

    Raises:
        InputError: Too little to build the module, or it has no weights.
    """
    about = checkpoint.get(KEY)
    named = isinstance(about, dict) and {"class", "role", "args"} <= about.keys() and isinstance(about["args"], dict)
    if not isinstance(about, dict) or not named or not isinstance(checkpoint.get("state_dict"), dict):
        raise InputError(f"{path} is not a checkpoint of lsgen: make one with `lsgen fit`")
    return about


def weights_sha256(module: nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of all weights, wherever the file lies."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _subclasses(base: type[ModuleT]) -> set[type[ModuleT]]:
    return {base}.union(*(_subclasses(sub) for sub in base.__subclasses__()))
