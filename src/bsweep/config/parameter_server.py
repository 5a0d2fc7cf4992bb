"""The settings class (card) of the strategy with parameter servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from bsweep.config.capabilities import Capabilities
from bsweep.config.groups import StrategyConfig
from bsweep.config.point import Point
from bsweep.config.values import Count, Natural, Processes


@dataclass(frozen=True, kw_only=True)
class ParameterServerConfig(StrategyConfig):
    name: Literal["parameter_server"]
    num_servers: Processes | None
    sharding: Literal["layer", "layer_round_robin", "memory", "hashed_chunks"]
    chunk_bytes: Count
    consistency: Literal["synchronous", "asynchronous", "stale_synchronous"]
    staleness: Natural | None
    colocated: bool

    builds: ClassVar[str] = "bsweep.strategies.parameter_server:ParameterServer"
    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("torchrun",),
        why_no_fp16=(
            "each server steps with its own part of the gradient, so that some of the servers may "
            "not notice an overflow for which others skip the step. Use precision=fp32 or bf16, or "
            "strategy=allreduce."
        ),
        why_no_noise=(
            "only its servers have the sum of all gradients, and each server has a part of it. Use "
            "strategy=horovod, allreduce or ddp"
        ),
    )

    @property
    def can(self) -> Capabilities:
        lockstep = self.consistency == "synchronous"
        apart = (
            f"with strategy.consistency={self.consistency} each worker has its own model until an "
            "epoch ends. Use strategy.consistency=synchronous"
        )
        return replace(self.kind_can, lockstep=lockstep, why_apart="" if lockstep else apart)

    def num_shards(self, num_workers: int) -> int:
        return self.num_servers or max(1, num_workers // 2)

    def num_server_processes(self, num_workers: int) -> int:
        return 0 if self.colocated else self.num_shards(num_workers)

    def problems_of_layers(self, num_layers: int, num_shards: int) -> Iterator[str]:
        if self.holds_layers and num_shards > num_layers:
            yield (
                f"strategy.num_servers={num_shards} with strategy.sharding={self.sharding}: the "
                f"model has {num_layers} layers with parameters, and each layer stays whole. Use "
                "at most that many servers, or strategy.sharding=memory."
            )

    @property
    def holds_layers(self) -> bool:
        """True if each layer of a model stays whole, on one server."""
        return self.sharding in ("layer", "layer_round_robin")

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if self.consistency == "stale_synchronous" and self.staleness is None:
            yield (
                "strategy.consistency=stale_synchronous needs strategy.staleness, the number of "
                "steps by which a worker may be ahead of the slowest worker, such as 3."
            )
        if self.consistency != "stale_synchronous" and self.staleness is not None:
            yield (
                f"strategy.staleness={self.staleness} with "
                f"strategy.consistency={self.consistency}: this key is for "
                "strategy.consistency=stale_synchronous only. Leave strategy.staleness out."
            )
        num_shards, optimizer = self.num_shards(point.num_workers), point.optimizer
        if self.colocated and num_shards > point.num_workers:
            yield (
                f"strategy.num_servers={num_shards} with strategy.colocated=true and "
                f"num_workers={point.num_workers}: each colocated server needs a worker of its "
                "own. Use at most one server for each worker."
            )
        if optimizer.needs_global_norm and num_shards > 1:
            yield (
                f"optimizer={optimizer.name} clips by the norm of the whole gradient, which none "
                f"of the {num_shards} servers has: use strategy.num_servers=1, or another "
                "optimizer."
            )
        if optimizer.needs_layer_norms and self.sharding in ("memory", "hashed_chunks"):
            yield (
                f"optimizer={optimizer.name} needs whole layers, which "
                f"strategy.sharding={self.sharding} may cut: use strategy.sharding=layer, or "
                "optimizer=sgd."
            )
