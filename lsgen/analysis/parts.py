"""The parts of a search, built anew from the configuration that its suite keeps.

A suite may come from anywhere, so its ``config.yaml`` is data and never a reason to run somebody's code:

- it imports nothing: a class counts if lsgen offers it, or if the running program has imported its module already;
- it must be one of lsgen's kinds of parts (generator, SUT, searcher, seeds, objective, criterion, surprise, data and
  its faults), or one of the two functions ``pretrained``; no other callable is ever called;
- :class:`~lsgen.suts.ExternalSUT` and :class:`~lsgen.data.OwnCriterion` run Python code that their settings name, so
  they are refused: a command that needs such a SUT takes it from the command line.

Paths in a configuration are relative to where ``lsgen search`` ran. That folder is found from the suite's own place,
where the suite still lies where it was written; otherwise the current folder counts.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lsgen.errors import InputError
from lsgen.suite import Suite

if TYPE_CHECKING:
    from lsgen.data import ImageData
    from lsgen.generators import Generator
    from lsgen.search import SearchTask
    from lsgen.suts import SUT

PATHS = ("path", "lora")  # settings that name a file or folder
PartT = TypeVar("PartT")


def load_generator(suite: Suite) -> Generator:
    """The generator that the suite's cases were decoded with, in eval mode.

    Raises:
        InputError: The suite does not say which, or its checkpoint has gone.
    """
    from lsgen.generators import Generator

    generator: Generator = _module(suite, "generator", Generator)
    return generator


def load_sut(suite: Suite) -> SUT:
    """The SUT that the suite was searched on, in eval mode.

    Raises:
        InputError: The suite does not say which, its checkpoint has gone, or it is a model of somebody's own.
    """
    from lsgen.suts import SUT

    sut: SUT = _module(suite, "sut", SUT)
    return sut


def load_data(suite: Suite) -> ImageData:
    """The data set of the suite, loaded. Nothing is downloaded.

    Raises:
        InputError: The suite does not say which, or it is not there.
    """
    from lsgen.data import ImageData

    data = _build(_node(suite, "data"), ImageData, _roots(suite))
    known = suite.manifest.get("data", {}).get("fingerprint")
    if known not in (None, data.fingerprint):
        _warn(f"the data set {data.name} is not the one that {suite.path} was searched on: its content has changed")
    return data


def load_task(suite: Suite, sut: SUT | None = None) -> SearchTask:
    """The whole search of the suite, ready for ``Trainer().search``; its seed is that of ``seed_everything``.

    Args:
        suite: Whose search.
        sut: Another SUT instead of the suite's own.

    Raises:
        InputError: A part is not named, or what it needs has gone.
    """
    from lsgen.search import SearchTask

    settings, roots = dict(_settings(suite)), _roots(suite)
    models = {"generator": load_generator(suite), "sut": sut or load_sut(suite)}
    parts = {name: _value(settings[name], roots) for name in settings if name not in models}
    return _called(SearchTask, models | parts)


# --- the configuration ---------------------------------------------------------------------------------------------


def read_config(suite: Suite) -> dict[str, Any]:
    """The resolved configuration that the suite keeps.

    Raises:
        InputError: It is missing, or no YAML.
    """
    import yaml

    file = suite.path / "config.yaml"
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{file} cannot be read ({' '.join(str(error).split())[:200]})") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} is not the configuration of a search")
    return content


def task_settings(suite: Suite) -> dict[str, Any]:
    """Constructor arguments of the suite's SearchTask; empty where it was put together in Python."""
    model = read_config(suite).get("model")
    settings = model.get("init_args") if isinstance(model, dict) else None
    return settings if isinstance(settings, dict) else {}


def _settings(suite: Suite) -> dict[str, Any]:
    """The same, where they are needed."""
    settings = task_settings(suite)
    if not settings:
        raise InputError(
            f"{suite.path / 'config.yaml'} does not say how its parts are built: the search was put together in Python "
            f"and not by `lsgen search`"
        )
    return settings


