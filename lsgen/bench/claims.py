"""Who does what, where several processes, also of several machines, work in one folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsgen.errors import InputError


@contextmanager
def claim(file: Path) -> Iterator[bool]:
    """Whether this process may do what ``file`` stands for; nobody else may until the block is left.

    The claim is a lock of the kernel's. It ends with the process, however that ends, so that none is left behind, and
    no clocks are compared. The file is opened for writing, without which NFS does not pass a lock on to other machines.

    Args:
        file: Made where it is missing, and left there: removing it would let two processes lock two files of one name.

    Raises:
        InputError: The folder's file system knows no locks.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield _lock(descriptor, file)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, file: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise InputError(
            f"{file.parent} lies on a file system without locks ({error.strerror}): choose another --out"
        ) from error
    return True
