"""The data set of images in `root/train/<class>/` and `root/test/<class>/`.

The images are decoded once and kept as one tensor file in the cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bsweep.config.data import ImageFolderConfig
from bsweep.core.ranks import num_cores
from bsweep.data.cache import cached, cached_info
from bsweep.data.info import DataInfo
from bsweep.data.pictures import pixels, with_progress

if TYPE_CHECKING:
    from bsweep.data.dataset import Dataset

_LAYOUT = "it must hold train/<class>/ and test/<class>/ with images in them"
_CHUNK = 64  # images that a thread decodes at once
_NAMED = 10  # corrupt images that a message names


@dataclass(frozen=True)
class _Split:
    """The paths and classes of all images to train on, or of all to test on, sorted by path."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]  # position in `classes`
    fingerprint: str  # changes with any path, size or time of modification


def info(config: ImageFolderConfig) -> DataInfo:
    """Return the numbers of training and test images of a folder, their shape and their classes."""
    return cached_info(*_listed(config))


def load(config: ImageFolderConfig) -> Dataset:
    """Return the images of a folder, each as 3 x side x side. They are decoded only if the cache
    has none for the files that the folder now lists.

    An image of another size is resized so that its shorter side fits, and its centre is taken. An
    image may have any format that Pillow reads and be in any subfolder of its class. Files whose
    names begin with a dot are ignored.

    Raises:
        ValueError: If a folder is missing or empty, if train and test differ in their classes, or
            if an image is corrupt.
    """
    return cached(*_listed(config))


def _listed(config: ImageFolderConfig) -> tuple[str, Callable[[], Dataset]]:
    """Return the name under which the cache keeps the decoded images of a folder, and a function
    that decodes these images.
    """
    root = Path(config.root).expanduser()
    try:
        train, test = _list(root, "train"), _list(root, "test")
    except OSError as error:
        raise ValueError(f"data.root={config.root} cannot be read ({error}): {_LAYOUT}.") from error
    _check_classes(root, train, test)
    key = hashlib.sha256(
        f"1 {config.side} {train.fingerprint} {test.fingerprint}".encode()
    ).hexdigest()[:32]
    return f"imagefolder-{key}", lambda: _decode_splits(train, test, config.side)


def _list(root: Path, split: str) -> _Split:
    folder = root / split
    if not folder.is_dir():
        raise ValueError(
            f"data.root={root}: there is no folder {folder}; {_LAYOUT}. data=digits needs no "
            "folder."
        )
    with os.scandir(folder) as entries:
        classes = sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )
    if not classes:
        raise ValueError(f"data.root={root}: {folder} holds no folder of a class; {_LAYOUT}.")
    paths, labels, digest = [], [], hashlib.sha256()
    for label, name in enumerate(classes):
        files = sorted(_files(str(folder / name)))
        if not files:
            raise ValueError(
                f"data.root={root}: {folder / name} holds no image: add some, or remove it."
            )
        for path, size, mtime_ns in files:
            paths.append(path)
            labels.append(label)
            entry = f"{path[len(str(folder)) :]}\0{size}\0{mtime_ns}\0"
            digest.update(entry.encode(errors="surrogateescape"))
    return _Split(tuple(classes), tuple(paths), tuple(labels), digest.hexdigest())


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield the path, size and time of modification of every file in a folder and its subfolders,
    except hidden ones.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _files(entry.path)
            else:
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns


def _check_classes(root: Path, train: _Split, test: _Split) -> None:
    if train.classes == test.classes:
        if len(train.classes) > 1:
            return
        raise ValueError(
            f"data.root={root}: there is only one class, {train.classes[0]}, so any model is "
            "always right: add the folder of another class."
        )
    differences = [
        f"only in {split}: {', '.join(sorted(names))}"
        for split, names in (
            ("train", set(train.classes) - set(test.classes)),
            ("test", set(test.classes) - set(train.classes)),
        )
        if names
    ]
    raise ValueError(
        f"data.root={root}: train and test have different classes ({'; '.join(differences)}): give "
        "both the same folders."
    )


def _decode_splits(train: _Split, test: _Split, side: int) -> Dataset:
    import torch

    from bsweep.data.dataset import from_images

    images = torch.from_numpy(_decode(train.paths + test.paths, side))
    train_images, test_images = torch.split(images, [len(train.paths), len(test.paths)])
    return from_images(
        (train_images, torch.tensor(train.labels)),
        (test_images, torch.tensor(test.labels)),
        train.classes,
    )


def _decode(paths: Sequence[str], side: int) -> NDArray[np.uint8]:
    """Return the decoded images of all `paths`, uint8 (len(paths), 3, side, side).

    Threads suffice, because Pillow releases Python's lock while it decodes.
    """
    try:
        images = np.empty((len(paths), 3, side, side), dtype=np.uint8)
    except MemoryError as error:
        raise ValueError(f"data.side={side}: {error}. Choose a smaller side.") from error

    def decode_chunk(start: int) -> list[str]:
        chunk = enumerate(paths[start : start + _CHUNK], start)
        return [problem for i, path in chunk if (problem := _decode_into(images[i], path))]

    problems = []
    with ThreadPoolExecutor(num_cores()) as pool:
        chunks = pool.map(decode_chunk, range(0, len(paths), _CHUNK))
        with closing(with_progress(chunks, "decoding images", len(paths), _CHUNK)) as parts:
            for found in parts:
                problems += found
    if problems:
        more = [f"and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
        raise ValueError(
            "\n  ".join(
                [
                    "data=imagefolder: not readable as images; repair or remove:",
                    *problems[:_NAMED],
                    *more,
                ]
            )
        )
    return images


def _decode_into(out: NDArray[np.uint8], path: str) -> str | None:
    """Decode an image file, and write its centre square, scaled, into `out` (3, side, side).

    Return None, or a description of what is wrong with the image.
    """
    # Imported here because a worker that finds the cache should not wait for it.
    from PIL import Image

    try:
        if not Path(path).is_file():  # Reading a pipe may never end.
            return f"{path} (no file)"
        with Image.open(path) as file:
            out[:] = pixels(file, out.shape[1])
    except Exception as error:  # Pillow's plugins raise almost anything on a corrupt file
        return f"{path} ({type(error).__name__}: {error})"
    return None
