"""The launcher `inline`, which runs a point's only worker inside the `bsweep` process or, in two
cases, in a fresh process.

The fresh process trains a point that has a memory limit, and points that follow one that ran out of
the host's memory: such a failure may break later training in the same process. Inside the `bsweep`
process, breakpoints work as usual. After a GPU ran out of memory during the capture of a CUDA
graph, no process helps: the `bsweep` process holds that memory until it ends.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from contextlib import suppress

from bsweep.config.run import RunConfig
from bsweep.core import fresh_process, memory
from bsweep.core.ranks import Place
from bsweep.core.whole_files import is_full
from bsweep.launch.launcher import Launcher, LaunchRequest
from bsweep.launch.outcome import Outcome, of_unfit_processes, recorded
from bsweep.runlog.files import RunPaths
from bsweep.runlog.shared_clock import file_system_time


class Inline(Launcher):
    """A launcher that runs a point's only worker in this process or, to train, in a fresh one."""

    def __init__(self) -> None:
        self._is_spoilt = False  # True once a failure made this process unfit for training

    def launch(self, request: LaunchRequest) -> Outcome:
        """Run a point's only worker, and return the status of the run and, after a failure, the
        cause.

        Then free the GPU memory of the point, such as that of its CUDA graphs, for the next one.
        """
        # Import torch only when a worker runs.
        import torch

        from bsweep.train import graph_capture

        if reason := graph_capture.lost_memory():
            return of_unfit_processes(reason)
        outcome = self._launched(request)
        if torch.cuda.is_initialized():
            memory.give_back_garbage()
        return outcome

    def _launched(self, request: LaunchRequest) -> Outcome:
        from bsweep.runlog.errors import ProgramError, described, spoils_process, status_of

        is_apart = self._is_spoilt or bool(request.config.launch.memory_limit_mb)
        try:
            _work(request, is_apart)
        except Exception as error:
            # An interrupt may have caused the error, as sometimes in imports of torch and numpy.
            # In that case this call raises the interrupt.
            request.on_poll()
            self._is_spoilt = self._is_spoilt or (not is_apart and spoils_process(error))
            # These errors need no traceback of bsweep: their messages say what to do.
            is_full_disk = isinstance(error, OSError) and is_full(error)
            if not (is_full_disk or isinstance(error, ProgramError)):
                traceback.print_exc()
            return Outcome(status_of(error), described(error))
        ended = recorded(request.paths)
        assert ended, "the worker returned without its last record"
        return ended


def _work(request: LaunchRequest, is_apart: bool) -> None:
    from bsweep.runlog.errors import Diverged

    config, paths, on_poll = request.config, request.paths, request.on_poll
    if request.entry != "bsweep.train.worker":
        measure = importlib.import_module(request.entry).measure
        with suppress(Diverged):  # the worker has recorded this end
            measure(config, paths, Place(), on_step=on_poll)
    elif is_apart:
        fresh_process.call(_train, config, paths, file_system_time(paths.folder), on_poll=on_poll)
    else:
        _train(config, paths, file_system_time(paths.folder), on_poll)


def _train(
    config: RunConfig,
    paths: RunPaths,
    launched_at: float,
    on_step: Callable[[], None] = lambda: None,
) -> None:
    from bsweep.runlog.errors import Diverged, Stopped
    from bsweep.train import worker

    with suppress(Diverged, Stopped):  # the worker has recorded this end
        worker.train(config, paths, Place(), launched_at=launched_at, on_step=on_step)
