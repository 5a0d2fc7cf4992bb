"""The reports of a program that does not call `bsweep.join()`, made from the metrics that it writes
(`program.metrics`) while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bsweep.config.programs import OwnProgramConfig, values_of
from bsweep.config.run import RunConfig
from bsweep.config.values import did_you_mean
from bsweep.core.words import first_of
from bsweep.external.client import SCORES, TRAINED
from bsweep.external.tables import SINCE_1970, Epoch, Row, csv_rows, epoch_at, json_rows, values_at

_VALUES = ("train_seconds", *TRAINED, *SCORES)
Report = dict[str, Any]
Parse = Callable[[bytes, str, int], list[Row]]


class Written:
    """The reader of what a program writes, which turns it into reports for the recorder.

    Create it before the program starts, so that it leaves out what is there already.

    Args:
        config: A point with `program.metrics`.
        num_done: The number of epochs that earlier attempts have trained.
    """

    def __init__(self, config: RunConfig, num_done: int) -> None:
        program = config.program
        assert isinstance(program, OwnProgramConfig), program
        self._config, self._num_earlier, self._num_done = config, num_done, num_done
        fields = asdict(program.fields)
        self._given = {key: name for key, name in fields.items() if name is not None}
        self._names = {key: name or key for key, name in fields.items()}
        kind, place = program.metrics_of(values_of(config))
        self._place = f"{kind}:{place}"
        self._pattern = program.path / Path(place).expanduser()
        self._parse: Parse = csv_rows if kind == "csv" else json_rows
        self._files = {path: _File(path, self._parse, is_old=True) for path in self._paths()}
        self._started_at = self._arrived_at = self._ended_at = time.time()
        self._has_begun = False  # True if it was seen when the program began to write
        self._epochs: list[Epoch] = []  # to which rows may be added
        self._num_rows = 0
        self._seen: dict[str, None] = {}  # the names of all values

    def reports(self, *, is_last: bool = False) -> list[Report]:
        """Return the reports about what the program wrote since the last call.

        Args:
            is_last: True if the program has ended without an error.

        Raises:
            ValueError: If what it wrote is not what a run needs.
        """
        rows = self._new_rows(is_last=is_last)
        self._seen |= dict.fromkeys(name.removesuffix("%") for row in rows for name in row.values)
        reports: list[Report] = []
        arrived: list[Epoch] = []  # without a time of their own
        since = self._arrived_at
        for row in rows:
            values = values_at(row, self._names, (*_VALUES, "time"))
            at = values.pop("time", None)
            if not values:
                continue
            if not self._num_rows:
                reports += self._first_reports()
            epoch = self._epoch_of(row)
            epoch.values |= values
            if at is not None:
                epoch.time = max(epoch.time, at + (self._started_at if at < SINCE_1970 else 0))
            elif epoch not in arrived:
                arrived.append(epoch)
            self._arrived_at = max(self._arrived_at, row.time)
        for number, epoch in enumerate(arrived, 1):
            share = number / len(arrived)
            epoch.time = max(epoch.time, since + share * (self._arrived_at - since))
        if len(arrived) > 1 and not self._has("train_seconds"):
            message = f"several epochs arrived at once in {self._place}, and share the time evenly"
            remedy = "flush each row, or name a time by program.fields.time"
            reports.append(_warning(f"{message}: {remedy}", "once"))
        num_open = 0 if is_last else 1
        while len(self._epochs) > num_open:
            reports += self._reports_of(self._epochs.pop(0))
        return reports

    def end(self) -> list[Report]:
        """Return the last reports, after the program ended without an error.

        Raises:
            ValueError: If the program wrote nothing that a run needs.
        """
        reports = self.reports(is_last=True)
        columns = first_of(sorted(self._seen), 8)
        if not self._num_rows:
            raise ValueError(
                f"the program wrote nothing to {self._place} that is called "
                f"{', '.join(self._names[key] for key in _VALUES)}{columns and f', only {columns}'}"
                ": give the place and the names by program.metrics and program.fields, or call "
                "bsweep.join() in the program"
            )
        for key, name in self._given.items():
            if not self._has(key):
                near = did_you_mean(name, list(self._seen))
                message = f"program.fields.{key}={name}: {self._place} has no such field.{near}"
                reports.append(_warning(f"{message} It has {columns}", key))
        return reports

    def _has(self, key: str) -> bool:
        return self._names[key].removesuffix("%") in self._seen

    def _paths(self) -> list[Path]:
        pattern = self._pattern
        if "*" not in str(pattern):  # brackets and question marks in a path are letters
            return [pattern] if pattern.exists() else []
        return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))

    def _new_rows(self, *, is_last: bool) -> list[Row]:
        rows: list[Row] = []
        for path in self._paths():
            file = self._files.setdefault(path, _File(path, self._parse, is_old=False))
            changed_at, new_rows = file.new_rows(is_last=is_last)
            rows += new_rows
            is_first = not (rows or self._num_rows or self._has_begun)
            if changed_at and is_first:  # for example a header alone
                self._has_begun = True
                self._arrived_at = self._ended_at = changed_at
        return rows

    def _first_reports(self) -> list[Report]:
        """Return the reports before that on the first epoch."""
        is_seen = self._has_begun
        origin = "moment at which the program began to write" if is_seen else "start of the program"
        message = (
            f"train_seconds are those that the program wrote to {self._place}"
            if self._has("train_seconds")
            else f"train_seconds are wall times between the records of {self._place}, evaluations "
            f"included; that of the first epoch counts from the {origin}"
        )
        facts = {"kind": "facts", "facts": {"device": "unknown"}, "software": {}, "is_ready": True}
        ago = time.time() - self._ended_at
        return [{**facts, "seconds_ago": ago}, _warning(message, "wall")]

    def _epoch_of(self, row: Row) -> Epoch:
        """Return the epoch of a row, which may be a new one.

        Raises:
            ValueError: If the row has no epoch, or a new one does not follow the one before.
        """
        self._num_rows += 1
        label = float(self._num_rows)
        if "epoch" in self._given or self._has("epoch"):
            labels = values_at(row, self._names, ["epoch"])
            if not labels:
                raise ValueError(
                    f"{row.place}: the row has no {self._names['epoch']}: name the field with the "
                    "epoch by program.fields.epoch"
                )
            label = labels["epoch"]
        remedy, num_earlier = "Name its field by program.fields.epoch.", self._num_earlier
        if num_earlier:
            remedy += (
                f" The run resumes after {num_earlier} epochs, from what the program saved in "
                "{checkpoint_folder}."
            )
        return epoch_at(self._epochs, label, row.place, remedy, num_earlier)

    def _reports_of(self, epoch: Epoch) -> list[Report]:
        """Return the reports on an epoch that has ended."""
        self._num_done += 1
        if self._num_done > (planned := self._config.epochs):
            raise ValueError(
                f"the program wrote more than {planned} epochs to {self._place}, but the point has "
                f"epochs={planned}: pass {{epochs}} on in program.command, or name the field with "
                "the epoch by program.fields.epoch"
            )
        begun_at, self._ended_at = self._ended_at, max(self._ended_at, epoch.time)
        values = epoch.values
        seconds = values.get("train_seconds", self._ended_at - begun_at)
        trained = {key: values[key] for key in TRAINED if key in values}
        scores = {key: values[key] for key in SCORES if key in values}
        return [
            {"kind": "begin_epoch", "time": begun_at, "epoch": self._num_done},
            {"kind": "wall", "seconds": seconds},
            {"kind": "log", "values": trained},
            *([{"kind": "evaluated", "values": scores}] if scores else []),
            {"kind": "end_epoch", "time": self._ended_at},
        ]


def _warning(message: str, once: str) -> Report:
    return {"kind": "warning", "message": message, "once": once}


class _File:
    """A text file to which a program appends rows, or which it writes again with more rows."""

    def __init__(self, path: Path, parse: Parse, *, is_old: bool) -> None:
        self._path, self._parse = path, parse
        self._seen = _state(path) if is_old else None
        self._is_old = is_old  # unchanged since the program started
        self._known = path.read_bytes() if is_old else b""  # what was parsed, or is old
        self._num_rows = 0  # that were in it
        if is_old:
            with suppress(ValueError):  # it need not have rows if the program writes it again
                self._num_rows = len(parse(self._known, str(path), 0))

    def new_rows(self, *, is_last: bool) -> tuple[float | None, list[Row]]:
        """Return when the file changed, None if it did not, and the rows that are new in it."""
        try:
            state = _state(self._path)
            if state == self._seen and not is_last:
                return None, []
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None, []
        at, has_changed = state[0], state != self._seen
        self._seen = state
        if self._is_old and has_changed:
            self._is_old = False
            if len(content) <= len(self._known) or not content.startswith(self._known):
                self._known, self._num_rows = b"", 0  # the program wrote it again
        whole = content if is_last else content[: content.rfind(b"\n") + 1]
        rows: list[Row] = []
        if not self._known.startswith(whole):  # otherwise, the program is writing the file again
            # While a file grows, its new rows alone are parsed: the training needs the cores.
            is_grown = whole.startswith(self._known)
            rows = self._parse(whole, str(self._path), len(self._known) if is_grown else 0)
            rows = [replace(row, time=at) for row in rows[0 if is_grown else self._num_rows :]]
            self._known = whole
            self._num_rows += len(rows)
        return (at if has_changed else None), rows


def _state(path: Path) -> tuple[float, int]:
    status = path.stat()
    return status.st_mtime, status.st_size
