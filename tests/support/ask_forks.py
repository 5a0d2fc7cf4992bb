"""Stands in a process's place for one that `tests.support.forks` forks: its signals, streams and
exit code are the other's.

`python tests/support/ask_forks.py SOCKET -u -m module ...`, or `-c code`, or `file.py`. The other
has the files that are open here, too.

It is run for each process of a run, so it imports what Python has built in: `signal`, `socket` and
`json` would take twice as long as all else here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # which typeshed leaves out
import _socket
import marshal
import os
import sys

_SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)


def ask(
    path: str,
    command: list[str],
    *,
    cwd: str,
    env: dict[str, str],
    executable: str,
    files: dict[int, int],
) -> _socket.socket:
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
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(path)
    given = b"".join(number.to_bytes(4, sys.byteorder) for number in files.values())
    connection.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, given)])
    wanted: dict[str, object] = {
        "command": command,
        "cwd": cwd,
        "env": env,
        "executable": executable,
        "numbers": list(files),
    }
    wanted["cores"] = sorted(os.sched_getaffinity(0))
    umask = os.umask(0)
    os.umask(umask)
    wanted["umask"] = umask
    wanted["ignored"] = [number for number in _SIGNALS if _is_ignored(number)]
    connection.sendall(marshal.dumps(wanted))
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
    with open(connection.detach()) as answers:  # noqa: PTH123 (a descriptor is no path)
        pid = int(answers.readline())
        for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGUSR2):
            if not _is_ignored(number):
                _signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(answers.readline())
    if code < 0:
        if -code != _signal.SIGKILL:  # which has no handler
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _end_with_parent() -> None:
    """Do what a worker does, whose fork has another parent: `core.signals`."""
    import ctypes  # which takes time, and which only workers need

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, _signal.SIGTERM)


def _is_ignored(number: int) -> bool:
    return bool(_signal.getsignal(number) == _signal.SIG_IGN)


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
