"""Batching policies: who decides how much each round takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.card import Card
from bsweep.config.own import Own
from bsweep.config.point import Point


@dataclass(frozen=True, kw_only=True)
class BatchingConfig(Card):
    """`builds` a callable `(config)` of the run that gives a `bsweep.batching.Policy`."""

    measures_noise: ClassVar[bool] = False
    """Whether it goes by the gradient noise scale, which is then measured without `measure.noise_scale=true`."""


@dataclass(frozen=True, kw_only=True)
class FixedConfig(BatchingConfig):
    name: Literal["fixed"]

    builds: ClassVar[str] = "bsweep.batching.drift:build"
    added_later: ClassVar[Mapping[str, object]] = {"name": "fixed"}


@dataclass(frozen=True, kw_only=True)
class OwnBatchingConfig(Own, BatchingConfig):
    name: Literal["own"]

    builds: ClassVar[str] = "bsweep.batching:from_target"
    takes: ClassVar[tuple[str, ...]] = ("config",)

    def problems(self, point: Point) -> Iterator[str]:
        if point.allocation.adapts:
            yield (
                f"allocation.adapt_every with batching={self.name}: two would decide how many local steps a worker "
                "takes. Use batching=fixed, or allocation.adapt_every=null."
            )


AnyBatching = Annotated[FixedConfig | OwnBatchingConfig, Field(discriminator="name")]

FIXED = FixedConfig(name="fixed")
