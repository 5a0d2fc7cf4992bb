"""The data set of images in `root/train/<class>/` and `root/test/<class>/`, or in `root/<class>/`.

The decoded images are kept as one tensor file in the cache.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, KeysView, Sequence
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bsweep.config.data import ImageFolderConfig
from bsweep.core.ranks import num_cores
from bsweep.core.words import counted, first_of
from bsweep.data.cache import cached, cached_info
from bsweep.data.info import DataInfo
from bsweep.data.pictures import note_on_levels, num_bits, pixels, with_progress

if TYPE_CHECKING:
    from bsweep.data.dataset import Dataset

_LAYOUT = (
    "it must hold train/<class>/ and test/<class>/ with images in them, or <class>/ alone with "
    "data.test_share=0.2; data=digits needs no folder"
)
_CHUNK = 64  # images that a thread decodes at once
_NAMED = 10  # corrupt images that a message names


PathsByClass = dict[str, list[str]]
"""The paths of the images to train on or to test on, by class; both are sorted."""


def info(config: ImageFolderConfig) -> DataInfo:
    """Return the numbers of training and test images of a folder, their shape and their classes."""
    return cached_info(*_entry(config))


def load(config: ImageFolderConfig) -> Dataset:
    """Return the images of a folder, each as 3 x side x side. They are decoded only if the cache
    has none for the files that the folder now lists.

    An image of another size is resized so that its shorter side fits, and its centre is taken. An
    image may have any format that Pillow reads and be in any subfolder of its class. Files whose
    names begin with a dot are ignored. With `skip_broken`, corrupt images are left out.

    Raises:
        ValueError: If a folder is missing or empty, if train and test differ in their classes, if
            there is only one class, or if an image is corrupt and `skip_broken` is not set.
    """
    return cached(*_entry(config))


def _entry(config: ImageFolderConfig) -> tuple[str, Callable[[], Dataset]]:
    """Return the name under which the cache keeps the images that the folder now lists, and the
    function that decodes them.

    The name changes with any path, size or time of modification.
    """
    root = Path(config.root).expanduser()
    digest = hashlib.sha256(f"3 {config.side} {config.test_share} {config.skip_broken}".encode())
    try:
        if config.test_share is None:
            train, test = _list(root / "train"), _list(root / "test")
        else:
            train, test = _divided(root, config.test_share)
        for path in itertools.chain(*train.values(), *test.values()):
            status = Path(path).stat()
            version = f"{_inside(path, root)}\0{status.st_size}\0{status.st_mtime_ns}\0"
            digest.update(version.encode(errors="surrogateescape"))
    except OSError as error:
        raise ValueError(f"data.root={config.root} cannot be read ({error}): {_LAYOUT}.") from error
    _check_classes(root, train.keys(), test.keys())
    build = functools.partial(_decode_splits, train, test, config.side, config.skip_broken)
    return f"imagefolder-{digest.hexdigest()[:32]}", build


def _divided(root: Path, test_share: float) -> tuple[PathsByClass, PathsByClass]:
    """Return the images in a folder of classes, divided into those to train on and those to test
    on.

    A hash of an image's path decides, so that the division is the same at each call, for each seed
    of a run and on each host, and few images change sides when others are added.
    """
    if all((root / split).is_dir() for split in ("train", "test")):
        raise ValueError(
            f"data.test_share={test_share:g}: {root} holds train/ and test/ already. Leave "
            "data.test_share out, or name a folder that holds <class>/ alone."
        )

    def number(path: str) -> str:
        return hashlib.sha256(_inside(path, root).encode(errors="surrogateescape")).hexdigest()

    train: PathsByClass = {}
    test: PathsByClass = {}
    for name, paths in _list(root).items():
        if len(paths) < 2:
            raise ValueError(
                f"data.test_share={test_share:g}: {root / name} holds one image, and each class "
                "needs two or more, one of them to test on. Add images, or remove the class."
            )
        num_test = min(max(1, round(test_share * len(paths))), len(paths) - 1)
        by_number = sorted(paths, key=number)
        test[name], train[name] = sorted(by_number[:num_test]), sorted(by_number[num_test:])
    return train, test


def _inside(path: str, root: Path) -> str:
    """Return the path of an image within a folder, such as `/cat/1.png`, also for the folder `.`,
    which paths in it do not name.
    """
    return path[len(str(root)) :] if root.name else f"/{path}"


def _list(folder: Path) -> PathsByClass:
    folders = (path.name for path in folder.iterdir() if path.is_dir())
    classes = sorted(name for name in folders if not name.startswith("."))
    if not classes:
        raise ValueError(f"data=imagefolder: {folder} holds no folder of a class; {_LAYOUT}.")
    images: PathsByClass = {}
    for name in classes:
        images[name] = sorted(_files(str(folder / name)))
        if not images[name]:
            raise ValueError(
                f"data=imagefolder: {folder / name} holds no image: add some, or remove it."
            )
    return images


def _files(folder: str) -> Iterator[str]:
    """Yield the path of every file in a folder and its subfolders, except hidden files and
    folders.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield from _files(entry.path) if entry.is_dir() else (entry.path,)


