"""Stand-alone recording: a program that nobody started by `bsweep run` records a run of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_KEYS = {"local_batch", "num_workers", "epochs", "seed", "lr", "options", "rank", "results_dir"}
_WAIT_SECONDS = 60.0


def begin(study: str, point: Mapping[str, Any]) -> str:
    """Start the process that records this program's run, and return the path of the file with the
    point. On other ranks than 0 nothing is recorded.

    Args:
        study: The study that gets the run.
        point: The values of the point, see `bsweep.join`.

    Raises:
        ValueError: If a value is unknown.
        RuntimeError: If the run cannot be recorded, for example because the study has this run.
    """
    if unknown := set(point) - _KEYS:
        raise ValueError(
            f"bsweep.join({min(unknown)}=...) is unknown: a stand-alone run knows "
            f"{', '.join(sorted(_KEYS))}."
        )
    rank = int(point.get("rank", _rank()))
    folder = Path(tempfile.mkdtemp(prefix="bsweep."))
    asked = {"num_workers": 1, "epochs": 1, "seed": 0, "lr": None, "options": {}, **point}
    if rank:
        return _unrecorded(folder, asked, rank)
    request = {**asked, "study": study, "command": sys.argv, "pid": os.getpid()}
    (folder / "request.json").write_text(json.dumps(request))
    words = [sys.executable, "-m", "bsweep.study.alone_worker", str(folder)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    ends = time.monotonic() + _WAIT_SECONDS
    answer = folder / "answer"
    while not answer.exists():
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(
                f"bsweep.join(study={study!r}) cannot record the run: see the message above."
            )
        time.sleep(0.02)
    return answer.read_text()


def _rank() -> str:
    names = ("HOROVOD_RANK", "RANK", "SLURM_PROCID")
    return next((os.environ[name] for name in names if name in os.environ), "0")


def _unrecorded(folder: Path, point: Mapping[str, Any], rank: int) -> str:
    """Write and return a point file for a worker whose reports nobody reads."""
    path = folder / "point.json"
    workers = point["num_workers"]
    given = ("local_batch", "epochs", "seed", "lr", "options")
    found = {
        **{name: point[name] for name in given},
        "global_batch": point["local_batch"] * workers,
        "num_workers": workers,
        "rank": rank,
        "local_rank": int(os.environ.get("LOCAL_RANK", rank)),
        "checkpoint_folder": str(folder),
        "first_epoch": 1,
        "scores": [],
        "reports": os.devnull,
        **UNASKED,
    }
    path.write_text(json.dumps(found))
    return str(path)


UNASKED = {
    "most_steps": None,
    "stop_file": os.devnull,
    "target": None,
    "stop_at_target": False,
    "meeting": None,
}
"""The part of a point that keeps workers from stopping early, for those that cannot agree on it."""
