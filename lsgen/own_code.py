"""Code of the user's own: a class or function by import path or file.

Whatever goes wrong in it becomes one sentence that says where.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from lsgen.errors import InputError

FEW = 3  # names in a message
STDLIB = sysconfig.get_path("stdlib")
Kind = Literal["Class", "function"]


@contextmanager
def imported(path: str, setting: str, kind: Kind) -> Iterator[tuple[Any, Callable[[], bytes]]]:
    """What ``path`` names, and what tells its code apart; inside the context it can still import its neighbours.

    The latter is to be called once it has done so: of a file, it gives the content and that of all files of its folder
    that it has imported by then, wherever the folder lies; otherwise the import path.

    Args:
        path: ``path/to/file.py:Name`` or ``package.module.Name``; of the latter, also one in the current folder.
        setting: Where the user wrote it, for messages.
        kind: What it is meant to be, for messages.

    Raises:
        InputError: There is no such file, module or name, or its code raises.
    """
    place, name = _split(path, setting, kind)
    with _importable(place):
        before = set(sys.modules)
        module = _import_file(place, setting) if isinstance(place, Path) else _import_module(place, setting, kind)
        if not hasattr(module, name):
            raise InputError(f"{setting}: there is no {name!r} in {place}; it has {_public(module)}")

        def source() -> bytes:
            return _source(place, before) + name.encode() if isinstance(place, Path) else path.encode()

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
        folder = place.resolve().parent
        with _set_aside(folder), _on_path(0, str(folder)):
            yield
    elif (here := str(Path.cwd())) not in sys.path:
        with _on_path(len(sys.path), here):  # last: what is installed goes first
            yield
    else:
        yield


@contextmanager
def _on_path(position: int, folder: str) -> Iterator[None]:
    sys.path.insert(position, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _set_aside(folder: Path) -> Iterator[None]:
    """Takes modules out of ``sys.modules`` that a file in ``folder`` would get in place of its neighbours.

    Python looks there first, by name alone: of two networks that both import their own layers.py, the second would get
    the first one's. So out goes whatever has a name that is also in ``folder``, but nothing of Python, of installed
    packages or of lsgen: a random.py in ``folder`` does not count once random is imported, as in any script. What was
    imported from ``folder`` itself goes as well, for it may have been edited since. Afterwards what is from elsewhere
    is back in its place, as its users may import it again; of modules from ``folder`` the newest stay.
    """
    names = {name for name, module in sys.modules.items() if _provides(folder, name) and _is_own(name, module)}
    elsewhere = {name for name in names if not _place(sys.modules[name]).is_relative_to(folder)}
    aside = {name: sys.modules.pop(name) for name in _below(names)}
    try:
        yield
    finally:
        back = elsewhere | (names - set(sys.modules))
        for name in _below(back):
            del sys.modules[name]
        sys.modules.update({name: module for name, module in aside.items() if name.partition(".")[0] in back})


def _provides(folder: Path, name: str) -> bool:
    """Whether ``import name`` would find a file or package in ``folder``."""
    return "." not in name and ((folder / f"{name}.py").is_file() or (folder / name).is_dir())


def _below(names: set[str]) -> list[str]:
    """Imported modules that are called one of ``names``, or belong to a package of that name."""
    return [name for name in sys.modules if name.partition(".")[0] in names]


def _is_own(name: str, module: ModuleType) -> bool:
    """Whether a module is a user's: not built in, not of Python's library, not installed, not of lsgen."""
    place = _place(module)
    if not place.name or name == "__main__" or name.partition(".")[0] == __name__.partition(".")[0]:
        return False
    return not (place.is_relative_to(STDLIB) or {"site-packages", "dist-packages"} & set(place.parts))


def _place(module: ModuleType) -> Path:
    """File of a module, or folder of a package that has no file; empty for what is built in."""
    known = getattr(module, "__dict__", {})  # asking the module itself can make one that loads lazily do so
    place = known.get("__file__") or next(iter(known.get("__path__") or ()), None)
    return Path(place).absolute() if isinstance(place, str) else Path()


def _source(file: Path, before: set[str]) -> bytes:
    """Content of ``file`` and of its neighbours among the modules that were not there ``before``."""
    file = file.resolve()
    new = [name for name in sys.modules if name not in before and _is_own(name, sys.modules[name])]
    # only names that were set aside: others are new at the first import and there already at the next
    places = {_place(sys.modules[name]) for name in new if _provides(file.parent, name.partition(".")[0])} - {file}
    found = {p.relative_to(file.parent).as_posix(): p for p in places if p.is_relative_to(file.parent) and p.is_file()}
    parts = [f"\0{name}\0".encode() + hashlib.sha256(found[name].read_bytes()).digest() for name in sorted(found)]
    return file.read_bytes() + b"".join(parts)


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
