"""Files that are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
