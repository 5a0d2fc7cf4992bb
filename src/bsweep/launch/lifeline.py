"""Run a command on a host, and end it when the launcher on another is not heard of any more.

`python lifeline.py FILE START SECONDS COMMAND...` runs the command and ends with its exit code. It
ends all that the command started when the launcher has not touched FILE for SECONDS, when the file
names another start than its own, when the run that it trains belongs to another one since, or when
nobody reads this process's output any more, as where ssh has gone. The first and the last are told
by the other's absence alone: a network that is cut sends no word of it, and what it leaves there
would use the host for ever.

These are all signs of life in bsweep:

| who watches | whom | by | for | gives up after |
|---|---|---|---|---|
| a process | its parent | the kernel (`core.fresh_process`) | a kill, on Linux | 0 s |
| this module | the launcher | FILE, touched each second | a kill or a cut link | SECONDS (1) |
| a team's process | the launcher | FILE | a kill, where no other tells | 60 s |
| the launcher | workers | `rank.N/alive`, touched at steps | a worker that hangs | time-outs (2) |
| DiLoCo's workers (3) | each other | the store (`strategies.roll_call`) | a lost worker | (3) |
| a sweep | another one | a lease, touched each 10 s | a dead host (4) | 120 s |
| ssh, Horovod | their peers | messages of their own | a cut link, a lost launcher | (5) |

1. 60 s (`train.team_worker.PATIENCE_SECONDS`), or `launch.stall_timeout_seconds` if that is less.
2. `launch.start_timeout_seconds` before the first sign, `launch.stall_timeout_seconds` after it. By
   the same file, `launch.stop` sees how long a step takes that it asked to be the last.
3. With `strategy.on_loss` other than `fail`: `strategy.loss_timeout_seconds`.
4. Where the file system has no locks: `runlog.locks`.
5. ssh: three signs, at most 15 s apart. Horovod: twice `launch.stall_timeout_seconds`.
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
from typing import TYPE_CHECKING, NoReturn

import psutil

if TYPE_CHECKING:
    from pathlib import Path  # which is not worth its import

_POLL_SECONDS = 1.0
_GRACE_SECONDS = 5.0


def begin(path: Path) -> None:
    """Have the file name a new start: what an earlier one has left elsewhere ends before it is in
    the way.
    """
    path.write_text(f"{os.urandom(8).hex()}\n")


def go_on(path: Path, run: Path) -> None:
    """Have the start of a file train a run: it leaves when another start begins with the file of
    that one.
    """
    run.write_text(f"{_name(path.read_text())}\n")
    with path.open("a") as file:
        file.write(f"{run}\n")


def words(path: Path, seconds: float, command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command so, of the start that has begun."""
    return [
        sys.executable,
        __file__,  # not as a module, whose package imports what takes a second
        str(path),
        _name(path.read_text()),
        f"{seconds:g}",
        *command,
    ]


class _Told(Exception):
    """A signal asks to end."""


def run(path: str, start: str, seconds: float, command: Sequence[str]) -> int:
    """Run a command, see the module, and return its exit code as a shell gives it."""
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
            latest, said = _seen(path)
            if latest < 0 and touched < 0:
                said = None  # its name may be seen late
            if latest != touched:
                touched, seen_at = latest, time.monotonic()
            if (
                time.monotonic() - seen_at > seconds
                or reader.poll(0)
                or not _belongs_to(said, start)
            ):
                return 1
    except _Told:
        return 128 + signal.SIGTERM
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _end(process)


def _told(number: int, frame: FrameType | None) -> NoReturn:
    raise _Told


def _name(said: str) -> str:
    return said.partition("\n")[0]


def _belongs_to(said: str | None, start: str) -> bool:
    """Tell whether a file names a start, and that of the run which it trains does, by all that can
    be seen.
    """
    if said is None:
        return True
    runs = said.split("\n")[1:-1]  # one after another; half a line is none
    run = runs and _seen(runs[-1])[1]
    return _name(said) == start and (not run or _name(run) == start)


def _seen(path: str) -> tuple[int, str | None]:
    """Return when somebody touched a file, and what is in it, which is nothing where it is gone.

    A file that is opened is seen as it is, also on a file system of several hosts.
    """
    try:
        with open(path) as file:  # noqa: PTH123 (as above)
            return os.fstat(file.fileno()).st_mtime_ns, file.read()
    except FileNotFoundError:
        return -1, ""
    except OSError:
        return -1, None


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
    sys.exit(run(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
