"""Batching policies: who decides how much each round takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bsweep.config.card import Card


@dataclass(frozen=True, kw_only=True)
class FixedConfig(Card):
    name: Literal["fixed"]


AnyBatching = FixedConfig

FIXED = FixedConfig(name="fixed")
