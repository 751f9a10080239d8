"""What a bench consists of: one YAML file, unfolded into cells, each of which is an ordinary ``lsgen search``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from lsgen.errors import InputError
from lsgen.shipped import shipped_configs

Flags = dict[str, Any]  # options of a command of lsgen, without their dashes
ROLES = {"sut": "suts", "generator": "generators"}  # what a model is, and the key in YAML that lists such models
MODEL_KEYS = ("checkpoint", "config", "fit", "set", "for")
ALONE = {"trainer.devices": 1}  # other processes would be started with the command of the bench


@dataclass(frozen=True)
class Model:
    """A generator or a SUT.

    Attributes:
        role: ``generator`` or ``sut``.
        data: The data set it belongs to.
        name: What tables call it.
        checkpoint: Where its weights lie; None where ``flags`` say all, e.g. ``model.generator: PixelSpace``.
        config: What to train first; None where the checkpoint must be there.
        fit: Flags of that training.
        flags: Flags of every search with this model.
        special: Flags of single searches with it, by the name of the search.
    """

    role: str
    data: str
    name: str
    checkpoint: Path | None = None
    config: Path | None = None
    fit: Flags = field(default_factory=dict)
    flags: Flags = field(default_factory=dict)
    special: dict[str, Flags] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A name that no other model of the grid has."""
        return f"{self.data}/{self.name}" if self.role == "generator" else f"{self.data}/{self.name} (SUT)"

    @property
    def fit_args(self) -> list[str]:
        """Flags of its training, as a command line takes them."""
        return as_args({**ALONE, **self.fit})

    @property
    def missing(self) -> bool:
        """Whether its checkpoint is not there, yet or at all."""
        return self.checkpoint is not None and not self.checkpoint.is_file()

    def search_flags(self, search: str) -> Flags:
        """What makes a search use it."""
        own = {**self.flags, **self.special.get(search, {})}
        if self.checkpoint is None:
            return own
        loader = f"lsgen.{ROLES[self.role]}.pretrained"
        return {f"model.{self.role}": loader, f"model.{self.role}.path": str(self.checkpoint), **own}


@dataclass(frozen=True)
class Cell:
    """One search of a grid.

    Attributes:
        data: Name of the data set.
        sut: What is tested.
        generator: What is searched.
        search: Name of the search.
        repeat: Which of the repeats, from 0; it is also the seed.
        config: The configuration of the search.
        flags: What is changed in it.
        out: Folder of the bench.
    """

    data: str
    sut: Model
    generator: Model
    search: str
    repeat: int
    config: Path
    flags: Flags
    out: Path

    @property
    def name(self) -> str:
        """Also its folder's: safe on every file system."""
        parts = (self.data, self.sut.name, self.generator.name, self.search, str(self.repeat))
        return "-".join(map(slug, parts))

    @property
    def family(self) -> str:
        """For people: what its repeats share."""
        return ", ".join(self.combination)

    @property
    def title(self) -> str:
        """For people: which of them it is."""
        return f"{self.family}, repeat {self.repeat}"

    @property
    def combination(self) -> tuple[str, str, str, str]:
        """What it shares with its repeats."""
        return (self.data, self.sut.name, self.generator.name, self.search)

    @property
    def folder(self) -> Path:
        """Where its suite goes."""
        return self.out / "cells" / self.name

    @property
    def claim(self) -> Path:
        """What a process locks that runs it."""
        return self.out / "claims" / self.name

    @property
    def report(self) -> Path:
        """Where the suite's report goes."""
        return self.out / "reports" / f"{self.name}.html"

    @property
    def args(self) -> list[str]:
        """The command, without ``lsgen``."""
        own = {"seed_everything": self.repeat, **self.flags}
        if own["trainer.logger"]:
            own["trainer.logger.name"] = self.name
        return ["search", "--config", str(self.config), *as_args(own), "--out", str(self.folder)]

    @property
    def command(self) -> str:
        """The line that does the same in a shell."""
        return shlex.join(["lsgen", *self.args])


