"""The data sets for classification that bsweep takes from torchvision."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsweep.config.data import TorchvisionConfig
from bsweep.data.cache import cached, cached_info
from bsweep.data.cifar10 import DOWNLOAD_ERRORS, PATIENCE_SECONDS, patience
from bsweep.data.info import DataInfo
from bsweep.data.pictures import Unfit

if TYPE_CHECKING:
    from bsweep.data.dataset import Dataset

_BY_FLAG: tuple[dict[str, Any], dict[str, Any]] = ({"train": True}, {"train": False})

# The arguments that select a data set's training and its test part. Most data sets take these.
_BY_NAME: tuple[dict[str, Any], dict[str, Any]] = ({"split": "train"}, {"split": "test"})
_SPLITS = {
    **dict.fromkeys(
        ("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST", "QMNIST", "USPS"), _BY_FLAG
    ),
    **dict.fromkeys(("FGVCAircraft", "OxfordIIITPet"), ({"split": "trainval"}, {"split": "test"})),
    "Imagenette": ({"split": "train"}, {"split": "val"}),
}


def info(config: TorchvisionConfig) -> DataInfo:
    """Return the numbers of training and test images of a torchvision data set, their shape and
    their classes.
    """
    return cached_info(_name(config), lambda: _from_torchvision(config))


def load(config: TorchvisionConfig) -> Dataset:
    """Return a torchvision data set from the cache or, if the cache does not have it, from the
    folder `root`.

    If it is not in `root` either and `download` is set, download it to `root`. torchvision does not
    check all files that it finds, so each root has its own data in the cache.

    Raises:
        ValueError: If the data set is neither in the cache nor in `root`, and is not downloaded; or
            if its images differ in size and `side` is null.
    """
    return cached(_name(config), lambda: _from_torchvision(config))


def splits(dataset: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two sets of keyword arguments for torchvision's class of a data set: those that select
    the training images, and those that select the test images.
    """
    return _SPLITS.get(dataset, _BY_NAME)


def _name(config: TorchvisionConfig) -> str:
    """Return the name under which the cache keeps a torchvision data set."""
    root = str(Path(config.root).expanduser().absolute())
    key = hashlib.sha256(f"2 {root} {config.side}".encode()).hexdigest()[:16]
    return f"torchvision-{config.dataset}-{key}"


def _from_torchvision(config: TorchvisionConfig) -> Dataset:
    # Imported here because a launched worker should not wait for it.
    from bsweep.core.torchvision_shim import (
        import_torchvision,
    )

    kind = getattr(import_torchvision().datasets, config.dataset)
    from bsweep.data import examples  # imports torch

    root = Path(config.root).expanduser()
    try:
        with patience(PATIENCE_SECONDS):
            train, test = (
                kind(root, download=config.download, **split) for split in splits(config.dataset)
            )
    except DOWNLOAD_ERRORS as error:
        why_not_downloaded = (
            "it could not be downloaded" if config.download else "data.download=false"
        )
        raise ValueError(
            f"data.root={config.root}: no intact {config.dataset} is there, and "
            f"{why_not_downloaded} ({type(error).__name__}: {error}). Put the files there that "
            f"torchvision.datasets.{config.dataset} expects, or run on data=digits, which needs no "
            "download."
        ) from error
    try:
        return examples.collected(train, test, config.side)
    except Unfit as problem:
        remedy = " data.side=SIDE scales all images to one size." if config.side is None else ""
        raise ValueError(f"data.dataset={config.dataset}: {problem}{remedy}") from None
