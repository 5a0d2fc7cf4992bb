"""Batching policies: who decides how much each round takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from bsweep.config.card import Card


@dataclass(frozen=True, kw_only=True)
class BatchingConfig(Card):
    """`builds` a callable `(config)` of the run that gives a `bsweep.batching.Policy`."""


@dataclass(frozen=True, kw_only=True)
class FixedConfig(BatchingConfig):
    name: Literal["fixed"]

    builds: ClassVar[str] = "bsweep.batching.fixed:Fixed"
    added_later: ClassVar[Mapping[str, object]] = {"name": "fixed"}


AnyBatching = FixedConfig

FIXED = FixedConfig(name="fixed")
