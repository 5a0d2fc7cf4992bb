"""Data sets as tensors in memory.

Each data set has a file of its own, which a card in `config/data.py` names. `prepare` returns the
facts about a data set without its tensors. If the data set needs it, `prepare` decodes and caches
the tensors before workers are launched. `load` returns the tensors to a worker. `plan` computes
which examples form a step and which of them a worker takes.

The package must not know the model, the strategy or the run: neither the number of workers nor the
strategy may change which examples or which crops a step has.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from bsweep.config.card import load_object
from bsweep.config.data import ProgramDataConfig
from bsweep.config.groups import DataConfig
from bsweep.data.info import DataInfo

if TYPE_CHECKING:
    import torch

    from bsweep.data.dataset import Dataset

__all__ = ["DataInfo", "load", "num_train", "prepare"]


def prepare(config: DataConfig) -> DataInfo:
    """Check a data set before the workers are launched, and return its sizes and classes. If the
    data set needs it, download, decode and cache it first.

    Raises:
        ValueError: If the data are missing or cannot be used, or are fewer than `subset`.
    """
    prepared = _prepared(config)
    if isinstance(prepared, ValueError):
        raise prepared
    return prepared


def num_train(config: DataConfig) -> int | None:
    """Return the number of training examples; None if only the user's own program knows it.

    Raises:
        ValueError: As in `prepare`.
    """
    if isinstance(config, ProgramDataConfig):
        return config.num_train
    return prepare(config).num_train


@functools.cache
def _prepared(config: DataConfig) -> DataInfo | ValueError:
    """Return the sizes and classes of a data set, or the ValueError that preparing the data set
    raised.

    The result is cached, errors too: a sweep asks for every point, and an answer may take a while.
    """
    try:
        info: DataInfo = load_object(config.builds).info(config)
        num_train = info.num_train - _num_validation(config, info.num_train)
        if config.subset is not None and config.subset > num_train:
            raise ValueError(
                f"data.subset={config.subset} is larger than the training set of {num_train} "
                "examples: choose a smaller one, or data.subset=null for all."
            )
    except ValueError as error:
        return error
    return replace(info, num_train=config.subset or num_train)


def _num_validation(config: DataConfig, num_train: int) -> int:
    """Return how many of the training examples are for validation: none without
    `validation_share`, otherwise at least one, if at least one is left to train on.
    """
    if config.validation_share is None:
        return 0
    return min(max(1, round(config.validation_share * num_train)), num_train - 1)


def load(config: DataConfig, device: torch.device) -> Dataset:
    """Return a data set, its examples on a device or on the CPU, for training on that device.

    `config.validation_share` of the training examples are held out for validation, and
    `config.subset` of the others are kept, if these keys are set.

    Raises:
        ValueError: If the data set cannot be read, as in `prepare`.
    """
    from bsweep.data.dataset import balanced_subset, placed, with_validation  # imports torch

    dataset: Dataset = load_object(config.builds).load(config)
    if number := _num_validation(config, len(dataset.train)):
        dataset = with_validation(dataset, number)
    if config.subset is not None:
        dataset = balanced_subset(dataset, config.subset)
    return placed(dataset, device, config.device)
