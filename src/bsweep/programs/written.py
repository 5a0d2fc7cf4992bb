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
        self._epoch: _Epoch | None = None  # to which rows may be added
        self._last_label: float | None = None  # of the latest epoch
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
        reports = self._begin() if rows and not self._num_rows else []
        labels = [self._label(row, number) for number, row in enumerate(rows, self._num_rows + 1)]
        self._num_rows += len(rows)
        for row, label, at in zip(rows, labels, self._times(labels, rows), strict=True):
            if self._epoch is None or label != self._epoch.label:
                reports += self._end_epoch()
                self._begin_epoch(label, row.place)
            self._add(row, at)
        if is_last:
            reports += self._end_epoch()
        if len({*labels}) > 1 and not self._has("train_seconds") and not self._has("time"):
            text = f"several epochs arrived at once in {self._place}, and share the time evenly"
            remedy = "flush each row, or name a time by program.fields.time"
            reports.append(_warning(f"{text}: {remedy}", "once"))
        return reports

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

    def _times(self, labels: Sequence[float], rows: Sequence[Row]) -> list[float]:
        """Return the time of each row: its own or, if it has none, that at which it arrived. Epochs
        that arrive at once share the time since the last ones.
        """
        epochs, read_at = list(dict.fromkeys(labels)), self._read_at
        times = []
        for label, row in zip(labels, rows, strict=True):
            at = time_at(row, self._names["time"])
            if at is None:
                share = (epochs.index(label) + 1) / len(epochs)
                at = read_at + share * (row.time - read_at)
            elif at < 1e8:
                at += self._started_at  # it counts from the start
            times.append(at)
            self._read_at = max(self._read_at, row.time)
        return times

    def _begin_epoch(self, label: float, place: str) -> None:
        """Begin the epoch of a row.

        Raises:
            ValueError: If it does not follow the one before.
        """
        first, before = self._first_done, self._last_label
        if label not in ((first, first + 1) if before is None else (before + 1,)):
            after = f"follows epoch {before:g}" if before is not None else "is the first one"
            resumed = (
                f" The run resumes after {first} epochs, from what the program saved in "
                "{checkpoint_folder}."
                if first
                else ""
            )
            raise ValueError(
                f"{place}: epoch {label:g} {after}: each epoch needs a record, and they count from "
                f"0 or 1. Name the field with the epoch by program.fields.epoch.{resumed}"
            )
        self._epoch, self._last_label = _Epoch(label, self._ended_at), label

    def _add(self, row: Row, at: float) -> None:
        assert self._epoch
        self._epoch.time = max(self._epoch.time, at)
        for key in _VALUES:
            number = number_at(row, self._names[key], key)
            if number is not None:
                self._epoch.values[key] = number

    def _end_epoch(self) -> list[Report]:
        """Return the reports on the epoch to which nothing will be added, if there is one."""
        if self._epoch is None:
            return []
        config, epoch, begun_at = self._config, self._epoch, self._ended_at
        self._epoch = None
        self._num_done += 1
        if self._num_done > config.epochs:
            raise ValueError(
                f"the program wrote more than {config.epochs} epochs to {self._place}, but the "
                f"point has epochs={config.epochs}: pass {{epochs}} on in program.command, or "
                "name the field with the epoch by program.fields.epoch"
            )
        self._ended_at = epoch.time
        seconds = epoch.values.get("train_seconds", self._ended_at - begun_at)
        num_train = getattr(config.data, "num_train", None)
        assert num_train, config.data
        num_steps = math.ceil(num_train / config.examples_per_step)
        batch = config.examples_per_pass
        last = max(0, num_train // config.num_workers - (num_steps - 1) * batch)
        steps = [seconds / num_steps] * num_steps
        trained = {key: epoch.values[key] for key in _TRAINED if key in epoch.values}
        scores = {key: epoch.values[key] for key in _SCORES if key in epoch.values}
        return [
            {"kind": "begin_epoch", "time": begun_at, "epoch": self._num_done},
            {"kind": "steps", "seconds": steps, "examples": [batch] * (num_steps - 1) + [last]},
            {"kind": "log", "values": trained},
            *([{"kind": "evaluated", "values": scores}] if scores else []),
            {"kind": "end_epoch", "time": self._ended_at},
        ]


def _warning(message: str, once: str) -> Report:
    return {"kind": "warning", "message": message, "once": once}
