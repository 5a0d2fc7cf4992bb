"""The paths in a run's folder, and the functions that write records and JSON files.

One record is one line, written whole and flushed, so that a kill can tear only the last line.
`RunLog` cuts a torn line before it appends; readers leave it out and say so. `summary.json` is
written last and atomically: a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from bsweep.config.values import did_you_mean
from bsweep.core.whole_files import space_for, write_whole
from bsweep.core.words import escaped
from bsweep.runlog.records import SCHEMA, Record


def no_such_study(study_dir: Path) -> str:
    """Return the error message for a study folder that does not exist. The message suggests a
    folder of a similar name, beside it or in `results`, if there is one.
    """
    beside = dict.fromkeys([study_dir.parent, Path("results")])
    studies = [path for folder in beside for path in folder.glob("*") if path.is_dir()]
    near = did_you_mean(study_dir.name, [path.name for path in studies])
    for path in studies:
        near = near.replace(f"'{path.name}'", f"'{path}'")
    return f"{study_dir}: there is no such study folder.{near} Give a folder such as results/NAME."


class _Inside:
    """A path in the folder of a `RunPaths`."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, paths: RunPaths, owner: type) -> Path:
        return paths.folder.joinpath(*self._names)


@dataclass(frozen=True)
class RunPaths:
    """The paths of the files and folders in a run's folder, except of those in a checkpoint."""

    folder: Path

    config = _Inside("config.yaml")
    own = _Inside("own")
    """The folder of the user's own code that the run trains with; see
    `bsweep.config.user_code`.
    """
    meta = _Inside("meta.json")
    metrics = _Inside("metrics.jsonl")
    summary = _Inside("summary.json")
    final = _Inside("final.pt")
    """The file with the trained weights of a completed run with `keep_weights`; see
    `bsweep.load_model`.
    """
    checkpoints = _Inside("checkpoint")
    """The folder of the run's checkpoints, of which the last two complete ones are kept.

    An unfinished run resumes from the latest one that is not damaged.
    """
    program = _Inside("program")
    """The folder in which the user's own program saves what it resumes from."""
    stop = _Inside("stop")
    """The file that asks a run to stop by containing any text: the workers then save a checkpoint,
    if the run saves any, and end.
    """
    logs = _Inside("logs")
    launcher_log = _Inside("logs", "launcher.log")
    """The file with the output of the launcher that started the run's processes.

    The file is missing with the launcher `inline`, which starts no processes, and if the processes
    of another run trained this run too.
    """
    environment = _Inside(".environment")
    """The shell file with environment variables that a launcher passes to the run's processes.

    Only the file's owner can read it, and it is removed once the processes have read it.
    """

    def worker_claim(self, rank: int) -> Path:
        """Return the path of the file that the process `rank` keeps locked while it may write to
        this folder.

        A launcher that is killed may leave its processes behind for some seconds.
        """
        return self.folder / ".workers" / str(rank)

    @property
    def worker_claims(self) -> list[Path]:
        return [path for path in self.worker_claim(0).parent.glob("[0-9]*") if not path.suffix]

    def rank_logs(self, rank: int) -> Path:
        """Return the folder with the output of the process `rank`: `stdout`, `stderr` and, if it
        reported an error, `error.json`.

        The parameter servers' ranks follow the workers'. The launcher `inline` leaves `stdout` and
        `stderr` to the terminal.
        """
        return self.logs / f"rank.{rank}"

    def taken(self, rank: int) -> Path:
        """The file of a rank of the user's own program, see `bsweep.runlog.taken`."""
        return self.rank_logs(rank) / "taken"

    def heartbeat(self, rank: int) -> Path:
        """Return the path of the file whose time says when a worker last made progress."""
        return self.rank_logs(rank) / "heartbeat"

    def clean_exit(self, rank: int) -> Path:
        """The file that a process makes when its work has ended without an error."""
        return self.rank_logs(rank) / "clean_exit"

    def standstill(self, rank: int) -> Path:
        """Return the path of the file in which a process that makes no progress says whether it
        waits for other processes or works.
        """
        return self.rank_logs(rank) / "standstill"


class RunLog:
    """The writer that appends records to a run's `metrics.jsonl`.

    It opens the file for its first record. Only one process at a time may write.

    Raises:
        OSError: From `write` and `close`, if the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def write(self, record: Record) -> None:
        text = json_of({"schema": SCHEMA, "time": time.time(), **asdict(record)}) + "\n"
        file = self._opened()
        with space_for(self._path):
            file.write(text)
            file.flush()

    def sync(self) -> int:
        """Write the records to the disk, so that a power cut does not lose them, and return the
        number of their bytes.
        """
        file = self._opened()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size

    def _opened(self) -> TextIO:
        if self._file is None:
            _cut_torn_tail(self._path)
            self._file = self._path.open("a", encoding="utf-8")
        return self._file

    def close(self) -> None:
        if self._file:
            with space_for(self._path):
                self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all, so that even after a power cut it has either its old
    or its new content.
    """
    write_whole(path, json_of(value, indent=2).encode())


def json_of(value: Mapping[str, Any], indent: int | None = None) -> str:
    r"""Return a value as JSON. A byte of a file's name that is not UTF-8, which JSON cannot hold,
    becomes an escape such as \\xe9.
    """
    text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    return _SURROGATE.sub(lambda match: escaped(match[0]).replace("\\", "\\\\"), text)


_SURROGATE = re.compile("[\ud800-\udfff]")


def _cut_torn_tail(path: Path) -> None:
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n") and content:
        os.truncate(path, content.rfind(b"\n") + 1)
