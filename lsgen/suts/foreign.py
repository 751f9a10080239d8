"""Builds a module that lsgen does not know, by import path or from a file, and fills it with weights.

Whatever goes wrong in somebody else's code becomes one sentence that says where.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from lsgen.errors import InputError

PREFIXES = ("module.", "model.", "_orig_mod.")  # left by DataParallel, by Lightning modules, by torch.compile
FEW = 3  # names in a message


def build(model: str, args: dict[str, Any]) -> tuple[nn.Module, bytes]:
    """The module that ``model`` names, and what identifies its code.

    Args:
        model: ``path/to/file.py:Class`` or ``package.module.Class``, the class or a function that returns a module.
        args: What it is called with.

    Returns:
        The module, and the content of its file with the class's name, or the import path.

    Raises:
        InputError: There is no such file, module or class, its code raises, or the arguments do not fit.
    """
    place, name = _split(model)
    with _importable(place):
        imported = _import_file(place) if isinstance(place, Path) else _import_module(place)
        if not hasattr(imported, name):
            raise InputError(f"model: there is no {name!r} in {place}; it has {_public(imported)}")
        module = _call(getattr(imported, name), args, model)
    return module, place.read_bytes() + name.encode() if isinstance(place, Path) else model.encode()


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


def first_few(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")


def told(error: BaseException, code: Any = None) -> str:
    """An exception as text: its type, the first line of its message, and where it came from.

    Args:
        error: The exception.
        code: A module, class or function; the line named is the last one in its file, if the error passed there.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno} of {Path(error.filename).name})"
    text = type(error).__name__ + "".join(f": {line}" for line in str(error).strip().splitlines()[:1])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    if isinstance(error, SystemExit):  # packages put functions of their own in place of sys.exit
        frames = [f for f in frames if "site-packages" not in f.filename] or frames
    frames = [f for f in frames if f.filename == _file_of(code)] or frames
    return f"{text} (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else text


def _file_of(code: Any) -> str | None:
    try:
        return inspect.getfile(code)
    except TypeError:  # built in, or not code
        return None


# --- code ----------------------------------------------------------------------------------------------------------


def _split(model: str) -> tuple[Path | str, str]:
    """Where the class is, and its name."""
    if model.endswith(".py"):
        raise InputError(f"model: {model} is a file; say which class of it, e.g. {model}:Net")
    place, _, name = model.rpartition(":")
    if place.endswith(".py"):
        return Path(place), name
    place, _, name = model.rpartition(".")
    if not place or ":" in model or "/" in model:
        raise InputError(f"model must be path/to/file.py:Class or package.module.Class, got {model!r}")
    return place, name


@contextmanager
def _importable(place: Path | str) -> Iterator[None]:
    """Lets a model file import its neighbours, as it could when it was run as a script."""
    if not isinstance(place, Path):
        yield
        return
    folder = str(place.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise InputError(f"model: there is no file {file}")
    file = file.resolve()
    # a name of its own, so that two files that are both called model.py do not get in each other's way
    name = f"lsgen_external_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}_{file.stem}"
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may call sys.exit()
        del sys.modules[name]
        raise InputError(f"model: {file.name} cannot be imported: {told(error, module)}") from error
    return module


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"model: there is no module {error.name!r}; give path/to/file.py:Class for a class in a file"
            ) from error
        raise InputError(f"model: {name} cannot be imported: {told(error)}") from error


def _public(module: ModuleType) -> str:
    """Classes and functions of a module's own, or of its namespace where it only collects."""
    callables = {k: v for k, v in vars(module).items() if callable(v) and not k.startswith("_")}
    own = [k for k, v in callables.items() if getattr(v, "__module__", None) == module.__name__]
    return first_few(own or list(callables)) or "no class or function"


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
