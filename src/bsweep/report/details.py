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
from bsweep.plots.exchange import PARTS, with_unsplit
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import Damaged, read_json

_MAX_POINTS = 60  # of a run, in the chart of its steps
_MAX_FAILED = 40  # runs whose logs are in the page
_MAX_EVENTS = 40  # of a run, the last ones
_LONGEST = 500  # letters of the message of an event
_TAIL = 3_000  # bytes of the end of a log
_FINE = ("completed", "unfinished", "interrupted")


def details(study: Study) -> dict[str, Any]:
    """Return what the pages of single runs show: the parts of their steps, events with warnings,
    the ends of the logs of runs that failed, and provenance.

    Args:
        study: The study.

    Returns:
        `steps` for each run, as columns or None, and `step_parts`, the names of these columns in
        words; `events` and `logs` by run id; `provenance` with the columns that differ, and
        `shared_provenance` with those that do not.
    """
    runs = study.runs
    provenance = study.provenance.set_index("run_id").reindex(runs["run_id"])
    provenance = provenance.astype(object).where(provenance.notna(), None)
    is_shared = provenance.map(str).nunique() == 1
    first = provenance.loc[:, is_shared].iloc[0]
    parts = with_unsplit(analysis.step_parts(study))
    steps = dict(iter(parts.reset_index().groupby("run_id")))
    return {
        "steps": [_steps(steps[run_id]) if run_id in steps else None for run_id in runs["run_id"]],
        "step_unit": analysis.step_unit(study),
        "step_parts": {name: label for name, (label, _) in PARTS.items()},
        "events": dict(_events(study)),
        "logs": dict(_logs(study)),
        "shared_provenance": {
            name: str(value) for name, value in first.items() if value not in ("", None)
        },
        "provenance": {
            name: [None if value is None else str(value) for value in values]
            for name, values in provenance.loc[:, ~is_shared].items()
        },
    }


def _steps(rows: pd.DataFrame) -> dict[str, list[float | None]]:
    """Return columns of a run's table of steps, with at most `_MAX_POINTS` rows that are evenly
    spaced, the last one among them.
    """
    every = -(-len(rows) // _MAX_POINTS)
    shown = rows[::-1][::every][::-1]
    return {name: rounded(shown[name], 6) for name in ("epoch", *PARTS)}


def rounded(values: pd.Series[Any], digits: int) -> list[float | None]:
    """Return numbers with so many significant digits, whole ones as integers; None for NaN."""
    numbers = (None if pd.isna(value) else float(f"{value:.{digits}g}") for value in values)
    return [int(n) if n is not None and n.is_integer() else n for n in numbers]


def _events(study: Study) -> Iterator[tuple[str, list[tuple[float | None, str, str]]]]:
    """Yield the ids of runs with the last of their events (seconds since the start, kind, message),
    after the warnings on the run's files, which are no events.
    """
    events = dict(iter(study.events.groupby("run_id", sort=False)))
    for run_id, warnings in zip(study.runs["run_id"], study.runs["warnings"], strict=True):
        rows = events.get(run_id, study.events[:0]).tail(_MAX_EVENTS)
        known = "\n".join(rows["message"])
        lines = [line for line in warnings.split("\n") if line and line not in known]
        seconds = [*[None] * len(lines), *rounded(rows["since_start_seconds"], 6)]
        kinds, messages = ["warning"] * len(lines) + [*rows["event"]], [*lines, *rows["message"]]
        if messages:
            texts = (text[:_LONGEST] for text in messages)
            yield str(run_id), [*zip(seconds, kinds, texts, strict=True)]


def _logs(study: Study) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the ids of runs that failed, with the ends of their logs by file name."""
    failed = study.runs.loc[~study.runs["status"].isin(_FINE), "run_id"]
    for run_id in failed[:_MAX_FAILED]:
        paths = RunPaths(study.folder / run_id)
        files = [paths.launcher_log, *sorted(paths.logs.glob("rank.*/stderr"))[:2]]
        texts = {str(path.relative_to(paths.logs)): _end(path) for path in files}
        texts = _first_error(paths) | texts
        if texts := {name: text for name, text in texts.items() if text}:
            yield str(run_id), texts


def _first_error(paths: RunPaths) -> dict[str, str]:
    """Return the first error that a worker recorded, with its traceback, by the name of its file.

    Errors that followed from another worker's come last.
    """
    errors = []
    for path in sorted(paths.logs.glob("rank.*/error.json")):
        try:
            error = read_json(path) or {}
        except Damaged as damage:
            error = {"message": str(damage), "is_consequence": True}
        text = f"{error.get('message', '')}\n{error.get('traceback') or ''}".strip()
        order = (bool(error.get("is_consequence")), error.get("time") or 0)
        errors.append((order, str(path.relative_to(paths.logs)), escaped(text)[-_TAIL:]))
    return {name: text for _, name, text in sorted(errors)[:1]}


def _end(path: Path) -> str:
    """Return the end of a text file; an empty text if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return escaped(file.read().decode("utf-8", "replace"))
    return ""
