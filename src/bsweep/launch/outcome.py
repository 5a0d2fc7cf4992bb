"""The outcome of a launched point: how it ended."""

from __future__ import annotations

from dataclasses import dataclass

from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_json, read_records
from bsweep.runlog.records import Status


@dataclass(frozen=True)
class Outcome:
    status: Status
    message: str = ""
    may_pass: bool = False
    """True if the failure says nothing about the point, such as a crash, a lost host or a stall.
    Another attempt may then succeed.
    """


def recorded(paths: RunPaths) -> Outcome | None:
    """Return how the run ended as its workers recorded it (completed, diverged or interrupted);
    None if they recorded no end.
    """
    records, _ = read_records(paths.metrics)
    if not records or records[-1]["type"] != "end":
        return None
    return Outcome(records[-1]["status"], records[-1]["message"])


def first_error(paths: RunPaths, num_processes: int) -> tuple[int, Outcome, str | None] | None:
    """Return the rank and the error of the first process that failed by itself.

    The third value is the traceback if the error came from the user's own code, else None. Return
    None if no process recorded such an error.
    """
    errors = [
        (error["time"], rank, Outcome(error["status"], error["message"]), error["traceback"])
        for rank in range(num_processes)
        if (error := read_json(paths.rank_logs(rank) / "error.json"))
        and not error["is_consequence"]
    ]
    if not errors:
        return None
    _, rank, outcome, trace = min(errors, key=lambda error: error[0])
    return rank, outcome, trace
