"""The cache in which bsweep keeps decoded data sets for a user.

Each data set is one tensor file. The file is checked when its tensors are loaded, and it is mapped
into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError, safe_open

from bsweep.core import terminal
from bsweep.core.whole_files import replacing
from bsweep.data.info import DataInfo
from bsweep.runlog.locks import claimed

if TYPE_CHECKING:
    from torch import Tensor

    from bsweep.data.dataset import Dataset

    Build = Callable[[], tuple[Mapping[str, Tensor], str]]

logger = terminal.logger(__name__)

Read = TypeVar("Read")

# Maps the names of tensors in a file to the fields of `Dataset`. The names in the file stay those
# of the first caches.
_NAMES = {
    "train_images": "train_inputs",
    "train_labels": "train_labels",
    "test_images": "test_inputs",
    "test_labels": "test_labels",
    "mean": "mean",
    "std": "std",
}


def cached(name: str, build: Callable[[], Dataset]) -> Dataset:
    """Return the data set that the cache keeps under `name`. If the cache has none or its file is
    damaged, build the data set and add it first.

    See `cached_tensors`.
    """
    from bsweep.data.dataset import Dataset

    tensors, text = cached_tensors(name, tuple(_NAMES), _tensors_of(build))
    of_names = {_NAMES[key]: v if v.numel() else None for key, v in tensors.items()}
    return Dataset(**of_names, **_facts(text))  # type: ignore[arg-type]


def cached_info(name: str, build: Callable[[], Dataset]) -> DataInfo:
    """Return the sizes and classes of the data set that the cache keeps under `name`. If the cache
    has none, build the data set and add it first.
    """
    slices, text = cached_slices(name, tuple(_NAMES), _tensors_of(build))
    (num_train, *shape), (num_test, *label_shape) = (
        slices["train_images"].get_shape(),
        slices["test_labels"].get_shape(),
    )
    is_image = slices["mean"].get_shape() != [0]
    return DataInfo(
        num_train,
        num_test,
        tuple(shape),
        **_facts(text),
        inputs="images"
        if is_image
        else "numbers"
        if _is_float(slices["train_images"])
        else "tokens",
        label_shape=tuple(label_shape),
        is_regression=_is_float(slices["test_labels"]),
    )


def _is_float(tensor: Any) -> bool:
    return "F" in str(tensor.get_dtype())


def _facts(text: str) -> dict[str, Any]:
    """Return the names of a data set's classes, their number, and notes, from the JSON text of a
    cache file. Classes without names give an empty tuple.
    """
    facts = json.loads(text)
    if not isinstance(facts, dict):  # written without notes
        facts = {"classes": facts, "notes": []}
    names = () if isinstance(facts["classes"], int) else tuple(facts["classes"])
    num_classes = len(names) or facts["classes"]
    return {"classes": names, "num_classes": num_classes, "notes": tuple(facts["notes"])}


def _tensors_of(build: Callable[[], Dataset]) -> Build:
    def build_tensors() -> tuple[dict[str, Tensor], str]:
        import torch

        dataset = build()
        tensors = {key: getattr(dataset, field) for key, field in _NAMES.items()}
        filled = {key: torch.empty(0) if v is None else v for key, v in tensors.items()}
        classes = dataset.classes or dataset.num_classes
        return filled, json.dumps({"classes": classes, "notes": dataset.notes})

    return build_tensors


def cached_slices(name: str, keys: Sequence[str], build: Build) -> tuple[dict[str, Any], str]:
    """Return a cache file's tensors as slices, which are read from disk only when used, and the
    text stored with the tensors. If the file is missing or its header is damaged, write it first.

    The shape of a slice is known without reading it and without torch. The content is not checked
    here; `cached_tensors` checks it.
    """
    return _cached(name, keys, build, _slices)


def cached_tensors(name: str, keys: Sequence[str], build: Build) -> tuple[dict[str, Tensor], str]:
    """Return the tensors and the text of a cache file. If the file is missing or damaged, write it
    first.

    Many processes may call this at once: one builds, the others wait. On the CPU, all processes of
    a host share the pages of the file, so the tensors are in memory only once.

    Args:
        name: The name of the cache file, without its suffix.
        keys: The names of the tensors.
        build: The function that makes the tensors and the text.

    Raises:
        ValueError: If the cache folder cannot be written, or if `build` raises it or an OSError.
    """
    return _cached(name, keys, build, _read)


def _cached(
    name: str, keys: Sequence[str], build: Build, read: Callable[[Path, Sequence[str]], Read]
) -> Read:
    path = cache_folder() / f"{name}.safetensors"
    try:
        return read(path, keys)
    except (OSError, SafetensorError, ValueError):
        pass  # Another process may be writing the file: decide under the lock.
    try:
        with _locked(path):
            try:
                return read(path, keys)
            except FileNotFoundError:
                pass
            except (OSError, SafetensorError, ValueError) as error:
                logger.warning(f"{path} is damaged ({error}), and bsweep makes it again")
            try:
                tensors, text = build()
            except OSError as error:
                raise ValueError(
                    f"an example cannot be read ({error}): repair or replace the files of the data "
                    "set"
                ) from error
            _write({key: tensors[key] for key in keys}, text, path)
            return read(path, keys)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} cannot be written ({error}): set XDG_CACHE_HOME to a folder with space for "
            "decoded data sets"
        ) from error


def cache_folder() -> Path:
    """Return the folder of decoded data sets.

    Raises:
        ValueError: If this user has no home folder, and no variable names another one.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        raise ValueError(
            "this user has no home folder: set XDG_CACHE_HOME to a folder for decoded data sets"
        ) from None
    return folder / "bsweep" / "data"


