"""Data sets as tensors in memory. A new one is a file here, a YAML in `conf/data`, and a line in `DATASETS`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bsweep.config import AnyData
from bsweep.data import cifar10, digits, imagefolder, synthetic, text
from bsweep.data.dataset import Dataset, balanced_subset

__all__ = ["DATASETS", "DataInfo", "Dataset", "load", "prepare"]

# Each gives the complete data set on the CPU, or a ValueError that says how to mend its configuration.
DATASETS: dict[str, Callable[[Any], Dataset]] = {
    "cifar10": cifar10.load,
    "digits": digits.load,
    "imagefolder": imagefolder.load,
    "synthetic": synthetic.load,
    "text": text.load,
}


@dataclass(frozen=True)
class DataInfo:
    """What the parent process needs to know about the data before it starts workers."""

    num_train: int  # after `subset`
    num_test: int
    shape: tuple[int, ...]  # of an example: channels, height, width; or tokens
    classes: tuple[str, ...]
    num_classes: int


def prepare(config: AnyData) -> DataInfo:
    """Check, download, decode and cache whatever the workers will load; to be called before they are launched.

    Raises:
        ValueError: the data are missing or damaged, or fewer than `subset`.
    """
    prepared = _prepared(config)
    if isinstance(prepared, ValueError):
        raise prepared
    return prepared


@functools.cache
def _prepared(config: AnyData) -> DataInfo | ValueError:
    """Once per process, failures too: a sweep asks for every point, and an answer may take a while."""
    try:
        dataset = load(config, torch.device("cpu"))
    except ValueError as error:
        return error
    return DataInfo(
        num_train=len(dataset.train_labels),
        num_test=len(dataset.test_labels),
        shape=tuple(dataset.train_inputs.shape[1:]),
        classes=dataset.classes,
        num_classes=dataset.num_classes,
    )


def load(config: AnyData, device: torch.device) -> Dataset:
    """The data set on a device, its training part cut down to `subset`.

    Raises:
        ValueError: as `prepare`.
    """
    dataset = DATASETS[config.name](config)
    if config.subset is not None:
        if config.subset > len(dataset.train_labels):
            raise ValueError(
                f"data.subset={config.subset} is larger than the training set of {len(dataset.train_labels)} "
                "examples: choose a smaller one, or data.subset=null for all."
            )
        dataset = balanced_subset(dataset, config.subset)
    return dataset.to(device)
