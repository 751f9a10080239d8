"""Running shipped configurations from code: the same commands that a user would type, printed before they run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from lsgen.errors import InputError


def lsgen(*args: str) -> str:
    """Runs one of Lightning's commands in this process and gives the line that does the same in a shell."""
    from lsgen.lightning_cli import LsgenCLI

    line = shlex.join(["lsgen", *args])
    print(f"$ {line}", flush=True)
    LsgenCLI(list(args))
    return line


def fit_once(config: Path, folder: Path, *more: str) -> str | None:
    """Trains unless that was done; goes on with a training that was stopped.

    Args:
        config: What to train; ``trainer.max_epochs`` in it says when it is done, unless ``more`` does.
        folder: Its ``default_root_dir``.
        more: Further arguments of ``lsgen fit``.

    Returns:
        The command, None where nothing was left to do.
    """
    from lsgen import checkpoints

    last = folder / "last.ckpt"
    if not last.exists() and (folder / "best.ckpt").exists():
        print(f"already trained, elsewhere: {folder}", flush=True)
        return None
    try:
        trained = checkpoints.read(last)["epoch"] + 1
    except InputError:  # none yet, or cut off while it was written
        trained = 0
    if not trained:  # out here: what goes wrong in the training does not come from there being no checkpoint
        return lsgen("fit", "--config", str(config), *more)
    if trained < _epochs(config, more):
        return lsgen("fit", "--config", str(config), *more, "--ckpt_path", str(last))
    print(f"already trained: {folder}", flush=True)
    return None


def _epochs(config: Path, more: tuple[str, ...]) -> int:
    """The number of epochs that is asked for."""
    import yaml

    given: list[Any] = [m.partition("=")[2] for m in more if m.startswith("--trainer.max_epochs=")]
    if not given:
        trainer = yaml.safe_load(config.read_text(encoding="utf-8")).get("trainer") or {}
        given = [trainer.get("max_epochs")]
    if given[-1] is None:
        raise InputError(f"{config} has no trainer.max_epochs: without it nobody knows when a training is done")
    return int(given[-1])
