"""The settings classes (cards) of the allocations, which can give workers of unequal speed or
memory different local batches, different numbers of local steps, or both.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.groups import AllocationConfig
from bsweep.config.values import Count, Density, Positive, Share


class UniformConfig(AllocationConfig):
    name: Literal["uniform"]


class BatchByFlopsConfig(AllocationConfig):
    name: Literal["batch_by_flops"]

    builds: ClassVar[str] = "bsweep.allocation.fill:batch_by_flops"
    shares_batches: ClassVar[bool] = True
    takes_devices: ClassVar[bool] = True


class BatchByMemoryConfig(AllocationConfig):
    name: Literal["batch_by_memory"]

    builds: ClassVar[str] = "bsweep.allocation.fill:batch_by_memory"
    shares_batches: ClassVar[bool] = True
    fills_memory: ClassVar[bool] = True


class StepsByFlopsConfig(AllocationConfig):
    name: Literal["steps_by_flops"]

    builds: ClassVar[str] = "bsweep.allocation.fill:steps_by_flops"
    shares_steps: ClassVar[bool] = True
    takes_devices: ClassVar[bool] = True


class AdaptiveConfig(AllocationConfig):
    """The base class of the cards of allocations that can change the workers' numbers of local
    steps during a run, if `adapt_every` is given.
    """

    adapt_every: Count | None
    max_drift: Positive

    shares_steps: ClassVar[bool] = True

    @property
    def adapts(self) -> bool:
        """Return True if this allocation may change the workers' numbers of local steps during a
        run.
        """
        return self.adapt_every is not None


class BySpeedConfig(AdaptiveConfig):
    name: Literal["steps_by_speed"]

    builds: ClassVar[str] = "bsweep.allocation.fill:steps_by_speed"


class HybridConfig(AdaptiveConfig):
    name: Literal["hybrid"]
    knee: Density

    builds: ClassVar[str] = "bsweep.allocation.fill:hybrid"
    shares_batches: ClassVar[bool] = True


class NetworkAwareConfig(AdaptiveConfig):
    name: Literal["network_aware"]
    max_exchange_share: Share

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
