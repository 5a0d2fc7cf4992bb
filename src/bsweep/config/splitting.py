"""The cards of the strategies whose workers hold parts of one model instead of copies of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from bsweep.config.allreduce import AllReduceConfig
from bsweep.config.capabilities import Capabilities
from bsweep.config.groups import StrategyConfig
from bsweep.config.point import Point
from bsweep.config.values import Count


@dataclass(frozen=True, kw_only=True)
class SplitConfig(StrategyConfig):
    """The base class of the cards of strategies that split a model over workers.

    `replicas` groups of workers train side by side; each group holds one whole model.
    """

    replicas: Count

    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("torchrun",),
        exchanges_in_passes=True,
        # Each run's process groups stay in the process, with their connections and threads.
        leaves_processes_clean=False,
        why_no_noise=(
            "no worker of a split model has a whole gradient of its own, whose noise could be "
            "measured. Use strategy=allreduce"
        ),
        why_no_fp16=(
            "a gradient may overflow on one worker alone, and all would have to skip the step. Use "
            "precision=bf16 or fp32."
        ),
    )

    def data_parallel_size(self, num_workers: int) -> int:
        return self.replicas

    def num_parts(self, num_workers: int) -> int:
        return num_workers // self.replicas

    @property
    def in_probe(self) -> StrategyConfig:
        return AllReduceConfig(name="allreduce", algorithm="native", transport="network")

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if point.num_workers % self.replicas:
            yield (
                f"strategy.replicas={self.replicas} with num_workers={point.num_workers}: each "
                "replica needs the same number of workers. Use a divisor of num_workers."
            )
        if point.launch.slowdown:
            yield (
                f"launch.slowdown with strategy={self.name}: this strategy exchanges within the "
                "passes, so that a slowdown cannot stretch the computation alone. Use "
                "strategy=allreduce."
            )


@dataclass(frozen=True, kw_only=True)
class ShardedConfig(SplitConfig):
    name: Literal["sharded"]
    reshard: Literal["forward", "step"]
    wrap: Literal["blocks", "model"]
    reduce: Literal["fp32", "bf16"]

    builds: ClassVar[str] = "bsweep.strategies.sharded:Sharded"
    kind_can: ClassVar[Capabilities] = replace(SplitConfig.kind_can, loads_any_parts=True)

    def data_parallel_size(self, num_workers: int) -> int:
        """Return the number of workers: each takes a part of every batch, and computes with the
        whole parameters, which it gathers.
        """
        return num_workers

    def new_gradient_share(self, num_workers: int) -> float:
        return 1 / self.num_parts(num_workers)

    def bytes_in_passes(self, blocks: Sequence[int]) -> int:
        """Return the bytes of gathered parameters, and of a block's gradients and the copy of them
        that is summed.

        In the backward pass a block's parameters are gathered while those of the last block are
        still there. Parameters outside of all blocks stay gathered.
        """
        whole = sum(blocks)
        *inner, rest = blocks if self.wrap == "blocks" else (whole,)
        largest = max(inner, default=0)
        gathered = whole if self.reshard == "step" else min(whole, rest + 2 * largest)
        return gathered + 2 * max(largest, rest)

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if self.reduce == "bf16" and point.precision == "fp64":
            yield (
                "precision=fp64 with strategy.reduce=bf16: gradients would be rounded to bf16. Use "
                "only one of them."
            )
