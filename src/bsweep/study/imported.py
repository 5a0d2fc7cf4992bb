"""The making of a study of runs in a table that another tool wrote: checks, and run folders."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from bsweep.compose import hydra_grid, overrides
from bsweep.config import parsing
from bsweep.config.run import RunConfig
from bsweep.config.saved import save_config
from bsweep.config.values import ConfigError, did_you_mean
from bsweep.core.words import counted, first_of
from bsweep.external.client import MEASURED, TRAINED, WHOLE
from bsweep.external.foreign_records import SCORES, epoch_record, start_record
from bsweep.external.tables import Row, csv_rows, json_rows, number_at, numbers_at, time_at
from bsweep.runlog.files import RunLog, RunPaths, write_json
from bsweep.runlog.records import End, Event, Status
from bsweep.runlog.summary import write_summary
from bsweep.runlog.values import MOST

_SCORES = (*TRAINED, *SCORES)
_CURVE = ("epoch", "time", "train_seconds", "lr", *_SCORES, *MEASURED, *WHOLE)
"""The values that may differ between the epochs of a run, by bsweep's names."""
_COUNTS = ("local_batch", "global_batch", "num_workers", "epochs", "num_train", "num_test")
KEYS = (
    *("run", "seed", "num_classes", "run_seconds", "status"),
    *_COUNTS,
    *_CURVE,
)
"""The names that a column of a source can get, besides `options.NAME`."""

_STATUSES = {"finished": "completed", "crashed": "failed", "killed": "interrupted"}
_GOING_ON = ("running", "pending")
_MOST_PROBLEMS = 10


@dataclass(frozen=True)
class _Found:
    """A run of the source: its name, the place of its first row, and its rows."""

    name: str
    place: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class _Made:
    """A run of the new study: its configuration and what its records say."""

    name: str
    config: RunConfig
    epochs: Sequence[Mapping[str, float]]
    status: Status
    num_train: int
    warnings: Sequence[str]


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
            raise ValueError(
                f"{key}: unknown.{did_you_mean(key, KEYS)} Known: {', '.join(sorted(KEYS))}, "
                "options.NAME."
            )
    known = {**{key: key for key in KEYS}, **names}
    reader = _Reader(known, constants, study_dir)
    rows = _rows_of(source)
    seen = {column for row in rows for column in row.values}
    for column in names.values():
        if not {column, column.removesuffix("%")} & seen:
            raise ValueError(
                f"{source}: no run has {column}.{did_you_mean(column, list(seen))} It has "
                f"{', '.join(sorted(seen))}."
            )
    found = _runs_of(rows, known)
    made = reader.all_of(found)
    if not made:
        raise ValueError(f"{source}: no run of it has ended, so there is nothing to import.")
    for one in found:
        if one.name not in {run.name for run in made}:
            yield f"{one.name}: left out, because it is still running"
    for run in made:
        yield _write(run, study_dir, source)


def _rows_of(source: str) -> list[Row]:
    """Return the rows of a table.

    Raises:
        ValueError: If the table has no rows, or is damaged.
        OSError: If it cannot be read.
    """
    if not Path(source).exists():
        raise ValueError(f"{source}: there is no such file.")
    if not source.endswith((".csv", ".jsonl", ".ndjson")):
        raise ValueError(f"{source}: give a table of CSV (.csv) or of lines of JSON (.jsonl).")
    parse = csv_rows if source.endswith(".csv") else json_rows
    rows = parse(Path(source).read_bytes(), source)
    if not rows:
        raise ValueError(f"{source}: it holds no runs.")
    return rows


