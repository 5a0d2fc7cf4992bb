"""Optimizers, and the learning rate that their rules give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bsweep.config.card import Card, Count, NonNegative, Positive

LrRule = Literal["fixed", "per_worker", "linear", "sqrt"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Card):
    """What all optimizers share; see `conf/optimizer/`."""

    lr: Positive
    lr_rule: LrRule
    reference_batch: Count
    warmup_epochs: NonNegative
    schedule: Literal["constant", "cosine", "multistep", "one_cycle"]
    milestones: tuple[Positive, ...]
    gamma: Positive
    weight_decay: NonNegative
    decay_norm_and_bias: bool


@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig):
    name: Literal["sgd"]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    nesterov: bool


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(OptimizerConfig):
    name: Literal["adamw"]
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    eps: Positive


@dataclass(frozen=True, kw_only=True)
class LARSConfig(OptimizerConfig):
    name: Literal["lars"]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    nesterov: bool
    trust_coefficient: Positive


@dataclass(frozen=True, kw_only=True)
class LAMBConfig(OptimizerConfig):
    name: Literal["lamb"]
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    eps: Positive


AnyOptimizer = Annotated[SGDConfig | AdamWConfig | LARSConfig | LAMBConfig, Field(discriminator="name")]


def scaled_rate(lr: float, rule: LrRule, *, reference_batch: float, step_batch: float, num_workers: int) -> float:
    """The learning rate in effect after warm-up, before its schedule.

    `per_worker` is the first paper's rule: lr x workers whatever the batch. `linear` is Goyal et al.'s
    (arXiv 1706.02677), `sqrt` Krizhevsky's (arXiv 1404.5997), both of the examples behind a step (`step_batch`) in
    units of `reference_batch`.
    """
    scale = step_batch / reference_batch
    return lr * {"fixed": 1.0, "per_worker": num_workers, "linear": scale, "sqrt": math.sqrt(scale)}[rule]