@dataclass(frozen=True)
class Grid:
    """A bench.

    Attributes:
        name: Of its file.
        out: Its folder.
        models: All SUTs and generators, SUTs first: generators may be judged by them while they train.
        cells: All searches, in the order of the table.
    """

    name: str
    out: Path
    models: list[Model]
    cells: list[Cell]


def read_grid(file: Path, out: Path | None = None, flags: Flags | None = None) -> Grid:
    """Reads a bench's YAML.

    Args:
        file: Where it is.
        out: Folder to use instead of the one that it names.
        flags: More flags of every search.

    Raises:
        InputError: It cannot be read, or names something that a bench does not know.
    """
    content = _keys(_load(file), str(file), ("out", "repeats", "set", "data", "searches"), ("data", "searches"))
    folder = out or Path(content.get("out") or f"runs/bench/{file.stem}")
    repeats = content.get("repeats", 1)
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise InputError(f"{file}: repeats must be a number of at least 1, got {repeats!r}")
    everywhere = {**ALONE, "trainer.logger": False, **_flags(content.get("set"), f"{file}: set"), **(flags or {})}
    searches = {
        name: _search(value, f"{file}: searches.{name}") for name, value in _named(content, "searches", file).items()
    }
    models, cells = [], []
    for data, value in _named(content, "data", file).items():
        where = f"{file}: data.{data}"
        part = _keys(value, where, ("set", "suts", "generators"), ("suts", "generators"))
        suts, generators = (_models(part, role, data, where) for role in ROLES)
        models += [*suts, *generators]
        _check_special(models, searches, str(file))
        common = {"data.name": data, **everywhere, **_flags(part.get("set"), f"{where}.set")}
        for sut, (search, (config, own)), generator, repeat in product(
            suts, searches.items(), generators, range(repeats)
        ):
            joined = {**common, **own, **sut.search_flags(search), **generator.search_flags(search)}
            cells.append(Cell(data, sut, generator, search, repeat, config, joined, folder))
    _check_names(cells, file)
    _check_checkpoints([model for cell in cells for model in (cell.sut, cell.generator)], file)
    return Grid(file.stem, folder, sorted(models, key=lambda m: m.role != "sut"), cells)


def slug(text: str) -> str:
    """Letters, digits, dots and underscores of a name.

    Example:
        >>> slug("MarginGA, low / ../x")
        'MarginGA-low-..-x'
    """
    return re.sub(r"[^\w.]+", "-", text).strip("-")


def counted(cells: int) -> str:
    """So many cells, in words.

    Example:
        >>> counted(1), counted(1200)
        ('1 cell', '1,200 cells')
    """
    return f"{cells:,} cell{'' if cells == 1 else 's'}"


def as_args(flags: Flags) -> list[str]:
    """Flags as a command line takes them; what names a class stands before the settings of that class.

    Example:
        >>> as_args({"model.seeds.per_class": 3, "model.seeds": "DataSeeds", "model.generator.change": {"steps": 5}})
        ['--model.seeds=DataSeeds', '--model.seeds.per_class=3', '--model.generator.change={"steps": 5}']
    """
    ordered = sorted(flags.items(), key=lambda item: item[0].count("."))
    return [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in ordered]


