"""A reader of a growing file that returns, at each call, the lines that other processes have
appended since the last call.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


class GrowingFile:
    """A reader of a text file to which other processes append lines and from which they sometimes
    remove the last lines. The file need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_bytes = 0
        self._last = b""  # last line read; if it is gone, the file was cut

    def new_lines(self) -> list[bytes] | None:
        """Return the complete lines that were appended to the file since the last call, without
        their line ends. Return None, once, if the line that was read last is no longer at its
        place in the file; the next call then reads from the beginning.

        Raises:
            OSError: If the file exists and cannot be read.
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
