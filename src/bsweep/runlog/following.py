"""A reader of a run's records while the run trains; each call returns only the records that are
new.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bsweep.core.following import GrowingFile
from bsweep.runlog.reading import Damaged, checked


class Following:
    """A reader of a `metrics.jsonl` that other processes write; they may remove its last records
    when they resume the run.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, GrowingFile(path)
        self._num_records = 0
        self._lines: list[bytes] = []  # read, and not yet returned as records

    def news(self) -> list[dict[str, Any]] | None:
        """Return the complete records that are new since the last call.

        Return None if earlier records are no longer in the file; the caller then makes a new
        reader.

        Raises:
            Damaged: As in `read_records`. If a record is damaged, each later call raises it too.
            Newer: As in `read_records`; each later call raises it too.
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
