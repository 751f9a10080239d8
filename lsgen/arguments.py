"""What LightningCLI's parser does not do to arguments: nulls in nested settings, and values that no class can take."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

from lsgen.errors import InputError

NULL = re.compile(r"~|null|Null|NULL")
NESTED = re.compile(r"--((?:model|data)(?:\.\w+){2,})")
TABLES = {"settings", "model_args", "change"}  # settings that are tables of anything, and no classes
LARGEST_INT, LARGEST_FLOAT = 10**15, 3.4e38  # what counts of 64 and numbers of 32 bits have room for


def spell_nulls(args: list[str]) -> list[str]:
    """``--model.seeds.target null`` as ``--model.seeds {"init_args": {"target": null}}``.

    The parser (jsonargparse 4.53) hands a null on to a class within a class as the text None.

    Raises:
        InputError: It is in a table, the rest of which would be lost.

    Example:
        >>> spell_nulls(["search", "--model.seeds.target=null"])
        ['search', '--model.seeds={"init_args": {"target": null}}']
    """
    spelt: list[str] = []
    for arg in args:
        key, _, value = arg.partition("=")
        if spelt and NULL.fullmatch(arg) and NESTED.fullmatch(spelt[-1]):  # key and value apart
            key, value = spelt.pop(), arg
        match = NESTED.fullmatch(key)
        spelt.append(_null(match[1]) if match and NULL.fullmatch(value) else arg)
    return spelt


def _null(key: str) -> str:
    top, part, *inner = (name for name in key.split(".") if name != "init_args")
    if TABLES & {part, *inner[:-1]}:
        raise InputError(f"{key}: null must be given in a configuration file here")
    content: Any = None
    for name in reversed(inner):
        content = {"init_args": {name: content}}
    return f"--{top}.{part}={json.dumps(content)}"


def check_values(settings: dict[str, Any]) -> None:
    """Refuses nulls, and numbers beyond all bounds, that a constructor of lsgen would trip over.

    Args:
        settings: Of a command, as plain tables and lists.

    Raises:
        InputError: There is one; names its key.
    """
    for key, value, owner, parameter in _values(settings, ""):
        wanted = parameter.annotation if isinstance(parameter.annotation, str) else ""
        if value is None and parameter.default is not None and not re.search(r"\b(None|Any)\b", wanted or "Any"):
            raise InputError(f"{key}: expected {_in_words(wanted, owner)}, got null")
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and abs(number) > LARGEST_INT:
                raise InputError(f"{key}: {number} is too large a number")
            if isinstance(number, float) and LARGEST_FLOAT < abs(number) < math.inf:
                raise InputError(f"{key}: {number:g} is more than a number of 32 bits can be")


def _in_words(annotation: str, owner: Any) -> str:
    """A type for people; a name that the owner's module has for a choice of words is spelt out."""
    named = vars(import_module(owner.__module__)).get(annotation)
    if get_origin(named) is Literal:
        return " or ".join(map(repr, get_args(named)))
    return re.sub(r"Literal\[(.*?)\]", r"\1", annotation).replace(" | ", " or ")


def resolve(class_path: str) -> Any:
    """The class or function of that full name."""
    module, _, name = class_path.rpartition(".")
    return getattr(import_module(module), name)


def _values(content: Any, key: str) -> Iterator[tuple[str, Any, Any, inspect.Parameter]]:
    """Key, value, class and parameter of each setting of lsgen's own classes, however deep they are nested."""
    if isinstance(content, list):
        for i, item in enumerate(content):
            yield from _values(item, f"{key}[{i}]")
    if not isinstance(content, dict):
        return
    path = str(content.get("class_path", ""))
    settings = content.get("init_args") or {} if path else content
    owner = resolve(path) if path.startswith("lsgen.") else None
    known = inspect.signature(owner).parameters if owner else {}
    for name, value in settings.items():
        own = f"{key}.{name}".removeprefix(".")
        if name in known:
            yield own, value, owner, known[name]
        yield from _values(value, own)