def _runs_of(rows: Sequence[Row], columns: Mapping[str, str]) -> list[_Found]:
    """Return the runs of a table: the rows with one name of a run or, if the table has no such
    names, with equal settings.
    """
    has_names = any(columns["run"] in row.values for row in rows)
    settings = [column for key, column in columns.items() if key not in _CURVE]
    by_run: dict[str, list[Row]] = {}
    for row in rows:
        told = [f"{name}={row.values[name]}" for name in settings if name in row.values]
        name = str(row.values.get(columns["run"], "")) if has_names else ", ".join(told)
        by_run.setdefault(name, []).append(row)
    if not any(columns["epoch"] in row.values for row in rows):
        for name, of_run in by_run.items():
            _refuse_several(name, of_run, columns["run"] if has_names else "", rows)
    return [_Found(name, of_run[0].place, of_run) for name, of_run in by_run.items()]


def _refuse_several(name: str, same: Sequence[Row], column: str, rows: Sequence[Row]) -> None:
    """Raise ValueError if rows of one name, in a table without epochs, are several runs: if two of
    them have a value of the same kind.

    Args:
        name: The name.
        same: The rows.
        column: The column with the name; empty if the rows have equal settings instead.
        rows: All rows of the table.
    """
    kinds = [kind for row in same for kind in row.values if kind != column]
    if len(same) < 2 or len(kinds) == len({*kinds}):
        return
    places = first_of([row.place for row in same])
    ids = [
        kind
        for kind in rows[0].values
        if len({str(row.values.get(kind)) for row in rows}) == len(rows)
        and isinstance(_plain(rows[0].values[kind]), str)
    ]
    said = f"are called {name}" if column else "have equal settings"
    raise ValueError(
        f"{places}: {len(same)} runs {said}: name a column that tells them apart, --map "
        f"{ids[0] if ids else 'COLUMN'}=run."
    )


