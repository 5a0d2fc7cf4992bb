"""The run log: the records of a run, and the files of its folder."""

from bsweep.runlog.files import (
    Run,
    RunLog,
    RunPaths,
    SignOfLife,
    numbered,
    read_json,
    read_records,
    read_run,
    read_summary,
    warnings,
    write_json,
    write_summary,
)
from bsweep.runlog.records import SCHEMA, End, Epoch, Event, Record, Round, ServerLoad, Start, Status, Step, Traffic

__all__ = [
    "SCHEMA",
    "End",
    "Epoch",
    "Event",
    "Record",
    "Round",
    "Run",
    "RunLog",
    "RunPaths",
    "ServerLoad",
    "SignOfLife",
    "Start",
    "Status",
    "Step",
    "Traffic",
    "numbered",
    "read_json",
    "read_records",
    "read_run",
    "read_summary",
    "warnings",
    "write_json",
    "write_summary",
]
