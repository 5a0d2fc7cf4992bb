"""The setting `launch.parallel`, by which several points run at the same time on one machine.

Child processes of the sweep run them, one each. Each point gets cores of its own and, if it trains
on GPUs, GPUs of its own. The next point to begin is the first one in the grid that fits into the
free GPUs and cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess

from bsweep.config.run import RunConfig
from bsweep.core import signals, terminal
from bsweep.launch import resources
from bsweep.launch.resources import Resources
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.reading import read_meta
from bsweep.study.provenance import machine_and_code
from bsweep.trackers import live

logger = terminal.logger(__name__)

_FORK = multiprocessing.get_context("fork")
_POLL_SECONDS = 0.2

RunBeside = Callable[[int, Callable[[], None]], str]
"""The type of a function that runs the point with an index, and returns its status. It calls the
given function a few times a second meanwhile.
"""


def run_at_once(configs: Sequence[RunConfig], run_beside: RunBeside) -> list[str]:
    """Run points, as many at once as `launch.parallel` allows and this machine has room for, and
    return the status of each.

    Args:
        configs: The points.
        run_beside: Runs the point with an index in `configs`. It is called in child processes.

    Raises:
        KeyboardInterrupt: If the points were asked to stop. All of them have stopped by then.
    """
    machine_and_code()  # a child sees only the cores to which it is bound
    machine = resources.of_machine(configs)
    most = min(resources.most_at_once(configs), len(machine.cores))
    received, num_passed = list[int](), 0  # the signals that came
    waiting = {index: resources.amount_for(config) for index, config in enumerate(configs)}
    running, ended, statuses = list[_Child](), list[_Child](), dict[int, str]()
    with signals.handled(lambda number, _: received.append(number)):
        while (waiting and not received) or running:
            free = machine.without(child.taken for child in running)
            for index, amount in list(waiting.items()):
                taken = free.first(amount)
                if taken and not received and len(running) < most:
                    paths = RunPaths(configs[index].folder)
                    running.append(_Child(run_beside, index, paths, taken, received))
                    free = free.without([taken])
                    del waiting[index]
            for child in running:
                if len(running) > 1:
                    child.has_company.set()
                for number in received[num_passed:]:
                    child.pass_on(number)
            num_passed = len(received)
            ready = wait([child.connection for child in running], _POLL_SECONDS)
            for child in [child for child in running if child.connection in ready]:
                running.remove(child)
                statuses[child.index] = child.status()
                child.connection.close()
                ended = [*(other for other in ended if other.is_alive()), child]
                if statuses[child.index] == "stopped" and not received:
                    received.append(signal.SIGTERM)  # somebody asked only this point to stop
    for child in ended:
        child.join()
    if received:
        raise KeyboardInterrupt
    return [statuses[index] for index in range(len(configs))]


class _Child(ForkProcess):
    """A child process that runs a point, and sends the point's status to its parent.

    Args:
        run_beside: Runs the point with an index.
        index: The index of the point.
        paths: The point's run folder.
        taken: The cores and GPUs that the point has for itself.
        received: The signals that the parent has received, none yet.
    """

    def __init__(
        self,
        run_beside: RunBeside,
        index: int,
        paths: RunPaths,
        taken: Resources,
        received: list[int],
    ) -> None:
        super().__init__(daemon=True)
        self._run_beside, self.index, self._paths = run_beside, index, paths
        self.taken, self._received = taken, received
        self.connection, self._to_parent = _FORK.Pipe()
        self.has_company = _FORK.Event()
        self._noted_at = 0  # when this process wrote the run's meta.json
        self.start()
        self._to_parent.close()

    def status(self) -> str:
        """Return the status of the point that has ended, "stopped" if somebody asked it to stop."""
        with suppress(EOFError, OSError):  # it was killed
            return str(self.connection.recv())
        self.join()
        logger.error(f"bsweep: the process that ran a point has ended (exit code {self.exitcode})")
        return "interrupted"  # a run without a summary reads as interrupted, too

    def pass_on(self, number: int) -> None:
        """Send a signal to the child."""
        if number == signal.SIGHUP:
            terminal.leave()
        with suppress(ProcessLookupError):  # it was killed
            os.kill(self.pid or 0, number)

    def run(self) -> None:
        os.setsid()  # the parent process alone gets Ctrl-C, and passes it on
        signals.end_with_parent()
        status = "stopped"
        with signals.handled(terminal.interrupt), suppress(KeyboardInterrupt):
            if not self._received:
                self.taken.take()
                status = self._run_beside(self.index, self._note_company)
        self._to_parent.send(status)
        live.end()

    def _note_company(self) -> None:
        """Note in the run folder if other points run at the same time. Each attempt begins with a
        new file.
        """
        meta = self._paths.meta
        if self.has_company.is_set() and self._noted_at != meta.stat().st_mtime_ns:
            write_json(meta, {**read_meta(self._paths), "beside_others": True})
            self._noted_at = meta.stat().st_mtime_ns
