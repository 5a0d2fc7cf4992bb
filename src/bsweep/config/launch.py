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
    Megabytes,
    Natural,
    Parallel,
    PathName,
    Port,
    SshOption,
    Variable,
)


class InlineConfig(LaunchConfig):
    """One worker in the parent process, for debuggers."""

    name: Literal["inline"]
    memory_limit_mb: tuple[Megabytes, ...] | None = None
    """[512]: MiB that its steps may take on a CPU, in addition to data and model"""

    builds: ClassVar[str] = "bsweep.launch.inline:Inline"
    starts_processes: ClassVar[bool] = False

    def problems(self, point: Point) -> Iterator[str]:
        if point.num_workers > 1:
            yield clash(point, "launch num_workers", "it runs one worker. Leave launch out.")
        yield from super().problems(point)


class ProcessesConfig(LaunchConfig):
    """The base class of the cards of launchers that start processes."""

    network_interface: Interface | None = None
    """network between hosts, such as eth0"""
    start_timeout_seconds: Count = 300
    """longest wait until all workers are ready to train"""
    stall_timeout_seconds: Count = 300
    """longest time without a sign of life"""
    reuse: bool = True
    """points with equal worker counts reuse their processes"""
    retries: Natural = 0
    """times to resume from the last checkpoint after a crash, a stall or a lost host, each after a
    longer wait
    """
    environment: tuple[Variable, ...] = ()
    """[HTTPS_PROXY]: variables that workers get in addition to PATH, CUDA_* and similar ones; see
    docs/machines.md
    """

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
    def uses_slurm(self) -> bool:
        """Return True if the launcher starts workers on the hosts of the surrounding SLURM
        allocation.
        """
        return False


class SshConfig(ProcessesConfig):
    """The base class of the cards of launchers that reach other hosts by ssh."""

    hosts: Hosts | None = None
    """h1:4,h2:4 (host:slots, over ssh) | h[1-8]:4 | @FILE | slurm (the allocation's) | null: this
    machine
    """
    ssh_port: Port | None = None
    """port of ssh on the hosts; null: that of the ssh configuration"""
    ssh_identity_file: PathName | None = None
    """private key for ssh; null: that of the ssh configuration"""
    ssh_options: tuple[SshOption, ...] = ()
    """[User=me,ProxyJump=gate]: options of ssh, before bsweep's own; see docs/machines.md"""
    parallel: Parallel = 1
    """points that run at the same time on this machine, each with its own GPUs or cores; auto: as
    many as fit
    """

    changes_no_number: ClassVar[tuple[str, ...]] = (
        *ProcessesConfig.changes_no_number,
        "ssh_port",
        "ssh_identity_file",
        "ssh_options",
        "parallel",
    )

    @property
    def uses_slurm(self) -> bool:
        return self.hosts == SLURM

    @property
    def named_hosts(self) -> str | None:
        return slurm.hosts(os.environ) if self.uses_slurm else self.hosts

    def problems(self, point: Point) -> Iterator[str]:
        if self.hosts and self.parallel != 1:
            remedy = "points run at the same time on one machine only. Leave one of them out."
            yield clash(point, "launch.parallel launch.hosts", remedy)
        # The hosts of an allocation are known only inside it.
        if self.hosts and not self.uses_slurm:
            num_slots = len(slots_of(self.hosts))
            if num_slots < point.num_workers:
                remedy = f"they offer {num_slots} slots. Name more, or use fewer workers."
                yield clash(point, "num_workers launch.hosts", remedy)
            names = [same_name(host) for host, _ in _entries(self.hosts)]
            if len({*names}) < len(names):
                yield f"launch.hosts={self.hosts} names a host twice: give its slots in one entry."
        yield from super().problems(point)


class HorovodrunConfig(SshConfig):
    """One process for each worker, started by horovodrun."""

    name: Literal["horovodrun"]

    builds: ClassVar[str] = "bsweep.launch.horovodrun:Horovodrun"
    uses_horovod: ClassVar[bool] = True


class TorchrunConfig(SshConfig):
    """One process for each worker and server, started by torchrun, on each host by ssh."""

    name: Literal["torchrun"]

    builds: ClassVar[str] = "bsweep.launch.torchrun:Torchrun"


class SrunConfig(ProcessesConfig):
    """One process for each worker and server, as tasks of a step of the SLURM allocation in which
    the sweep was started.
    """

    name: Literal["srun"]
    network_interface: Interface | None = None
    """network between hosts, such as ib0; null: the network of the nodes' names"""

    builds: ClassVar[str] = "bsweep.launch.srun:Srun"
    gives_gpus: ClassVar[bool] = True
    uses_slurm: ClassVar[bool] = True

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
