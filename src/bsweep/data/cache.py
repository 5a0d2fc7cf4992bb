"""Decoded data sets in the user's cache: one tensor file each, checked, and mapped into memory rather than read."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bsweep.data.dataset import Dataset

# A data set's tensors by their names in the file, which has those that the first caches were written with.
_NAMES = {
    "train_images": "train_inputs",
    "train_labels": "train_labels",
    "test_images": "test_inputs",
    "test_labels": "test_labels",
    "mean": "mean",
    "std": "std",
}


def cached(name: str, build: Callable[[], Dataset]) -> Dataset:
    """The data set of images in the cache under `name`, built first where it is not there; see `cached_tensors`."""

    def build_tensors() -> tuple[dict[str, Tensor], str]:
        dataset = build()
        return {key: getattr(dataset, field) for key, field in _NAMES.items()}, json.dumps(dataset.classes)

    tensors, text = cached_tensors(name, tuple(_NAMES), build_tensors)
    classes = tuple(json.loads(text))
    return Dataset(**{_NAMES[key]: v for key, v in tensors.items()}, classes=classes, num_classes=len(classes))


def cached_tensors(
    name: str, keys: Sequence[str], build: Callable[[], tuple[Mapping[str, Tensor], str]]
) -> tuple[dict[str, Tensor], str]:
    """The tensors `keys`, and a text, in the cache under `name`, built first where they are not there or damaged.

    Many processes may call this at once: one builds, the others wait. On the CPU, all of a host's processes share the
    pages of the file, so the tensors are in memory once.

    Raises:
        ValueError: the cache folder cannot be written; or `build` raised it.
    """
    path = cache_folder() / f"{name}.safetensors"
    try:
        return _read(path, keys)
    except (OSError, SafetensorError, ValueError):
        pass  # only who holds the lock knows that nobody is mending it
    try:
        with _locked(path):
            try:
                return _read(path, keys)
            except FileNotFoundError:
                pass
            except (OSError, SafetensorError, ValueError) as error:
                print(f"{path} is damaged ({error}) and is made anew", file=sys.stderr)
            tensors, text = build()
            _write({key: tensors[key] for key in keys}, text, path)
            return _read(path, keys)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} cannot be written ({error}): set XDG_CACHE_HOME to a folder with space for decoded data sets"
        ) from error


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bsweep" / "data"


def _read(path: Path, keys: Sequence[str]) -> tuple[dict[str, Tensor], str]:
    """Raises FileNotFoundError where it is not there, and one of OSError, SafetensorError, ValueError if damaged."""
    if not path.exists():
        raise FileNotFoundError(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {key: file.get_tensor(key) for key in keys}
    text = metadata.get("classes", "")
    if metadata.get("sha256") != _digest(tensors, text):
        raise ValueError("its checksum does not fit its content")
    return tensors, text


def _write(tensors: Mapping[str, Tensor], text: str, path: Path) -> None:
    """Under the lock, so that the temporary file is ours; nobody sees half a file."""
    unfinished = path.with_suffix(".tmp")
    save_file(dict(tensors), unfinished, metadata={"classes": text, "sha256": _digest(tensors, text)})
    unfinished.replace(path)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
