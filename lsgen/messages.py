"""From an exception to the one sentence that a user needs."""

from __future__ import annotations

import difflib
import inspect
import re
from argparse import ArgumentError
from importlib import import_module

from lsgen.arguments import resolve
from lsgen.errors import Diverged, InputError, out_of_memory

UNION = "Does not validate against any of the Union subtypes"
CLASS = "a class_path with its init_args"
KINDS = {"NoneType": "null", "LightningModule": CLASS, "LightningDataModule": CLASS}
FLAGS = ["--config", "--model", "--data", "--trainer", "--seed_everything", "--ckpt_path", "--out", "--print_config"]


def explain(error: BaseException) -> tuple[int, str | None]:
    """Exit status, and a sentence where the cause is known (None: the traceback is the best there is)."""
    causes = chain(error)
    for cause in causes:
        if isinstance(cause, InputError):
            return 2, str(cause)
    for cause in causes:
        if isinstance(cause, ArgumentError):
            return 2, of_parser(str(cause))
    if isinstance(error, Diverged):
        return 1, str(error)
    if type(error).__name__ == "MisconfigurationException":
        return 2, " ".join(str(error).split())
    if isinstance(error, RuntimeError) and "loading state_dict" in str(error):
        return 2, "the checkpoint does not fit the model: " + " ".join(str(error).split())[:300]
    if out_of_memory(error):
        less = (
            "a smaller data.batch_size or, in a search, block_size or eval_batch_size needs less; so do fewer or "
            "smaller images (data.limit_per_class, data.image_size)"
        )
        return 1, f"there is not enough memory: {less}. {' '.join(str(error).split())[:200]}".rstrip()
    if isinstance(error, OSError) and error.strerror:
        wrong_place = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
        sentence = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        return (2, f"{sentence}; choose another place") if isinstance(error, wrong_place) else (1, sentence)
    return 1, None


def of_parser(text: str) -> str:
    """The key and the innermost complaint in an error of the argument parser, which nests them many lines deep."""
    keys = ".".join(re.findall(r'[Pp]arser key "([^"]+)"', text))
    classes = re.findall(r"class_path '([\w.]+)'", text)
    if match := re.search(
        r"(?:Option|Key|[Nn]o action for key) ['\"]([\w.]+)['\"](?: is not (?:accepted|expected))?", text
    ):
        name = match[1]
        known = _parameters(classes[-1]) if classes else []
        where = (
            f"{classes[-1].rsplit('.', 1)[-1]} has no setting {name!r}" if classes else f"there is no setting {name!r}"
        )
        return f"{_path(keys, name)}: {where}{_nearest(name, known)}"
    if match := re.search(
        r"(?:Expected a dot import path string: |Undefined name |[Ii]mport path )['\"]?([\w.]+)", text
    ):
        name, kinds = match[1], _classes()
        if name in kinds:
            return f"{keys}: {name} is not of the kind that this setting takes"
        return f"{keys}: there is no class {name!r}{_nearest(name, list(kinds))}"
    if match := re.search(
        r"instantiatable class, but.*abstract.*?Given value: (?:NestedArg.*val=')?([\w.]+)", text, re.S
    ):
        name, kinds = match[1].rpartition(".")[2], _classes()
        concrete = [n for n, kind in kinds.items() if name in kinds and issubclass(kind, kinds[name])]
        usable = ", ".join(n for n in concrete if not inspect.isabstract(kinds[n]))
        return f"{keys}: {name} is only what several have in common" + (f": take one of {usable}" if usable else "")
    if match := re.search(r"Expected an? (.+?)\. Got value: (.*)", text):
        return f"{keys}: expected {_type_name(match[1])}, got {match[2]!r}"
    if match := re.search(r"does not accept option ['\"]([\w.]+)['\"]", text):
        key = match[1].split(".")[0]
        return f"there is no setting {key!r}{_nearest(key, [flag.removeprefix('--') for flag in FLAGS])}"
    if match := re.search(r"arguments are required: ([\w., ]+)", text):
        missing = re.sub(r"\b(?:fit|validate|test|search)\.", "", match[1])
        return f"{keys}: missing {missing}" if keys else f"missing {missing}: give --config FILE, which has them"
    if match := re.search(r"[Uu]nrecognized arguments: (\S+)", text):
        return f"unrecognized argument {match[1]}{_meant(match[1])}"
    if UNION in text:
        return f"{keys}: {_of_union(text.rsplit(UNION, 1)[1])}"
    if "'NoneType' object has no attribute 'keys'" in text:
        return f"{keys}: its init_args are empty"
    innermost = text.split("- Expected a <class 'NoneType'>")[0].rsplit("class_path ", 1)[-1]
    return " ".join(re.sub(r'^[Pp]arser key "([^"]+)": ', r"\1: ", innermost.strip()).split())


def _of_union(text: str) -> str:
    """What was expected, and what came instead, where a value fits none of several types."""
    types = re.search(r"Subtypes: \[(.*)\]\s*$", text, flags=re.MULTILINE)
    value = re.search(r"Given value: (.*)", text)
    kinds = re.findall(r"typing\.Literal\[(.*?)\]|<class '(?:\w+\.)*(\w+)'>|(\w+\[[^\]]*\])", types[1] if types else "")
    names = [KINDS.get(name, name) for kind in kinds for name in kind if name]
    wanted = " or ".join(dict.fromkeys(names))
    return f"expected {wanted or 'something else'}, got {value[1].strip() if value else 'this'!r}"


def _path(keys: str, name: str) -> str:
    return name if not keys or keys == name or keys.endswith("." + name) else f"{keys}.{name}"


def _type_name(text: str) -> str:
    if match := re.fullmatch(r"typing\.Literal\[(.+)\]", text):
        return f"one of {match[1]}"
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)


def _meant(argument: str) -> str:
    """What somebody may have meant by an argument that there is not."""
    if argument.endswith((".yaml", ".yml")):
        return f": a configuration is given as --config {argument}"
    flag = argument.split("=")[0].split(".")[0]
    return _nearest(flag, FLAGS) if flag.startswith("--") and flag not in FLAGS else ""


def _nearest(name: str, known: list[str]) -> str:
    """A suggestion, or the list where it is short."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; it takes {', '.join(known)}" if 0 < len(known) <= 12 else ""


def _parameters(class_path: str) -> list[str]:
    return [p for p in inspect.signature(resolve(class_path)).parameters if p != "kwargs"]


def _classes() -> dict[str, type]:
    """Classes that a configuration may name in short."""
    found: dict[str, type] = {}
    for package in ("data", "generators", "objectives", "search", "surprise", "suts"):
        found |= {n: v for n, v in vars(import_module(f"lsgen.{package}")).items() if inspect.isclass(v)}
    return found


def chain(error: BaseException | None) -> list[BaseException]:
    """An exception and what it came from, the first cause last."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found
