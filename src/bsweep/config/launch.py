"""The settings classes (cards) of the launchers, which start the workers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import chain, cycle, groupby, islice
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config import slurm
from bsweep.config.card import Point, clash
from bsweep.config.groups import LaunchConfig, StrategyConfig
from bsweep.config.hosts import SLURM, Hosts, same_name
from bsweep.config.values import (
    Count,
    Interface,
    Natural,
    Parallel,
    PathName,
    Port,
    SshOption,
    Variable,
)


class InlineConfig(LaunchConfig):
    name: Literal["inline"]

    builds: ClassVar[str] = "bsweep.launch.inline:Inline"
    starts_processes: ClassVar[bool] = False

    def problems(self, point: Point) -> Iterator[str]:
        if point.num_workers > 1:
            yield clash(point, "launch num_workers", "it runs one worker. Leave launch out.")
        yield from super().problems(point)


class ProcessesConfig(LaunchConfig):
    """The base class of the cards of launchers that start processes."""

    network_interface: Interface | None
    start_timeout_seconds: Count
    stall_timeout_seconds: Count
    reuse: bool = True
    retries: Natural = 0
    environment: tuple[Variable, ...] = ()

    gives_gpus: ClassVar[bool] = False
    """True if the launcher itself assigns the GPUs of each host to the workers."""

    changes_no_number: ClassVar[tuple[str, ...]] = (
        "start_timeout_seconds",
        "stall_timeout_seconds",
        "reuse",
        "retries",
        "environment",
    )

    @property
    def num_retries(self) -> int:
        return self.retries

    @property
    def uses_allocation(self) -> bool:
        """Return True if the launcher starts workers on the hosts of the surrounding SLURM
        allocation.
        """
        return False


class SshConfig(ProcessesConfig):
    """The base class of the cards of launchers that reach other hosts by ssh."""

    hosts: Hosts | None
    ssh_port: Port | None
    ssh_identity_file: PathName | None
    ssh_options: tuple[SshOption, ...] = ()
    parallel: Parallel = 1

    changes_no_number: ClassVar[tuple[str, ...]] = (
        *ProcessesConfig.changes_no_number,
        "ssh_port",
        "ssh_identity_file",
        "ssh_options",
        "parallel",
    )

    @property
    def uses_allocation(self) -> bool:
        return self.hosts == SLURM

    @property
    def named_hosts(self) -> str | None:
        return slurm.hosts(os.environ) if self.uses_allocation else self.hosts

    def problems(self, point: Point) -> Iterator[str]:
        if self.hosts and self.parallel != 1:
            remedy = "points run at the same time on one machine only. Leave one of them out."
            yield clash(point, "launch.parallel launch.hosts", remedy)
        # The hosts of an allocation are known only inside it.
        if self.hosts and not self.uses_allocation:
            num_slots = len(slots_of(self.hosts))
            if num_slots < point.num_workers:
                remedy = f"they offer {num_slots} slots. Name more, or use fewer workers."
                yield clash(point, "num_workers launch.hosts", remedy)
            names = [same_name(host) for host, _ in _entries(self.hosts)]
            if len({*names}) < len(names):
                yield f"launch.hosts={self.hosts} names a host twice: give its slots in one entry."
        yield from super().problems(point)


class HorovodrunConfig(SshConfig):
    name: Literal["horovodrun"]

    builds: ClassVar[str] = "bsweep.launch.horovodrun:Horovodrun"
    uses_horovod: ClassVar[bool] = True


class TorchrunConfig(SshConfig):
    name: Literal["torchrun"]

    builds: ClassVar[str] = "bsweep.launch.torchrun:Torchrun"


class SrunConfig(ProcessesConfig):
    name: Literal["srun"]

    builds: ClassVar[str] = "bsweep.launch.srun:Srun"
    gives_gpus: ClassVar[bool] = True
    uses_allocation: ClassVar[bool] = True

    @property
    def named_hosts(self) -> str | None:
        return slurm.hosts(os.environ)

    def why_not(self, strategy: StrategyConfig) -> str:
        can = strategy.can
        if not can.uses_horovod and (not can.launchers or "torchrun" in can.launchers):
            return ""
        return (
            f"launch=srun with strategy={strategy.name}: Horovod's workers find each other through "
            "horovodrun. Use launch=horovodrun launch.hosts=slurm, or strategy=allreduce."
        )


def most_at_once(launch: LaunchConfig) -> float:
    """Return the largest number of points of a sweep that may run at the same time; infinity for
    `launch.parallel=auto`.
    """
    if not isinstance(launch, SshConfig):
        return 1
    return math.inf if launch.parallel == "auto" else launch.parallel


def hosts_of_ranks(hosts: str, num_workers: int, num_servers: int = 0) -> list[str]:
    """Return the host name of each worker and of each server, in the order of their ranks. The
    workers, and then the servers, fill the slots of a list such as `h1:4,h2:4` in order.

    On hosts with GPUs a slot is one GPU. Servers need no GPU: servers for which no slot is left run
    beside workers, one host after the other.
    """
    slots = slots_of(hosts)
    return list(islice(chain(slots, cycle(dict.fromkeys(slots))), num_workers + num_servers))


def nodes_of(hosts: str, num_workers: int, num_servers: int = 0) -> list[tuple[str, int]]:
    """Return pairs of a host and the number of consecutive ranks whose processes run on it, in the
    order of the ranks. A host may occur several times.
    """
    return [
        (host, len(list(row)))
        for host, row in groupby(hosts_of_ranks(hosts, num_workers, num_servers))
    ]


def slots_of(hosts: str) -> list[str]:
    """Return the host name of each slot in a list of hosts such as `h1:4,h2:4`."""
    return [host for host, number in _entries(hosts) for _ in range(number)]


def slots_by_host(hosts: str | None) -> dict[str, int]:
    """Return the number of slots of each host in a list such as `h1:4,h2:4`, by host name; an empty
    dictionary if no hosts are named.
    """
    return dict(_entries(hosts)) if hosts else {}


def _entries(hosts: str) -> list[tuple[str, int]]:
    """Return pairs of a host name and its number of slots, from a list of hosts such as
    `h1:4,h2:4`.
    """
    return [
        (host, int(number))
        for host, _, number in (entry.partition(":") for entry in hosts.split(","))
    ]


AnyLaunch = Annotated[
    InlineConfig | HorovodrunConfig | TorchrunConfig | SrunConfig, Field(discriminator="name")
]
