"""The reports of a program that does not call `bsweep.join()`, made from the metrics that it writes
(`program.metrics`) while it runs.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bsweep.config.program_point import values_of
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig
from bsweep.config.values import did_you_mean
from bsweep.core.words import first_of
from bsweep.external.client import TRAINED
from bsweep.external.foreign_records import SCORES
from bsweep.external.tables import (
    Row,
    TextFiles,
    csv_rows,
    json_rows,
    number_at,
    numbers_at,
    time_at,
)

_VALUES = ("train_seconds", *TRAINED, *SCORES)
_SINCE_1970 = 1e8  # seconds: a smaller time counts from the start of the program
Report = dict[str, Any]


@dataclass
class _Epoch:
    label: float  # the number that the program gave it
    time: float = -math.inf  # of its last record
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
        self._config, self._num_earlier, self._num_done = config, num_done, num_done
        fields = asdict(program.fields)
        self._named = {key: name for key, name in fields.items() if name is not None}
        self._names = {key: name or key for key, name in fields.items()}
        kind, place = program.metrics_of(values_of(config))
        self._place = f"{kind}:{place}"
        parse = csv_rows if kind == "csv" else json_rows
        self._files = TextFiles(program.path / Path(place).expanduser(), parse)
        self._started_at = self._read_at = self._ended_at = time.time()
        self._epochs: list[_Epoch] = []  # to which rows may be added
        self._num_rows = 0
        self._seen: dict[str, None] = {}  # the names of all values

    def reports(self, *, is_last: bool = False) -> list[Report]:
        """Return the reports about what the program wrote since the last call.

        Args:
            is_last: True if the program has ended without an error.

        Raises:
            ValueError: If what it wrote is not what a run needs.
        """
        rows = self._files.new_rows(is_last=is_last)
        self._seen |= dict.fromkeys(name.removesuffix("%") for row in rows for name in row.values)
        reports: list[Report] = []
        arrived: list[_Epoch] = []  # without a time of their own
        read_at = self._read_at
        for row in rows:
            values = numbers_at(row, self._names, _VALUES)
            if not values:
                continue
            if not self._num_rows:
                reports += self._begin()
                read_at = self._read_at
            epoch = self._epoch_of(row)
            epoch.values |= values
            at = time_at(row, self._names["time"])
            if at is not None:
                epoch.time = max(epoch.time, at + (self._started_at if at < _SINCE_1970 else 0))
            elif epoch not in arrived:
                arrived.append(epoch)
            self._read_at = max(self._read_at, row.time)
        for number, epoch in enumerate(arrived, 1):
            share = number / len(arrived)
            epoch.time = max(epoch.time, read_at + share * (self._read_at - read_at))
        if len(arrived) > 1 and not self._has("train_seconds"):
            text = f"several epochs arrived at once in {self._place}, and share the time evenly"
            remedy = "flush each row, or name a time by program.fields.time"
            reports.append(_warning(f"{text}: {remedy}", "once"))
        num_ended = len(self._epochs) if is_last else len(self._epochs) - 1
        for _ in range(num_ended):
            reports += self._reports_of(self._epochs.pop(0))
        return reports

    def end(self) -> list[Report]:
        """Return the last reports, after the program ended without an error.

        Raises:
            ValueError: If the program wrote too little.
        """
        reports = self.reports(is_last=True)
        if not self._num_rows:
            has = f", only {first_of(sorted(self._seen), 8)}" if self._seen else ""
            raise ValueError(
                f"the program wrote nothing to {self._place} that is called "
                f"{', '.join(self._names[key] for key in _VALUES)}{has}: give the place and the "
                "names by program.metrics and program.fields, or call bsweep.join() in the program"
            )
        reports += [_warning(self._lost(key), key) for key in self._named if not self._has(key)]
        if not any(self._has(key) for key in SCORES):
            said = "has no score of a test set: name it by program.fields.test_accuracy"
            reports.append(_warning(f"{self._place} {said}", ""))
        if self._num_done < self._config.epochs:
            raise ValueError(
                f"the program wrote {self._num_done} of {self._config.epochs} epochs to "
                f"{self._place}: pass {{epochs}} on in program.command, or give epochs="
                f"{max(1, self._num_done)}"
            )
        return reports

    def _has(self, key: str) -> bool:
        return self._names[key].removesuffix("%") in self._seen

    def _lost(self, key: str) -> str:
        name = self._named[key]
        return (
            f"program.fields.{key}={name}: {self._place} has no such field."
            f"{did_you_mean(name, list(self._seen))} It has {first_of(sorted(self._seen), 8)}"
        )

    def _begin(self) -> list[Report]:
        """Return the reports before that on the first epoch, and note when it began."""
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
        facts: Report = {"kind": "facts", "facts": {"device": "unknown"}, "software": {}}
        ago = time.time() - self._ended_at
        return [{**facts, "is_ready": True, "seconds_ago": ago}, _warning(text, "wall")]

    def _epoch_of(self, row: Row) -> _Epoch:
        """Return the epoch of a row, which may be a new one.

        Raises:
            ValueError: If the row has no epoch, or a new one does not follow the one before.
        """
        self._num_rows += 1
        name, label, first = self._names["epoch"], float(self._num_rows), self._num_earlier
        if "epoch" in self._named or self._has("epoch"):
            number = number_at(row, name, "epoch")
            if number is None:
                raise ValueError(
                    f"{row.place}: the row has no {name}: name the field with the epoch by "
                    "program.fields.epoch"
                )
            label = number
        before = self._epochs[-1].label if self._epochs else None
        if label == before:
            return self._epochs[-1]
        if label not in ((first, first + 1) if before is None else (before + 1,)):
            after = f"follows epoch {before:g}" if before is not None else "is the first one"
            resumed = (
                f" The run resumes after {first} epochs, from what the program saved in "
                "{checkpoint_folder}."
                if first
                else ""
            )
            raise ValueError(
                f"{row.place}: epoch {label:g} {after}: each epoch needs a record, and they count "
                f"from 0 or 1. Name the field with the epoch by program.fields.epoch.{resumed}"
            )
        self._epochs.append(_Epoch(label))
        return self._epochs[-1]

    def _reports_of(self, epoch: _Epoch) -> list[Report]:
        """Return the reports on an epoch that has ended."""
        config, begun_at = self._config, self._ended_at
        self._num_done += 1
        if self._num_done > config.epochs:
            raise ValueError(
                f"the program wrote more than {config.epochs} epochs to {self._place}, but the "
                f"point has epochs={config.epochs}: pass {{epochs}} on in program.command, or "
                "name the field with the epoch by program.fields.epoch"
            )
        self._ended_at = max(begun_at, epoch.time)
        seconds = epoch.values.get("train_seconds", self._ended_at - begun_at)
        trained = {key: epoch.values[key] for key in TRAINED if key in epoch.values}
        scores = {key: epoch.values[key] for key in SCORES if key in epoch.values}
        return [
            {"kind": "begin_epoch", "time": begun_at, "epoch": self._num_done},
            {"kind": "wall", "seconds": seconds},
            {"kind": "log", "values": trained},
            *([{"kind": "evaluated", "values": scores}] if scores else []),
            {"kind": "end_epoch", "time": self._ended_at},
        ]


def _warning(message: str, once: str) -> Report:
    return {"kind": "warning", "message": message, "once": once}