def _load(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config: cannot read {file} ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--config: {file} is no YAML: {' '.join(str(error).split())}") from error


def _keys(content: Any, where: str, known: Collection[str], needed: Collection[str] = ()) -> dict[str, Any]:
    """A mapping that has no other keys than the known ones, and all that are needed."""
    if not isinstance(content, dict):
        raise InputError(f"{where}: expected a mapping with {', '.join(known)}, got {content!r}")
    if unknown := [key for key in content if key not in known]:
        raise InputError(f"{where}: there is no key {unknown[0]!r}; keys are {', '.join(known)}")
    if missing := [key for key in needed if content.get(key) is None]:
        raise InputError(f"{where}: {missing[0]} is missing")
    return content


def _named(content: dict[str, Any], key: str, where: object) -> dict[str, Any]:
    """A mapping from names, at least one, to anything."""
    value = content[key]
    if not isinstance(value, dict) or not value:
        raise InputError(f"{where}: {key} must be a mapping from names, with at least one, got {value!r}")
    if nameless := [name for name in value if not slug(str(name))]:
        raise InputError(f"{where}: {key}: a name needs letters or digits, got {nameless[0]!r}")
    return {str(name): item for name, item in value.items()}


def _flags(value: Any, where: str) -> Flags:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(
            f"{where}: expected flags without their dashes, such as model.seeds.per_class: 10, got {value!r}"
        )
    if "seed_everything" in value:
        raise InputError(f"{where}: a bench sets seed_everything by itself, to 0, 1 and so on for its repeats")
    return dict(value)


def _search(value: Any, where: str) -> tuple[Path, Flags]:
    """Configuration and flags."""
    content = _keys({"config": value} if isinstance(value, str) else value, where, ("config", "set"), ("config",))
    return _config(content["config"], where), _flags(content.get("set"), f"{where}.set")


def _models(part: dict[str, Any], role: str, data: str, where: str) -> list[Model]:
    found = _named(part, ROLES[role], where).items()
    return [_model(value, role, data, name, f"{where}.{ROLES[role]}.{name}") for name, value in found]


def _model(value: Any, role: str, data: str, name: str, where: str) -> Model:
    """A checkpoint, a configuration to train first, or flags that say what it is."""
    if isinstance(value, str):
        value = {"config" if value.endswith((".yaml", ".yml")) else "checkpoint": value}
    content = _keys(value, where, MODEL_KEYS)
    fit = _flags(content.get("fit"), f"{where}.fit")
    special = _named(content, "for", where) if "for" in content else {}
    known: dict[str, Any] = {
        "flags": _flags(content.get("set"), f"{where}.set"),
        "special": {search: _flags(flags, f"{where}.for.{search}") for search, flags in special.items()},
    }
    if "config" in content and "checkpoint" in content:
        raise InputError(f"{where}: give checkpoint, or config (which is trained first), not both")
    if "config" in content:
        config = _config(content["config"], where)
        folder = fit.get("trainer.default_root_dir") or _root(config)
        return Model(role, data, name, Path(folder) / "best.ckpt", config, fit, **known)
    if fit:
        raise InputError(f"{where}: fit is for a config that is trained first; there is none")
    if "checkpoint" in content:
        return Model(role, data, name, Path(str(content["checkpoint"])), **known)
    if f"model.{role}" not in known["flags"]:
        raise InputError(f"{where}: what is it? Give checkpoint, config, or set: model.{role}: CLASS")
    return Model(role, data, name, **known)


def _config(name: Any, where: str) -> Path:
    """A configuration of the user's or, where there is none of that name, a shipped one."""
    given = Path(str(name))
    shipped = shipped_configs() / str(name).removeprefix("configs/")
    if found := next((file for file in (given, shipped) if file.is_file()), None):
        return found
    raise InputError(f"{where}: there is no configuration {name}")


def _root(config: Path) -> str:
    """Where a training leaves its checkpoints."""
    content = _load(config)
    root = (content.get("trainer") or {}).get("default_root_dir") if isinstance(content, dict) else None
    if not root:
        raise InputError(f"{config} has no trainer.default_root_dir: a bench must know where its checkpoint goes")
    return str(root)


def _check_special(models: list[Model], searches: Collection[str], where: str) -> None:
    for model in models:
        if unknown := [search for search in model.special if search not in searches]:
            raise InputError(
                f"{where}: {model.label}: for: there is no search {unknown[0]!r}; searches are {', '.join(searches)}"
            )


def _check_checkpoints(models: list[Model], file: Path) -> None:
    """Refuses two trainings that would leave their weights in one place."""
    seen: dict[Path, Model] = {}
    for model in models:
        if model.config is None or model.checkpoint is None:
            continue
        other = seen.setdefault(model.checkpoint, model)
        if (other.config, other.fit) != (model.config, model.fit):
            raise InputError(
                f"{file}: {model.label} and {other.label} are trained differently and would both leave "
                f"{model.checkpoint}: give one of them fit: {{trainer.default_root_dir: FOLDER}}"
            )


def _check_names(cells: list[Cell], file: Path) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        if other := seen.get(cell.name):
            raise InputError(f"{file}: ({cell.title}) and ({other.title}) would share a folder: change a name")
        seen[cell.name] = cell
