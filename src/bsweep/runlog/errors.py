"""What ended a process, left where its launcher finds it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bsweep import runlog
from bsweep.config import own
from bsweep.core.memory import is_out_of_memory
from bsweep.core.ranks import Place
from bsweep.runlog import RunPaths, Status


class WorkerLost(RuntimeError):
    """Another worker ended while this one waited for it: a consequence, not the cause of a
    failure.
    """


class Diverged(ArithmeticError):
    """The training loss or a parameter is no finite number any more: it is on record, and a result
    like any other.
    """


class Stopped(RuntimeError):
    """The run ended before its time, on record and in a state that a later run goes on from."""


@contextmanager
def worker_lost(broken: type[Exception] = RuntimeError) -> Iterator[None]:
    """What an exchange raises when a connection breaks, as `WorkerLost`; what a GPU raises is this
    worker's own.
    """
    try:
        yield
    except broken as error:
        if is_out_of_memory(error) or isinstance(error, torch.AcceleratorError):
            raise
        raise WorkerLost(
            f"the exchange broke off, another worker has probably ended: {error}"
        ) from error


_REPORTED = "bsweep_reported"


@contextmanager
def errors_reported(paths: RunPaths, place: Place) -> Iterator[None]:
    """Leave what ended this worker in `error.json` beside its output, for the launcher to quote.

    Of nested ones the innermost does: later ones would write a later time, and the first culprit is
    told by it, or an error in closing, which is none.
    """
    try:
        yield
    except (Diverged, Stopped):
        raise
    except BaseException as error:
        if _is_reported(error):
            raise
        vars(error)[_REPORTED] = True
        folder = paths.rank_logs(place.rank)
        folder.mkdir(parents=True, exist_ok=True)
        runlog.write_json(
            folder / "error.json",
            {
                "status": status_of(error),
                "message": said_by(error),
                "traceback": own.traced(error),
                "is_consequence": isinstance(error, WorkerLost),
                "time": time.time(),
            },
        )
        raise


def said_by(error: BaseException) -> str:
    """An error's kind, and what it says, if it says something, from its first line on."""
    return f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ")


def described(error: BaseException) -> str:
    """As `said_by`; of an error from the user's own code, with its traceback from the first line of
    theirs on.
    """
    return f"{said_by(error)}\n{own.traced(error) or ''}".strip()


def _is_reported(error: BaseException | None) -> bool:
    """Whether it is on record, or one while which was handled it came about."""
    return error is not None and (_REPORTED in vars(error) or _is_reported(error.__context__))


def status_of(error: BaseException) -> Status:
    """What an error makes of its run; only some of the ways in which memory ends have an exception
    of their own.
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "out_of_memory" if is_out_of_memory(error) else "failed"


def spoils_process(error: BaseException) -> bool:
    """Whether nothing more should be trained in this process: oneDNN may fail from now on, see
    `bsweep.core.fresh_process`.
    """
    # Which is a GPU's.
    return is_out_of_memory(error) and not isinstance(error, torch.OutOfMemoryError)
