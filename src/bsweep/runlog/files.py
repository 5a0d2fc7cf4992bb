"""The files of a run folder: every path, and what writes them.

One record is one line, written whole and flushed, so that a kill can tear the last line only;
`RunLog` cuts such a tail before it appends and readers leave it out and say so. `summary.json` is
written last and atomically: a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from bsweep.core.whole_files import space_for, write_whole
from bsweep.runlog.records import SCHEMA, Record


@dataclass(frozen=True)
class RunPaths:
    """Every path of a run folder."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def own(self) -> Path:
        """The user's own code that the run trains with; see `bsweep.config.own`."""
        return self.folder / "own"

    @property
    def meta(self) -> Path:
        return self.folder / "meta.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.json"

    @property
    def checkpoints(self) -> Path:
        """What a run that is not completed goes on from: a folder for each of its last two
        checkpoints.
        """
        return self.folder / "checkpoint"

    @property
    def stop(self) -> Path:
        """Empty while a run trains. Who writes into it has its workers save where they are, and
        leave.
        """
        return self.folder / "stop"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def launcher_log(self) -> Path:
        """What started the run's processes printed; not there where those of another run trained
        this one too.
        """
        return self.logs / "launcher.log"

    @property
    def lifeline(self) -> Path:
        """What processes on other hosts go by: it names the start that they belong to, see
        `bsweep.launch.lifeline`.
        """
        return self.logs / "lifeline"

    @property
    def environment(self) -> Path:
        """Variables for processes that start, as sh reads them; its owner's alone, and gone when
        they have begun.
        """
        return self.folder / ".environment"

    def rank_logs(self, rank: int) -> Path:
        """Folder of a process's `stdout`, `stderr` and, where it failed, `error.json`. Servers
        follow the workers.
        """
        return self.logs / f"rank.{rank}"

    def alive(self, rank: int) -> Path:
        return self.rank_logs(rank) / "alive"

    def server_clocks(self, server: int) -> Path:
        """Every push that a parameter server took: worker, clock, and the slowest worker's when it
        was answered.
        """
        return self.folder / f"server.{server}.csv"


class SignOfLife:
    """A file of each worker whose modification time says when it last did something."""

    def __init__(self, path: Path) -> None:
        self._path, self._shown_at = path, float("-inf")

    def show(self) -> None:
        """To be called at every step; it touches the file once a second at most."""
        if time.monotonic() - self._shown_at > 1:
            self._shown_at = time.monotonic()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()


class RunLog:
    """Appends records to a run's `metrics.jsonl`, which it opens for its first record: one process
    at a time writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def write(self, record: Record) -> None:
        if self._file is None:
            _cut_torn_tail(self._path)
            self._file = self._path.open("a", encoding="utf-8")
        line = {"schema": SCHEMA, "time": time.time(), **asdict(record)}
        text = json.dumps(line, allow_nan=False) + "\n"
        with space_for(self._path):
            self._file.write(text)
            self._file.flush()

    def close(self) -> None:
        if self._file:
            with space_for(self._path):
                self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that is there whole or not at all, also after a power cut."""
    write_whole(path, json.dumps(value, indent=2, allow_nan=False).encode())


def _cut_torn_tail(path: Path) -> None:
    if not path.exists():
        return
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        os.truncate(path, end)
