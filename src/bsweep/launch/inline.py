"""The launcher `inline`, which runs a point's only worker inside the `bsweep` process, where
breakpoints work as usual.

`bsweep.launch.warm` also trains points in its own process, by the same code. After a point that ran
out of the host's memory, or of a GPU's memory during the capture of a CUDA graph, such a process
trains no further point: it may fail, or has less memory, until it ends.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch

from bsweep.config.card import load_object
from bsweep.core import memory, terminal
from bsweep.core.ranks import World
from bsweep.core.whole_files import is_full
from bsweep.launch.launcher import Launcher, LaunchRequest, Outcome, recorded
from bsweep.runlog import errors
from bsweep.runlog.files import RunPaths
from bsweep.runlog.locks import worker_claimed
from bsweep.train import graph_capture

logger = terminal.logger(__name__)


_spoilt_by = ""
"""The failure that made this process unfit to train; empty if none did."""


class Inline(Launcher):
    """A launcher that runs a point's only worker in this process."""

    def launch(self, request: LaunchRequest) -> Outcome:
        """Run a point's only worker, and return the status of the run and, after a failure, the
        cause.

        Then free the GPU memory of the point, such as that of its CUDA graphs, for the next one.
        """
        if unfit := refusal():
            return unfit
        failure = run_here(request, World())
        if torch.cuda.is_initialized():
            memory.give_back_garbage()
        return outcome_of([failure], request.paths)


@dataclass(frozen=True)
class Failure:
    """The failure of a point in one process.

    `is_consequence` is True if the point failed here only because another worker was lost.
    `spoils_process` is True if the process should train no further point.
    """

    outcome: Outcome
    is_consequence: bool
    spoils_process: bool


def outcome_of(failures: Iterable[Failure | None], paths: RunPaths) -> Outcome:
    """Return how a point ended, and remember if one of its processes should train no other point.

    Args:
        failures: What `run_here` returned in each process of the point. The failure of a process
            that failed by itself takes precedence over those of processes that lost it.
        paths: The point's run folder.
    """
    global _spoilt_by
    failed = [failure for failure in failures if failure]
    if not failed:
        ended = recorded(paths)
        assert ended, "training returned without its last record"
        return ended
    outcome = min(failed, key=lambda failure: failure.is_consequence).outcome
    if any(failure.spoils_process for failure in failed):
        _spoilt_by = outcome.message
    return outcome


def refusal() -> Outcome | None:
    """Return the outcome of a point that is not trained, because the processes that should train it
    ran out of memory before, and must not be replaced within this command; return None if they may
    train it.
    """
    reason = _spoilt_by or graph_capture.lost_memory()
    if not reason:
        return None
    return Outcome(
        "interrupted",
        "not trained, because these processes may fail, or have less memory than others, after "
        f"they ran out of memory ({reason}): type the same command again, which skips points that "
        "have a result",
    )


def run_here(request: LaunchRequest, world: World) -> Failure | None:
    """Train or measure a point in this process, and return the failure that ended it; return None
    if the worker has recorded how the point ended.

    Args:
        request: The point. An interrupt that its `on_poll` raises ends the run.
        world: This process's rank, and the number of workers.
    """
    try:
        work = load_object(request.entry)
        with (
            suppress(errors.Diverged, errors.Stopped),
            worker_claimed(request.paths, world.rank),
        ):
            work(request.config, request.paths, world, on_step=request.on_poll)
        return None
    except Exception as error:
        # An interrupt may have caused the error, as sometimes in imports of torch and numpy. In
        # that case this call raises the interrupt.
        request.on_poll()
        is_consequence = isinstance(error, errors.WorkerLost)
        if is_consequence:  # the traceback shows only where the loss was noticed
            logger.error(f"rank {world.rank}: {str(error).splitlines()[0]}")
        elif not (
            is_full(error) or isinstance(error, errors.ProgramError)
        ):  # these need no traceback
            traceback.print_exc()
        name = f"rank {world.rank} failed: " if world.num_workers > 1 else ""
        outcome = Outcome(errors.status_of(error), f"{name}{errors.described(error)}")
        return Failure(outcome, is_consequence, errors.spoils_process(error))
