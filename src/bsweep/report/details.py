"""Details that the page of one run shows beside its settings and curves, within bounds that keep a
page small.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.core.words import escaped
from bsweep.plots.batching import noise_scales
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import Damaged, read_json

_MAX_POINTS = 60  # of a run, in each of its charts
_MAX_FAILED = 40  # runs whose logs are in the page
_MAX_EVENTS = 40  # of a run, the last ones
_LONGEST = 500  # letters of the message of an event
_TAIL = 3_000  # bytes of the end of a log
_STEP = ["compute_seconds", "codec_seconds", "exposed_exchange_seconds", "wait_seconds"]
_FINE = ("completed", "unfinished", "interrupted")


def details(study: Study) -> dict[str, Any]:
    """Return what the pages of single runs show: the parts of their steps, what the workers of a
    pipeline do in one step, noise scales, changes of the batch, events with warnings, the ends of
    the logs of runs that failed, and provenance.

    Args:
        study: The study.

    Returns:
        By table, for each run its columns or None; `events` and `logs` by run id;
        `provenance` with the columns that differ, and `shared_provenance` with those that do not.
    """
    runs = study.runs
    tables = {
        "steps": (analysis.step_parts(study).reset_index(), ["epoch", "total_seconds", *_STEP]),
        "noise_scales": (noise_scales(study), ["num_steps", "noise_scale"]),
        "batches": (study.batches, ["epochs_done", "global_batch", "learning_rate"]),
    }
    provenance = study.provenance.set_index("run_id").reindex(runs["run_id"])
    same = {str(name) for name in provenance if provenance[name].astype(str).nunique() == 1}
    return {
        **{name: _by_run(*of, [*runs["run_id"]]) for name, of in tables.items()},
        "step_unit": analysis.step_unit(study),
        "events": dict(_events(study)),
        "logs": dict(_logs(study)),
        "shared_provenance": {
            name: str(provenance[name].iloc[0])
            for name in map(str, provenance)
            if name in same and str(provenance[name].iloc[0]) not in ("", "nan", "None")
        },
        "provenance": {
            str(name): [None if pd.isna(value) else str(value) for value in provenance[name]]
            for name in provenance
            if name not in same
        },
    }


def _by_run(table: pd.DataFrame, columns: list[str], run_ids: list[str]) -> list[Any]:
    """Return for each run the given columns of its rows, at most `_MAX_POINTS` rows of them."""
    known = [name for name in columns if name in table and table[name].notna().any()]
    found = {
        run_id: {name: [_six(value) for value in thin(rows)[name]] for name in known}
        for run_id, rows in table.groupby("run_id", sort=False)
    }
    return [found.get(run_id) for run_id in run_ids]


def thin(rows: pd.DataFrame) -> pd.DataFrame:
    """Return at most `_MAX_POINTS` rows that are evenly spaced, the last one among them."""
    every = -(-len(rows) // _MAX_POINTS)
    return rows.iloc[::-1].iloc[::every].iloc[::-1] if every > 1 else rows


def _six(value: Any) -> float | None:
    if pd.isna(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _events(study: Study) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Yield the ids of runs with the last of their events as columns, after the warnings on the
    run's files, which are no events.
    """
    of_run = dict(iter(study.events.groupby("run_id", sort=False)))
    for run_id, warnings in zip(study.runs["run_id"], study.runs["warnings"], strict=True):
        rows = of_run.get(run_id, study.events[:0]).tail(_MAX_EVENTS)
        known = "\n".join(rows["message"])
        others = [line for line in warnings.split("\n") if line and line not in known]
        if len(rows) or others:
            yield (
                str(run_id),
                {
                    "since_start_seconds": [None] * len(others)
                    + [*map(_six, rows["since_start_seconds"])],
                    "event": ["warning"] * len(others) + [*rows["event"]],
                    "message": [text[:_LONGEST] for text in (*others, *rows["message"])],
                },
            )


def _logs(study: Study) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the ids of runs that failed, with the ends of their logs by file name."""
    failed = study.runs.loc[~study.runs["status"].isin(_FINE), "run_id"]
    for run_id in failed[:_MAX_FAILED]:
        paths = RunPaths(study.folder / run_id)
        files = [paths.launcher_log, *sorted(paths.logs.glob("rank.*/stderr"))[:2]]
        texts = {str(path.relative_to(paths.logs)): _end(path) for path in files}
        texts = _first_error(paths) | texts
        if told := {name: text for name, text in texts.items() if text}:
            yield str(run_id), told


def _first_error(paths: RunPaths) -> dict[str, str]:
    """Return the first error that a worker recorded, with its traceback, by the name of its file.

    Errors that followed from another worker's come last.
    """
    found = []
    for path in sorted(paths.logs.glob("rank.*/error.json")):
        try:
            error = read_json(path) or {}
        except Damaged as damage:
            error = {"message": str(damage), "is_consequence": True}
        text = f"{error.get('message', '')}\n{error.get('traceback') or ''}".strip()
        order = (bool(error.get("is_consequence")), error.get("time") or 0)
        found.append((order, str(path.relative_to(paths.logs)), escaped(text)[-_TAIL:]))
    return {name: text for _, name, text in sorted(found)[:1]}


def _end(path: Path) -> str:
    """Return the end of a text file; an empty text if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return escaped(file.read().decode("utf-8", "replace"))
    return ""
