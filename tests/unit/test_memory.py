import platform
import subprocess
import sys

import pytest

from lsgen.memory import keep_freed_memory

FAULTS = """
import resource, sys, torch
from lsgen.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def one_batch():
    return torch.zeros(16, 2**20).add_(1).sum()  # 64 MiB
for _ in range(5):
    one_batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(30):
    one_batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory by its own rules")
def test_freed_memory_is_used_again_without_asking_the_kernel():
    faults = {
        kind: int(
            subprocess.run([sys.executable, "-c", FAULTS, kind], capture_output=True, text=True, check=True).stdout
        )
        for kind in ("given back", "kept")
    }
    assert faults["kept"] < faults["given back"] / 5


def test_the_users_own_settings_are_left_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert not keep_freed_memory()
