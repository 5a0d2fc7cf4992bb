"""The launcher for sweeps that the user starts inside horovodrun; the processes of horovodrun train
one point after another.

Rank 0 composes and checks the points and writes the study's files, as the parent process of another
sweep does. The launcher on rank 0 sends each point to the other ranks and trains it together with
them, until rank 0 has no more points.

Horovod carries the points, and not the files of a team (`bsweep.train.team_files`). Rank 0 trains,
too, and all ranks must agree on how a point ended, so they need an exchange after each point.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.runner.http.http_server import RendezvousHandler, RendezvousServer

from bsweep.config.run import RunConfig
from bsweep.config.strategies import HorovodConfig
from bsweep.core import memory, signals
from bsweep.core.ranks import World
from bsweep.launch import inline
from bsweep.launch.horovodrun_command import listen_only_at
from bsweep.launch.launcher import LaunchRequest, Outcome
from bsweep.runlog.checkpoint_files import is_stop_requested
from bsweep.runlog.files import RunPaths

_INTERRUPTED = 130  # the exit code of an interrupted command
_SIGNAL_SECONDS = 1.0


class WarmRank:
    """One of the processes that horovodrun has started, which train the points of a sweep, one
    after another.
    """

    def __init__(self) -> None:
        self._is_training = False
        # The address and the port where ranks meet at the next restart.
        self._meeting_point: tuple[str, str] | None = None
        self._registry: RendezvousServer | None = None  # only rank 0 has one

    def run(self, lead: Callable[[], int]) -> int:
        """On rank 0 alone, call the function that runs the sweep; return its exit code on all
        ranks.

        The other ranks train the points of the sweep together with rank 0.
        """
        # A restart must wait for the slowest rank's step.
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "300")
        hvd.init()
        self.agree_where_to_meet()
        if hvd.rank():
            # Rank 0 also gets the first signal to stop, and decides for all ranks; the second one
            # raises KeyboardInterrupt.
            signals.handle(lambda *_: signals.handle(signal.default_int_handler))
            code = self._follow()
        else:
            code = self._lead(lead)
        hvd.shutdown()
        return code

    def _lead(self, lead: Callable[[], int]) -> int:
        try:
            code = lead()
        except KeyboardInterrupt:
            if not self._is_training:  # while training, the other ranks could not receive it
                _send(_INTERRUPTED)
                hvd.shutdown()
            raise
        _send(code)
        return code

    def launch(self, request: LaunchRequest) -> Outcome:
        """Train a point on all ranks of horovodrun, unless an earlier point has made them unfit to
        train, and return how the run ended.

        Only rank 0 calls this method.
        """
        if unfit := inline.refusal():
            return unfit
        _send((request.config, request.paths.folder.resolve()))
        self._is_training = True
        failures = self._train(request)
        if failures is None:  # `_is_training` stays True, for no rank is left to receive messages
            return Outcome(
                "interrupted",
                "another worker ended, and horovodrun then ends all workers: see what horovodrun "
                "printed",
            )
        self._is_training = False
        return inline.outcome_of(failures, request.paths)

    def _follow(self) -> int:
        while True:
            message: int | tuple[RunConfig, Path] = _send(None)
            if isinstance(message, int):
                return message
            config, folder = message
            self._train(LaunchRequest(config, RunPaths(folder), lambda: None))

    def _train(self, request: LaunchRequest) -> list[inline.Failure | None] | None:
        """Train a point together with the other ranks, and return the failure of each rank.

        On rank 0, return None if another process ended and horovodrun therefore asks this one to
        stop: the ranks could not meet again.
        """
        failure = inline.run_here(request, World.from_environment())
        memory.give_back_garbage()
        if failure:
            if failure.is_consequence and hvd.rank() == 0 and _is_asked_to_stop(request.paths):
                return None
            self.restart()  # also ends the exchange that the other ranks wait for
        try:
            failures = hvd.allgather_object(failure, name="failure")
        except HorovodInternalError:  # another rank failed after this one had finished
            self.restart()
            failures = hvd.allgather_object(failure, name="failure")
        return list(failures)

    def restart(self) -> None:
        """Shut Horovod down on this rank after a failure, and start it again together with the
        other ranks.

        Raises:
            SystemExit: If a Horovod knob is set in the environment, for Horovod 0.28.1 then crashes
                when it restarts.
        """
        variables = (variable for variable, *_ in HorovodConfig.knobs.values())
        if knobs := [variable for variable in variables if variable in os.environ]:
            raise SystemExit(
                f"bsweep: {', '.join(knobs)} {'is' if len(knobs) == 1 else 'are'} set in the "
                "environment, and Horovod 0.28.1 then cannot train another point after a failed "
                "one: type the same command again for the remaining points"
            )
        assert self._meeting_point, "run() has not begun"
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = (
            self._meeting_point
        )
        hvd.shutdown()
        hvd.init()
        self.agree_where_to_meet()

    def agree_where_to_meet(self) -> None:
        """Start a registry server on rank 0, through which ranks find each other if Horovod
        restarts, and tell all ranks its address.

        The ranks learn its address now, while all can still communicate. horovodrun's own registry
        cannot be used twice. Once the ranks of a scope have finished, it forgets which others had
        (`finished_list.clear()`). Stale addresses then remain at which nobody listens, and Horovod
        aborts.
        """
        mine = None
        if hvd.rank() == 0:
            if self._registry:
                self._registry.stop()
            self._registry = RendezvousServer()
            address = _own_address()
            listen_only_at(address)
            mine = (address, str(self._registry.start(_Registry)))
        self._meeting_point = hvd.broadcast_object(mine, root_rank=0, name="meeting point")


def _send(message: object) -> Any:
    """Broadcast a message from rank 0 to all ranks, and return it on each rank. The other ranks
    pass None.

    The exchange has a fixed name, for Horovod would otherwise name it by the type of the message,
    which differs between ranks.
    """
    return hvd.broadcast_object(message, root_rank=0, name="message")


def _is_asked_to_stop(paths: RunPaths) -> bool:
    """Wait up to a second for a request to stop the run, and return True if there is one.

    horovodrun sends signals to all processes a moment after one of them has ended.
    """
    ends = time.monotonic() + _SIGNAL_SECONDS
    while not (is_asked := is_stop_requested(paths)) and time.monotonic() < ends:
        time.sleep(0.05)
    return is_asked


class _Registry(RendezvousHandler):  # type: ignore[misc]
    """The HTTP handler of a Horovod registry, which ignores requests to delete entries because the
    registry serves only one meeting of the ranks.
    """

    def do_DELETE(self) -> None:
        self.send_status_code(200)


def _own_address() -> str:
    """Return the IP address from which this host reaches horovodrun's registry server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], 1))  # nothing is sent
        address: str = probe.getsockname()[0]
    return address


_RANK = WarmRank()  # horovodrun starts each process once, for all of its points
run, launch = _RANK.run, _RANK.launch
