"""Stands in a process's place for one that `tests.forks` forks: its signals, streams and exit code are the other's.

`python tests/ask_forks.py SOCKET -u -m module ...`
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys


def ask(
    path: str, module: str, arguments: list[str], *, cwd: str, env: dict[str, str], executable: str, streams: list[int]
) -> socket.socket:
    """The socket that tells the id of the process that is forked, and then its exit code, a line each."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [b"!"], streams)
    wanted = {"module": module, "arguments": arguments, "cwd": cwd, "env": env, "executable": executable}
    connection.sendall(json.dumps(wanted).encode() + b"\n")
    return connection


def main(path: str, *command: str) -> None:
    module, *arguments = command[command.index("-m") + 1 :]
    connection = ask(
        path,
        module,
        arguments,
        cwd=os.getcwd(),  # noqa: PTH109 (pathlib would take longer than all else here)
        env=dict(os.environ),
        executable=sys.executable,
        streams=[0, 1, 2],
    )
    with connection.makefile("r") as answers:
        pid = int(answers.readline())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(answers.readline())
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
