"""Code of the user's own: a class or function by import path or file.

Whatever goes wrong in it becomes one sentence that says where.
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
from typing import Any, Literal

from lsgen.errors import InputError

FEW = 3  # names in a message
Kind = Literal["Class", "function"]


@contextmanager
def imported(path: str, setting: str, kind: Kind) -> Iterator[tuple[Any, bytes]]:
    """What ``path`` names, and what identifies its code; inside the context it can still import its neighbours.

    Args:
        path: ``path/to/file.py:Name`` or ``package.module.Name``; of the latter, also one in the current folder.
        setting: Where the user wrote it, for messages.
        kind: What it is meant to be, for messages.

    Raises:
        InputError: There is no such file, module or name, or its code raises.
    """
    place, name = _split(path, setting, kind)
    with _importable(place):
        module = _import_file(place, setting) if isinstance(place, Path) else _import_module(place, setting, kind)
        if not hasattr(module, name):
            raise InputError(f"{setting}: there is no {name!r} in {place}; it has {_public(module)}")
        source = place.read_bytes() + name.encode() if isinstance(place, Path) else path.encode()
        yield getattr(module, name), source


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


def _split(path: str, setting: str, kind: Kind) -> tuple[Path | str, str]:
    """Where the code is, and its name."""
    if path.endswith(".py"):
        example = "Net" if kind == "Class" else "bright"
        raise InputError(f"{setting}: {path} is a file; say which {kind.lower()} of it, e.g. {path}:{example}")
    place, _, name = path.rpartition(":")
    if place.endswith(".py"):
        return Path(place), name
    place, _, name = path.rpartition(".")
    if not place or ":" in path or "/" in path:
        raise InputError(f"{setting} must be path/to/file.py:{kind} or package.module.{kind}, got {path!r}")
    return place, name


@contextmanager
def _importable(place: Path | str) -> Iterator[None]:
    """Lets a file import its neighbours, as it could when it was run as a script, and finds modules beside the user."""
    if isinstance(place, Path):
        sys.path.insert(0, folder := str(place.resolve().parent))
    elif (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)  # last: what is installed goes first
    else:
        yield
        return
    try:
        yield
    finally:
        sys.path.remove(folder)


def _import_file(file: Path, setting: str) -> ModuleType:
    if not file.is_file():
        raise InputError(f"{setting}: there is no file {file}")
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
        raise InputError(f"{setting}: {file.name} cannot be imported: {told(error, module)}") from error
    return module


def _import_module(name: str, setting: str, kind: Kind) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"{setting}: there is no module {error.name!r}; give path/to/file.py:{kind} for one in a file"
            ) from error
        raise InputError(f"{setting}: {name} cannot be imported: {told(error)}") from error


def _public(module: ModuleType) -> str:
    """Classes and functions of a module's own, or of its namespace where it only collects."""
    callables = {k: v for k, v in vars(module).items() if callable(v) and not k.startswith("_")}
    own = [k for k, v in callables.items() if getattr(v, "__module__", None) == module.__name__]
    return first_few(own or list(callables)) or "no class or function"
