"""The data set of images in `root/train/<class>/` and `root/test/<class>/`, or in `root/<class>/`.

The decoded images are kept as one tensor file in the cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bsweep.config.data import ImageFolderConfig
from bsweep.core.ranks import num_cores
from bsweep.data.cache import cached, cached_info
from bsweep.data.info import DataInfo
from bsweep.data.pictures import GreyLevels, num_bits, pixels, with_progress

if TYPE_CHECKING:
    from bsweep.data.dataset import Dataset

_SPLIT_LAYOUT = "it must hold train/<class>/ and test/<class>/ with images in them"
_WHOLE_LAYOUT = "with data.test_share it must hold <class>/ with images in it, for each class"
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
    train, test = _listed(config)
    found = cached_info(*_entry(config, train, test))
    num_files = len(train.paths) + len(test.paths)
    return replace(found, num_skipped=num_files - found.num_train - found.num_test)


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
    return cached(*_entry(config, *_listed(config)))


def _listed(config: ImageFolderConfig) -> tuple[_Split, _Split]:
    """Return the paths and classes of the images to train on and of those to test on, as the folder
    holds them now.
    """
    root = Path(config.root).expanduser()
    try:
        if config.test_share is None:
            train, test = _list(root, "train"), _list(root, "test")
        else:
            train, test = _divided(root, config.test_share)
    except OSError as error:
        layout = _SPLIT_LAYOUT if config.test_share is None else _WHOLE_LAYOUT
        raise ValueError(f"data.root={config.root} cannot be read ({error}): {layout}.") from error
    _check_classes(root, train, test)
    return train, test


def _entry(
    config: ImageFolderConfig, train: _Split, test: _Split
) -> tuple[str, Callable[[], Dataset]]:
    """Return the name under which the cache keeps the decoded images, and the function that decodes
    them.
    """
    skips = " skip_broken" if config.skip_broken else ""
    key = hashlib.sha256(
        f"2 {config.side} {train.fingerprint} {test.fingerprint}{skips}".encode()
    ).hexdigest()[:32]
    build = functools.partial(_decode_splits, train, test, config.side, config.skip_broken)
    return f"imagefolder-{key}", build


def _divided(root: Path, test_share: float) -> tuple[_Split, _Split]:
    """Return the paths and classes of the images in a folder of classes, divided into those to
    train on and those to test on.

    A hash of an image's path decides, so that the division is the same at each call, for each seed
    of a run and on each host, and few images change sides when others are added.
    """
    if all((root / split).is_dir() for split in ("train", "test")):
        raise ValueError(
            f"data.test_share={test_share:g}: {root} holds train/ and test/ already. Leave "
            "data.test_share out, or name a folder that holds <class>/ alone."
        )
    whole = _list(root)
    tests: set[str] = set()
    for label, name in enumerate(whole.classes):
        paths = [p for p, of in zip(whole.paths, whole.labels, strict=True) if of == label]
        if len(paths) < 2:
            raise ValueError(
                f"data.test_share={test_share:g}: {root / name} holds one image, and each class "
                "needs two or more, one of them to test on. Add images, or remove the class."
            )
        number = min(max(1, round(test_share * len(paths))), len(paths) - 1)
        tests |= set(sorted(paths, key=lambda path: _hash(path[len(str(root)) :]))[:number])
    fingerprint = f"{whole.fingerprint} {test_share}"
    return _chosen(whole, fingerprint, lambda p: p not in tests), _chosen(
        whole, fingerprint, lambda p: p in tests
    )


def _hash(path: str) -> str:
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()


def _chosen(whole: _Split, fingerprint: str, is_chosen: Callable[[str], bool]) -> _Split:
    pairs = [pair for pair in zip(whole.paths, whole.labels, strict=True) if is_chosen(pair[0])]
    paths, labels = zip(*pairs, strict=True)
    return _Split(whole.classes, paths, labels, fingerprint)


def _list(root: Path, split: str = "") -> _Split:
    folder = root / split
    layout = _SPLIT_LAYOUT if split else _WHOLE_LAYOUT
    if not folder.is_dir():
        alone = " A folder of <class>/ alone takes data.test_share=0.2." if split else ""
        raise ValueError(
            f"data.root={root}: there is no folder {folder}; {layout}.{alone} data=digits needs no "
            "folder."
        )
    with os.scandir(folder) as entries:
        classes = sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )
    if not classes:
        raise ValueError(f"data.root={root}: {folder} holds no folder of a class; {layout}.")
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
    except hidden files and folders.
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


def _decode_splits(train: _Split, test: _Split, side: int, skips_broken: bool) -> Dataset:
    import torch

    from bsweep.data.dataset import from_images

    levels = GreyLevels()
    pixels, broken = _decode(train.paths + test.paths, side, levels)
    if broken and not skips_broken:
        more = [f"and {len(broken) - _NAMED} more"] if len(broken) > _NAMED else []
        said = "data=imagefolder: not readable as images; repair or remove them, or leave them out "
        raise ValueError(
            "\n  ".join([f"{said}by data.skip_broken=true:", *[*broken.values()][:_NAMED], *more])
        )
    is_sound = torch.ones(len(pixels), dtype=torch.bool)
    is_sound[[*broken]] = False
    images, parts = torch.from_numpy(pixels), []
    for split, first in ((train, 0), (test, len(train.paths))):
        sound = is_sound[first : first + len(split.paths)]
        labels = torch.tensor(split.labels)[sound]
        for label, name in enumerate(split.classes):
            if label not in labels:
                raise ValueError(
                    f"data.skip_broken=true: no image of the class {name} that is to "
                    f"{'train' if split is train else 'test'} on can be read: add some, or remove "
                    "the class."
                )
        part = images[first : first + len(split.paths)]
        parts.append((part[sound] if broken else part, labels))
    return replace(from_images(parts[0], parts[1], train.classes), notes=levels.notes)


def _decode(
    paths: Sequence[str], side: int, levels: GreyLevels
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Return the decoded images of all `paths`, uint8 (len(paths), 3, side, side), and what is
    wrong with those that cannot be read, by their positions.

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

    def decode_chunk(numbers: Sequence[int]) -> None:
        for number in numbers:
            try:
                with Image.open(paths[number]) as file:
                    if not levels.num_bits and (bits := num_bits(file)):
                        deep[number] = bits
                    else:
                        images[number] = pixels(file, side, levels)
            except Exception as error:  # Pillow's plugins raise almost anything on a corrupt file
                problems[number] = f"{paths[number]} ({type(error).__name__}: {error})"

    def decode(numbers: Sequence[int], work: str) -> None:
        starts = range(0, len(numbers), _CHUNK)
        with ThreadPoolExecutor(num_cores()) as pool:
            chunks = pool.map(decode_chunk, (numbers[at : at + _CHUNK] for at in starts))
            with closing(with_progress(chunks, work, len(numbers), _CHUNK)) as parts:
                for _ in parts:
                    pass

    decode(range(len(paths)), "decoding images")
    if deep:
        levels.num_bits = max(deep.values())
        decode(sorted(deep), "decoding images of 16 bits")
    return images, dict(sorted(problems.items()))
