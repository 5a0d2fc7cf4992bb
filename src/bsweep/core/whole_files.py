"""Functions that write a file whole or not at all, and that tell the user when a disk is full."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers that mean that a disk or a quota is full."""

_OTHER_RESULTS = (
    "give another results_dir=... and start the same sweep again, which repeats its runs there"
)
_FEW_LINES = 1 << 14  # bytes


@contextmanager
def replacing(path: Path, *, is_only_writer: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`, and replace `path` by this file at the end of the `with`
    block. Readers see either the old or the new file whole, even after a power cut.

    Args:
        path: The file to replace, which need not exist.
        is_only_writer: True if no other process writes this file meanwhile. The temporary file then
            always has the same name, so that the next write overwrites what a killed process left.
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
    """Write a file whole or not at all.

    Raises:
        OSError: If it cannot be written. For a full disk the message says what to do, see
            `space_for`.
    """
    with space_for(path), replacing(path) as file:
        file.write(content)


@contextmanager
def space_for(path: Path) -> Iterator[None]:
    """Replace the error that a full disk causes inside the `with` block by an OSError that names
    `path`, the file that the block writes, and says what to do.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise OSError(error.errno, no_space(path, _OTHER_RESULTS)) from None


def no_space(path: Path, otherwise: str) -> str:
    """Return the error message for a full disk, which names `path` and the remedies."""
    return f"no space left for {path}. Free some space there, or {otherwise}"


def why_full(folder: Path, otherwise: str) -> str:
    """Return an error message if the disk of `folder` or its quota is full, otherwise an empty
    text.

    Args:
        folder: The folder, to which this function writes a temporary file.
        otherwise: What to do if no space can be freed.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_FEW_LINES))
            file.flush()
    except OSError as error:
        return no_space(folder, otherwise) if is_full(error) else ""
    return ""


def is_full(error: BaseException) -> bool:
    """Return True if an error means that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in FULL


def explained(error: BaseException, folder: Path, otherwise: str) -> str:
    """Return what an error says; of a full disk and of another user's folder, also what to do.

    Args:
        error: The error.
        folder: What was to be written.
        otherwise: What to do if space or access cannot be had.
    """
    if is_full(error):
        return no_space(folder, otherwise)
    if not isinstance(error, PermissionError):
        return str(error)
    path = Path(error.filename or folder).absolute()
    while not os.path.lexists(path):
        path = path.parent
    number = path.lstat().st_uid
    if number == os.getuid():
        return str(error)
    try:
        owner = path.owner()
    except KeyError:  # a user without a name
        owner = str(number)
    return f"{path} belongs to the user {owner}: ask for access to it, or {otherwise}"
