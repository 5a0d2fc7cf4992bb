"""Data of the user's own: whatever a function of theirs returns, as tensors in the cache."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from bsweep.config import ConfigError, OwnDataConfig, own
from bsweep.data.cache import cached, cached_info
from bsweep.data.info import DataInfo
from bsweep.data.pictures import Unfit

if TYPE_CHECKING:
    from bsweep.data.dataset import Dataset


def info(config: OwnDataConfig) -> DataInfo:
    """See `load`."""
    return cached_info(_name(config), lambda: _build(config))


def load(config: OwnDataConfig) -> Dataset:
    """What the function returned when it was called first with these options; see
    `bsweep.data.examples`.

    It is called again when its code or an option has changed, not when files that it reads have:
    give these another name, or an option that counts their versions.

    Raises:
        ValueError: it raised something, or returned something else than two data sets.
    """
    return cached(_name(config), lambda: _build(config))


def _name(config: OwnDataConfig) -> str:
    """In the cache."""
    key = json.dumps([1, config.fingerprint, config.title, config.options], sort_keys=True)
    return f"own-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _build(config: OwnDataConfig) -> Dataset:
    from bsweep.data import examples  # imports torch

    with own.blamed("data", config, "it raised an error"):
        pair = own.call(config)
    try:
        train, test = pair
    except (TypeError, ValueError):
        raise ConfigError(
            f"data.target={config.target}: it returned {type(pair).__name__}, not a pair (train, "
            "test) of data sets."
        ) from None
    with own.blamed("data", config, "reading its examples failed"):
        try:
            return examples.collected(train, test)
        except Unfit as problem:
            raise ConfigError(f"data.target={config.target}: {problem}") from None
