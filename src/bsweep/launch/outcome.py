"""The outcome of a launched point: the status of its run, and a message such as the cause of a
failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import last_record, read_json
from bsweep.runlog.records import Status


@dataclass(frozen=True)
class Outcome:
    status: Status
    message: str = ""
    may_pass: bool = False
    """True if the failure may not come from the point itself, so that another attempt may succeed:
    for example after a lost host, a stall or a kill from outside.
    """


def of_unfit_processes(reason: str) -> Outcome:
    """Return the outcome of a point that is not trained, because the processes that should train it
    ran out of memory before, and must not be replaced within this command.

    Args:
        reason: How they ran out of memory.
    """
    return Outcome(
        "interrupted",
        "not trained, because these processes may fail, or have less memory than others, after "
        f"they ran out of memory ({reason}): type the same command again, which skips points that "
        "have a result",
    )


def recorded(paths: RunPaths) -> Outcome | None:
    """Return how a run ended (completed, diverged or interrupted), as its workers recorded it;
    return None if the last record is not such a record.
    """
    record = last_record(paths.metrics)
    if record is None or record["type"] != "end":
        return None
    return Outcome(record["status"], record["message"])


def first_error(paths: RunPaths, num_processes: int) -> tuple[int, Outcome, str | None] | None:
    """Return the rank, the error and the traceback of the process that recorded its error first.
    Processes that failed only because another one failed do not count.

    The third value is the traceback if the error came from the user's own code, an empty text if
    the message says all that a user needs, else None. Return None if no process recorded such an
    error.
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
