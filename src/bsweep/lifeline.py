"""A command on a host that ends with the launcher on another: what a cut link leaves there would use the host for ever.

`python -m bsweep.lifeline FILE SECONDS COMMAND...` runs the command and ends with its exit code. It ends all that the
command started when the launcher has not touched FILE for SECONDS, or when nobody reads this process's output any more,
as where ssh has gone. Each is told by the other's absence alone: a network that is cut sends no word of it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import psutil

_POLL_SECONDS = 1.0
_GRACE_SECONDS = 5.0


def words(path: object, seconds: float, command: Sequence[str]) -> list[str]:
    """The command line that runs a command so."""
    return [sys.executable, "-m", "bsweep.lifeline", str(path), f"{seconds:g}", *command]


class _Told(Exception):
    """A signal asks to end."""


def run(path: str, seconds: float, command: Sequence[str]) -> int:
    """See the module; the command's exit code, as a shell gives it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _told)
    reader = select.poll()
    reader.register(1, 0)  # only that nobody reads any more
    process = subprocess.Popen(command, start_new_session=True)
    try:
        touched, seen_at = -1, time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_POLL_SECONDS)
                return 128 - code if code < 0 else code
            latest = _touched(path)
            if latest != touched:
                touched, seen_at = latest, time.monotonic()
            if time.monotonic() - seen_at > seconds or reader.poll(0):
                return 1
    except _Told:
        return 128 + signal.SIGTERM
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _end(process)


def _told(number: int, frame: FrameType | None) -> NoReturn:
    raise _Told


def _touched(path: str) -> int:
    """When the launcher touched its file, as it is seen here; a file that is opened is seen as it is."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (pathlib is not worth its import)
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return -1


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all that it started, in sessions of their own too."""
    tree: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    for each in tree:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.kill()
    process.wait()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
