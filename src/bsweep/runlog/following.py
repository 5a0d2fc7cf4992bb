"""Reads the records of a run while it trains: at each look those that are new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bsweep.core.following import GrowingFile
from bsweep.runlog.reading import Damaged, checked


class Following:
    """A `metrics.jsonl` that others write and, where they take the run up again, cut before."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, GrowingFile(path)
        self._num_records = 0
        self._lines: list[bytes] = []  # read, and not yet returned as records

    def news(self) -> list[dict[str, Any]] | None:
        """Return the whole records since the last call; None where those before are no longer
        there: follow the file anew.

        Raises:
            Damaged, Newer: as `read_records`; so does each call after it.
        """
        try:
            lines = self._file.new_lines()
        except OSError as error:
            raise Damaged(f"{self._path}: {error.strerror}.") from None
        if lines is None:
            return None
        self._lines += lines
        records = [
            checked(line, f"{self._path}:{number}")
            for number, line in enumerate(self._lines, self._num_records + 1)
        ]
        self._num_records += len(records)
        self._lines = []
        return records
