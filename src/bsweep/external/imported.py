"""Runs made elsewhere: a table that another tool wrote becomes the run folders of a study."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from bsweep.config import parsing
from bsweep.config.run import RunConfig
from bsweep.config.saved import save_config
from bsweep.config.values import ConfigError, did_you_mean
from bsweep.core.words import counted, first_of
from bsweep.external.client import MEASURED, SCORES, TRAINED, WHOLE
from bsweep.external.foreign_records import end_record, epoch_record, start_record
from bsweep.external.tables import SINCE_1970, Epoch, Row, csv_rows, epoch_at, json_rows, values_at
from bsweep.runlog.files import RunLog, RunPaths, write_json
from bsweep.runlog.reading import read_meta
from bsweep.runlog.records import Event, Status
from bsweep.runlog.summary import write_summary

_SCORES = (*TRAINED, *SCORES)
_CURVE = ("epoch", "time", "train_seconds", "lr", *_SCORES, *MEASURED, *WHOLE)
"""The values that may differ between the epochs of a run, by bsweep's names."""
_COUNTS = ("local_batch", "global_batch", "num_workers", "epochs", "num_train", "num_test")
KEYS = ("run", "seed", "num_classes", "run_seconds", "status", *_COUNTS, *_CURVE)
"""The names that a column of a source can get, besides `options.NAME`."""

_STATUSES: dict[str, Status] = {status: status for status in get_args(Status)}
_STATUSES |= {"finished": "completed", "crashed": "failed", "killed": "interrupted"}

_MOST_PROBLEMS = 10
_LONGEST_GAP = 10  # of the median, between two records of one attempt


def make_study(
    source: str, study_dir: Path, names: Mapping[str, str], constants: Mapping[str, str]
) -> Iterator[str]:
    """Write the runs of a table to a study; yield a line about each run.

    Nothing is written if a run of the source cannot be imported. A run that the study has already
    is left as it is.

    Args:
        source: The path of a file of CSV or of lines of JSON.
        study_dir: The study's folder.
        names: The names that the source gives to values, by their names in `KEYS` or
            `options.NAME`.
        constants: Values of all runs that the source does not have, by the same names.

    Raises:
        ValueError: If a value is missing or impossible. The message lists the problems.
        OSError: If a file cannot be read or written.
    """
    for key in (*names, *constants):
        if key not in KEYS and not re.fullmatch(r"options\.\w+", key):
            known = ", ".join((*sorted(KEYS), "options.NAME"))
            raise ValueError(f"{key}: unknown.{did_you_mean(key, KEYS)} Known: {known}.")
    rows = _rows_of(source)
    columns = sorted({column for row in rows for column in row.values})
    for column in names.values():
        if not {column, column.removesuffix("%")} & {*columns}:
            near = did_you_mean(column, columns)
            raise ValueError(f"{source}: no run has {column}.{near} It has {', '.join(columns)}.")
    names = {**{key: key for key in KEYS}, **names}
    configs: dict[_Run, RunConfig | None] = {}
    problems: dict[str, None] = {}
    for name, group in _rows_by_run(rows, names).items():
        try:
            run = _Run(name, group, names, constants)
            run_ids = {config.run_id for config in configs.values() if config}
            configs[run] = run.config(study_dir, run_ids) if run.has_ended else None
        except ValueError as error:
            problems |= dict.fromkeys(str(error).splitlines())
    if problems:
        raise ValueError(first_of([*problems], _MOST_PROBLEMS, "\n"))
    if not any(configs.values()):
        raise ValueError(f"{source}: no run of it has ended, so there is nothing to import.")
    for run, config in configs.items():
        if config:
            yield _write(run, config, study_dir, source)
        else:
            yield f"{run.name}: left out, because it is still running"


def _rows_of(source: str) -> list[Row]:
    if not source.endswith((".csv", ".jsonl", ".ndjson")):
        raise ValueError(f"{source}: give a table of CSV (.csv) or of lines of JSON (.jsonl).")
    parse = csv_rows if source.endswith(".csv") else json_rows
    rows = parse(Path(source).read_bytes(), source)
    if not rows:
        raise ValueError(f"{source}: it holds no runs.")
    return rows


