"""The files of a run folder: every path, the writer and the reader.

One record is one line, written whole and flushed, so that a kill can tear the last line only; `RunLog` cuts such a tail
before it appends and `read_run` leaves it out and says so. `summary.json` is written last and atomically: a reader
never sees half of it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

from bsweep.config import RunConfig
from bsweep.runlog.records import SCHEMA, Record, Status


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
    def checkpoint(self) -> Path:
        """What all workers know alike of a run that is to be taken up again; written last, atomically."""
        return self.folder / "checkpoint" / "run.pt"

    def rank_checkpoint(self, rank: int) -> Path:
        """What one worker alone knows: the state of its optimizer, its random numbers, its sums."""
        return self.folder / "checkpoint" / f"rank.{rank}.pt"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def launcher_log(self) -> Path:
        """What started the run's processes printed; not there where those of another run trained this one too."""
        return self.logs / "launcher.log"

    def rank_logs(self, rank: int) -> Path:
        """Folder of a process's `stdout`, `stderr` and, where it failed, `error.json`. Servers follow the workers."""
        return self.logs / f"rank.{rank}"

    def alive(self, rank: int) -> Path:
        return self.rank_logs(rank) / "alive"

    def server_clocks(self, server: int) -> Path:
        """Every push that a parameter server took: worker, clock, and the slowest worker's when it was answered."""
        return self.folder / f"server.{server}.csv"


@dataclass(frozen=True)
class Run:
    """What a run folder holds. `summary` is None while it runs, or when it was killed with its launcher."""

    run_id: str
    folder: Path
    records: tuple[dict[str, Any], ...]
    summary: Mapping[str, Any] | None
    meta: Mapping[str, Any]
    warnings: tuple[str, ...] = field(default=())


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
    """Appends records to a run's `metrics.jsonl`, which it opens for its first record: one process at a time writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def write(self, record: Record) -> None:
        if self._file is None:
            _cut_torn_tail(self._path)
            self._file = self._path.open("a", encoding="utf-8")
        line = {"schema": SCHEMA, "time": time.time(), **asdict(record)}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_summary(paths: RunPaths, config: RunConfig, status: Status, message: str, wall_seconds: float) -> None:
    """End a run: its status and what its records come to, in one file that is the last to be written."""
    records, _ = read_records(paths.metrics)
    epochs = numbered(records, "epoch")
    last = epochs[-1] if epochs else {}
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs) if epochs else None
    num_examples = sum(
        epoch["images_per_second"] * epoch["train_seconds"] for epoch in epochs
    )  # the last may be a part
    sent_bytes = [epoch["sent_bytes"] for epoch in epochs]
    summary = {
        "run_id": paths.folder.name,
        "status": status,
        "message": message,
        "strategy": config.strategy.name,
        "num_workers": config.num_workers,
        "local_batch": config.examples_per_pass,
        "global_batch": config.examples_per_step,
        "seed": config.seed,
        "epochs": len(epochs),
        "num_steps": sum(epoch["num_steps"] for epoch in epochs),
        "train_seconds": train_seconds,
        "wall_seconds": wall_seconds,
        "images_per_second": num_examples / train_seconds if train_seconds else None,
        **{key: last.get(key) for key in ("train_loss", "train_accuracy", "test_loss", "test_accuracy")},
        "sent_bytes": None if not epochs or None in sent_bytes else sum(sent_bytes),
        "warnings": warnings(records),
    }
    write_json(paths.summary, {"schema": SCHEMA, **summary})


def numbered(records: Iterable[dict[str, Any]], kind: Literal["epoch", "round"]) -> list[dict[str, Any]]:
    """The epochs or rounds of a run; where it was taken up again, the later record of one stands for it."""
    kept: list[dict[str, Any]] = []
    for record in records:
        if record["type"] == kind:
            while kept and kept[-1][kind] >= record[kind]:
                kept.pop()
            kept.append(record)
    return kept


def warnings(records: Iterable[dict[str, Any]]) -> list[str]:
    """What events say, except that steps were shared out anew, which the rounds show."""
    events = (record for record in records if record["type"] == "event")
    return [event["message"] for event in events if event["event"] != "reallocated"]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that is there whole or not at all, also after a power cut."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None if there is no such file."""
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}). Delete it to have the run repeated.") from None
    return value


def read_run(folder: Path, with_steps: bool = True) -> Run:
    """Read a run folder; without its `step` records, which are the most, where nobody asks for them.

    Raises:
        ValueError: it was written by a newer schema, or a line other than the last one is damaged.
    """
    paths = RunPaths(folder)
    records, warning = read_records(paths.metrics, with_steps)
    return Run(
        run_id=folder.name,
        folder=folder,
        records=records,
        summary=read_summary(paths),
        meta=read_json(paths.meta) or {},
        warnings=(warning,) if warning else (),
    )


def read_summary(paths: RunPaths) -> dict[str, Any] | None:
    """How a run ended, or None while it has not; ValueError if a newer schema wrote it."""
    summary = read_json(paths.summary)
    if summary is not None:
        _check_schema(summary, paths.summary)
    return summary


def read_records(path: Path, with_steps: bool = True) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """The records of a `metrics.jsonl` and, if its last line was torn, a sentence that says so."""
    if not path.exists():
        return (), None
    lines = path.read_bytes().split(b"\n")
    torn = lines.pop()  # b"" after the newline of the last whole record
    wanted = lines if with_steps else [line for line in lines if not line.endswith(b'"type": "step"}')]
    try:
        records = json.loads(b"[" + b",".join(wanted) + b"]")  # at once: half the time of one by one
    except ValueError:
        number = next(number for number, line in enumerate(lines, 1) if _is_damaged(line))
        raise ValueError(f"{path}:{number}: damaged record. Remove the run's folder to repeat it.") from None
    for record in records:
        _check_schema(record, path)
        if record["type"] == "round" and "local_batches" in record:  # its name in records of earlier versions
            record["worker_batches"] = record.pop("local_batches")
    warning = f"{path.name}: left out a torn last line of {len(torn)} bytes." if torn else None
    return tuple(records), warning


def _is_damaged(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _check_schema(record: Mapping[str, Any], path: Path) -> None:
    schema = record.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ValueError(
            f"{path}: written with record schema {schema}, this bsweep reads up to {SCHEMA}. Update bsweep to read it."
        )


def _cut_torn_tail(path: Path) -> None:
    if not path.exists():
        return
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        os.truncate(path, end)
