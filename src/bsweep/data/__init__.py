"""Data sets as tensors in memory. A new one is a file here, a YAML in `conf/data`, and a line in `DATASETS`."""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bsweep.config import AnyData
from bsweep.data.info import DataInfo

if TYPE_CHECKING:
    import torch

    from bsweep.data.dataset import Dataset

__all__ = ["DATASETS", "DataInfo", "load", "prepare"]

# Each module has `info(config)`, which also downloads, decodes and caches, and needs no torch once that is done; and
# `load(config)`, the complete data set on the CPU. Both raise a ValueError that says how to mend the configuration.
DATASETS = {
    "cifar10": "bsweep.data.cifar10",
    "digits": "bsweep.data.digits",
    "imagefolder": "bsweep.data.imagefolder",
    "synthetic": "bsweep.data.synthetic",
    "text": "bsweep.data.text",
}


def prepare(config: AnyData) -> DataInfo:
    """Check, download, decode and cache whatever the workers will load; to be called before they are launched.

    Raises:
        ValueError: the data are missing, or fewer than `subset`.
    """
    prepared = _prepared(config)
    if isinstance(prepared, ValueError):
        raise prepared
    return prepared


@functools.cache
def _prepared(config: AnyData) -> DataInfo | ValueError:
    """Once per process, failures too: a sweep asks for every point, and an answer may take a while."""
    try:
        info: DataInfo = _module(config).info(config)
        _refuse_larger(config.subset, info.num_train)
    except ValueError as error:
        return error
    return replace(info, num_train=config.subset or info.num_train)


def load(config: AnyData, device: torch.device) -> Dataset:
    """The data set on a device, its training part cut down to `subset`.

    Raises:
        ValueError: as `prepare`.
    """
    from bsweep.data.dataset import balanced_subset  # imports torch

    dataset: Dataset = _module(config).load(config)
    _refuse_larger(config.subset, len(dataset.train_labels))
    if config.subset is not None:
        dataset = balanced_subset(dataset, config.subset)
    return dataset.to(device)


def _module(config: AnyData) -> Any:
    return importlib.import_module(DATASETS[config.name])


def _refuse_larger(subset: int | None, num_train: int) -> None:
    if subset is not None and subset > num_train:
        raise ValueError(
            f"data.subset={subset} is larger than the training set of {num_train} examples: choose a smaller one, or "
            "data.subset=null for all."
        )
