"""CIFAR-10 (Krizhevsky 2009), read by torchvision.

It has 50,000 training and 10,000 test images of 3x32x32 in 10 classes.
"""

from __future__ import annotations

import http.client
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsweep.config.data import Cifar10Config
from bsweep.data.cache import cached, cached_info
from bsweep.data.info import DataInfo

if TYPE_CHECKING:
    from torch import Tensor

    from bsweep.data.dataset import Dataset

_NAME = "cifar10-1"  # in the cache
PATIENCE_SECONDS = 30.0
DOWNLOAD_ERRORS = (RuntimeError, OSError, EOFError, tarfile.TarError, http.client.HTTPException)


def info(config: Cifar10Config) -> DataInfo:
    """Return the numbers of training and test images of CIFAR-10, their shape and their classes."""
    return cached_info(_NAME, lambda: _from_torchvision(config))


def load(config: Cifar10Config) -> Dataset:
    """Return CIFAR-10 from the cache or, if the cache does not have it, from the folder `root`.

    If it is not in `root` either and `download` is set, download it to `root`. torchvision checks
    each file's md5, so the cached data are the same for every root.

    Raises:
        ValueError: If it is neither in the cache nor in `root`, and is not downloaded.
    """
    return cached(_NAME, lambda: _from_torchvision(config))


def _from_torchvision(config: Cifar10Config) -> Dataset:
    # Imported here because a launched worker should not wait for it.
    from bsweep.core.torchvision_shim import (
        import_torchvision,
    )

    import_torchvision()
    from torchvision.datasets import CIFAR10

    from bsweep.data.dataset import from_images

    root = Path(config.root).expanduser()
    try:
        with patience(PATIENCE_SECONDS):
            train = CIFAR10(root, train=True, download=config.download)
            test = CIFAR10(root, train=False)
    except DOWNLOAD_ERRORS as error:
        why_not_downloaded = (
            "it could not be downloaded" if config.download else "data.download=false"
        )
        raise ValueError(
            f"data.root={config.root}: no intact CIFAR-10 (cifar-10-batches-py) is there, and "
            f"{why_not_downloaded} ({type(error).__name__}: {error}). Unpack {CIFAR10.url} there, "
            "or run on data=digits, which needs no download, or on your own images with "
            "data=imagefolder data.root=DIR."
        ) from error
    return from_images(_tensors(train), _tensors(test), train.classes)


def _tensors(split: Any) -> tuple[Tensor, Tensor]:
    import torch

    images = torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(split.targets)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Limit how many seconds a download inside the `with` block may wait for the next bytes.

    Without a limit torchvision would wait for ever behind some firewalls.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
