"""Work in a process that has done nothing before, and does nothing after.

A failure for want of memory outlives itself: where oneDNN finds no room for a kernel, its code
generator keeps the error for the rest of the thread, also when memory is there again (oneDNN pull
request 5907), or the process crashes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from bsweep.core.memory import CRASHES, is_out_of_memory

_T = TypeVar("_T")
_POLL_SECONDS = 0.2


def call(
    function: Callable[..., _T], *arguments: object, on_poll: Callable[[], None] = lambda: None
) -> _T:
    """What a module's function returns for arguments that can be pickled, from a process forked for
    this alone.

    It is forked from a server that has imported torch and run nothing: a fork of this process,
    whose libraries have threads, might hang.

    Raises:
        MemoryError: it crashed, as kernels do that find no room.
        RuntimeError: it was ended otherwise.
        Exception: what the function raised; stderr has the traceback, but for a want of memory.
    """
    context = multiprocessing.get_context("forkserver")
    # Torch's optimizers import the latter.
    context.set_forkserver_preload(["bsweep.measure.timed_steps", "torch._dynamo"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        while not receiver.poll(_POLL_SECONDS):
            on_poll()
        is_answer, answer = receiver.recv()
    except EOFError:
        process.join()
        raise _death(process.exitcode or 0) from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if is_answer:
        return answer  # type: ignore[no-any-return]
    raise answer


def _answer(
    sender: Connection, function: Callable[..., Any], arguments: tuple[object, ...]
) -> None:
    end_with_parent(signal.SIGKILL)
    try:
        answer: tuple[bool, Any] = (True, function(*arguments))
    except Exception as error:
        if not is_out_of_memory(error):
            traceback.print_exc()
        is_known = type(error).__module__ == "builtins"  # others might not survive the pipe
        answer = (False, error if is_known else RuntimeError(f"{type(error).__name__}: {error}"))
    sender.send(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without the destructors of libraries that a failure may have left broken


def _death(exit_code: int) -> Exception:
    if -exit_code in CRASHES:
        name = signal.Signals(-exit_code).name
        return MemoryError(f"the process was ended by {name}, as by kernels that find no room")
    return RuntimeError(f"the process ended with exit code {exit_code}")


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent ends: no orphan uses up a
    machine.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        _LIBC.prctl(pr_set_pdeathsig, number)


def end_with_launcher() -> None:
    """As `end_with_parent`, and at once where what started this process ended while it imported.

    Raises:
        SystemExit: it has another parent than the one that `LAUNCHER` tells.
    """
    end_with_parent()
    if os.environ.get(LAUNCHER, parent := str(os.getppid())) != parent:
        raise SystemExit("bsweep: what started this process has ended")


LAUNCHER = "BSWEEP_LAUNCHER"
"""The environment's number of the process that started a worker."""

_LIBC = ctypes.CDLL(None)  # loaded here, for between fork and exec nothing may take a lock
