"""The signals that ask a process to stop, and the end of processes that it has started."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_KILL_SECONDS = 5  # for processes to vanish that were killed


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let a function handle the signals to stop in the `with` block. Ignored ones stay ignored.

    Only the main thread gets signals. In other threads nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOPPING if is_main}
    before = {number: former for number, former in before.items() if callable(former)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def end(commands: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """End commands and the processes below them, even those in sessions of their own.

    All commands are asked at once. What has not ended then, or was left by a command, is killed.

    Args:
        commands: The commands, which may have ended already.
        seconds: How long they may take.
    """
    import psutil  # here, for `bsweep --help` needs only the signals

    below: list[psutil.Process] = []
    for command in commands:
        with suppress(psutil.NoSuchProcess):
            below += psutil.Process(command.pid).children(recursive=True)
        if command.poll() is None:
            command.terminate()
    until = time.monotonic() + seconds
    for command in commands:
        with suppress(subprocess.TimeoutExpired):
            command.wait(max(0.0, until - time.monotonic()))
    for process in below:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for command in commands:
        command.kill()
        command.wait()
    psutil.wait_procs(below, timeout=_KILL_SECONDS)