def _node(suite: Suite, name: str) -> dict[str, Any]:
    """What the configuration says of one part."""
    node = read_config(suite).get("data") if name == "data" else _settings(suite).get(name)
    if not isinstance(node, dict) or "class_path" not in node:
        raise InputError(f"{suite.path / 'config.yaml'} does not say how its {name} is built: it names no class_path")
    return node


def _roots(suite: Suite) -> list[Path]:
    """Folders that paths in the configuration may be relative to, the likelier first."""
    out = Path(read_config(suite).get("out") or Path("runs") / suite.path.resolve().name)
    here, depth = suite.path.resolve(), len(out.parts)
    known = not out.is_absolute() and here.parts[-depth:] == out.parts
    return [here.parents[depth - 1], Path()] if known else [Path()]


# --- building ------------------------------------------------------------------------------------------------------


def _module(suite: Suite, name: str, kind: Any) -> Any:
    """A network in eval mode, with a warning where its weights are not those of the search."""
    from lsgen.checkpoints import weights_sha256

    module = _build(_node(suite, name), kind, _roots(suite))
    known = suite.manifest.get(name, {}).get("sha256")
    if known not in (None, weights_sha256(module)):
        _warn(f"the weights of the {name} have changed since {suite.path} was searched: results need not agree with it")
    return module.eval()


def _build(node: dict[str, Any], kind: type[PartT], roots: list[Path]) -> PartT:
    part = _value(node, roots)
    if not isinstance(part, kind):
        raise InputError(f"class_path {node['class_path']!r} of a suite gives no {kind.__name__}, which is needed here")
    return part


def _value(value: Any, roots: list[Path]) -> Any:
    """A setting: a part where the configuration names one, else as it is."""
    if not isinstance(value, dict) or "class_path" not in value:
        return value
    settings = value.get("init_args") or {}
    if not isinstance(settings, dict):
        raise InputError(f"init_args of {value['class_path']!r} in the suite's configuration are no names and values")
    args = {k: _found(v, roots) if k in PATHS and isinstance(v, str) else _value(v, roots) for k, v in settings.items()}
    args.pop("download", None)  # off by default: a suite sends nobody to the network
    return _called(resolve(value["class_path"]), args)


def _called(part: Callable[..., PartT], args: dict[str, Any]) -> PartT:
    try:
        return part(**args)
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split())[:300]
        raise InputError(f"{part.__name__} cannot be built from the suite's configuration: {why}") from error


def _found(path: str, roots: list[Path]) -> str:
    """Where a file or folder that the configuration names lies now.

    Raises:
        InputError: Nowhere.
    """
    for root in roots:
        if (root / path).exists():
            return str(root / path)
    looked = " and in ".join(str(root.resolve()) for root in roots)
    raise InputError(
        f"the suite was made with {path}, which has gone (looked in {looked}): bring it back, or move there"
    )


def resolve(class_path: Any) -> Callable[..., Any]:
    """The class or function that a suite's configuration names, if it may be used.

    Raises:
        InputError: It is not loaded, no part of a search, or runs code that settings name.
    """
    from lsgen import data, generators, objectives, search, surprise, suts

    kinds = (
        *(generators.Generator, suts.SUT, data.ImageData, search.Searcher, search.SeedSource),
        *(objectives.Objective, objectives.Criterion, surprise.Surprise, data.Fault, data.Feature),
    )
    module, _, name = str(class_path).rpartition(".")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None  # never an import
    if isinstance(found, type) and getattr(found, "runs_code", False):
        raise InputError(
            f"the suite names an {name}, which runs code of somebody's own; what a suite names is not run (`lsgen "
            f"replay --sut file.py:Class=weights` runs yours, `lsgen export` writes the failures to train it on)"
        )
    if found is generators.pretrained or found is suts.pretrained:
        return found
    if isinstance(found, type) and issubclass(found, kinds):
        return found
    raise InputError(
        f"class_path {class_path!r} of a suite is no part of lsgen, and a suite never makes lsgen import code; if it "
        f"is yours, import its module first, in a Python program that then calls lsgen.cli.main"
    )


def _warn(sentence: str) -> None:
    warnings.warn(sentence, UserWarning, stacklevel=4)
