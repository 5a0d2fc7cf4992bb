"""The user's own data set, which a function of the user's returns and the cache keeps as
tensors.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from bsweep.config import user_code
from bsweep.config.data import OwnDataConfig
from bsweep.config.values import ConfigError
from bsweep.data.cache import cached, cached_info
from bsweep.data.info import DataInfo
from bsweep.data.pictures import Unfit

if TYPE_CHECKING:
    from bsweep.data.dataset import Dataset


def info(config: OwnDataConfig) -> DataInfo:
    """Return the numbers of training and test examples of the user's own data, their shape and
    their classes.
    """
    return cached_info(_name(config), lambda: _build(config))


def load(config: OwnDataConfig) -> Dataset:
    """Return the data set that the user's function returns with these options. If the cache has it,
    the function is not called.

    The function is called again if its code or an option has changed, but not if files that it
    reads have changed. Give changed files another name, or the function an option that counts their
    versions. `bsweep.data.examples` says what the function may return.

    Raises:
        ValueError: If the function raises an error or does not return two data sets.
    """
    return cached(_name(config), lambda: _build(config))


def _name(config: OwnDataConfig) -> str:
    """Return the name under which the cache keeps the user's own data."""
    key = json.dumps([2, config.fingerprint, config.title, config.options], sort_keys=True)
    return f"own-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _build(config: OwnDataConfig) -> Dataset:
    from bsweep.data import examples  # imports torch

    with user_code.blamed("data", config, "it raised an error"):
        pair = user_code.call(config)
    try:
        train, test = pair
    except (TypeError, ValueError):
        raise ConfigError(
            f"data.target={config.target}: it returned {type(pair).__name__}, not a pair (train, "
            "test) of data sets."
        ) from None
    with user_code.blamed("data", config, "reading its examples failed"):
        try:
            return examples.collected(train, test)
        except Unfit as problem:
            raise ConfigError(f"data.target={config.target}: {problem}") from None
