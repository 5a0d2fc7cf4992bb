"""The functions that copy a run's records to a tracker, both while the run trains and
afterwards.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from bsweep.config.values import flatten
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import NUMBERS, content_of, read_summary
from bsweep.trackers import Tracked

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
    elif kind in NUMBERS:
        axis = NUMBERS[kind]
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


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)
