"""Launchers: who starts the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.groups import LaunchConfig, Point
from bsweep.config.values import Count, Hosts


@dataclass(frozen=True, kw_only=True)
class InlineConfig(LaunchConfig):
    name: Literal["inline"]

    builds: ClassVar[str] = "bsweep.launch.inline"
    starts_processes: ClassVar[bool] = False

    def problems(self, point: Point) -> Iterator[str]:
        if point.num_workers > 1:
            yield (
                f"launch=inline runs one worker in this process, but num_workers={point.num_workers}: "
                "leave launch out or use num_workers=1."
            )
        yield from super().problems(point)


@dataclass(frozen=True, kw_only=True)
class ProcessesConfig(LaunchConfig):
    """What the launchers share that start processes."""

    hosts: Hosts | None
    ssh_port: Count | None
    ssh_identity_file: str | None
    network_interface: str | None
    start_timeout_seconds: Count
    stall_timeout_seconds: Count

    changes_no_number: ClassVar[tuple[str, ...]] = (
        "ssh_port",
        "ssh_identity_file",
        "start_timeout_seconds",
        "stall_timeout_seconds",
    )

    @property
    def named_hosts(self) -> str | None:
        return self.hosts

    def problems(self, point: Point) -> Iterator[str]:
        pairs = [entry.split(":") for entry in self.hosts.split(",")] if self.hosts else []
        slots = sum(int(number) for _, number in pairs)
        if pairs and slots < point.num_workers:
            yield (
                f"num_workers={point.num_workers}, but launch.hosts={self.hosts} offers {slots} slots: name more hosts "
                "or slots, or use fewer workers."
            )
        if len({host for host, _ in pairs}) < len(pairs):
            yield f"launch.hosts={self.hosts} names a host twice: give all its slots at once."
        yield from super().problems(point)


@dataclass(frozen=True, kw_only=True)
class HorovodrunConfig(ProcessesConfig):
    name: Literal["horovodrun"]

    builds: ClassVar[str] = "bsweep.launch.horovodrun"
    uses_horovod: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class TorchrunConfig(ProcessesConfig):
    name: Literal["torchrun"]

    builds: ClassVar[str] = "bsweep.launch.torchrun"


AnyLaunch = Annotated[InlineConfig | HorovodrunConfig | TorchrunConfig, Field(discriminator="name")]
