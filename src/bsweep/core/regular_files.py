"""Functions that open regular files only: opening or reading a pipe or a device might never end."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 2**20


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: If the file cannot be opened, or is a folder, a pipe, a device or a socket.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    # Opening does not wait, even if a pipe has taken the file's place since.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")


def create_regular(path: Path) -> BinaryIO:
    """Open a regular file for writing, and create it if there is none; its content is kept.

    Raises:
        OSError: If the file cannot be opened, or is a folder, a pipe, a device or a socket.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666), "r+b", 0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file: remove it", str(path))
    return file


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal digits.

    Raises:
        OSError: As in `open_regular`.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: As in `open_regular`.
    """
    with open_regular(path) as file:
        return file.read()
