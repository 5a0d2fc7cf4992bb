"""Launchers: who starts the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bsweep.config.card import Card, Count, Positive

Hosts = Annotated[str, Field(pattern=r"^[\w.-]+:[1-9]\d*(,[\w.-]+:[1-9]\d*)*$")]


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Card):
    """What all launchers share; see `conf/launch/`."""

    slowdown: tuple[Annotated[float, Field(ge=1, allow_inf_nan=False)], ...] | None
    memory_limit_mb: tuple[Positive, ...] | None
    threads_per_worker: Count | None = None


@dataclass(frozen=True, kw_only=True)
class InlineConfig(LaunchConfig):
    name: Literal["inline"]


@dataclass(frozen=True, kw_only=True)
class ProcessesConfig(LaunchConfig):
    """What the launchers share that start processes."""

    hosts: Hosts | None
    ssh_port: Count | None
    ssh_identity_file: str | None
    network_interface: str | None
    start_timeout_seconds: Count
    stall_timeout_seconds: Count


@dataclass(frozen=True, kw_only=True)
class HorovodrunConfig(ProcessesConfig):
    name: Literal["horovodrun"]


@dataclass(frozen=True, kw_only=True)
class TorchrunConfig(ProcessesConfig):
    name: Literal["torchrun"]


AnyLaunch = Annotated[InlineConfig | HorovodrunConfig | TorchrunConfig, Field(discriminator="name")]
