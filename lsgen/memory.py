"""Memory that one batch frees is kept for the next; and how much there is."""

from __future__ import annotations

import ctypes
import os
import platform

# by glibc's numbers: blocks up to 1 GiB come from the heap, which shrinks only beyond 2 GiB of free space at its end
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
SETTINGS = {M_MMAP_THRESHOLD: 2**30, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**28}


def keep_freed_memory() -> bool:
    """Tells glibc, for this process, to keep what is freed; gives whether it was told.

    By default it hands every block above some MiB back to the kernel, and the next batch's activations are cleared page
    by page as they come again. On a CPU that costs up to a third of the time of a pass. Another allocator, another
    system, or settings of the user's own (``MALLOC_…``, ``GLIBC_TUNABLES``) are left alone.
    """
    own = any(name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD") for name in os.environ)
    if own or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in SETTINGS.items())


def total_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
