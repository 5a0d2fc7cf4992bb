"""Functions that write a file of tensors whole or not at all, and read it."""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path
from typing import Any, BinaryIO

import torch

from bsweep.core.whole_files import replacing


class _Hashed:
    """A wrapper of a binary file that writes to the file and computes the SHA-256 of all written
    bytes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.sha256.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


def write_tensors(state: dict[str, Any], path: Path) -> str:
    """Write tensors, numbers, texts, and lists and dictionaries of these to a file, whole or not at
    all.

    Returns:
        The SHA-256 of the file, in hexadecimal digits.

    Raises:
        OSError, RuntimeError: If the disk is full, or the file cannot be written for another
            reason.
    """
    with replacing(path, is_only_writer=True) as file:
        hashed = _Hashed(file)
        torch.save(state, hashed)  # type: ignore[arg-type]  # it only writes
    return hashed.sha256.hexdigest()


def read_tensors(path: Path) -> dict[str, Any] | None:
    """Return the tensors and other values of a file that `write_tensors` wrote. The tensors are on
    the CPU, and no code from the file is run. If the file cannot be read, print the reason to
    stderr and return None.
    """
    try:
        with path.open("rb") as file:
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # torch raises errors of many types for a damaged file
        traceback.print_exc()
        return None
    return state
