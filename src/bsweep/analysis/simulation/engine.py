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

LANE = "network"
"""The links that carry one exchange after another."""


class Compute(NamedTuple):
    """An operation in which each worker computes a share of its step's time."""

    share: float


class Exchange(NamedTuple):
    """An operation that begins an exchange once all workers have come to it, and goes on at once.

    `seconds` is how long the exchange takes, one value for each step. `lane` names the links that
    exchange one after another.
    """

    name: str
    seconds: Array
    lane: str = LANE


class Wait(NamedTuple):
    """An operation in which a worker waits for the end of an exchange, of the same step or of
    `steps_before`.
    """

    name: str
    steps_before: int = 0


Program = Sequence[Compute | Exchange | Wait]


class Span(NamedTuple):
    """A stretch of time in a simulated step: what a worker, or a lane of exchanges, does.

    A worker is `computing`, `waiting` until the slowest worker has come to an exchange, or in
    `exchange`, which other exchanges may delay. A lane carries an exchange, by its name.
    """

    who: str
    what: str
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True, eq=False)
class Ran:
    """The end of each simulated step, in seconds since the beginning, and what happened in the
    first steps.
    """

    ends: Array
    exchanged: Array  # seconds in which exchanges were under way, by step
    spans: tuple[Span, ...]

    @property
    def step_seconds(self) -> Array:
        """The seconds of each step."""
        return np.diff(self.ends, prepend=0.0)


def run(program: Program, busy: Array, classes: Sequence[Numbers], told_steps: int = 1) -> Ran:
    """Simulate the steps of a program, and return when each step ended.

    Args:
        program: The operations of a step.
        busy: The seconds that each worker would compute alone, shape (steps, workers).
        classes: The workers of each class. Together they are all workers, each once.
        told_steps: Of how many steps the spans are kept.
    """
    events = _Events(simpy.Environment(), len(classes), len(busy), told_steps)
    for members in classes:
        slowest = busy[:, members].max(axis=1)
        who = f"worker {members[0]}" if len(members) == 1 else "slowest worker"
        events.environment.process(_work(events, program, slowest, who))
    events.environment.run()
    return Ran(events.ends, events.exchanged, tuple(events.spans))


@dataclass(eq=False)
class _Events:
    """The state of one simulation."""

    environment: simpy.Environment
    num_classes: int
    num_steps: int
    told_steps: int

    def __post_init__(self) -> None:
        self.ends = np.zeros(self.num_steps)
        self.exchanged = np.zeros(self.num_steps)
        self.spans: list[Span] = []
        self._arrived: dict[tuple[str, int], int] = {}
        self._done: dict[tuple[str, int], simpy.Event] = {}
        self._met_at: dict[tuple[str, int], float] = {}  # of the told steps
        self._free_at: dict[str, float] = {}

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
            begin = max(now, self._free_at.get(exchange.lane, 0.0))
            end = begin + float(exchange.seconds[step])
            self._free_at[exchange.lane] = end
            self.exchanged[step] += end - begin
            if step < self.told_steps:
                self._met_at[key] = now
                self.spans.append(Span(exchange.lane, exchange.name, begin, end))
            done = self.done(*key)
            self.environment.process(self._end(done, end - now))

    def tell(self, who: str, operation: Compute | Wait, step: int, begin: float) -> None:
        """Keep what a worker has done since `begin`."""
        times = {"computing": (begin, self.environment.now)}
        if isinstance(operation, Wait):
            middle = max(begin, self._met_at[operation.name, step - operation.steps_before])
            times = {"waiting": (begin, middle), "exchange": (middle, self.environment.now)}
        self.spans += [Span(who, what, *ends) for what, ends in times.items() if ends[0] < ends[1]]

    def _end(self, done: simpy.Event, seconds: float) -> Generator[simpy.Event, Any, None]:
        yield self.environment.timeout(seconds)
        done.succeed()


def _work(
    events: _Events, program: Program, slowest: Array, who: str
) -> Generator[simpy.Event, Any, None]:
    """Carry out the program as one class of workers, step by step."""
    environment = events.environment
    for step, seconds in enumerate(slowest):
        for operation in program:
            begin = environment.now
            if isinstance(operation, Exchange):
                events.arrive(operation, step)
                continue
            if isinstance(operation, Compute):
                yield environment.timeout(operation.share * seconds)
            elif step >= operation.steps_before:
                yield events.done(operation.name, step - operation.steps_before)
            if step < events.told_steps and environment.now > begin:
                events.tell(who, operation, step, begin)
        events.ends[step] = max(events.ends[step], environment.now)


def one_class(num_workers: int) -> list[Numbers]:
    """Return the classes in which one stands for all workers."""
    return [np.arange(num_workers)]


def unfolded(num_workers: int) -> list[Numbers]:
    """Return the classes in which each worker is one."""
    return [np.array([worker]) for worker in range(num_workers)]
