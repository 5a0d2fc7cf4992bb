"""The card of the strategy `allreduce`, which several other strategies use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from bsweep.config.capabilities import Capabilities
from bsweep.config.groups import StrategyConfig
from bsweep.config.point import Point

Algorithm = Literal["ring", "tree", "halving_doubling", "native"]
Transport = Literal["network", "shared_memory"]


@dataclass(frozen=True, kw_only=True)
class AllReduceConfig(StrategyConfig):
    name: Literal["allreduce"]
    algorithm: Algorithm
    transport: Transport | Literal["auto"] = "auto"

    builds: ClassVar[str] = "bsweep.strategies.allreduce:AllReduce"
    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("torchrun",), takes_codecs=True, replicates=True
    )

    @property
    def can(self) -> Capabilities:
        return replace(self.kind_can, step_in_graph=self.algorithm == "native")

    def why_not_shared(self, point: Point) -> str:
        """Return the setting of a point that rules out the exchange of gradients through shared
        memory, with the remedy; an empty text if no setting does.
        """
        if self.algorithm != "native":
            return (
                f"strategy.algorithm={self.algorithm} sends messages: use strategy.algorithm=native"
            )
        if point.compression.builds:
            return (
                f"compression={point.compression.name} needs messages that are sent: use "
                "compression=none"
            )
        return ""

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if self.transport == "shared_memory" and (reason := self.why_not_shared(point)):
            yield (
                f"strategy.transport=shared_memory, but {reason}, or leave strategy.transport out."
            )