class _Reader:
    """The check of foreign runs, and their translation to bsweep's names."""

    def __init__(
        self, names: Mapping[str, str], constants: Mapping[str, str], study_dir: Path
    ) -> None:
        self._names, self._constants = names, constants
        words = ["program=own", "program.command=python", "local_batch=1", "launch=torchrun"]
        (config,) = hydra_grid.composed(overrides.arranged(words))
        base = asdict(config)
        base |= {"study": study_dir.name, "results_dir": str(study_dir.parent)}
        base["program"] |= {"command": "imported", "folder": None, "files": None}
        self._base: dict[str, Any] = json.loads(json.dumps(base))

    def all_of(self, found: Sequence[_Found]) -> list[_Made]:
        """Return the runs of the new study.

        Raises:
            ValueError: If a run cannot be imported.
        """
        made: list[_Made] = []
        problems: dict[str, None] = {}
        for one in found:
            try:
                made += self._made(one, [run.config for run in made])
            except ValueError as error:
                problems |= dict.fromkeys(str(error).splitlines())
        if problems:
            more = len(problems) - _MOST_PROBLEMS
            lines = [*problems][:_MOST_PROBLEMS]
            raise ValueError("\n".join([*lines, *([f"... and {more} more"] if more > 0 else [])]))
        return made

    def _made(self, found: _Found, earlier: Sequence[RunConfig]) -> list[_Made]:
        given = self._told(found)
        status = str(given.get("status", "completed")).lower()
        status = _STATUSES.get(status, status)
        if status in _GOING_ON:
            return []
        if status not in get_args(Status):
            known = ", ".join((*get_args(Status), *_STATUSES))
            raise ValueError(f"{found.place}: status={status}: unknown. Known: {known}.")
        given = self._checked(found, given)
        epochs, warnings = self._epochs(found, given)
        finite = [
            all(math.isfinite(values[key]) for key in _SCORES if key in values) for values in epochs
        ]
        if not all(finite):
            epochs, status = epochs[: finite.index(False)], "diverged"
        planned = given.get("epochs") or max(1, len(epochs))
        config = self._config(found, given, max(planned, len(epochs)), earlier)
        if "seed" not in given:
            warnings.append("no seed is known: runs with equal settings are numbered as seeds 0, 1")
        num_train = given["num_train"]
        return [_Made(found.name, config, epochs, cast(Status, status), num_train, tuple(warnings))]

    def _told(self, found: _Found) -> dict[str, Any]:
        """Return the values of a whole run by bsweep's names, as the source has them.

        Raises:
            ValueError: If a value changes within the run.
        """
        told: dict[str, Any] = {}
        wanted = [key for key in self._names if key not in _CURVE]
        for row in found.rows:
            if (lr := row.values.get(self._names["lr"])) is not None:
                told.setdefault("lr", lr)  # a schedule may change it
            for key in wanted:
                value = row.values.get(self._names[key])
                if value is not None and told.setdefault(key, value) != value:
                    raise ValueError(
                        f"{row.place}: {self._names[key]}={value}, but it was {told[key]} before "
                        "in the same run: name the column that tells runs apart, --map COLUMN=run."
                    )
        return {**self._constants, **told}

    def _checked(self, found: _Found, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a whole run as numbers.

        Raises:
            ValueError: If a value is impossible, or what each run needs is missing.
        """
        given = dict(told)
        for key in (*_COUNTS, "num_classes", "seed"):
            if key in given:
                given[key] = _whole_number(found.place, key, given[key], key != "seed")
        for key in ("lr", "run_seconds"):
            if key in given:
                row = Row(given, found.place, 0.0)
                given[key] = number_at(row, key, key)
        given.setdefault("num_workers", 1)
        if "local_batch" not in given and "global_batch" not in given:
            raise ValueError(_missing(found, "local_batch", "32", "or global_batch"))
        if "num_train" not in given:
            raise ValueError(_missing(found, "num_train", "50000", "the training examples"))
        return given

    def _epochs(
        self, found: _Found, given: Mapping[str, Any]
    ) -> tuple[list[dict[str, float]], list[str]]:
        """Return the values of each epoch of a run, with warnings about them."""
        by_label = self._by_label(found)
        if by_label is None:
            return self._from_one_row(found, given)
        labels = sorted(by_label)
        for number, label in enumerate(labels, 1 if labels[:1] != [0] else 0):
            if label != number:
                raise ValueError(
                    f"{found.place}: {_of(found)} has epoch {label:g}, but no epoch {number}: each "
                    f"epoch needs a row. Name the column with the epoch, --map COLUMN=epoch."
                )
        epochs = [by_label[label] for label in labels]
        if all("train_seconds" in epoch for epoch in epochs):
            return epochs, []
        if all("time" in epoch for epoch in epochs):
            return epochs, _fill_seconds(found, epochs)
        if "run_seconds" in given:
            for epoch in epochs:
                epoch["train_seconds"] = given["run_seconds"] / len(epochs)
            return epochs, [_EVENLY]
        raise ValueError(
            f"{found.place}: {_of(found)} has no time of each epoch: name a column with the "
            "seconds of an epoch, --map COLUMN=train_seconds, or with the time of a record, --map "
            "COLUMN=time, or with the seconds of the run, --map COLUMN=run_seconds."
        )

    def _by_label(self, found: _Found) -> dict[float, dict[str, float]] | None:
        """Return the values of each epoch by the number that the source gives to it; None if the
        source has one row for the whole run.
        """
        name = self._names["epoch"]
        has_epochs = any(name in row.values for row in found.rows)
        told = {self._names[key].removesuffix("%") for key in _CURVE if key != "epoch"}
        rows = [row for row in found.rows if told & row.values.keys()]
        if not has_epochs:
            if len(rows) > 1:
                raise ValueError(
                    f"{found.place}: {_of(found)} has {len(rows)} rows and no {name}: name the "
                    "column with the epoch, --map COLUMN=epoch, or the one that tells runs apart, "
                    "--map COLUMN=run."
                )
            return None
        by_label: dict[float, dict[str, float]] = {}
        for row in rows:
            label = number_at(row, name, "epoch")
            if label is not None:
                self._put(by_label.setdefault(label, {}), row, label)
        return by_label

    def _put(self, epoch: dict[str, float], row: Row, label: float) -> None:
        for key, value in self._values(row).items():
            if key in epoch and key != "time":
                raise ValueError(
                    f"{row.place}: {self._names[key]} of epoch {label:g} is there twice: name the "
                    "column that tells runs apart, --map COLUMN=run."
                )
            epoch[key] = value

    def _values(self, row: Row) -> dict[str, float]:
        """Return the values of a row by bsweep's names.

        Raises:
            ValueError: If a value is impossible.
        """
        keys = (key for key in _CURVE if key not in ("epoch", "time"))
        values = numbers_at(row, self._names, keys)
        if (at := time_at(row, self._names["time"])) is not None:
            values["time"] = at
        for key, value in values.items():
            is_amount = key not in ("train_loss", "test_loss", "time")
            if (is_amount and value < 0) or (key not in _SCORES and not abs(value) < MOST):
                name = self._names[key]
                raise ValueError(f"{row.place}: {name}={value:g} is impossible ({key}).")
        return values

    def _from_one_row(
        self, found: _Found, given: Mapping[str, Any]
    ) -> tuple[list[dict[str, float]], list[str]]:
        """Return the epochs of a run of which the source has one row."""
        values = self._values(found.rows[0])
        seconds = values.pop("train_seconds", given.get("run_seconds"))
        if not values and seconds is None:
            return [], []  # for example, it failed before its first epoch
        if seconds is None:
            raise ValueError(_missing(found, "train_seconds", "", "the seconds of the run"))
        if "epochs" not in given:
            raise ValueError(_missing(found, "epochs", "10", "the epochs of a run"))
        epochs = [{"train_seconds": seconds / given["epochs"]} for _ in range(given["epochs"])]
        epochs[-1] |= values
        return epochs, [_EVENLY]

    def _config(
        self, found: _Found, given: Mapping[str, Any], epochs: int, earlier: Sequence[RunConfig]
    ) -> RunConfig:
        """Return the configuration of a run, with a seed that the earlier ones do not have.

        Raises:
            ValueError: If the values contradict each other, or an earlier run has them all.
        """
        workers = given["num_workers"]
        local, whole = given.get("local_batch"), given.get("global_batch")
        if whole is not None and (whole % workers or local not in (None, whole // workers)):
            raise ValueError(
                f"{found.place}: global_batch={whole} is not num_workers={workers} times one "
                f"local_batch{f' of {local}' if local is not None else ''}: bsweep import knows "
                "equal batches on all workers."
            )
        options = {
            key.removeprefix("options."): _plain(value)
            for key, value in given.items()
            if key.startswith("options.")
        }
        facts = {key: given.get(key) for key in ("num_train", "num_test", "num_classes")}
        tree = {
            **self._base,
            "local_batch": local or whole // workers,
            "num_workers": workers,
            "epochs": epochs,
            "data": {**self._base["data"], **facts},
            "optimizer": {**self._base["optimizer"], "lr": given.get("lr")},
            "program": {**self._base["program"], "options": options},
        }
        taken = {config.run_id for config in earlier}
        for seed in [given["seed"]] if "seed" in given else range(len(earlier) + 1):
            try:
                config = parsing.parse({**tree, "seed": seed})
            except ConfigError as error:
                lines = (f"{found.place}: {problem}" for problem in error.problems)
                raise ConfigError(*lines) from None
            if config.run_id not in taken:
                return config
        raise ValueError(
            f"{found.place}: {_of(found)} has the same settings and seed as another run: name a "
            "column in which they differ, --map COLUMN=options.NAME."
        )


_EVENLY = (
    "the source has one time for the whole run: it is divided evenly among the epochs, and so are "
    "the times until a target"
)


_LONGEST_GAP = 10  # of the median, between two records of one attempt


def _fill_seconds(found: _Found, epochs: Sequence[dict[str, float]]) -> list[str]:
    """Set `train_seconds` of epochs from the times of their records; return warnings."""
    times = [epoch["time"] for epoch in epochs]
    is_since_start = times[0] < 1e8
    seconds = [b - a for a, b in itertools.pairwise(times)]
    said = "train_seconds are wall times between records, evaluations included"
    if not is_since_start and not seconds:
        raise ValueError(
            f"{found.place}: {_of(found)} has one record, so its seconds are unknown: name a "
            "column with them, --map COLUMN=train_seconds."
        )
    if is_since_start:
        first = times[0]
        said += "; that of the first epoch counts from the beginning of the run"
    else:
        first = statistics.median(seconds)
        said += "; the beginning of the run is unknown, so its first epoch has their median"
    warnings = [said]
    if seconds and (longest := _LONGEST_GAP * (middle := statistics.median(seconds))) > 0:
        pauses = [value for value in seconds if value > longest]
        seconds = [middle if value > longest else value for value in seconds]
        if pauses:
            warnings.append(
                f"{counted(len(pauses), 'pause')} of {sum(pauses):.0f} s in all between records, "
                f"each longer than {_LONGEST_GAP} times the median, are left out: the epochs after "
                "them have the median"
            )
    for epoch, value in zip(epochs, [first, *seconds], strict=True):
        if value < 0:
            raise ValueError(
                f"{found.place}: the times of {_of(found)} do not rise: name the column with the "
                "time of a record, --map COLUMN=time."
            )
        epoch["train_seconds"] = value
    return warnings


def _of(found: _Found) -> str:
    return f"run {found.name}" if found.name else "the run"


def _missing(found: _Found, key: str, example: str, what: str) -> str:
    value = f", or say it for all runs, --set {key}={example}" if example else ""
    return (
        f"{found.place}: {key} is missing ({what}): name the column that has it, --map "
        f"COLUMN={key}{value}."
    )


def _whole_number(place: str, key: str, value: Any, is_positive: bool) -> int:
    try:
        number = float(value)
        if number == int(number) and number >= is_positive:
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    least = "1 or more" if is_positive else "0 or more"
    raise ValueError(f"{place}: {key}={value!s:.40} is not a whole number of {least}.")


def _plain(value: Any) -> Any:
    """Return a text as the number that it says, if it says one."""
    for kind in (int, float) if isinstance(value, str) else ():
        with suppress(ValueError):
            return kind(value)
    return value


def _write(run: _Made, study_dir: Path, source: str) -> str:
    """Write the folder of a run, and return a line about it."""
    paths = RunPaths(study_dir / run.config.run_id)
    if paths.folder.exists():
        return f"{paths.folder}: is there already, left as it is"
    making = RunPaths(study_dir / ".importing" / run.config.run_id)
    shutil.rmtree(making.folder, ignore_errors=True)
    making.folder.mkdir(parents=True)
    save_config(run.config, making.config)
    write_json(making.meta, {"imported_from": source, "imported_run": run.name})
    with RunLog(making.metrics) as log:
        rate = run.config.optimizer.lr
        log.write(start_record(run.config, num_train=run.num_train, learning_rate=rate))
        said = f"imported from {source}: bsweep did not measure this run, nor knows its machine"
        for warning in (said, *run.warnings):
            log.write(Event(event="imported", message=warning))
        num_steps = math.ceil(run.num_train / run.config.examples_per_step)
        for number, values in enumerate(run.epochs, 1):
            log.write(
                epoch_record(
                    run.config,
                    number,
                    train_seconds=values["train_seconds"],
                    step_seconds=[values["train_seconds"] / num_steps] * num_steps,
                    examples=run.num_train,
                    values=values,
                    learning_rate=values.get("lr", rate),
                )
            )
        total = len(run.epochs) * num_steps
        log.write(
            End(status=run.status, message="", epochs=len(run.epochs), num_steps=total)
            if run.status == "completed"
            else End(status=run.status, message=f"so says {source}")
        )
    write_summary(making, run.config, run.status, "", None)
    making.folder.rename(paths.folder)
    with suppress(OSError):  # another import may use it
        making.folder.parent.rmdir()
    name = f" from run {run.name}" if run.name else ""
    return f"{paths.folder}: {counted(len(run.epochs), 'epoch')}{name}"
