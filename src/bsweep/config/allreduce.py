"""The card of the strategy `allreduce`, which several other strategies use."""

from __future__ import annotations

from typing import ClassVar, Literal

from bsweep.config.capabilities import Capabilities
from bsweep.config.groups import StrategyConfig

Algorithm = Literal["ring", "tree", "native"]


class AllReduceConfig(StrategyConfig):
    """All-reduce of the gradient vector over torch.distributed, by an algorithm of choice."""

    name: Literal["allreduce"]
    algorithm: Algorithm = "native"
    """ring | tree (ours, counted step by step) | native (Gloo's or NCCL's)"""

    builds: ClassVar[str] = "bsweep.strategies.allreduce:AllReduce"
    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("torchrun",), takes_codecs=True, replicates=True
    )


NATIVE = AllReduceConfig(name="allreduce")
