"""The signals that ask a process to stop, and the end of processes together with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

LAUNCHER = "BSWEEP_LAUNCHER"
"""The environment variable with the id of the process that started a worker."""

_LIBC = ctypes.CDLL(None)  # loaded early: between fork and exec nothing may take a lock
_PR_SET_PDEATHSIG = 1
_KILL_SECONDS = 5  # for processes to vanish that were killed

Handler = Callable[[int, FrameType | None], Any]


def handle(handler: Handler) -> dict[signal.Signals, Any]:
    """Let a function handle the signals to stop from now on, except those that are ignored.

    Only the main thread gets signals. In other threads nothing changes.

    Returns:
        The former handler of each signal that the function handles now.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    ignored = (signal.SIG_IGN, None)
    numbers = [number for number in STOPPING if signal.getsignal(number) not in ignored]
    return {number: signal.signal(number, handler) for number in numbers}


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Let a function handle the signals to stop in the `with` block, as `handle` does."""
    former = handle(handler)
    try:
        yield
    finally:
        for number, earlier in former.items():
            signal.signal(number, earlier)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Make Linux send this process a signal when its parent process ends, so that this process does
    not run on alone. Do nothing on other systems.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def end_with_launcher() -> None:
    """Exit if the process that started this one has already ended; otherwise make Linux end this
    process together with it.

    Raises:
        SystemExit: If the parent is not the process that the variable `LAUNCHER` names.
    """
    end_with_parent()
    if os.environ.get(LAUNCHER, parent := str(os.getppid())) != parent:
        raise SystemExit("bsweep: this process exits because the process that started it has ended")


def end(
    processes: Sequence[subprocess.Popen[bytes] | psutil.Process],
    seconds: float,
    *,
    asks_all: bool = False,
) -> None:
    """End processes and those below them, even those in sessions of their own.

    The given processes are asked at once. What has not ended then, or was left by them, is killed.

    Args:
        processes: The processes, which may have ended already.
        seconds: How long they may take.
        asks_all: Ask those below them, too, such as a program that a shell has started.
    """
    import psutil  # here, for `bsweep --help` needs only the signals

    below: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            below += psutil.Process(process.pid).children(recursive=True)
            process.terminate()
    for child in below if asks_all else ():
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    until = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    if asks_all:
        psutil.wait_procs(below, timeout=max(0.0, until - time.monotonic()))
    for process in (*below, *processes):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for process in processes:
        process.wait()
    psutil.wait_procs(below, timeout=_KILL_SECONDS)
