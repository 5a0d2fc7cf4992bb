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
from dataclasses import replace
from multiprocessing.connection import wait

from bsweep import launch
from bsweep.config.launch import most_at_once
from bsweep.config.run import RunConfig
from bsweep.core import signals, terminal
from bsweep.core.signals import end_with_parent
from bsweep.core.words import counted
from bsweep.launch import LaunchRequest, Outcome, resources
from bsweep.launch.resources import Resources
from bsweep.runlog.files import write_json
from bsweep.runlog.reading import read_meta
from bsweep.study.provenance import provenance
from bsweep.study.run_point import Launch
from bsweep.trackers import live

logger = terminal.logger(__name__)

_FORK = multiprocessing.get_context("fork")
_POLL_SECONDS = 0.2

RunPoint = Callable[[int, Launch], str]
"""The type of a function that runs the point with an index, and returns its status."""


def why_in_turn(configs: Sequence[RunConfig]) -> str | None:
    """Return None if points can run at once: `launch.parallel` asks for that, and this machine has
    room for two of them. Otherwise return the reason, or an empty text if nobody asked for that.
    """
    if len(configs) < 2 or min(most_at_once(config.launch) for config in configs) == 1:
        return ""
    machine, amounts = resources.of_machine(configs), map(resources.amount_for, configs)
    first, second, *_ = sorted(amounts, key=lambda amount: (amount.num_gpus, amount.num_cores))
    taken = machine.first(first)
    if taken and machine.without([taken]).first(second):
        return None
    gpus = f"{counted(len(machine.gpus), 'GPU')} and " if machine.gpus else ""
    remedy = " Workers take all cores by default: give for example launch.threads_per_worker=1."
    if gpus or len(machine.cores) == 1 or all(c.launch.threads_per_worker for c in configs):
        remedy = ""
    return (
        f"launch.parallel: points run one after another, because this machine's {gpus}"
        f"{counted(len(machine.cores), 'core')} have no room for two points.{remedy}"
    )


def run_at_once(configs: Sequence[RunConfig], run_point: RunPoint) -> list[str]:
    """Run points, as many at once as `launch.parallel` allows and this machine has room for, and
    return the status of each.

    Args:
        configs: The points.
        run_point: Runs the point with an index in `configs`. It is called in child processes.

    Raises:
        KeyboardInterrupt: If the points were asked to stop. All of them have stopped by then.
    """
    provenance()  # a child sees only the cores to which it is bound
    machine = resources.of_machine(configs)
    amounts = [resources.amount_for(config) for config in configs]
    most = min(len(machine.cores), *(most_at_once(config.launch) for config in configs))
    received, num_passed = list[int](), 0  # the signals that came
    waiting, running, statuses = list(range(len(configs))), list[_Child](), dict[int, str]()
    with signals.handled(lambda number, _: received.append(number)):
        while (waiting and not received) or running:
            free = machine.without(child.taken for child in running)
            for index in list(waiting):
                taken = free.first(amounts[index])
                if taken and not received and len(running) < most:
                    running.append(_Child(run_point, index, taken, received))
                    free = free.without([taken])
                    waiting.remove(index)
                    for neighbor in running if len(running) > 1 else ():
                        neighbor.has_company.set()
            for number in received[num_passed:]:
                num_passed += 1
                _pass_on(number, running)
            ready = wait([child.connection for child in running], _POLL_SECONDS)
            for child in [child for child in running if child.connection in ready]:
                running.remove(child)
                statuses[child.index] = child.status()
                if statuses[child.index] == "stopped" and not received:
                    received.append(signal.SIGTERM)  # somebody asked only this point to stop
    for process in _FORK.active_children():  # trackers may still copy the last records
        process.join()
    if received:
        raise KeyboardInterrupt
    return [statuses[index] for index in range(len(configs))]


class _Child:
    """A child process that runs a point.

    Args:
        run_point: Runs the point with an index.
        index: The index of the point.
        taken: The cores and GPUs that the point has for itself.
        received: The signals that this process has received, none yet.
    """

    def __init__(
        self, run_point: RunPoint, index: int, taken: Resources, received: list[int]
    ) -> None:
        self.index, self.taken, self.has_company = index, taken, _FORK.Event()
        self.connection, connection = _FORK.Pipe()

        def run() -> None:
            os.setsid()  # the parent process alone gets Ctrl-C, and passes it on
            end_with_parent()
            status = "stopped"
            with signals.handled(terminal.interrupt), suppress(KeyboardInterrupt):
                if not received:
                    taken.take()
                    status = run_point(index, self._launch)
            connection.send(status)
            live.end()

        self.process = _FORK.Process(target=run, daemon=True)
        self.process.start()
        connection.close()

    def status(self) -> str:
        """Return the status of the point that has ended, "stopped" if somebody asked it to stop."""
        with self.connection, suppress(EOFError, OSError):  # it was killed
            return str(self.connection.recv())
        self.process.join()
        code = self.process.exitcode
        logger.error(f"bsweep: the process that ran a point has ended (exit code {code})")
        return "interrupted"  # a run without a summary reads as interrupted, too

    def _launch(self, request: LaunchRequest) -> Outcome:
        """Launch a point, wait for its end, and note in its run folder if other points ran at the
        same time.
        """
        is_noted = False

        def poll() -> None:
            nonlocal is_noted
            request.on_poll()
            if self.has_company.is_set() and not is_noted:
                is_noted = True
                facts = read_meta(request.paths)
                write_json(request.paths.meta, {**facts, "beside_others": True})

        return launch.launch(replace(request, on_poll=poll))


def _pass_on(number: int, children: Sequence[_Child]) -> None:
    """Send a signal to child processes."""
    if number == signal.SIGHUP:
        terminal.leave()
    for child in children:
        with suppress(ProcessLookupError):  # it was killed
            os.kill(child.process.pid or 0, number)
