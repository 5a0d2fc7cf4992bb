"""How much memory a process may take: on a CPU, a limit stands in for a GPU's memory."""

from __future__ import annotations

import ctypes
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

# Processes that only launch others do without torch, which takes seconds to import.
if TYPE_CHECKING:
    import torch

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
"""What ends a process whose libraries do not look whether they were given memory."""


# The last is oneDNN's, which finds no room for its kernels.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|alloc_failed|bad_alloc|could not create a primitive(?! "
    r"desc)",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error that says that memory has run out, of a GPU or of this process."""
    import torch

    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(
        _OUT_OF_MEMORY.search(str(error))
    )


@contextmanager
def limited(mebibytes: float | None) -> Iterator[None]:
    """Let this process take so many MiB beside what it holds now, and no more; None leaves it as it
    is.

    Beyond that, allocations fail: torch's and Python's raise what `is_out_of_memory` knows. A
    compiled kernel that finds no room leaves oneDNN broken in its thread, or crashes (`CRASHES`): a
    process that has failed under a limit must not train or measure anything else, see
    `bsweep.core.fresh_process`. The kernel of Linux counts what is private and writable
    (RLIMIT_DATA), so neither libraries nor a data set that is mapped from a file.
    """
    if mebibytes is None:
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _held_bytes() + int(mebibytes * 2**20)
    resource.setrlimit(
        resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


@contextmanager
def unlimited() -> Iterator[None]:
    """Lift a limit for a while."""
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def give_back_at_once() -> None:
    """Let every larger block return to the system when it is freed, for the rest of this process.

    glibc by default keeps such blocks and cuts them up, so that what fits at one step may not at a
    later one: under a limit that stands in for a GPU's memory, steps had better be slower than
    ended by leftovers.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def keep_for_next_step() -> None:
    """Keep every block that is freed, for the rest of this process.

    glibc by default returns larger ones to the system, which fills them with zeros when the next
    step asks for them again: a third of a small step's time.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_MAX, 0)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, -1)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # constants of glibc's <malloc.h>
_LARGE_BLOCK_BYTES = 1 << 17  # glibc's own threshold grows
_LIBC = ctypes.CDLL(None)


def reset_peak(device: torch.device) -> None:
    """Begin to measure a peak anew, from what is held now."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    else:
        if hasattr(_LIBC, "malloc_trim"):
            _LIBC.malloc_trim(0)  # what is kept for the next step would hide how much it takes
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int | None:
    """Allocated on a GPU; resident on a CPU, the pages of a data set that it shares with others
    included.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return int(found[1]) * 1024 if found else None
    return None


def allocated_bytes(device: torch.device) -> int:
    """What a GPU's tensors take now; 0 on a CPU, of which nobody counts them."""
    if device.type != "cuda":
        return 0
    import torch

    return torch.cuda.memory_allocated(device)


def can_limit() -> bool:
    return Path("/proc/self/status").exists()


def available_bytes() -> int:
    """What all processes of this machine or container together may still take."""
    available: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no container, or one without a limit, which says "max"
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, max(0, limit - used))
    return available


def _held_bytes() -> int:
    """What the kernel counts against RLIMIT_DATA."""
    found = re.search(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found, "no VmData in /proc/self/status"
    return int(found[1]) * 1024