def _read(path: Path, keys: Sequence[str]) -> tuple[dict[str, Tensor], str]:
    """Check a cache file, and return the tensors and the text in it.

    Raises:
        FileNotFoundError: If the file is missing.
        OSError: If the file cannot be read.
        SafetensorError: If the file is damaged.
        ValueError: If the file's content does not fit its checksum.
    """
    found = path.stat()
    version = (path, found.st_ino, found.st_size, found.st_mtime_ns)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {key: file.get_tensor(key) for key in keys}
    text = metadata.get("classes", "")
    if version not in _CHECKED and metadata.get("sha256") != _digest(tensors, text):
        raise ValueError("its checksum does not match its content")
    if time.time() - found.st_mtime > _CLOCK_SECONDS:
        _CHECKED.add(version)
    return tensors, text


# The checked versions of files: a process that trains many points checks a large file only once.
_CHECKED: set[tuple[Path, int, int, int]] = set()
_CLOCK_SECONDS = 1  # Two versions of a file written within this time may have the same mtime.


def _slices(path: Path, keys: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the tensors of a cache file as unread safetensors slices, and the text from the file's
    header. For a data set, the text is JSON: the names of its classes, or their number.

    If the file is missing or its header is damaged, raise the errors of `_read`.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    with safe_open(path, framework="numpy") as file:
        return {key: file.get_slice(key) for key in keys}, (file.metadata() or {}).get(
            "classes", ""
        )


def _write(tensors: Mapping[str, Tensor], text: str, path: Path) -> None:
    """Write tensors and a text to a cache file, whole or not at all; the caller must hold the
    file's lock.
    """
    from safetensors.torch import save_file

    told = {"classes": text, "sha256": _digest(tensors, text)}
    with replacing(path, is_only_writer=True) as file:
        save_file(dict(tensors), file.name, metadata=told)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a cache file, and hold the lock inside the `with` block."""
    while True:
        with claimed(path.with_suffix(".lock")) as is_ours:
            if is_ours:
                yield
                return
        time.sleep(_POLL_SECONDS)


_POLL_SECONDS = 0.1
