"""Allocations: how batches and local steps are shared among uneven workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bsweep.config.card import Card, Count, Density, Positive


@dataclass(frozen=True, kw_only=True)
class AllocationConfig(Card):
    """What all allocations share; see `conf/allocation/`. The policy fills in the lists that are null."""

    devices: tuple[str, ...] | None
    probe: str | None
    local_batches: tuple[Count, ...] | None
    local_steps: tuple[Count, ...] | None


@dataclass(frozen=True, kw_only=True)
class NominalConfig(AllocationConfig):
    """Allocations that are made once."""

    name: Literal["uniform", "batch_by_flops", "batch_by_memory", "steps_by_flops"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveConfig(AllocationConfig):
    """Allocations that can follow a worker's speed while it drifts."""

    adapt_every: Count | None
    max_drift: Positive


@dataclass(frozen=True, kw_only=True)
class BySpeedConfig(AdaptiveConfig):
    name: Literal["steps_by_speed"]


@dataclass(frozen=True, kw_only=True)
class HybridConfig(AdaptiveConfig):
    name: Literal["hybrid"]
    knee: Density


@dataclass(frozen=True, kw_only=True)
class NetworkAwareConfig(AdaptiveConfig):
    name: Literal["network_aware"]
    max_exchange_share: Annotated[float, Field(gt=0, lt=1)]


AnyAllocation = Annotated[
    NominalConfig | BySpeedConfig | HybridConfig | NetworkAwareConfig,
    Field(discriminator="name"),
]
