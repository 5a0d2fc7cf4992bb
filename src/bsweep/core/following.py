"""Reads a file that grows: at each look the lines that are new."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


class GrowingFile:
    """A file of lines that others append to and, sometimes, cut before; it need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_bytes = 0
        self._last = b""  # line read, by which a file is known that was cut since

    def new_lines(self) -> list[bytes] | None:
        """Return the whole lines since the last call, without their ends; None, once, where those
        before are no longer there: the next call reads the file from its beginning.
        """
        content = b""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._num_bytes - len(self._last))
            content = file.read()
        if not content.startswith(self._last):
            self._num_bytes, self._last = 0, b""
            return None
        whole, newline, _ = content[len(self._last) :].rpartition(b"\n")
        if not newline:
            return []
        lines = whole.split(b"\n")
        self._num_bytes += len(whole) + 1
        self._last = lines[-1] + b"\n"
        return lines
