"""The errors that end a run or its workers, and the file from which the launcher learns why a
worker failed.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bsweep.config import user_code
from bsweep.core import torch_private
from bsweep.core.memory import is_out_of_memory
from bsweep.core.ranks import World
from bsweep.runlog import heartbeat
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.records import Status
from bsweep.runlog.shared_clock import file_system_time


class WorkerLost(RuntimeError):
    """The error of a process that has lost another process of its run, or that the others have
    given up as lost.

    The launcher takes this error for a consequence of a failure, not for its cause.
    """


class Diverged(ArithmeticError):
    """The error that ends a run whose training loss or parameters have become infinite or NaN.

    The run's records say so. Divergence is a result like any other, not a failure.
    """


class ProgramError(RuntimeError):
    """The error that says what the user's own program did wrong, and what to change in it.

    Args:
        message: The message.
        log: The last lines that the program printed to its standard error.
        is_consequence: True if the program failed only because another worker did.
        number: The signal that ended the program; None if none did.
    """

    def __init__(
        self,
        message: str,
        log: str = "",
        *,
        is_consequence: bool = False,
        number: int | None = None,
    ) -> None:
        super().__init__(message)
        self.log, self.is_consequence, self.number = log, is_consequence, number


class Stopped(RuntimeError):
    """The error that ends the workers of a run that is stopped early.

    The run's records say so, and a later attempt can resume from the saved checkpoint.
    """


@contextmanager
def worker_lost(broken: type[Exception] = RuntimeError) -> Iterator[None]:
    """Turn an error of the type `broken` in the `with` block, which runs an exchange, into
    `WorkerLost`, unless it is an error of this process's own GPU or memory.

    Inside the block the main thread counts as waiting for other processes.

    Args:
        broken: The type of the errors that the exchange raises if a connection breaks.
    """
    try:
        with heartbeat.waiting_for_others():
            yield
    except broken as error:
        if is_out_of_memory(error) or torch_private.is_of_accelerator(error):
            raise
        raise WorkerLost(
            f"the exchange failed, probably because another process of the run has ended: {error}"
        ) from error


_REPORTED = "bsweep_reported"


@contextmanager
def errors_reported(paths: RunPaths, world: World) -> Iterator[None]:
    """Write the error that ends the `with` block to `error.json` in this process's log folder,
    unless the error is `Diverged` or `Stopped`.

    The launcher reads that file. If an error passes several of these contexts, only the innermost
    writes it. The launcher finds the first failed worker by the time in the file, and an outer
    context would write a later time. An outer context may also see an error in closing, which is
    not the cause.
    """
    try:
        yield
    except (Diverged, Stopped):
        raise
    except BaseException as error:
        if _is_reported(error):
            raise
        vars(error)[_REPORTED] = True
        folder = paths.rank_logs(world.rank)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(
            folder / "error.json",
            {
                "status": status_of(error),
                "message": _text_of(error),
                "traceback": _traceback_of(error),
                "is_consequence": isinstance(error, WorkerLost)
                or (isinstance(error, ProgramError) and error.is_consequence),
                "time": file_system_time(folder),
            },
        )
        raise


def _traceback_of(error: BaseException) -> str | None:
    """Return the traceback of an error from the first line of the user's own code on; None if the
    error did not pass through the user's code.

    The text is empty for a ValueError that bsweep's own code raised: its message says what to
    change. Of the user's own program it is what the program printed. For None, the launcher shows
    the last lines of the process's output.
    """
    if isinstance(error, ProgramError):
        return error.log
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError) and Path(frames[-1].filename).is_relative_to(_PACKAGE):
        return ""
    return user_code.traceback_of(error)


_PACKAGE = Path(__file__).parents[1]


def _text_of(error: BaseException) -> str:
    """Return an error's type and its message, if it has one, as one text."""
    return f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ")


def described(error: BaseException) -> str:
    """Return an error's type and message and, if it passed through the user's own code, a
    traceback.

    The traceback begins at the first line of the user's code. Of the user's own program it is what
    the program printed.
    """
    trace = error.log if isinstance(error, ProgramError) else user_code.traceback_of(error)
    return f"{_text_of(error)}\n{trace or ''}".strip()


def _is_reported(error: BaseException | None) -> bool:
    """Return True if `error.json` has this error, or an error during whose handling this one was
    raised.
    """
    return error is not None and (_REPORTED in vars(error) or _is_reported(error.__context__))


def status_of(error: BaseException) -> Status:
    """Return the status of a run that an error ended: `interrupted`, `out_of_memory` or `failed`.

    Running out of memory has no single exception type, so `is_out_of_memory` decides.
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "out_of_memory" if is_out_of_memory(error) else "failed"


def spoils_process(error: BaseException) -> bool:
    """Return True if this process should train no further run after the given error.

    After the host ran out of memory oneDNN may fail from then on: its code generator keeps the
    error for the rest of the thread, even when memory is free again (oneDNN pull request 5907).
    """
    # torch raises OutOfMemoryError only for the memory of a GPU.
    return is_out_of_memory(error) and not isinstance(error, torch.OutOfMemoryError)
