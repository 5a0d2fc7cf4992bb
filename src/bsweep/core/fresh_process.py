"""A function that calls another function in a new process, and functions that end a process
together with its parent.

Running out of memory can damage a process. If oneDNN finds no room for a kernel, the process may
crash. Or oneDNN's code generator keeps the error for the rest of the thread, even when memory is
free again (oneDNN pull request 5907).
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
from bsweep.core.torch_private import COMPILER

_T = TypeVar("_T")
_POLL_SECONDS = 0.2


def call(
    function: Callable[..., _T], *arguments: object, on_poll: Callable[[], None] = lambda: None
) -> _T:
    """Call a function in a new process that is forked for this call alone, and return the
    function's result.

    The process is forked from a server that has imported torch and trained nothing. A fork of this
    process might hang, because its libraries have threads.

    Args:
        function: A function at the top level of a module.
        arguments: Its arguments, which must be picklable.
        on_poll: A function that is called a few times a second while this process waits.

    Raises:
        MemoryError: If the process crashed, as it does when kernels find no memory.
        RuntimeError: If the process ended without an answer in another way.
        Exception: If the function raised it. Its traceback is on stderr, unless memory ran out. An
            error whose type is not built into Python becomes a RuntimeError.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bsweep.measure.timed_steps", COMPILER])
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
        is_known = type(error).__module__ == "builtins"  # other types might not survive pickling
        answer = (False, error if is_known else RuntimeError(f"{type(error).__name__}: {error}"))
    sender.send(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skips the destructors of libraries that a failure may have damaged


def _death(exit_code: int) -> Exception:
    if -exit_code in CRASHES:
        name = signal.Signals(-exit_code).name
        return MemoryError(
            f"the process was ended by {name}, as happens when a kernel finds no room"
        )
    return RuntimeError(f"the process ended with exit code {exit_code}")


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Make Linux send this process a signal when its parent process ends, so that this process does
    not run on alone. Do nothing on other systems.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        _LIBC.prctl(pr_set_pdeathsig, number)


def end_with_launcher() -> None:
    """Exit if the process that started this one has already ended; otherwise make Linux end this
    process together with it.

    Raises:
        SystemExit: If the parent is not the process that the variable `LAUNCHER` names.
    """
    end_with_parent()
    if os.environ.get(LAUNCHER, parent := str(os.getppid())) != parent:
        raise SystemExit("bsweep: this process exits because the process that started it has ended")


LAUNCHER = "BSWEEP_LAUNCHER"
"""The environment variable with the id of the process that started a worker."""

_LIBC = ctypes.CDLL(None)  # loaded early: between fork and exec nothing may take a lock
