"""Files that are there whole or not at all, and what a full disk says."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FEW_LINES = 1 << 14  # bytes


@contextmanager
def replacing(path: Path, *, is_only_writer: bool = False) -> Iterator[BinaryIO]:
    """Open a file beside `path`, which takes its place when all is written: readers see one file or
    the other whole, also after a power cut.

    Args:
        path: The file to be replaced, which need not be there.
        is_only_writer: No other process writes it meanwhile. The file beside then has the same name
            each time, so that what a kill left is written over.
    """
    own = "" if is_only_writer else f".{os.urandom(4).hex()}"
    beside = path.with_name(f".{path.name}{own}.tmp")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all. OSError as `space_for`."""
    with space_for(path), replacing(path) as file:
        file.write(content)


@contextmanager
def space_for(path: Path) -> Iterator[None]:
    """What a full disk raises in here, as an OSError that names the path and says what to do."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        otherwise = (
            "give another results_dir=..., and start the same sweep again, which repeats this run"
        )
        raise OSError(error.errno, no_space(path, otherwise)) from None


def no_space(path: Path, otherwise: str) -> str:
    """What to say where a full disk has no room for a path."""
    return f"no space left for {path}. Free some there, or {otherwise}"


def why_full(folder: Path) -> str:
    """What a full disk says of a folder; nothing where it has room for a few lines."""
    try:
        with space_for(folder), tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_FEW_LINES))
            file.flush()
    except OSError as error:
        return str(error.strerror) if is_full(error) else ""
    return ""


def is_full(error: OSError) -> bool:
    """Whether a disk or a quota is full."""
    return error.errno in _FULL
