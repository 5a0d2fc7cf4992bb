"""The two files by which the launcher sees that a process of a run lives, and what it does.

A worker touches its file `heartbeat` whenever it has made progress, such as a step. From the file's
time the launcher sees when all workers stall.

It then asks for whom they wait. Each process has a thread that looks once a second whether the main
thread makes progress, which means here that it begins to wait for others, as in each exchange. If
not, the thread writes to the file `standstill` whether the main thread waits or works. So a process
without progress gives no sign only if it is stopped, as by SIGSTOP or on a host that hangs, or
cannot write its file. The launcher can name the process for which the others wait, whatever the
clocks of hosts say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SIGN_SECONDS = 1.0
"""The seconds between two signs of a process without progress; no two signs are equal."""

WAITS, WORKS = "waits", "works"


class Heartbeat:
    """The heartbeat of a worker, a file whose modification time says when the worker last made
    progress.

    Args:
        path: The file.
        on_beat: Called at each beat; None for nothing.
    """

    def __init__(self, path: Path, on_beat: Callable[[], None] | None = None) -> None:
        self._path, self._on_beat, self._touched_at = path, on_beat, float("-inf")

    def beat(self) -> None:
        """Set the modification time of the file to now, at most once a second.

        Workers call this at every step.
        """
        if time.monotonic() - self._touched_at > 1:
            self._touched_at = time.monotonic()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        if self._on_beat:
            self._on_beat()


class _MainThread:
    num_waits = 0
    """The number of times that the main thread has begun to wait for other processes."""
    is_waiting = False


_MAIN = _MainThread()


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """Count the main thread as waiting for other processes inside the block; ignore other
    threads.
    """
    if _MAIN.is_waiting or threading.current_thread() is not threading.main_thread():
        yield
        return
    _MAIN.num_waits += 1
    _MAIN.is_waiting = True
    try:
        yield
    finally:
        _MAIN.is_waiting = False


@contextmanager
def showing_standstill(path: Path) -> Iterator[None]:
    """Write to the file `path`, once a second while the main thread makes no progress in the `with`
    block, whether the thread waits for other processes or works.

    Args:
        path: The file, whose folder exists. Read it with `read_sign`.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(path, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(path: Path, ended: threading.Event) -> None:
    number = seen = 0
    while not ended.wait(SIGN_SECONDS):
        if seen == _MAIN.num_waits:  # also while steps take long, which does no harm
            number += 1
            with suppress(OSError):
                path.write_text(f"{number} {WAITS if _MAIN.is_waiting else WORKS}\n")
        seen = _MAIN.num_waits


def read_sign(path: Path) -> str:
    """Return the last sign that a process wrote to its file; the sign ends with `WAITS` or `WORKS`.
    Return an empty text if there is none.
    """
    with suppress(OSError):
        return path.read_text().strip()
    return ""