def _rows_by_run(rows: Sequence[Row], names: Mapping[str, str]) -> dict[str, list[Row]]:
    """Return the rows of each run by its name. A run is the rows with one name or, if the table has
    no names, with equal settings.
    """
    has_names = any(names["run"] in row.values for row in rows)
    settings = [name for key, name in names.items() if key not in _CURVE]
    rows_by_run: dict[str, list[Row]] = {}
    for row in rows:
        pairs = [f"{name}={row.values[name]}" for name in settings if name in row.values]
        run = str(row.values.get(names["run"], "")) if has_names else ", ".join(pairs)
        rows_by_run.setdefault(run, []).append(row)
    return rows_by_run


class _Run:
    """A run of the table, and what the records of the new study say about it.

    Args:
        name: Its name in the table, or an empty text.
        rows: Its rows.
        names: The names of values in the rows, by bsweep's names.
        constants: Values of all runs that the rows do not have.

    Raises:
        ValueError: If a value is missing or impossible.
    """

    def __init__(
        self,
        name: str,
        rows: Sequence[Row],
        names: Mapping[str, str],
        constants: Mapping[str, str],
    ) -> None:
        self.name, self._rows, self._names = name, rows, names
        self._place, self._title = rows[0].place, f"run {name}" if name else "the run"
        self.warnings: list[str] = []
        settings = self.settings = self._read_settings(constants)
        status = str(settings.get("status", "completed")).lower()
        self.has_ended = status not in ("running", "pending")
        if not self.has_ended:
            return
        if status not in _STATUSES:
            known = ", ".join(_STATUSES)
            raise ValueError(f"{self._place}: status={status}: unknown. Known: {known}.")
        self.status = _STATUSES[status]
        if "local_batch" not in settings and "global_batch" not in settings:
            raise self._missing("local_batch", "32", "or global_batch")
        if "num_train" not in settings:
            raise self._missing("num_train", "50000", "the training examples")
        self.epochs = self._read_epochs()
        for index, values in enumerate(self.epochs):
            if not all(math.isfinite(values[key]) for key in _SCORES if key in values):
                self.epochs, self.status = self.epochs[:index], "diverged"
                break
        if "seed" not in settings:
            self.warnings.append(
                "no seed is known: runs with equal settings are numbered as seeds 0, 1"
            )

    def _read_settings(self, constants: Mapping[str, str]) -> dict[str, Any]:
        keys = [key for key in self._names if key not in _CURVE]
        settings: dict[str, Any] = {}
        for row in self._rows:
            for key in (*keys, "lr"):
                value = row.values.get(self._names[key])
                # A schedule may change the learning rate.
                if value is None or settings.setdefault(key, value) == value or key == "lr":
                    continue
                raise ValueError(
                    f"{row.place}: {self._names[key]}={value}, but it was {settings[key]} before "
                    "in the same run: name the column that tells runs apart, --map COLUMN=run."
                )
        settings = {"num_workers": 1, **constants, **settings}
        numbers = values_at(Row(settings, self._place), _SAME_NAMES, ("lr", "run_seconds"))
        for key in (*_COUNTS, "num_classes", "seed"):
            if key in settings:
                numbers[key] = _whole_number(self._place, key, settings[key])
        return settings | numbers

    def _read_epochs(self) -> list[dict[str, float]]:
        has_labels = any(self._names["epoch"] in row.values for row in self._rows)
        epochs = self._labelled(has_labels=has_labels)
        if not has_labels and (epochs or "run_seconds" in self.settings):
            if "epochs" not in self.settings:
                raise self._missing("epochs", "10", "the epochs of a run")
            whole = epochs[0] if epochs else {}
            whole.pop("time", None)
            if "train_seconds" in whole:
                self.settings["run_seconds"] = whole.pop("train_seconds")
            epochs = [*({} for _ in range(self.settings["epochs"] - 1)), whole]
        if not epochs and self.status == "completed":
            raise ValueError(
                f"{self._place}: {self._title} is completed, but has no score and no time of an "
                "epoch: name their columns by --map COLUMN=train_seconds, COLUMN=test_accuracy and "
                "so on."
            )
        if all("train_seconds" in values for values in epochs):
            return epochs
        if all("time" in values for values in epochs):
            seconds = self._seconds_between([values["time"] for values in epochs])
        elif "run_seconds" in self.settings:
            self.warnings.append(
                "the source has one time for the whole run: it is divided evenly among the epochs, "
                "and so are the times until a target"
            )
            seconds = [self.settings["run_seconds"] / len(epochs)] * len(epochs)
        else:
            raise ValueError(
                f"{self._place}: {self._title} has no time of each epoch: name a column by --map "
                "COLUMN=train_seconds, COLUMN=time (of a record) or COLUMN=run_seconds."
            )
        for values, value in zip(epochs, seconds, strict=True):
            values["train_seconds"] = value
        return epochs

    def _labelled(self, *, has_labels: bool) -> list[dict[str, float]]:
        """Return the values of each epoch, by the numbers that the source gives to epochs; if it
        gives none, those of the whole run as one epoch.
        """
        rows: list[tuple[float, Row, dict[str, float]]] = []
        for row in self._rows:
            values = values_at(row, self._names, _CURVE)
            label = values.pop("epoch", None if has_labels else 0.0)
            if values and label is not None:
                rows.append((label, row, values))
        epochs: list[Epoch] = []
        for label, row, values in sorted(rows, key=lambda entry: entry[0]):
            remedy = "Name the column with the epoch, --map COLUMN=epoch."
            epoch = epoch_at(epochs, label, row.place, remedy)
            if twice := [key for key in values if key in epoch.values and key != "time"]:
                raise ValueError(
                    f"{row.place}: {self._names[twice[0]]} is there twice"
                    f"{f' in epoch {label:g}' * has_labels}: name the column that tells runs "
                    "apart, --map COLUMN=run, or that with the epoch, --map COLUMN=epoch."
                )
            epoch.values |= values
        return [epoch.values for epoch in epochs]

    def _seconds_between(self, times: Sequence[float]) -> list[float]:
        """Return the seconds of each epoch from the times of their records."""
        seconds = [end - begin for begin, end in itertools.pairwise(times)]
        median = statistics.median(seconds) if seconds else math.nan
        if times[0] < SINCE_1970:
            first, origin = times[0], "that of the first epoch counts from the beginning of the run"
        else:
            first = median
            origin = "the beginning of the run is unknown, so its first epoch has their median"
        if not min([first, *seconds]) >= 0:
            raise ValueError(
                f"{self._place}: the times of {self._title} do not rise, or it has one alone: name "
                "another column, --map COLUMN=time or COLUMN=train_seconds."
            )
        self.warnings.append(
            f"train_seconds are wall times between records, evaluations included; {origin}"
        )
        if pauses := [value for value in seconds if value > _LONGEST_GAP * median > 0]:
            self.warnings.append(
                f"{counted(len(pauses), 'pause')} of {sum(pauses):.0f} s in all between records, "
                f"each longer than {_LONGEST_GAP} times the median, are left out: the epochs after "
                "them have the median"
            )
        return [first, *(median if value in pauses else value for value in seconds)]

    def config(self, study_dir: Path, run_ids: Collection[str]) -> RunConfig:
        """Return the configuration of the run, with a seed that no earlier run has, nor, if the
        source has no seeds, a run of another name in the study.

        Args:
            study_dir: The study's folder.
            run_ids: The run ids of the earlier runs.

        Raises:
            ValueError: If the values contradict each other, or an earlier run has them all.
        """
        settings, workers = self.settings, self.settings["num_workers"]
        local_batch = settings.get("local_batch") or settings["global_batch"] // workers
        if settings.get("global_batch", local_batch * workers) != local_batch * workers:
            raise ValueError(
                f"{self._place}: global_batch={settings['global_batch']} is not num_workers="
                f"{workers} times one local_batch: bsweep import needs equal batches."
            )
        options = {
            key.removeprefix("options."): _plain(value)
            for key, value in settings.items()
            if key.startswith("options.")
        }
        facts = {key: settings.get(key) for key in ("num_train", "num_test", "num_classes")}
        tree = {
            **asdict(RunConfig()),
            "study": study_dir.name,
            "results_dir": str(study_dir.parent),
            "local_batch": local_batch,
            "num_workers": workers,
            "epochs": max(settings.get("epochs", 1), len(self.epochs)),
            "seed": settings.get("seed", 0),
            "model": {"name": "program"},
            "strategy": {"name": "program"},
            "data": {"name": "program", **facts},
            "optimizer": {"name": "program", "lr": settings.get("lr")},
            "launch": {"name": "torchrun"},
            "program": {"name": "own", "command": "imported", "options": options},
        }
        try:
            config = parsing.parse(tree)
        except ConfigError as error:
            raise ConfigError(*(f"{self._place}: {text}" for text in error.problems)) from None
        while "seed" not in settings and (
            config.run_id in run_ids or self._is_another(study_dir / config.run_id)
        ):
            config = replace(config, seed=config.seed + 1)
        if config.run_id in run_ids:
            raise ValueError(
                f"{self._place}: {self._title} has the same settings and seed as another run: name "
                "a column in which they differ, --map COLUMN=options.NAME."
            )
        return config

    def _is_another(self, folder: Path) -> bool:
        """Return True if the study has a run in this folder that has another name."""
        return folder.exists() and read_meta(RunPaths(folder)).get("imported_run") != self.name

    def _missing(self, key: str, example: str, description: str) -> ValueError:
        return ValueError(
            f"{self._place}: {key} is missing ({description}): name the column that has it, --map "
            f"COLUMN={key}, or say it for all runs, --set {key}={example}."
        )


