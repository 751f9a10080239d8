"""Files that are whole or not there, whatever happens while they are written; and those that come with lsgen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def shipped_configs() -> Path:
    """The folder of shipped configurations, in a wheel or in a checkout."""
    package = Path(__file__).parent
    return next(p for p in (package / "configs", package.parent / "configs") if p.is_dir())


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Gives a temporary name beside ``target`` to write to; what is there at the end takes the target's place.

    Links are followed, and what is no ordinary file, such as /dev/stdout, is written to as it is.
    """
    target = target.resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
