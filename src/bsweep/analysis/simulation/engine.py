"""The events of simulated training steps, by SimPy: workers compute and exchange, and all links of
an exchange serve one exchange after another.

A step is a program of operations, which all workers carry out. Workers form classes; one process
of SimPy stands for all workers of a class. Each worker has its own time for a step. Between two
meetings of all workers only the last worker of a class counts, so that it makes no difference
whether a class has one worker or all of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simpy

from bsweep.analysis.simulation.network import Array, Numbers


class Compute(NamedTuple):
    """An operation in which each worker computes a share of its step's time."""

    share: float


class Exchange(NamedTuple):
    """An operation that begins an exchange once all workers have come to it, and goes on at once.

    `seconds` is how long the exchange takes, one value for each step.
    """

    name: str
    seconds: Array


class Wait(NamedTuple):
    """An operation in which a worker waits for the end of an exchange, of the same step or of
    `steps_before`.
    """

    name: str
    steps_before: int = 0


Program = Sequence[Compute | Exchange | Wait]


def run(program: Program, busy: Array, classes: Sequence[Numbers]) -> Array:
    """Simulate the steps of a program, and return the seconds of each step.

    Args:
        program: The operations of a step.
        busy: The seconds that each worker would compute alone, shape (steps, workers).
        classes: The workers of each class. Together they are all workers, each once.
    """
    events = _Events(simpy.Environment(), len(classes), len(busy))
    for members in classes:
        slowest = busy[:, members].max(axis=1)
        events.environment.process(_work(events, program, slowest))
    events.environment.run()
    return np.diff(events.ends, prepend=0.0)


@dataclass(eq=False)
class _Events:
    """The state of one simulation."""

    environment: simpy.Environment
    num_classes: int
    num_steps: int

    def __post_init__(self) -> None:
        self.ends = np.zeros(self.num_steps)
        self._arrived: dict[tuple[str, int], int] = {}
        self._done: dict[tuple[str, int], simpy.Event] = {}
        self._free_at = 0.0  # when the links have carried the last exchange

    def done(self, name: str, step: int) -> simpy.Event:
        """Return the event that an exchange has ended."""
        return self._done.setdefault((name, step), self.environment.event())

    def arrive(self, exchange: Exchange, step: int) -> None:
        """Count a class of workers that has come to an exchange, and begin it with the last one."""
        key = exchange.name, step
        self._arrived[key] = self._arrived.get(key, 0) + 1
        if self._arrived[key] == self.num_classes:
            del self._arrived[key]
            now = self.environment.now
            self._free_at = max(now, self._free_at) + float(exchange.seconds[step])
            self.environment.process(self._end(self.done(*key), self._free_at - now))

    def _end(self, done: simpy.Event, seconds: float) -> Generator[simpy.Event, Any, None]:
        yield self.environment.timeout(seconds)
        done.succeed()


def _work(events: _Events, program: Program, slowest: Array) -> Generator[simpy.Event, Any, None]:
    """Carry out the program as one class of workers, step by step."""
    environment = events.environment
    for step, seconds in enumerate(slowest):
        for operation in program:
            if isinstance(operation, Exchange):
                events.arrive(operation, step)
            elif isinstance(operation, Compute):
                yield environment.timeout(operation.share * seconds)
            elif step >= operation.steps_before:
                yield events.done(operation.name, step - operation.steps_before)
        events.ends[step] = max(events.ends[step], environment.now)


def one_class(num_workers: int) -> list[Numbers]:
    """Return the classes in which one stands for all workers."""
    return [np.arange(num_workers)]


def unfolded(num_workers: int) -> list[Numbers]:
    """Return the classes in which each worker is one."""
    return [np.array([worker]) for worker in range(num_workers)]
