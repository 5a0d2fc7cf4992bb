"""The settings class (card) of the strategy with parameter servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from bsweep.config.capabilities import Capabilities
from bsweep.config.card import Point, clash
from bsweep.config.groups import StrategyConfig
from bsweep.config.values import Count, Natural, Processes


class ParameterServerConfig(StrategyConfig):
    """Parameter servers: workers push gradients to servers and pull parameters from them; each
    server holds a part of the model.
    """

    name: Literal["parameter_server"]
    num_servers: Processes | None = None
    """null: one server for two workers"""
    sharding: Literal["layer", "layer_round_robin", "memory", "hashed_chunks"] = "memory"
    """layer (whole layers, greedily by size) | layer_round_robin | memory (equal parts) |
    hashed_chunks (chunks hashed over servers)
    """
    chunk_bytes: Count = 4096000
    """size of a chunk with hashed_chunks"""
    consistency: Literal["synchronous", "asynchronous", "stale_synchronous"] = "synchronous"
    """synchronous | asynchronous | stale_synchronous"""
    staleness: Natural | None = None
    """stale_synchronous: clocks by which a worker may be ahead of the slowest; 0: none"""
    colocated: bool = False
    """true: server i runs beside worker i, and their exchange does not use the network"""

    builds: ClassVar[str] = "bsweep.strategies.parameter_server:ParameterServer"
    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("torchrun",),
        why_no_fp16=(
            "a gradient may overflow on one server alone, and all would have to skip the step. Use "
            "precision=bf16 or fp32, or strategy=allreduce."
        ),
        why_no_noise="no process has the sum of all gradients. Use strategy=horovod or allreduce",
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
                f"model has {num_layers} layers with parameters, which stay whole. Use fewer "
                "servers, or strategy.sharding=memory."
            )

    @property
    def holds_layers(self) -> bool:
        """True if each layer of a model stays whole, on one server."""
        return self.sharding in ("layer", "layer_round_robin")

    def servers_of_layers(self, sizes: Sequence[float], num_servers: int) -> list[int]:
        """Return the number of the server that holds each layer, if each layer stays whole: one
        after another, or the largest first, each on the server that holds the least so far.

        Args:
            sizes: The sizes of the layers, in any unit.
            num_servers: The number of servers.

        Returns:
            One number for each layer.
        """
        if self.sharding == "layer_round_robin":
            return [layer % num_servers for layer in range(len(sizes))]
        servers, loads = [0] * len(sizes), [0.0] * num_servers
        for layer in sorted(range(len(sizes)), key=lambda layer: sizes[layer], reverse=True):
            servers[layer] = loads.index(min(loads))
            loads[servers[layer]] += sizes[layer]
        return servers

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if (self.consistency == "stale_synchronous") != (self.staleness is not None):
            remedy = "stale_synchronous needs a number such as 3. Leave it out with others."
            yield clash(point, "strategy.consistency strategy.staleness", remedy)
        num_shards, optimizer = self.num_shards(point.num_workers), point.optimizer
        if self.colocated and num_shards > point.num_workers:
            keys = "strategy.num_servers strategy.colocated num_workers"
            yield clash(point, keys, "use at most one server for each worker.")
        if optimizer.needs_global_norm and num_shards > 1:
            remedy = f"none of {num_shards} servers has the norm. Use strategy.num_servers=1."
            yield clash(point, "optimizer strategy", remedy)
        if optimizer.needs_layer_norms and self.sharding in ("memory", "hashed_chunks"):
            remedy = "it needs whole layers. Use strategy.sharding=layer, or optimizer=sgd."
            yield clash(point, "optimizer strategy.sharding", remedy)
