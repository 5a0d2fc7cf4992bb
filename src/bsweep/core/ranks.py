"""The rank of this process and the number of workers, read from the environment that the launcher
set, and the cores that this process may use.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class World:
    """The rank of a process in its run and on its host, and the number of workers in the run and on
    the host. Parameter servers come after the workers.
    """

    rank: int = 0
    num_workers: int = 1
    local_rank: int = 0
    local_workers: int = 1

    @property
    def is_server(self) -> bool:
        return self.rank >= self.num_workers

    def threads(self, wanted: int | None) -> int:
        """Return the number of threads with which this process computes: `wanted`, or by default
        the number of cores that this process may use divided by the workers of its host, but at
        least one.
        """
        return wanted or max(1, num_cores() // self.local_workers)

    @classmethod
    def from_environment(cls, num_servers: int = 0) -> World:
        """Return the ranks and numbers in the environment variables of horovodrun or torchrun,
        which `launch=srun` sets, too. Without these variables the process has rank 0 of one worker.
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
    """Return True if horovodrun started this process: that around the command, or that of a
    launcher, whose workers it starts.
    """
    return "HOROVOD_RANK" in os.environ


def horovodrun_size() -> int | None:
    """Return how many processes the surrounding horovodrun has started; None outside of one."""
    return int(os.environ["HOROVOD_SIZE"]) if inside_horovodrun() else None


def num_cores() -> int:
    """Return the number of cores that this process may use, which is no larger than the number of
    whole cores that a container's limit of processor time grants. A thread that is pinned to some
    cores, and what it starts, may use only those.
    """
    return max(1, min(len(usable_cores()), _granted_cores()))


def usable_cores() -> tuple[int, ...]:
    """Return the indices of the CPU cores that this process may use, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""The folder of the control groups, and the file that names those of this process."""


def own_groups() -> dict[str, Path]:
    """Return the folders of this process's control groups by the name of their controller, such as
    `memory`; that of version 2 has an empty name.
    """
    groups: dict[str, Path] = {}
    with suppress(OSError):
        for line in OWN_GROUP.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            for controller in controllers.split(","):
                groups[controller] = GROUPS / controller / name.lstrip("/")
    return groups


def _granted_cores() -> int:
    """Return the number of whole cores whose time the control groups of this process (version 2)
    grant; a large number if there is no limit.
    """
    granted = sys.maxsize
    group = own_groups().get("", GROUPS)
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # no such file, or "max" without a limit
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            granted = min(granted, quota // period)
    return granted
