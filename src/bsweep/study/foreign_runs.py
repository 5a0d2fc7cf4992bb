"""The runs that other tools recorded, read from their files and stores: tables in CSV or JSON,
exports of Weights & Biases, MLflow and TensorBoard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bsweep.core.extras import refuse_missing
from bsweep.core.words import listed
from bsweep.programs.rows import Row, csv_rows, json_rows

KINDS = ("csv", "jsonl", "wandb-export", "mlflow", "tensorboard")
SCORES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
MEASURED = ("exchange_seconds", "wait_seconds", "energy_joules")
WHOLE = ("sent_bytes", "received_bytes", "peak_memory_bytes")
CURVE = ("epoch", "time", "train_seconds", "lr", *SCORES, *MEASURED, *WHOLE)
"""The values that may differ between the epochs of a run, by bsweep's names."""


@dataclass(frozen=True)
class Found:
    """A run that another tool recorded.

    `settings` are values of the whole run by the tool's names. `merges` is True if a value may be
    recorded several times in an epoch, of which the last one counts.
    """

    name: str
    place: str
    rows: Sequence[Row]
    settings: Mapping[str, Any] = field(default_factory=dict)
    merges: bool = True
    began_at: float | None = None


def read(kind: str, source: str, columns: Mapping[str, str]) -> list[Found]:
    """Return the runs in a source, in the order of the source or of their names.

    Args:
        kind: One of `KINDS`.
        source: The path of a file or a folder; for MLflow also an address.
        columns: The source's names for values, by bsweep's. `run` is the column that tells the runs
            of a table apart.

    Raises:
        ValueError: If the source has no runs, or is damaged.
        OSError: If it cannot be read.
    """
    if kind in ("mlflow", "tensorboard"):
        packages = ("mlflow", "sqlalchemy", "alembic") if kind == "mlflow" else ("tensorboard",)
        refuse_missing(f"--from {kind}", packages, kind)
    if kind != "mlflow" and not Path(source).exists():
        raise ValueError(f"{source}: there is no such file or folder.")
    if kind == "mlflow":
        found = _from_mlflow(source)
    elif kind == "tensorboard":
        found = _from_tensorboard(Path(source), columns.values())
    elif kind == "wandb-export":
        found = _from_wandb(Path(source))
    else:
        parse = csv_rows if kind == "csv" else json_rows
        found = _from_table(parse(Path(source).read_bytes(), source), columns)
    if not found:
        raise ValueError(f"{source}: it holds no runs that --from {kind} can read.")
    return found


def kind_of(source: str) -> str:
    """Return the kind of a source by the end of its name.

    Raises:
        ValueError: If the name does not say it.
    """
    for ending, kind in ((".csv", "csv"), (".jsonl", "jsonl"), (".ndjson", "jsonl")):
        if source.endswith(ending):
            return kind
    raise ValueError(
        f"{source}: say what wrote it by --from, which is {listed(KINDS).replace(' and ', ' or ')}."
    )


def _from_table(rows: Sequence[Row], columns: Mapping[str, str]) -> list[Found]:
    """Return the runs of a table: the rows with one name of a run or, if the table has no such
    names, with equal settings.
    """
    has_names = any(columns["run"] in row.values for row in rows)
    settings = [column for key, column in columns.items() if key not in CURVE]
    by_run: dict[str, list[Row]] = {}
    for row in rows:
        told = [f"{name}={row.values[name]}" for name in settings if name in row.values]
        name = str(row.values.get(columns["run"], "")) if has_names else ", ".join(told)
        by_run.setdefault(name, []).append(row)
    return [Found(name, rows[0].place, rows, merges=False) for name, rows in by_run.items()]


_CHART = re.compile(r"(?P<run>.+) - (?P<name>.+?)(?P<end>__MIN|__MAX)?")


def _from_wandb(source: Path) -> list[Found]:
    """Return the runs of an export of Weights & Biases: the table of runs and the charts as CSV
    from its page, and histories in lines of JSON from its API, named after their runs.
    """
    files = [source] if source.is_file() else sorted(source.iterdir())
    tables: dict[str, Row] = {}
    rows: dict[str, list[Row]] = {}
    for path in files:
        if path.suffix == ".jsonl":
            rows.setdefault(path.stem, []).extend(json_rows(path.read_bytes(), str(path)))
        elif path.suffix == ".csv":
            for row in csv_rows(path.read_bytes(), str(path)):
                if "Name" in row.values and "State" in row.values:
                    tables[str(row.values["Name"])] = row
                    continue
                for name, of_run in _chart_rows(row):
                    rows.setdefault(name, []).append(of_run)
    by_id = {str(row.values.get("ID", name)): name for name, row in tables.items()}
    curves = {by_id.get(name, name): of_run for name, of_run in rows.items()}
    return [
        Found(
            name,
            tables[name].place if name in tables else curves[name][0].place,
            curves.get(name) or [tables[name]],
            tables[name].values if name in tables else {},
        )
        for name in dict.fromkeys([*tables, *curves])
    ]


def _chart_rows(row: Row) -> Iterator[tuple[str, Row]]:
    """Yield the values of each run in a row of a chart, with the name of the run."""
    names = {name: _CHART.fullmatch(name) for name in row.values}
    axes = {name: row.values[name] for name, match in names.items() if match is None}
    if "Step" in axes:
        axes["step"] = axes["Step"]
    for name, match in names.items():
        if match and not match["end"]:
            yield match["run"], replace(row, values={**axes, match["name"]: row.values[name]})


def _from_mlflow(source: str) -> list[Found]:
    from bsweep.programs import rows_of_mlflow
    from bsweep.programs.rows import BySteps

    path = Path(source).expanduser()
    if ":" not in source and not path.exists():
        raise ValueError(f"{source}: there is no such file or folder.")
    client = rows_of_mlflow.client_of(source, Path.cwd())
    found = []
    for run in rows_of_mlflow.runs_in(client):
        steps = BySteps()
        for name in run.data.metrics:
            for one in rows_of_mlflow.history(client, run.info.run_id, name):
                place = f"run {run.info.run_name}"
                steps.add(place, one.step, name, one.value, one.timestamp / 1000)
        settings = {**run.data.params, "status": run.info.status}
        began_at = run.info.start_time / 1000
        name = str(run.info.run_name or run.info.run_id)
        rows = steps.rows(is_last=True)
        found.append(Found(name, f"{source}, run {name}", rows, settings, began_at=began_at))
    return sorted(found, key=lambda one: one.began_at or 0.0)


def _from_tensorboard(folder: Path, wanted: Iterable[str]) -> list[Found]:
    from bsweep.programs import rows_of_tensorboard as events

    found = []
    for path in sorted({events.run_folder(one) for one in events.event_files(folder)}):
        files = events.EventFiles(path, of_run=True)
        rows = files.new_rows(is_last=True)
        files.refuse_ambiguous(wanted)
        name = str(path.relative_to(folder)) if path != folder else folder.resolve().name
        found.append(Found(name, str(path), rows, files.settings, began_at=files.begun_at))
    return [one for one in found if one.rows]
