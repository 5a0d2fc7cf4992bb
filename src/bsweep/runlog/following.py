"""Reads the records of a run while it trains: at each look those that are new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bsweep.runlog.reading import Damaged, checked


class Following:
    """A `metrics.jsonl` that others write and, where they take the run up again, cut before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_records, self._num_bytes = 0, 0
        self._last = b""  # line, by which a file is known that was cut since

    def news(self) -> list[dict[str, Any]] | None:
        """The whole records since the last call; None where those before are no longer there.

        Raises:
            Damaged, Newer: as `read_records`; so does each call after it.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._num_bytes - len(self._last))
                content = file.read()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise Damaged(f"{self._path}: {error.strerror}.") from None
        if not content.startswith(self._last):
            return None
        whole, newline, _ = content[len(self._last) :].rpartition(b"\n")
        if not newline:
            return []
        lines = whole.split(b"\n")
        records = [
            checked(line, f"{self._path}:{number}")
            for number, line in enumerate(lines, self._num_records + 1)
        ]
        self._num_records += len(records)
        self._num_bytes += len(whole) + 1
        self._last = lines[-1] + b"\n"
        return records
