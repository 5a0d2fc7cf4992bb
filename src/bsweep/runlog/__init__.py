"""The run log: the records of a run, and the files of its folder.

Workers and the sweep write records; this package stores them in files and reads them back. `files`
has every path. `records` and `json_schemas` have every type. `reading` checks what it reads against
these types and names what is damaged. The package also has the locks, the paths of checkpoints, the
errors that end a process, and the files of a calibration and of a profile.

The package must not know who trains and how, nor what the numbers are for. It loads no torch, so
that the analysis can read runs without it. Only the module `errors`, for workers, loads torch.
"""

from bsweep.runlog.checkpoint_files import (
    Checkpoint,
    checkpoint_at,
    checkpoints,
    cut_records,
    is_saving,
    is_stop_requested,
    prune,
    request_stop,
)
from bsweep.runlog.files import RunLog, RunPaths, SignOfLife, write_json
from bsweep.runlog.following import Following
from bsweep.runlog.hardware import hardware_words
from bsweep.runlog.locks import claimed, is_claimed
from bsweep.runlog.measured import Evaluation, NoiseScale
from bsweep.runlog.reading import (
    REMEDY,
    Damaged,
    Newer,
    Run,
    changes_batch,
    lost_workers,
    numbered,
    read_json,
    read_meta,
    read_records,
    read_run,
    read_summary,
    read_told,
    warnings,
)
from bsweep.runlog.records import (
    SCHEMA,
    BatchChanged,
    Continued,
    End,
    Epoch,
    Event,
    Record,
    Round,
    ServerLoad,
    Start,
    Status,
    Step,
    Traffic,
)
from bsweep.runlog.summary import ended, read_ended, write_summary

__all__ = [
    "REMEDY",
    "SCHEMA",
    "BatchChanged",
    "Checkpoint",
    "Continued",
    "Damaged",
    "End",
    "Epoch",
    "Evaluation",
    "Event",
    "Following",
    "Newer",
    "NoiseScale",
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
    "changes_batch",
    "checkpoint_at",
    "checkpoints",
    "claimed",
    "cut_records",
    "ended",
    "hardware_words",
    "is_claimed",
    "is_saving",
    "is_stop_requested",
    "lost_workers",
    "numbered",
    "prune",
    "read_ended",
    "read_json",
    "read_meta",
    "read_records",
    "read_run",
    "read_summary",
    "read_told",
    "request_stop",
    "warnings",
    "write_json",
    "write_summary",
]
