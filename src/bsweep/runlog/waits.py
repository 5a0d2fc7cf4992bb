"""The file in which a process of a run says, while it makes no progress, whether it waits for other
processes or works.

Progress means that the main thread begins to wait, as it does in each exchange. After a second
without progress, a thread writes whether the main thread waits for other processes or works. A
process without progress gives no sign only if it is stopped, as by SIGSTOP or on a host that hangs,
or cannot write its file. So the launcher can name the process for which the others wait, whatever
the clocks of hosts say.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SIGN_SECONDS = 1.0
"""The seconds between two signs of a process without progress; no two signs are equal."""

WAITS, WORKS = "waits", "works"


class _MainThread:
    num_waits = 0
    """The number of times that the main thread has begun to wait for other processes."""
    is_waiting = False


_MAIN = _MainThread()


@contextmanager
def for_others() -> Iterator[None]:
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
def shown(path: Path) -> Iterator[None]:
    """Write to the file `path`, once a second while the main thread makes no progress in the `with`
    block, whether the thread waits for other processes or works.

    Args:
        path: The file, whose folder exists. Read it with `sign_in`.
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


def sign_in(path: Path) -> str:
    """Return the last sign that a process wrote to its file; the sign ends with `WAITS` or `WORKS`.
    Return an empty text if there is none.
    """
    with suppress(OSError):
        return path.read_text().strip()
    return ""
