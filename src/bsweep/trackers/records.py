"""The functions that copy a run's records to a tracker, both while the run trains and
afterwards.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bsweep.config.values import flatten
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import content_of, read_summary
from bsweep.trackers import Tracked

_AXES = {
    "step": "step",
    "epoch": "epoch",
    "round": "round",
    "evaluation": "num_steps",
    "noise_scale": "num_steps",
}
_NO_NUMBERS = {"schema", "time"}


def forward(record: Mapping[str, Any], tracked: Tracked) -> None:
    """Write one record of a run to a tracker, unless it is an `end` record.

    `finish` tells the tracker how the run ended.
    """
    kind, time = record["type"], record["time"]
    if kind == "start":
        tracked.config(
            flatten(record["config"]) | {name: record[name] for name in ("run_id", "device")}
        )
    elif kind == "event":
        tracked.note(f"{record['event']}: {record['message']}", time)
    elif kind in _AXES:
        axis = _AXES[kind]
        numbers = {
            f"{kind}/{name}": value
            for name, value in _numbers(record)
            if name not in (axis, *_NO_NUMBERS)
        }
        tracked.metrics(numbers, axis, int(record[axis]), time)


def finish(paths: RunPaths, tracked: Tracked, time: float) -> None:
    """Tell a tracker how a run ended; the status is `unfinished` if the run has no summary file."""
    summary = read_summary(paths) or {"status": "unfinished"}
    tracked.end(str(summary["status"]), dict(_numbers(summary)), fingerprint(paths), time)


def fingerprint(paths: RunPaths) -> str:
    """Return a hash of a run's records and summary; `bsweep export` skips a run if MLflow has
    stored the same hash.
    """
    files = (content_of(path) or b"" for path in (paths.metrics, paths.summary))
    return hashlib.sha256(b"\0".join(files)).hexdigest()


def settled(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a run's records without those that were taken back when the run was resumed.

    A record with a number, such as that of its epoch, is left out if a later record of its kind has
    the same or a smaller number.
    """
    kept: list[dict[str, Any]] = []
    least: dict[str, float] = {}  # the least number of each kind among the later records
    for record in reversed(records):
        kind = record["type"]
        if kind in _AXES:
            number = record[_AXES[kind]]
            if number >= least.get(kind, math.inf):
                continue
            least[kind] = number
        kept.append(record)
    return kept[::-1]


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)
