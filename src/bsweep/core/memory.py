"""Limits and measurements of the memory that a process takes, and the free memory of its machine.
On a CPU, a limit stands in for a GPU's memory.
"""

from __future__ import annotations

import ctypes
import gc
import re
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bsweep.core.ranks import GROUPS, own_groups

# Processes that only launch others do not import torch, because that takes seconds.
if TYPE_CHECKING:
    import torch

# The last alternative is the error of oneDNN when it finds no memory for its kernels.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|alloc_failed|bad_alloc|could not create a primitive(?! "
    r"desc)",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that the memory of a GPU or of this process has run out."""
    import torch

    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(
        _OUT_OF_MEMORY.search(str(error))
    )


@contextmanager
def limited(mebibytes: float | None) -> Iterator[None]:
    """Limit this process, inside the `with` block, to `mebibytes` MiB more memory than it uses now;
    None sets no limit.

    Beyond the limit, allocations fail: torch and Python raise errors that `is_out_of_memory`
    recognises. A compiled kernel that finds no memory may crash. Linux counts private, writable
    memory (RLIMIT_DATA). Libraries and a data set that is mapped from a file are not counted.
    """
    if mebibytes is None:
        yield
        return
    with _data_limit(_status_bytes("VmData") + int(mebibytes * 2**20)):
        yield


def unlimited() -> AbstractContextManager[None]:
    """Raise this process's memory limit, inside the `with` block, to the largest that the system
    lets it have, which is none by default.
    """
    return _data_limit(None)


@contextmanager
def _data_limit(num_bytes: int | None) -> Iterator[None]:
    """Limit the memory that counts against RLIMIT_DATA; None for the largest limit."""
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = hard if num_bytes is None else num_bytes
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def give_back_at_once() -> None:
    """Make glibc return each block of memory of at least 128 KiB that it allocates from now on to
    the system as soon as the block is freed.

    By default glibc keeps such blocks and splits them, so that what fits at one step may not fit at
    a later one. Under a limit that stands in for a GPU's memory, slower steps are better than steps
    that fail for fragmentation.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def keep_for_next_step() -> None:
    """Make glibc keep freed blocks of memory in this process, so that the next training step gets
    them without the system's help.

    By default glibc returns large blocks to the system, which fills them with zeros when the next
    step asks for them again. That can take a third of a small step's time.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_MAX, 0)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, -1)


def give_back_garbage() -> None:
    """Free the Python objects that only reference cycles keep alive, and empty torch's cache of
    unused GPU memory.

    Models, graphs and tracebacks hold such cycles. The freed blocks have the sizes of what was
    trained last, which may not suit what comes next.
    """
    import torch

    gc.collect()
    with suppress(RuntimeError):  # torch may lack pytorch #180395: a capture that broke off is open
        torch.cuda.empty_cache()


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # constants of glibc's <malloc.h>
_LARGE_BLOCK_BYTES = 1 << 17  # glibc's default threshold grows over time
_LIBC = ctypes.CDLL(None)


def reset_peak(device: torch.device) -> None:
    """Reset the peak memory that `peak_bytes` reports for a device to the memory that this process
    uses now.
    """
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    else:
        if hasattr(_LIBC, "malloc_trim"):
            # Freed blocks that are still held would hide what the next step takes.
            _LIBC.malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int | None:
    """Return this process's peak memory in bytes since `reset_peak`: what torch allocated on a GPU,
    or what was resident on a CPU. Resident bytes include pages of a data set that other processes
    share. Return None if unknown.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        return _status_bytes("VmHWM") or None
    return None


def _status_bytes(name: str) -> int:
    """Return a number that Linux shows for this process, such as VmHWM, in bytes; 0 if none."""
    match = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else 0


def allocated_bytes(device: torch.device) -> int:
    """Return the bytes that this process's tensors occupy on a GPU now; return 0 on a CPU, where
    torch does not count these bytes.
    """
    if device.type != "cuda":
        return 0
    import torch

    return torch.cuda.memory_allocated(device)


def can_limit() -> bool:
    """Return True if `limited` can limit the memory of a process on this system."""
    return Path("/proc/self/status").exists()


def num_kills() -> int:
    """Return how many processes of this process's memory group the kernel has killed for lack of
    memory so far; 0 if the kernel does not count them.
    """
    groups = own_groups()
    counters = {"": "memory.events", "memory": "memory.oom_control"}  # of versions 2 and 1
    files = [groups[name] / counter for name, counter in counters.items() if name in groups]
    lines = [line.split() for file in files if file.exists() for line in file.open()]
    return sum(int(line[1]) for line in lines if line[0] == "oom_kill")


def available_bytes() -> int:
    """Return how many bytes of memory are still available to all processes of this machine, or of
    this container, together.
    """
    available: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # outside a container, or "max" in one without a limit
        limit, used = (int((GROUPS / f"memory.{n}").read_text()) for n in ("max", "current"))
        available = min(available, max(0, limit - used))
    return available
