"""Which worker am I? Read from what the launcher put into the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A process's number among all workers and among those of its host; parameter servers follow
    the workers.
    """

    rank: int = 0
    num_workers: int = 1
    local_rank: int = 0
    local_workers: int = 1

    @property
    def is_server(self) -> bool:
        return self.rank >= self.num_workers

    def threads(self, wanted: int | None) -> int:
        """Threads that this process computes with: as many as wanted, by default its part of the
        machine's cores.
        """
        return wanted or max(1, num_cores() // self.local_workers)

    @classmethod
    def from_environment(cls, num_servers: int = 0) -> Place:
        """The place that horovodrun or torchrun gave to this process; a lone worker's where there
        is none.
        """
        env = os.environ
        names = _HOROVODRUN if inside_horovodrun() else _TORCHRUN
        rank, size, local_rank, local_size = (
            int(env.get(name, default)) for name, default in zip(names, (0, 1, 0, 1), strict=True)
        )
        num_workers = size - num_servers
        first_here = rank - local_rank
        return cls(rank, num_workers, local_rank, max(1, min(local_size, num_workers - first_here)))


_HOROVODRUN = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def inside_horovodrun() -> bool:
    return "HOROVOD_RANK" in os.environ


def num_cores() -> int:
    """Cores that this process may use; a thread that is pinned to some, and what it starts, those
    alone.
    """
    return len(usable_cores())


def usable_cores() -> tuple[int, ...]:
    """The numbers of those cores."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))
