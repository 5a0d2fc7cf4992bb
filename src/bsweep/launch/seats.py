"""Where points compute that run at once on this machine: on GPUs and cores of which no two of them
share any.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from bsweep.config import RunConfig
from bsweep.core.gpus import num_gpus
from bsweep.core.ranks import num_cores, usable_cores
from bsweep.launch.environment import own_gpus


@dataclass(frozen=True)
class Size:
    """How much of a machine a point takes."""

    num_cores: int
    num_gpus: int

    def __add__(self, other: Size) -> Size:
        return Size(self.num_cores + other.num_cores, self.num_gpus + other.num_gpus)

    def fits(self, room: Size) -> bool:
        return self.num_cores <= room.num_cores and self.num_gpus <= room.num_gpus


@dataclass(frozen=True)
class Seats:
    """Logical CPUs, here called cores, by their numbers, and GPUs as CUDA_VISIBLE_DEVICES names
    them.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...]

    @property
    def size(self) -> Size:
        return Size(len(self.cores), len(self.gpus))

    def first(self, size: Size) -> Seats | None:
        """Return so many of these; None where there are fewer."""
        return (
            Seats(self.cores[: size.num_cores], self.gpus[: size.num_gpus])
            if size.fits(self.size)
            else None
        )

    def without(self, taken: Iterable[Seats]) -> Seats:
        """Return those that nobody of others has taken."""
        cores = {core for seats in taken for core in seats.cores}
        gpus = {gpu for seats in taken for gpu in seats.gpus}
        return Seats(
            tuple(core for core in self.cores if core not in cores),
            tuple(gpu for gpu in self.gpus if gpu not in gpus),
        )

    def take(self) -> None:
        """Pin this thread, and all that it starts from now on, to these cores and GPUs."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        own_gpus.set(",".join(self.gpus) if self.gpus else None)


def of_machine(configs: Iterable[RunConfig]) -> Seats:
    """Return all that points may use here."""
    count = max((num_gpus(device) for device in {config.device for config in configs}), default=0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(number) for number in range(count)]
    return Seats(usable_cores(), tuple(gpus[:count]))


def size_of(config: RunConfig) -> Size:
    """Return what a point takes of this machine: all of it where it would take more.

    A worker has as many cores as it would have threads were the point alone: a point must not train
    in other numbers for what runs beside it. A worker on a GPU has the part of the cores that comes
    to its GPU. A parameter server computes with one thread, on a core of its own where workers
    train on cores.
    """
    gpus, cores, workers = num_gpus(config.device), num_cores(), config.num_workers
    threads = config.launch.threads_per_worker or max(1, cores // (gpus or workers))
    servers = 0 if gpus else config.num_server_processes
    return Size(min(cores, threads * workers + servers), min(gpus, workers))
