"""Decoded data sets in the user's cache: one tensor file each, checked, and mapped into memory rather than read."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bsweep.data.dataset import Dataset

_TENSORS = ("train_images", "train_labels", "test_images", "test_labels", "mean", "std")


def cached(name: str, build: Callable[[], Dataset]) -> Dataset:
    """The data set in the cache under `name`, built first where it is not there or damaged.

    Many processes may call this at once: one builds, the others wait. On the CPU, all of a host's processes share the
    pages of the file, so the data set is in memory once.

    Raises:
        ValueError: the cache folder cannot be written; or `build` raised it.
    """
    path = cache_folder() / f"{name}.safetensors"
    try:
        return _read(path)
    except (OSError, SafetensorError, ValueError):
        pass  # only who holds the lock knows that nobody is mending it
    try:
        with _locked(path):
            try:
                return _read(path)
            except FileNotFoundError:
                pass
            except (OSError, SafetensorError, ValueError) as error:
                print(f"{path} is damaged ({error}) and is made anew", file=sys.stderr)
            dataset = build()
            _write(dataset, path)
            return _read(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} cannot be written ({error}): set XDG_CACHE_HOME to a folder with space for decoded data sets"
        ) from error


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bsweep" / "data"


def _read(path: Path) -> Dataset:
    """Raises FileNotFoundError where it is not there, and one of OSError, SafetensorError, ValueError if damaged."""
    if not path.exists():
        raise FileNotFoundError(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in _TENSORS}
    classes = metadata.get("classes", "")
    if metadata.get("sha256") != _digest(tensors, classes):
        raise ValueError("its checksum does not fit its content")
    return Dataset(**tensors, classes=tuple(json.loads(classes)))


def _write(dataset: Dataset, path: Path) -> None:
    """Under the lock, so that the temporary file is ours; nobody sees half a file."""
    tensors = {name: getattr(dataset, name) for name in _TENSORS}
    classes = json.dumps(dataset.classes)
    unfinished = path.with_suffix(".tmp")
    save_file(tensors, unfinished, metadata={"classes": classes, "sha256": _digest(tensors, classes)})
    unfinished.replace(path)


def _digest(tensors: Mapping[str, Tensor], classes: str) -> str:
    digest = hashlib.sha256(classes.encode())
    for name in _TENSORS:
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
