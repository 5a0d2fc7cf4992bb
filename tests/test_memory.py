"""What the C library does with memory that a step frees."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

FAULTS = """
import resource
from bsweep import memory
getattr(memory, "{how}", lambda: None)()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(b"x") * (24 << 20) for _ in range(3)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that the system fills for the third of three equal rounds of large blocks."""
    return int(subprocess.run([sys.executable, "-c", FAULTS.format(how=how)], capture_output=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_freed_blocks_serve_the_next_step_or_return_to_the_system_at_once() -> None:
    pages = 3 * (24 << 20) // 4096
    assert faults("keep_for_next_step") < pages / 100
    assert faults("give_back_at_once") > pages / 600  # at least once for each huge page
