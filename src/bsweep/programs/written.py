"""The reports of a program that does not call `bsweep.join()`, made from the metrics that it writes
(`program.metrics`) while it runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bsweep.config.program_point import values_of
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig
from bsweep.config.values import did_you_mean
from bsweep.core.words import first_of
from bsweep.programs.rows import Row, TextFiles, csv_rows, json_rows, number_at, time_at

_TRAINED = ("train_loss", "train_accuracy")
_SCORES = ("test_loss", "test_accuracy")
_VALUES = ("train_seconds", *_TRAINED, *_SCORES)
Report = dict[str, Any]


@dataclass
class _Epoch:
    label: float  # the number that the program gave it
    time: float  # of its last record
    values: dict[str, float] = field(default_factory=dict)


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
        self._config, self._first_done = config, num_done
        fields = asdict(program.fields)
        self._named = {key: name for key, name in fields.items() if name is not None}
        self._names = {key: name or key for key, name in fields.items()}
        kind, place = program.metrics_of(values_of(config))
        self._place = f"{kind}:{place}"
        parse = csv_rows if kind == "csv" else json_rows
        self._files = TextFiles(program.path / Path(place).expanduser(), parse)
        self._started_at = self._read_at = self._ended_at = time.time()
        self._open: list[_Epoch] = []
        self._last_label: float | None = None  # of the epochs that are reported
        self._num_done = num_done
        self._num_rows = 0
        self._seen: dict[str, None] = {}  # the names of all values

    def reports(self, *, is_last: bool = False) -> list[Report]:
        """Return the reports about what the program wrote since the last call.

        Args:
            is_last: True if the program has ended.

        Raises:
            ValueError: If what it wrote is not what a run needs.
        """
        rows = self._files.new_rows(is_last=is_last)
        self._seen |= dict.fromkeys(name.removesuffix("%") for row in rows for name in row.values)
        wanted = {self._names[key].removesuffix("%") for key in _VALUES}
        rows = [row for row in rows if wanted & {name.removesuffix("%") for name in row.values}]
        found = self._begin() if rows and not self._num_rows else []
        found += self._put(rows)
        for epoch in self._complete(is_last):
            found += self._reports_of(epoch)
        return found

    def end(self) -> list[Report]:
        """Return the last reports, after the program ended without an error.

        Raises:
            ValueError: If the program wrote too little.
        """
        found = self.reports(is_last=True)
        if not self._num_rows:
            has = f", only {first_of(sorted(self._seen), 8)}" if self._seen else ""
            raise ValueError(
                f"the program wrote nothing to {self._place} that is called "
                f"{', '.join(self._names[key] for key in _VALUES)}{has}: give the place and the "
                "names by program.metrics and program.fields, or call bsweep.join() in the program"
            )
        found += [_warning(self._lost(key), key) for key in self._named if not self._has(key)]
        if not any(self._has(key) for key in _SCORES):
            said = "has no score of a test set: name it by program.fields.test_accuracy"
            found.append(_warning(f"{self._place} {said}", ""))
        if self._num_done < self._config.epochs:
            raise ValueError(
                f"the program wrote {self._num_done} of {self._config.epochs} epochs to "
                f"{self._place}: pass {{epochs}} on in program.command, or give epochs="
                f"{max(1, self._num_done)}"
            )
        return found

    def _has(self, key: str) -> bool:
        return self._names[key].removesuffix("%") in self._seen

    def _lost(self, key: str) -> str:
        name = self._named[key]
        return (
            f"program.fields.{key}={name}: {self._place} has no such field."
            f"{did_you_mean(name, list(self._seen))} It has {first_of(sorted(self._seen), 8)}"
        )

    def _begin(self) -> list[Report]:
        since = "the start of the program"
        if self._files.begun_at is not None:
            since = "the moment at which the program began to write"
            self._read_at = self._ended_at = self._files.begun_at
        text = (
            f"train_seconds are those that the program wrote to {self._place}"
            if self._has("train_seconds")
            else f"train_seconds are wall times between the records of {self._place}, evaluations "
            f"included; that of the first epoch counts from {since}"
        )
        ago = time.time() - self._ended_at
        about: Report = {"num_train": None, "device": "unknown", "threads": None, "software": {}}
        return [{"kind": "ready", "seconds_ago": ago, **about}, _warning(text, "wall")]

    def _put(self, rows: Sequence[Row]) -> list[Report]:
        """Add the values of rows to their epochs; return a warning if their times are unknown."""
        labels = [self._label(row, number) for number, row in enumerate(rows, self._num_rows + 1)]
        different, read_at = list(dict.fromkeys(labels)), self._read_at
        at_once = False
        for label, row in zip(labels, rows, strict=True):
            at = self._own_time(row)
            if at is None:
                share = (different.index(label) + 1) / len(different)
                at = read_at + share * (row.time - read_at)
                at_once = at_once or len(different) > 1
            self._read_at = max(self._read_at, row.time)
            self._add(label, row, at)
        self._num_rows += len(rows)
        if not at_once or self._has("train_seconds"):
            return []
        text = f"several epochs arrived at once in {self._place}, and share the time evenly"
        return [_warning(f"{text}: flush each row, or name a time by program.fields.time", "once")]

    def _label(self, row: Row, number: int) -> float:
        """Return the number that the program gives to the epoch of a row."""
        if "epoch" not in self._named and not self._has("epoch"):
            return number
        label = number_at(row, self._names["epoch"], "epoch")
        if label is None:
            raise ValueError(
                f"{row.place}: the row has no {self._names['epoch']}: name the field with the "
                "epoch by program.fields.epoch"
            )
        return label

    def _own_time(self, row: Row) -> float | None:
        found = time_at(row, self._names["time"])
        if found is None or found >= 1e8:
            return found
        return found + self._started_at  # it counts from the start

    def _add(self, label: float, row: Row, at: float) -> None:
        epoch = next((one for one in self._open if one.label == label), None)
        if epoch is None:
            if self._last_label is not None and label <= self._last_label:
                self._refuse(label, row.place)
            epoch = _Epoch(label, at)
            self._open.append(epoch)
        epoch.time = max(epoch.time, at)
        for key in _VALUES:
            number = number_at(row, self._names[key], key)
            if number is not None:
                epoch.values[key] = number

    def _complete(self, is_last: bool) -> list[_Epoch]:
        """Return the epochs to which nothing will be added, and forget them."""
        self._open.sort(key=lambda epoch: epoch.label)
        found = []
        while self._open and (is_last or len(self._open) > 1):
            found.append(self._open.pop(0))
        return found

    def _reports_of(self, epoch: _Epoch) -> list[Report]:
        config, begun_at = self._config, self._ended_at
        self._refuse_gap(epoch)
        self._num_done += 1
        if self._num_done > config.epochs:
            raise ValueError(
                f"the program wrote more than {config.epochs} epochs to {self._place}, but the "
                f"point has epochs={config.epochs}: pass {{epochs}} on in program.command, or "
                "name the field with the epoch by program.fields.epoch"
            )
        self._ended_at = max(begun_at, epoch.time)
        seconds = epoch.values.get("train_seconds", self._ended_at - begun_at)
        num_train = getattr(config.data, "num_train", None)
        assert num_train, config.data
        num_steps = math.ceil(num_train / config.examples_per_step)
        batch = config.examples_per_pass
        last = max(0, num_train // config.num_workers - (num_steps - 1) * batch)
        number = {"epoch": self._num_done}
        steps = [seconds / num_steps] * num_steps
        trained = {key: epoch.values[key] for key in _TRAINED if key in epoch.values}
        scores = {key: epoch.values[key] for key in _SCORES if key in epoch.values}
        return [
            {"kind": "begin_epoch", "time": begun_at, **number},
            {"kind": "steps", "seconds": steps, "examples": [batch] * (num_steps - 1) + [last]},
            {"kind": "log", "values": trained},
            *([{"kind": "evaluated", "values": scores}] if scores else []),
            {"kind": "end_epoch", "time": self._ended_at, **number},
        ]

    def _refuse_gap(self, epoch: _Epoch) -> None:
        """Raise ValueError unless an epoch follows the one before it."""
        first, before = self._first_done, self._last_label
        fits = (first, first + 1) if before is None else (before + 1,)
        if epoch.label not in fits:
            self._refuse(epoch.label, self._place)
        self._last_label = epoch.label

    def _refuse(self, label: float, place: str) -> None:
        before = self._last_label
        after = f"follows epoch {before:g}" if before is not None else "is the first one"
        resumed = (
            f" The run resumes after {self._first_done} epochs, from what the program saved in "
            "{checkpoint_folder}."
            if self._first_done
            else ""
        )
        raise ValueError(
            f"{place}: epoch {label:g} {after}: each epoch needs a record, and they count from 0 "
            f"or 1. Name the field with the epoch by program.fields.epoch.{resumed}"
        )


def _warning(message: str, once: str) -> Report:
    return {"kind": "warning", "message": message, "once": once}
