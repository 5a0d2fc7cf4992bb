"""A program that runs a command and ends it early if its launcher, which may be on another host, is
lost.

`python lifeline.py FILE SECONDS COMMAND...` runs COMMAND, and exits with the exit code of
COMMAND. This program ends COMMAND and the processes below it in each of these cases:

- The launcher has not touched FILE for SECONDS. Time in which this process was stopped itself does
  not count.
- FILE is empty or gone, because the launcher ends.
- This program gets a signal such as SIGTERM.
- Nobody reads this program's output any more, for example because ssh has ended.

The first and the last case detect a cut network. It sends no message, and without this check the
processes would use the host for ever. `docs/how.md` has a table of all such signs and delays.
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
from functools import partial
from typing import TYPE_CHECKING

from bsweep.core import signals

if TYPE_CHECKING:
    from pathlib import Path  # for annotations only, since importing it takes time

_POLL_SECONDS = 1.0
_APART_SECONDS = 5.0  # looks of a process that runs are closer together
_GRACE_SECONDS = 5.0


def words(path: Path, seconds: float, command: Sequence[str]) -> list[str]:
    """Return a command line that runs a command, and ends it early if its launcher is lost.

    Args:
        path: The lifeline file.
        seconds: How long the launcher may leave the file untouched.
        command: The command to run.
    """
    program = __file__  # not `-m`, which would import more
    return [sys.executable, program, str(path), f"{seconds:g}", *command]


def run_watched(path: str, seconds: float, command: Sequence[str]) -> int:
    """Run a command, and end it early if its launcher is lost. Return the command's exit code (128
    + N after signal N), or 1 if it was ended early.

    After a signal to this process, end the command and return 143.

    Args:
        path: The lifeline file.
        seconds: How long the launcher may leave the file untouched.
        command: The command to run.
    """
    for number in signals.STOPPING:
        signal.signal(number, signal.default_int_handler)
    reader = select.poll()
    reader.register(1, 0)  # report only that nobody reads standard output any more
    die_with_this = partial(signals.end_with_parent, signal.SIGKILL)
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=die_with_this)
    try:
        touched = -1
        seen_at = looked_at = time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_POLL_SECONDS)
                return 128 - code if code < 0 else code
            # This process was stopped meanwhile, perhaps with its machine and the launcher.
            seen_at += max(0.0, time.monotonic() - looked_at - _APART_SECONDS)
            looked_at = time.monotonic()
            latest, has_text = _seen(path)
            has_ended = not has_text and touched >= 0  # a network file system may show it late
            if latest != touched:
                touched, seen_at = latest, looked_at
            if looked_at - seen_at > seconds or reader.poll(0) or has_ended:
                return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM
    finally:
        for number in signals.STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signals.end([process], _GRACE_SECONDS)


def _seen(path: str) -> tuple[int, bool]:
    """Return the modification time of a file in nanoseconds, and True if the file has a text or
    cannot be read.

    The time is -1 if the file is gone or cannot be read. The file is opened because only then a
    file system that hosts share shows its current state.
    """
    try:
        with open(path) as file:  # noqa: PTH123 (as above)
            return os.fstat(file.fileno()).st_mtime_ns, bool(file.read())
    except FileNotFoundError:
        return -1, False
    except OSError:
        return -1, True


if __name__ == "__main__":
    sys.exit(run_watched(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
