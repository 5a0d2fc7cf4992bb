"""Stands in a process's place for one that `tests.support.forks` forks: its signals, streams and
exit code are the other's.

`python tests/support/ask_forks.py SOCKET -u -m module ...`, or `-c code`, or `file.py`. The other
has the files that are open here, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def ask(
    path: str,
    command: list[str],
    *,
    cwd: str,
    env: dict[str, str],
    executable: str,
    files: dict[int, int],
) -> socket.socket:
    """The socket that tells the id of the process that is forked, and then its exit code, a line
    each.

    Args:
        path: Where `tests.support.forks` listens.
        command: What Python would be given: -m and a module, -c and code, or `a file` and its path,
            and arguments.
        cwd: Its folder.
        env: All of its variables.
        executable: What it takes for Python.
        files: The open files that it gets, by their numbers there.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [b"!"], list(files.values()))
    wanted = {
        "command": command,
        "cwd": cwd,
        "env": env,
        "executable": executable,
        "numbers": list(files),
    }
    wanted["cores"] = sorted(os.sched_getaffinity(0))
    wanted["ignored"] = [number for number in _SIGNALS if _is_ignored(number)]
    connection.sendall(json.dumps(wanted).encode() + b"\n")
    return connection


def main(path: str, *command: str) -> None:
    begin, first = next(
        (index, word)
        for index, word in enumerate(command)
        if word in ("-m", "-c") or not word.startswith("-")
    )
    asked = [*command[begin:]] if first in ("-m", "-c") else ["a file", *command[begin:]]
    if "BSWEEP_LAUNCHER" in os.environ:
        _end_with_parent()
    files = _open_files()
    connection = ask(
        path,
        asked,
        cwd=os.getcwd(),  # noqa: PTH109 (pathlib would take longer than all else here)
        env=dict(os.environ),
        executable=f"{os.path.dirname(path)}/python",  # noqa: PTH120 (as above)
        files={number: number for number in files},
    )
    for number in files[files.index(2) + 1 :]:  # a pipe ends when all copies of its end are closed
        os.close(number)
    with connection.makefile("r") as answers:
        pid = int(answers.readline())
        for number in (signal.SIGTERM, signal.SIGINT):
            if not _is_ignored(number):
                signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(answers.readline())
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _end_with_parent() -> None:
    """Do what a worker does, whose fork has another parent: `core.fresh_process`."""
    import ctypes  # which takes time, and which only workers need

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def _open_files() -> list[int]:
    """What this process was given: the standard streams, and what multiprocessing passes on."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 (as above)
    return sorted(number for number in numbers if _is_inherited(number))


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # of the listing itself
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
