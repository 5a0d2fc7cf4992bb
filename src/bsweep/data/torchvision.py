"""The data sets for classification that bsweep takes from torchvision, CIFAR-10 (Krizhevsky 2009)
among them.
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsweep.config.data import Cifar10Config, TorchvisionConfig
from bsweep.data.cache import cached, cached_info
from bsweep.data.info import DataInfo
from bsweep.data.pictures import Unfit

if TYPE_CHECKING:
    from bsweep.data.dataset import Dataset

_PATIENCE_SECONDS = 30.0
_DOWNLOAD_ERRORS = (RuntimeError, OSError, EOFError, tarfile.TarError, http.client.HTTPException)
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


def info(config: Cifar10Config | TorchvisionConfig) -> DataInfo:
    """Return the numbers of training and test images of a torchvision data set, their shape and
    their classes.
    """
    return cached_info(_name(config), lambda: _from_torchvision(config))


def load(config: Cifar10Config | TorchvisionConfig) -> Dataset:
    """Return a torchvision data set from the cache or, if the cache does not have it, from the
    folder `root`.

    If it is not in `root` either and `download` is set, download it to `root`. torchvision checks
    the md5 of each file of CIFAR-10, so that its cached data are the same for every root. It does
    not check all files of other data sets, so there each root has its own data in the cache.

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


def _name(config: Cifar10Config | TorchvisionConfig) -> str:
    """Return the name under which the cache keeps a data set."""
    if isinstance(config, Cifar10Config):
        return "cifar10-1"
    root = str(Path(config.root).expanduser().absolute())
    key = hashlib.sha256(f"2 {root} {config.side}".encode()).hexdigest()[:16]
    return f"torchvision-{config.dataset}-{key}"


def _from_torchvision(config: Cifar10Config | TorchvisionConfig) -> Dataset:
    # Imported here because a launched worker should not wait for it.
    from bsweep.core.torchvision_shim import import_torchvision
    from bsweep.data import examples

    dataset: str = "CIFAR10"
    side: int | None = None
    if isinstance(config, TorchvisionConfig):
        dataset, side = config.dataset, config.side
    kind = getattr(import_torchvision().datasets, dataset)
    root = Path(config.root).expanduser()
    try:
        with _patience():
            train, test = (kind(root, download=config.download, **keys) for keys in splits(dataset))
    except _DOWNLOAD_ERRORS as error:
        why_not_downloaded = (
            "it could not be downloaded" if config.download else "data.download=false"
        )
        source = f", from {kind.url}" if hasattr(kind, "url") else ""
        raise ValueError(
            f"data.root={config.root}: no intact {dataset} is there, and {why_not_downloaded} "
            f"({type(error).__name__}: {error}). Put the files there that torchvision.datasets."
            f"{dataset} expects{source}, or run on data=digits, which needs no download, or on "
            "your own images with data=imagefolder data.root=DIR."
        ) from error
    try:
        return examples.collected(train, test, side)
    except Unfit as problem:
        remedy = " data.side=SIDE scales all images to one size." if side is None else ""
        raise ValueError(f"data.dataset={dataset}: {problem}{remedy}") from None


@contextmanager
def _patience() -> Iterator[None]:
    """Limit how many seconds a download inside the `with` block may wait for the next bytes.

    Without a limit torchvision would wait for ever behind some firewalls.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
