"""Strategies: how workers agree on one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bsweep.config.card import Card, Count, Natural, NonNegative, Positive

Algorithm = Literal["ring", "tree", "halving_doubling", "native"]


@dataclass(frozen=True, kw_only=True)
class SingleConfig(Card):
    name: Literal["single"]


@dataclass(frozen=True, kw_only=True)
class HorovodConfig(Card):
    name: Literal["horovod"]
    op: Literal["average", "adasum"]
    buckets: Count
    fusion_threshold_mb: NonNegative
    cycle_time_ms: Positive
    cache_capacity: Natural


@dataclass(frozen=True, kw_only=True)
class DDPConfig(Card):
    name: Literal["ddp"]
    hook: Literal["none", "fp16", "bf16", "powersgd"]
    powersgd_rank: Count
    bucket_mb: Positive


@dataclass(frozen=True, kw_only=True)
class AllReduceConfig(Card):
    name: Literal["allreduce"]
    algorithm: Algorithm


@dataclass(frozen=True, kw_only=True)
class ParameterServerConfig(Card):
    name: Literal["parameter_server"]
    num_servers: Count | None
    sharding: Literal["layer", "layer_round_robin", "memory", "hashed_chunks"]
    chunk_bytes: Count
    consistency: Literal["synchronous", "asynchronous", "stale_synchronous"]
    staleness: Natural | None
    colocated: bool


@dataclass(frozen=True, kw_only=True)
class LocalSGDConfig(Card):
    name: Literal["local_sgd"]
    sync_every: Count
    warmup_steps: Natural
    algorithm: Algorithm


@dataclass(frozen=True, kw_only=True)
class DiLoCoConfig(Card):
    name: Literal["diloco"]
    sync_every: Count
    outer_lr: Positive
    outer_momentum: Annotated[float, Field(ge=0, lt=1)]
    outer_nesterov: bool
    weighting: Literal["uniform", "examples", "fednova"]
    weights: tuple[NonNegative, ...] | None
    algorithm: Algorithm | Literal["horovod"]
    overlap: bool
    max_rounds: Count | None
    max_seconds: Positive | None
    on_loss: Literal["fail", "stop", "continue"]
    loss_timeout_seconds: Positive


AnyStrategy = Annotated[
    SingleConfig | HorovodConfig | DDPConfig | AllReduceConfig | ParameterServerConfig | LocalSGDConfig | DiLoCoConfig,
    Field(discriminator="name"),
]
