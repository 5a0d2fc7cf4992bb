"""A program that runs a command and ends it early if its launcher, which may be on another host, is
lost or has started other processes instead.

`python lifeline.py FILE START SECONDS COMMAND...` runs COMMAND, and exits with the exit code of
COMMAND. This program ends COMMAND and the processes below it in each of these cases:

- The launcher has not touched FILE for SECONDS. Time in which this process was stopped itself does
  not count.
- FILE does not name START, for example because the launcher ends or has begun another start.
- Another start has taken over the run that START trains.
- This program gets a signal such as SIGTERM.
- Nobody reads this program's output any more, for example because ssh has ended.

The first and the last case detect a cut network. It sends no message, and without this check the
processes would use the host for ever.

This table lists the signs of life in bsweep:

| who watches | whom | by | in case of | gives up after |
|---|---|---|---|---|
| a process | its parent | the kernel (`core.parent_process`) | a kill, on Linux | 0 s |
| this module | the launcher | FILE, touched each second | a kill or a cut link | SECONDS (1) |
| a team's process | the launcher | FILE | a kill that nothing else shows | 60 s |
| the launcher | workers | `rank.N/alive`, touched at steps | a worker that hangs | time-outs (2) |
| the launcher | all processes | `rank.N/waits`, each second | a stall, to name its cause | 5 s |
| ssh, Horovod | their peers | messages of their own | a cut link, a lost launcher | (3) |

1. 60 s (`train.team_worker.PATIENCE_SECONDS`), or `launch.stall_timeout_seconds` if that is less.
2. `launch.start_timeout_seconds` before the first sign, `launch.stall_timeout_seconds` after it.
   `launch.stop` uses the same file to see how long steps take.
3. ssh: three signs, at most 15 s apart. Horovod: twice `launch.stall_timeout_seconds`.
"""

from __future__ import annotations

import ctypes
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

from bsweep.core import signals

if TYPE_CHECKING:
    from pathlib import Path  # for annotations only, since importing it takes time

_LIBC = ctypes.CDLL(None)
_POLL_SECONDS = 1.0
_APART_SECONDS = 5.0  # looks of a process that runs are closer together
_GRACE_SECONDS = 5.0


def begin(path: Path) -> None:
    """Write a new random name to a lifeline file, by which the processes that start next recognise
    their own start.

    Processes of an earlier start, which may be left on other hosts, read the new name and exit.
    """
    path.write_text(f"{os.urandom(8).hex()}\n")


def go_on(path: Path, run: Path) -> None:
    """Record which run a group of started processes trains now, in the lifeline file of these
    processes and in that of the run.

    Watched processes end when another start writes its name to the run's file.

    Args:
        path: The lifeline file of the start.
        run: The lifeline file in the run's folder.
    """
    run.write_text(f"{_name(path.read_text())}\n")
    with path.open("a") as file:
        file.write(f"{run}\n")


def words(path: Path, seconds: float, command: Sequence[str]) -> list[str]:
    """Return a command line that runs a command, and ends it early if its launcher is lost or has
    started other processes instead.

    Args:
        path: The lifeline file.
        seconds: How long the launcher may leave the file untouched.
        command: The command to run.
    """
    return [
        sys.executable,
        __file__,  # not `-m`, which would import more
        str(path),
        _name(path.read_text()),
        f"{seconds:g}",
        *command,
    ]


class _Told(Exception):
    """An exception that the signal handler raises when a signal asks this process to end."""


def run_watched(path: str, start: str, seconds: float, command: Sequence[str]) -> int:
    """Run a command, and end it early if its launcher is lost or has started other processes
    instead. Return the command's exit code (128 + N after signal N), or 1 if it was ended early.

    After a signal to this process, end the command and return 143.

    Args:
        path: The lifeline file.
        start: The name of the start that the command belongs to.
        seconds: How long the launcher may leave the file untouched.
        command: The command to run.
    """
    for number in signals.STOPPING:
        signal.signal(number, _told)
    reader = select.poll()
    reader.register(1, 0)  # report only that nobody reads standard output any more
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=_end_with_parent)
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
            latest, said = _seen(path)
            if latest < 0 and touched < 0:
                said = None  # a network file system may show the file late
            if latest != touched:
                touched, seen_at = latest, looked_at
            if looked_at - seen_at > seconds or reader.poll(0) or not _belongs_to(said, start):
                return 1
    except _Told:
        return 128 + signal.SIGTERM
    finally:
        for number in signals.STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signals.end([process], _GRACE_SECONDS)


def _end_with_parent() -> None:
    """Have Linux kill this process when its parent ends; `core.parent_process` does so too."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        _LIBC.prctl(pr_set_pdeathsig, signal.SIGKILL)


def _told(number: int, frame: FrameType | None) -> NoReturn:
    raise _Told


def _name(said: str) -> str:
    return said.partition("\n")[0]


def _belongs_to(said: str | None, start: str) -> bool:
    """Return True if the watched processes may go on, and False if their launcher ends them or
    other processes were started in their place.

    They may go on while the lifeline file whose text is `said` names `start`, the start of these
    processes, and the file of the latest run that `said` lists, if any, names it, too. A file that
    cannot be read counts as naming it. So does a run's file that is gone.
    """
    if said is None:
        return True
    runs = said.split("\n")[1:-1]  # one line for each run; drop an incomplete last line
    run = runs and _seen(runs[-1])[1]
    return _name(said) == start and (not run or _name(run) == start)


def _seen(path: str) -> tuple[int, str | None]:
    """Return the modification time of a file in nanoseconds, and the text of the file.

    The result is (-1, "") if the file is gone, and (-1, None) if it cannot be read. The file is
    opened because only then a file system that hosts share shows its current state.
    """
    try:
        with open(path) as file:  # noqa: PTH123 (as above)
            return os.fstat(file.fileno()).st_mtime_ns, file.read()
    except FileNotFoundError:
        return -1, ""
    except OSError:
        return -1, None


if __name__ == "__main__":
    sys.exit(run_watched(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
