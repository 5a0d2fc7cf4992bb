"""The cache in which bsweep keeps decoded data sets for a user.

Each data set is one file of tensors, with the facts about the data set in its header. The file is
checked when its tensors are loaded, and it is mapped into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
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

    Facts = dict[str, Any]
    Build = Callable[[], tuple[Mapping[str, Tensor], Facts]]

logger = terminal.logger(__name__)

Content = TypeVar("Content")

_DAMAGED = (OSError, SafetensorError, ValueError, LookupError, TypeError)
_FORMAT = 2  # of a cache file
_POLL_SECONDS = 0.1


def cached(name: str, build: Callable[[], Dataset]) -> Dataset:
    """Return the data set that the cache keeps under `name`. If the cache has none or its file is
    damaged, build the data set and add it first.

    See `cached_tensors`.
    """
    from bsweep.data.dataset import Dataset, Part

    tensors, facts = cached_tensors(name, _divided(build))
    train, test = (
        Part(tensors[f"{part}_inputs"], tensors[f"{part}_labels"]) for part in ("train", "test")
    )
    info, mean, std = _info(facts), tensors.get("mean"), tensors.get("std")
    return Dataset(train, test, info.classes, info.num_classes, mean, std, notes=info.notes)


def cached_info(name: str, build: Callable[[], Dataset]) -> DataInfo:
    """Return the sizes and classes of the data set that the cache keeps under `name`. If the cache
    has none, build the data set and add it first.
    """
    return _info(cached_facts(name, _divided(build)))


def _info(facts: Facts) -> DataInfo:
    lists = {key: tuple(fact) for key, fact in facts.items() if isinstance(fact, list)}
    return DataInfo(**{**facts, **lists})


def _divided(build: Callable[[], Dataset]) -> Build:
    """Return a function that builds a data set and returns its tensors by name and the facts about
    it.
    """

    def build_tensors() -> tuple[dict[str, Tensor], Facts]:
        dataset = build()
        tensors: dict[str, Tensor] = {}
        for name, part in (("train", dataset.train), ("test", dataset.test)):
            tensors |= {f"{name}_inputs": part.inputs, f"{name}_labels": part.labels}
        if dataset.mean is not None and dataset.std is not None:
            tensors |= {"mean": dataset.mean, "std": dataset.std}
        return tensors, asdict(dataset.info)

    return build_tensors


def cached_facts(name: str, build: Build) -> Facts:
    """Return the facts in the header of a cache file, without torch. If the file is missing or its
    header is damaged, write it first.

    The tensors are not checked here; `cached_tensors` checks them.
    """
    return _cached(name, build, _read_facts)


def cached_tensors(name: str, build: Build) -> tuple[dict[str, Tensor], Facts]:
    """Return the tensors of a cache file by name, and the facts in its header. If the file is
    missing or damaged, write it first.

    Many processes may call this at once: one builds, the others wait. On the CPU, all processes of
    a host share the pages of the file, so the tensors are in memory only once.

    Args:
        name: The name of the cache file, without its suffix.
        build: The function that makes the tensors and the facts.

    Raises:
        ValueError: If the cache folder cannot be written, or if `build` raises it or an OSError.
    """
    return _cached(name, build, _read)


def _cached(name: str, build: Build, read: Callable[[Path], Content]) -> Content:
    path = cache_folder() / f"{name}.{_FORMAT}.safetensors"
    with suppress(*_DAMAGED):  # Another process may be writing the file: decide under the lock.
        return read(path)
    try:
        with _locked(path):
            try:
                return read(path)
            except FileNotFoundError:
                pass
            except _DAMAGED as error:
                logger.warning(f"{path} is damaged ({error}), and bsweep makes it again")
            try:
                tensors, facts = build()
            except OSError as error:
                raise ValueError(
                    f"an example cannot be read ({error}): repair or replace the files of the data "
                    "set"
                ) from error
            _write(tensors, facts, path)
            return read(path)
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


def _read_facts(path: Path) -> Facts:
    """Return the facts in the header of a cache file.

    Raises:
        FileNotFoundError: If the file is missing.
        OSError: If the file cannot be read.
        SafetensorError, ValueError, LookupError, TypeError: If the header is damaged.
    """
    with safe_open(path, framework="numpy") as file:
        facts: Facts = json.loads(file.metadata()["facts"])
    return facts


def _read(path: Path) -> tuple[dict[str, Tensor], Facts]:
    """Check a cache file, and return its tensors and the facts in its header.

    Raises:
        FileNotFoundError: If the file is missing.
        OSError: If the file cannot be read.
        SafetensorError, ValueError, LookupError, TypeError: If the file is damaged.
    """
    stat = path.stat()
    version = path, stat.st_ino, stat.st_size, stat.st_mtime_ns
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {key: file.get_tensor(key) for key in sorted(file.keys())}
    if version not in _INTACT and header["sha256"] != _digest(tensors, header["facts"]):
        raise ValueError("its checksum does not match its content")
    _INTACT.add(version)
    return tensors, json.loads(header["facts"])


# The checked versions of files: a process that trains many points checks a large file only once.
_INTACT: set[tuple[Path, int, int, int]] = set()


def _write(tensors: Mapping[str, Tensor], facts: Facts, path: Path) -> None:
    """Write tensors and facts to a cache file, whole or not at all; the caller must hold the file's
    lock.
    """
    from safetensors.torch import save_file

    text = json.dumps(facts)
    with replacing(path, is_only_writer=True) as file:
        header = {"facts": text, "sha256": _digest(tensors, text)}
        save_file(dict(tensors), file.name, metadata=header)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy().data)
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
