"""Overviews of the points of a grid or a study, as text and as JSON: their states and the estimated
time that is left.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsweep.core.words import aligned, counted, decimal_hours, duration
from bsweep.runlog.files import no_such_study
from bsweep.study import history, states
from bsweep.study.estimate import Estimate, Timed, timed, with_examples
from bsweep.study.history import Planned
from bsweep.study.states import NEW, State

_MOST_LISTED = 40


@dataclass(frozen=True)
class Row:
    """One point in an overview, with its state and the estimated time that is left.

    `planned` is None for a run that belongs to no recorded command. `seconds` is the estimated time
    that is left, or None without an estimate.
    """

    study: str
    run_id: str
    state: State
    planned: Planned | None
    seconds: float | None

    @property
    def worker_hours(self) -> float | None:
        if self.planned is None or self.seconds is None:
            return None
        return self.seconds * self.planned.num_workers / 3600

    @property
    def is_left(self) -> bool:
        """True if the point has no result yet, so that its command, typed again, would run the
        point.
        """
        return self.state.status not in states.RESULTS

    @property
    def first_line(self) -> str:
        return (self.state.message.splitlines() or [""])[0]

    def as_json(self) -> dict[str, Any]:
        state, planned = self.state, self.planned
        return {
            "study": self.study,
            "run_id": self.run_id,
            "status": state.status,
            "message": self.first_line,
            "epochs_done": round(state.epochs_done, 3),
            "epochs": planned.epochs if planned else state.num_epochs,
            "num_workers": planned.num_workers if planned else None,
            "global_batch": planned.examples_per_step if planned else None,
            "test_accuracy": state.test_accuracy,
            "test_loss": state.test_loss,
            "seconds_left": self.seconds if self.is_left else 0.0,
            "worker_hours_left": self.worker_hours if self.is_left else 0.0,
        }


def estimated(
    study_dir: Path,
    known: Mapping[str, State],
    grid: Iterable[Planned] = (),
    tried: Sequence[Timed] = (),
) -> tuple[dict[str, Planned], Estimate]:
    """Return the points of a study's commands and of a grid by run id, and the estimate of how long
    they take.

    Args:
        study_dir: The study's folder.
        known: The states of its runs, by run id.
        grid: The points of the grid.
        tried: Timed points that the estimate uses in addition to the study's runs.
    """
    recorded = history.read_commands(study_dir)
    points = {point.run_id: point for command in recorded for point in command.points}
    points |= {point.run_id: point for point in grid}
    points = {point.run_id: point for point in with_examples(points.values(), known, tried)}
    return points, Estimate(timed(points.values(), known), tried)


def row_of(
    study_dir: Path, run_id: str, state: State | None, point: Planned | None, estimate: Estimate
) -> Row:
    state = state or NEW
    seconds = estimate.seconds(point, state) if point else None
    return Row(study_dir.name, run_id, state, point, seconds)


def of_grid(
    study_dir: Path, points: Sequence[Planned], tried: Sequence[Timed] = ()
) -> tuple[list[Row], str]:
    """Return the state and the estimated remaining time of each point of a grid, and a text on what
    the estimates are based on.

    Args:
        study_dir: The study's folder, which need not exist.
        points: The points, each once.
        tried: Timed points that the estimate uses in addition to the study's runs.
    """
    known = states.read_states(study_dir)
    planned, estimate = estimated(study_dir, known, points, tried)
    run_ids = [point.run_id for point in points]
    rows = [row_of(study_dir, name, known.get(name), planned[name], estimate) for name in run_ids]
    return rows, estimate.source


def no_study(study_dir: Path) -> str:
    """Return a message on a folder that holds no study."""
    if study_dir.is_dir():
        return (
            f"{study_dir} holds no run and no command: give the folder of a study, such as "
            "results/NAME."
        )
    return no_such_study(study_dir)


def plan_text(rows: Sequence[Row], source: str) -> str:
    """Return a text with a table of the state and the estimated remaining time of each point of a
    grid, followed by failures and totals.
    """
    table = [["point", "state", "time", "worker-hours"]]
    for row in rows:
        state = row.state.says(row.planned.epochs if row.planned else None)
        left = [duration(row.seconds), decimal_hours(row.worker_hours)] if row.is_left else ["", ""]
        table.append([row.run_id, state, *left])
    return "\n".join([*aligned(table, left=[0, 1]), *_failures(rows), totals(rows, source)])


def status_text(study_dir: Path, rows: Sequence[Row], source: str, sweeps: Sequence[str]) -> str:
    """Return a text with the number of points in each state, and lines on points that run, were
    interrupted, have failed or are damaged.
    """
    lines = [f"{study_dir}: {totals(rows, source, len(sweeps))}"]
    if unknown := sum(row.planned is None and not row.state.is_imported for row in rows):
        lines.append(
            f"  {study_dir / 'commands.jsonl'} has no command for {counted(unknown, 'run')}: type "
            "the commands again, or points that have not begun stay unknown"
        )
    for row in rows:
        if row.state.status in ("running", "interrupted"):
            epochs = row.planned.epochs if row.planned else row.state.num_epochs
            share = f" ({row.state.epochs_done / epochs:.0%})" if epochs else ""
            time = f", {duration(row.seconds)} left" if row.seconds is not None else ""
            lines.append(f"  {row.run_id}: {row.state.says(epochs)}{share}{time}")
    lines += _failures(rows)
    left = [row for row in rows if row.is_left]
    if sweeps:
        names = (" process ".join(name.rsplit(".", 1)) for name in sweeps)
        lines.append(f"sweeps at work: {', '.join(names)}")
    elif any(row.planned for row in left):
        lines.append(f"no sweep is at work; `bsweep resume {study_dir}` runs the rest")
    elif left:
        lines.append("no sweep is at work")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], source: str, indent: int | None = 1, **more: Any) -> str:
    every = {**more, **sums(rows, source), "points": [row.as_json() for row in rows]}
    return json.dumps(every, indent=indent)


def sums(rows: Sequence[Row], source: str) -> dict[str, Any]:
    """Return how many points are in each state and how long those without a result will take, in
    plain values.
    """
    left = [row for row in rows if row.is_left]
    numbers = Counter(row.state.status for row in rows)
    return {
        "counts": {status: numbers[status] for status in states.STATUSES if numbers[status]},
        "seconds_left": _sum([row.seconds for row in left]),
        "worker_hours_left": _sum([row.worker_hours for row in left]),
        "estimated_by": source or None,
    }


def totals(rows: Sequence[Row], source: str, num_sweeps: int = 1) -> str:
    """Return a text on how many points are in each state and, if there is an estimate, how long the
    points without a result will take.
    """
    text = f"{counted(len(rows), 'point')}: {states.counted(row.state.status for row in rows)}"
    is_known = [row.seconds is not None for row in rows if row.is_left]
    if not is_known:
        return text
    if not any(is_known):
        return (
            f"{text}; no estimate: no similar point has finished an epoch without other points "
            "running beside it"
        )
    left = sums(rows, source)
    hours = decimal_hours(left["worker_hours_left"])
    share = "" if all(is_known) else f" for {sum(is_known)} of {len(is_known)} points"
    at_once = f" with {num_sweeps} sweeps at the same time" if num_sweeps > 1 else ""
    time = f"{duration(left['seconds_left'] / max(1, num_sweeps))}{at_once}"
    return f"{text}; left: about {time}, {hours} worker-hours{share}, estimated by {source}"


def _failures(rows: Sequence[Row]) -> list[str]:
    statuses = (*states.FAILURES, "damaged")
    failed = [row for row in rows if row.state.status in statuses]
    lines = [f"  {row.run_id}: {row.state.status}: {row.first_line}" for row in failed]
    if (more := len(lines) - _MOST_LISTED) > 0:
        lines[_MOST_LISTED:] = [f"  ... and {more} more (--json lists all)"]
    return lines


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum of the values that are not None; return None if all values are None.

    The sum of no values is 0.
    """
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None
