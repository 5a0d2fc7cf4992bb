"""The settings classes (cards) of the allocations, which can give workers of unequal speed or
memory different local batches, different numbers of local steps, or both.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.groups import AllocationConfig
from bsweep.config.values import Count, Density, Positive, Share


class UniformConfig(AllocationConfig):
    """Every worker computes as much as any other, unless the lists say otherwise."""

    name: Literal["uniform"]


class BatchByFlopsConfig(AllocationConfig):
    """Method A: batches in proportion to nominal FLOP/s."""

    name: Literal["batch_by_flops"]

    builds: ClassVar[str] = "bsweep.allocation.fill:batch_by_flops"
    shares_batches: ClassVar[bool] = True
    takes_devices: ClassVar[bool] = True


class BatchByMemoryConfig(AllocationConfig):
    """Method B: the largest batch that fits each worker."""

    name: Literal["batch_by_memory"]

    builds: ClassVar[str] = "bsweep.allocation.fill:batch_by_memory"
    shares_batches: ClassVar[bool] = True
    fills_memory: ClassVar[bool] = True


class StepsByFlopsConfig(AllocationConfig):
    """Method C: local steps in proportion to nominal FLOP/s."""

    name: Literal["steps_by_flops"]

    builds: ClassVar[str] = "bsweep.allocation.fill:steps_by_flops"
    shares_steps: ClassVar[bool] = True
    takes_devices: ClassVar[bool] = True


class AdaptiveConfig(AllocationConfig):
    """The base class of the cards of allocations that can change the workers' numbers of local
    steps during a run, if `adapt_every` is given.
    """

    adapt_every: Count | None = None
    """rounds after which steps follow the speeds measured since; null: never"""
    max_drift: Positive = 0.1
    """... if a worker's share of all speed changed by more than this part"""

    shares_steps: ClassVar[bool] = True

    @property
    def adapts(self) -> bool:
        """Return True if this allocation may change the workers' numbers of local steps during a
        run.
        """
        return self.adapt_every is not None


class BySpeedConfig(AdaptiveConfig):
    """Local steps in proportion to measured speed."""

    name: Literal["steps_by_speed"]

    builds: ClassVar[str] = "bsweep.allocation.fill:steps_by_speed"


class HybridConfig(AdaptiveConfig):
    """The batch at the knee of each worker's measured throughput, then local steps by measured
    speed.
    """

    name: Literal["hybrid"]
    knee: Density = 0.9
    """the smallest batch with this part of the best throughput"""

    builds: ClassVar[str] = "bsweep.allocation.fill:hybrid"
    shares_batches: ClassVar[bool] = True


class NetworkAwareConfig(AdaptiveConfig):
    """Local steps by measured speed, with so many steps that the exchange is a small share of a
    round.
    """

    name: Literal["network_aware"]
    max_exchange_share: Share = 0.1
    """largest share of a round for the exchange"""

    builds: ClassVar[str] = "bsweep.allocation.fill:network_aware"
    asks_exchange: ClassVar[bool] = True


AnyAllocation = Annotated[
    UniformConfig
    | BatchByFlopsConfig
    | BatchByMemoryConfig
    | StepsByFlopsConfig
    | BySpeedConfig
    | HybridConfig
    | NetworkAwareConfig,
    Field(discriminator="name"),
]
