"""Builds a module that lsgen does not know, and fills it with weights; what does not fit becomes one sentence."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lsgen.errors import InputError
from lsgen.own_code import first_few, imported, told

PREFIXES = ("module.", "model.", "_orig_mod.")  # left by DataParallel, by Lightning modules, by torch.compile


def build(model: str, args: dict[str, Any]) -> tuple[nn.Module, bytes]:
    """The module that ``model`` names, and what tells its code apart.

    Args:
        model: ``path/to/file.py:Class`` or ``package.module.Class``, the class or a function that returns a module.
        args: What it is called with.

    Returns:
        The module, and what stands for its code: its file and neighbours that it imports, or the import path.

    Raises:
        InputError: There is no such file, module or class, its code raises, or the arguments do not fit.
    """
    with imported(model, "model", "Class") as (factory, source):
        return _call(factory, args, model), source()  # in this order: a constructor may import more


def load_weights(module: nn.Module, path: str, model: str) -> None:
    """Fills ``module`` with the weights at ``path``.

    Args:
        module: What is filled.
        path: A .safetensors file, or a state dict that ``torch.save`` wrote; nothing in it is run.
        model: What messages call the module.

    Raises:
        InputError: The file cannot be read, or its names or shapes are not those of the module.
    """
    wanted = module.state_dict()
    state = _without_prefix(_read_state(path), set(wanted))
    missing, unexpected = [k for k in wanted if k not in state], [k for k in state if k not in wanted]
    other = [
        f"{k} is {list(state[k].shape)} in the file and {list(w.shape)} in the model"
        for k, w in wanted.items()
        if isinstance(w, Tensor) and not nn.parameter.is_lazy(w) and k in state and state[k].shape != w.shape
    ]
    found = {"the file lacks": missing, "the model does not have": unexpected, "other shapes:": other}
    if complaints := [f"{text} {first_few(names)}" for text, names in found.items() if names]:
        raise InputError(f"weights: {path} does not fit {model}: {'; '.join(complaints)}")
    module.load_state_dict(state)


# --- code ----------------------------------------------------------------------------------------------------------


def _call(factory: Any, args: dict[str, Any], model: str) -> nn.Module:
    if isinstance(factory, nn.Module) or not callable(factory):
        raise InputError(f"model: {model} is of type {type(factory).__name__}; a class or a function is needed")
    _check_args(factory, args, model)
    try:
        module = factory(**args)
    except Exception as error:
        raise InputError(f"{model} cannot be built with model_args {args}: {told(error, factory)}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model: {model} gives an object of type {type(module).__name__}; a torch.nn.Module is needed")
    return module


def _check_args(factory: Any, args: dict[str, Any], model: str) -> None:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # written in C, has none to look at
        return
    try:
        signature.bind(**args)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise InputError(f"model_args do not fit {model}: {error}; it takes {takes}") from error


# --- weights -------------------------------------------------------------------------------------------------------


def _read_state(path: str) -> dict[str, Tensor]:
    """Names and tensors in a file of weights."""
    if not Path(path).is_file():
        raise InputError(f"weights: there is no file {path}")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.endswith(".safetensors"):
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise InputError(f"weights: {path} cannot be read as safetensors ({error})") from error
    except Exception as error:  # a damaged file can raise almost anything
        raise InputError(
            f"weights: {path} cannot be read as a state dict ({type(error).__name__}); "
            "write one with torch.save(model.state_dict(), ...), or a .safetensors file"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(f"weights: {path} holds no state dict (names and tensors) but {_kind(content)}")
    return content


def _kind(content: Any) -> str:
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    return f"a dict with {first_few([repr(k) for k in content])}" if content else "an empty dict"


def _without_prefix(state: dict[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    """Names without what wrappers put in front of all of them, unless the model knows them like that."""
    for prefix in PREFIXES:
        if not wanted & state.keys() and all(name.startswith(prefix) for name in state):
            return _without_prefix({name[len(prefix) :]: tensor for name, tensor in state.items()}, wanted)
    return state