def _check_classes(root: Path, train: KeysView[str], test: KeysView[str]) -> None:
    if train == test:
        if len(train) > 1:
            return
        raise ValueError(
            f"data.root={root}: there is only one class, {', '.join(train)}, so any model is "
            "always right: add the folder of another class."
        )
    differences = "; ".join(
        f"only in {split}: {', '.join(sorted(names))}"
        for split, names in (("train", train - test), ("test", test - train))
        if names
    )
    raise ValueError(
        f"data.root={root}: train and test have different classes ({differences}): give both the "
        "same folders."
    )


def _decode_splits(
    train: PathsByClass, test: PathsByClass, side: int, skips_broken: bool
) -> Dataset:
    import torch

    from bsweep.data.dataset import from_images

    paths = [*itertools.chain(*train.values(), *test.values())]
    pixels, problems, most_bits = _decode(paths, side)
    if problems and not skips_broken:
        named = first_of([*problems.values()], _NAMED, comma="\n  ")
        raise ValueError(
            "data=imagefolder: not readable as images; repair or remove them, or leave them out by "
            f"data.skip_broken=true:\n  {named}"
        )
    images, first, pairs = torch.from_numpy(pixels), 0, []
    for use, split in (("train", train), ("test", test)):
        rows, labels = [], []
        for label, (name, group) in enumerate(split.items()):
            sound = [row for row in range(first, first + len(group)) if row not in problems]
            if not sound:
                raise ValueError(
                    f"data.skip_broken=true: no image of the class {name} that is to {use} on can "
                    "be read: add some, or remove the class."
                )
            first += len(group)
            rows += sound
            labels += [label] * len(sound)
        # Without corrupt images nothing is copied.
        kept = images[rows] if problems else images[rows[0] : first]
        pairs.append((kept, torch.tensor(labels)))
    notes = [note_on_levels(most_bits)] if most_bits else []
    if problems:
        num_files = counted(len(problems), "file")
        notes.append(f"data.skip_broken=true left out {num_files} that cannot be read as images")
    return replace(from_images(pairs[0], pairs[1], [*train]), notes=tuple(notes))


def _decode(paths: Sequence[str], side: int) -> tuple[NDArray[np.uint8], dict[int, str], int]:
    """Return the decoded images of all `paths`, uint8 (len(paths), 3, side, side), what is wrong
    with those that cannot be read, by their positions, and the number of bits that the brightest
    level of images of 16 bits needs; 0 if there are none.

    Threads suffice, because Pillow releases Python's lock while it decodes. Images of 16 bits are
    decoded once more, when the levels of all are known.
    """
    # Imported here because a worker that finds the cache should not wait for it.
    from PIL import Image

    try:
        images = np.empty((len(paths), 3, side, side), dtype=np.uint8)
    except MemoryError as error:
        raise ValueError(f"data.side={side}: {error}. Choose a smaller side.") from error
    problems: dict[int, str] = {}
    deep: dict[int, int] = {}  # the bits of the levels of images of 16 bits, by position
    most_bits = 0  # of these, once all are known

    def decode(number: int) -> None:
        try:
            with Image.open(paths[number]) as file:
                if not most_bits and (bits := num_bits(file)):
                    deep[number] = bits
                else:
                    images[number] = pixels(file, side, most_bits)
        except Exception as error:  # Pillow's plugins raise almost anything on a corrupt file
            problems[number] = f"{paths[number]} ({type(error).__name__}: {error})"

    def decode_all(numbers: Sequence[int], work: str) -> None:
        decoded = pool.imap_unordered(decode, numbers, _CHUNK)
        for _ in with_progress(decoded, work, len(numbers)):
            pass

    with ThreadPool(num_cores()) as pool:
        decode_all(range(len(paths)), "decoding images")
        if deep:
            most_bits = max(deep.values())
            decode_all(sorted(deep), "decoding images of 16 bits")
    return images, dict(sorted(problems.items())), most_bits