_SAME_NAMES = {key: key for key in KEYS}


def _whole_number(place: str, key: str, value: Any) -> int:
    least = 0 if key == "seed" else 1
    with suppress(TypeError, ValueError, OverflowError):
        if float(value) == int(float(value)) >= least:
            return int(float(value))
    raise ValueError(f"{place}: {key}={value!s:.40} is not a whole number of {least} or more.")


def _plain(text: Any) -> Any:
    """Return a text as the number that it says, if it says one."""
    for kind in (int, float) if isinstance(text, str) else ():
        with suppress(ValueError):
            return kind(text)
    return text


def _write(run: _Run, config: RunConfig, study_dir: Path, source: str) -> str:
    """Write the folder of a run, and return a line about it."""
    paths = RunPaths(study_dir / config.run_id)
    if paths.folder.exists():
        return f"{paths.folder}: is there already, left as it is"
    making = RunPaths(study_dir / ".importing" / config.run_id)
    shutil.rmtree(making.folder, ignore_errors=True)
    making.folder.mkdir(parents=True)
    save_config(config, making.config)
    write_json(making.meta, {"imported_from": source, "imported_run": run.name})
    rate, num_train = config.optimizer.lr, run.settings["num_train"]
    num_steps = math.ceil(num_train / config.examples_per_step)
    with RunLog(making.metrics) as log:
        log.write(start_record(config, learning_rate=rate))
        origin = f"imported from {source}: bsweep did not measure this run, nor knows its machine"
        for warning in (origin, *run.warnings):
            log.write(Event(event="imported", message=warning))
        for number, values in enumerate(run.epochs, 1):
            step_seconds = [values["train_seconds"] / num_steps] * num_steps
            log.write(epoch_record(config, number, step_seconds, num_train, {"lr": rate, **values}))
        message = "" if run.status == "completed" else f"so says {source}"
        num_epochs = len(run.epochs)
        log.write(end_record(run.status, message, num_epochs, num_epochs * num_steps))
    write_summary(making, config, run.status, "", None)
    making.folder.rename(paths.folder)
    with suppress(OSError):  # another import may use it
        making.folder.parent.rmdir()
    name = f" from run {run.name}" if run.name else ""
    return f"{paths.folder}: {counted(num_epochs, 'epoch')}{name}"
