"""The launcher `inline`, which runs a point's only worker inside the `bsweep` process, where
breakpoints work as usual.

After a point that ran out of the host's memory, or of a GPU's memory during the capture of a CUDA
graph, this process trains no further point: it may fail, or has less memory, until it ends.
"""

from __future__ import annotations

import importlib
import traceback
from contextlib import suppress

from bsweep.core import memory
from bsweep.core.ranks import Place
from bsweep.core.whole_files import is_full
from bsweep.launch.launcher import Launcher, LaunchRequest
from bsweep.launch.outcome import Outcome, of_unfit_processes, recorded
from bsweep.runlog.shared_clock import file_system_time


class Inline(Launcher):
    """A launcher that runs a point's only worker in this process."""

    def __init__(self) -> None:
        self._spoilt_by = ""  # the failure that made this process unfit for training

    def launch(self, request: LaunchRequest) -> Outcome:
        """Run a point's only worker, and return the status of the run and, after a failure, the
        cause.

        Then free the GPU memory of the point, such as that of its CUDA graphs, for the next one.
        """
        # Import torch only when a worker runs.
        import torch

        from bsweep.train import graph_capture

        if reason := self._spoilt_by or graph_capture.lost_memory():
            return of_unfit_processes(reason)
        outcome = self._launched(request)
        if torch.cuda.is_initialized():
            memory.give_back_garbage()
        return outcome

    def _launched(self, request: LaunchRequest) -> Outcome:
        from bsweep.runlog.errors import ProgramError, described, spoils_process, status_of

        try:
            _work(request)
        except Exception as error:
            # An interrupt may have caused the error, as sometimes in imports of torch and numpy.
            # In that case this call raises the interrupt.
            request.on_poll()
            if spoils_process(error):
                self._spoilt_by = described(error)
            # These errors need no traceback of bsweep: their messages say what to do.
            is_full_disk = isinstance(error, OSError) and is_full(error)
            if not (is_full_disk or isinstance(error, ProgramError)):
                traceback.print_exc()
            return Outcome(status_of(error), described(error))
        ended = recorded(request.paths)
        assert ended, "the worker returned without its last record"
        return ended


def _work(request: LaunchRequest) -> None:
    from bsweep.runlog.errors import Diverged, Stopped

    config, paths, on_poll = request.config, request.paths, request.on_poll
    with suppress(Diverged, Stopped):  # the worker has recorded this end
        if request.entry == "bsweep.train.worker":
            from bsweep.train import worker

            launched_at = file_system_time(paths.folder)
            worker.train(config, paths, Place(), launched_at=launched_at, on_step=on_poll)
        elif request.entry == "bsweep.external.worker":
            from bsweep.external.worker import run_program

            run_program(config, paths, Place(), on_step=on_poll)
        else:
            importlib.import_module(request.entry).measure(config, paths, Place(), on_step=on_poll)
