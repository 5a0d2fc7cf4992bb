"""The sweep inside horovodrun: the same warm processes train point after point.

Rank 0 composes, checks and writes as the parent of a sweep always does; its launcher sends the
point to the other ranks and trains it here with them. They follow until rank 0 has no more.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.runner.http.http_server import RendezvousHandler, RendezvousServer

from bsweep import runlog
from bsweep.config import HorovodConfig, RunConfig
from bsweep.core.ranks import Place
from bsweep.launch import stop
from bsweep.launch.outcome import Outcome, recorded
from bsweep.runlog import RunPaths
from bsweep.runlog.errors import Diverged, Stopped, WorkerLost, described, spoils_process, status_of
from bsweep.train import worker

_INTERRUPTED = 130  # the exit code
_TOLD_SECONDS = 1.0


class WarmRank:
    """One of the processes of horovodrun, which train point after point together."""

    def __init__(self) -> None:
        self._is_training = False
        self._spoilt_by: str | None = None  # the failure after which nothing more is trained here
        self._meeting_point: tuple[str, str] | None = None  # of the next restart: address and port
        self._registry: RendezvousServer | None = None  # this process's, on rank 0

    def run(self, lead: Callable[[], int]) -> int:
        """Run `lead` on rank 0, follow it on the others, and return an exit code that all share."""
        # A restart waits for the slowest rank's step.
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "300")
        hvd.init()
        self.agree_where_to_meet()
        if hvd.rank():
            stop.leave_it_to_first_worker()
            code = self._follow()
        else:
            code = self._lead(lead)
        hvd.shutdown()
        return code

    def _lead(self, lead: Callable[[], int]) -> int:
        try:
            code = lead()
        except KeyboardInterrupt:
            if not self._is_training:  # else the others are in a step, and would not hear it
                _send(_INTERRUPTED)
                hvd.shutdown()
            raise
        _send(code)
        return code

    def launch(self, config: RunConfig, paths: RunPaths, on_poll: Callable[[], None]) -> Outcome:
        """Train a point on all ranks; called on rank 0."""
        if self._spoilt_by:
            return Outcome(
                "interrupted",
                "not trained, for oneDNN may fail in these processes since an earlier point "
                f"({self._spoilt_by}): start again, without that point or without horovodrun",
            )
        _send((config, paths.folder.resolve()))
        self._is_training = True
        outcome = self._train(config, paths, on_poll)
        if outcome is None:  # `_is_training` stays: nobody is left who would hear of anything
            return Outcome(
                "interrupted",
                "another worker ended, and horovodrun has all others end: see what it printed",
            )
        self._is_training = False
        return outcome

    def _follow(self) -> int:
        while True:
            message: int | tuple[RunConfig, Path] = _send(None)
            if isinstance(message, int):
                return message
            config, folder = message
            self._train(config, RunPaths(folder), lambda: None)

    def _train(
        self, config: RunConfig, paths: RunPaths, on_step: Callable[[], None]
    ) -> Outcome | None:
        """Train together, and agree on how it ended: a rank that failed by itself speaks for those
        that lost it.

        Return None where horovodrun ends all processes, for one of them ended: they would not find
        each other again.
        """
        report = _attempt(config, paths, on_step)
        gc.collect()  # cycles, and tracebacks, hold the model
        torch.cuda.empty_cache()  # blocks of this point's sizes would be in the next one's way
        if report:
            if (
                report.is_consequence
                and Place.from_environment().rank == 0
                and _is_told_to_stop(paths)
            ):
                return None
            self.restart()  # breaks off what the other ranks wait for
        try:
            reports = hvd.allgather_object(report, name="report")
        except HorovodInternalError:  # another rank failed after this one had finished
            self.restart()
            reports = hvd.allgather_object(report, name="report")
        failures: list[_Failure] = sorted(
            (r for r in reports if r), key=lambda report: report.is_consequence
        )
        if failures:
            first: _Failure = failures[0]
            if any(failure.spoils_process for failure in failures):
                self._spoilt_by = first.outcome.message
            return first.outcome
        ended = recorded(paths)
        assert ended or hvd.rank(), "training returned without its last record"
        return ended or Outcome("completed")

    def restart(self) -> None:
        """Meet the other ranks after a failure.

        With a knob in the environment, Horovod 0.28.1 crashes when it restarts.
        """
        variables = (variable for variable, *_ in HorovodConfig.knobs.values())
        if knobs := ", ".join(variable for variable in variables if variable in os.environ):
            raise SystemExit(
                f"bsweep: {knobs} set: cannot go on past a failed point; start again for the rest"
            )
        assert self._meeting_point, "run() has not begun"
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = (
            self._meeting_point
        )
        hvd.shutdown()
        hvd.init()
        self.agree_where_to_meet()

    def agree_where_to_meet(self) -> None:
        """Have rank 0 keep the registry in which ranks find each other when they restart, and say
        where, while all can hear.

        horovodrun's own cannot be used twice: a part whose ranks are through makes it forget who
        else was (its `finished_list.clear()`), so that addresses stay of which nobody listens any
        more, and Horovod aborts.
        """
        mine = None
        if hvd.rank() == 0:
            if self._registry:
                self._registry.stop()
            self._registry = RendezvousServer()
            mine = (_own_address(), str(self._registry.start(_Registry)))
        self._meeting_point = hvd.broadcast_object(mine, root_rank=0, name="meeting point")


def _send(message: object) -> Any:
    """Return what rank 0 says; the others give None.

    Horovod would name the exchange by the type, which differs.
    """
    return hvd.broadcast_object(message, root_rank=0, name="message")


def _is_told_to_stop(paths: RunPaths) -> bool:
    """Tell whether this process is, as horovodrun tells all a moment after one has ended."""
    ends = time.monotonic() + _TOLD_SECONDS
    while not (is_told := runlog.is_stop_requested(paths)) and time.monotonic() < ends:
        time.sleep(0.05)
    return is_told


@dataclass(frozen=True)
class _Failure:
    outcome: Outcome
    is_consequence: bool
    spoils_process: bool


def _attempt(config: RunConfig, paths: RunPaths, on_step: Callable[[], None]) -> _Failure | None:
    try:
        worker.train(
            config, paths, Place.from_environment(), launched_at=time.time(), on_step=on_step
        )
    except (Diverged, Stopped):
        return None  # on all ranks alike, and on record
    except Exception as error:
        if isinstance(error, WorkerLost):  # where Horovod noticed it tells nothing of who, or why
            print(f"rank {hvd.rank()}: {str(error).splitlines()[0]}", file=sys.stderr)
        else:
            traceback.print_exc()
        message = f"rank {hvd.rank()} failed: {described(error)}"
        return _Failure(
            Outcome(status_of(error), message), isinstance(error, WorkerLost), spoils_process(error)
        )
    return None


class _Registry(RendezvousHandler):  # type: ignore[misc]
    """Keeps all that it is told: a registry serves one meeting."""

    def do_DELETE(self) -> None:
        self.send_status_code(200)


def _own_address() -> str:
    """Return this host's, as those see it that see horovodrun."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], 1))  # nothing is sent
        address: str = probe.getsockname()[0]
    return address


_RANK = WarmRank()  # one for the process: horovodrun started it for all points that it will train
run, launch = _RANK.run, _RANK.launch
