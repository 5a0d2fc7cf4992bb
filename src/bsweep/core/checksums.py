"""A function that returns the checksum of a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

_CHUNK_BYTES = 2**20


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
