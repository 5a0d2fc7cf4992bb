"""The states of a study's runs, such as completed or interrupted, read from the run folders.

A run that cannot be read has the state `damaged`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsweep.runlog.checkpoint_files import checkpoints
from bsweep.runlog.files import RunPaths
from bsweep.runlog.following import Following
from bsweep.runlog.reading import read_meta
from bsweep.runlog.summary import read_ended
from bsweep.study import claims

RESULTS = ("completed", "diverged", "out_of_memory")
"""The statuses with which a run, if repeated, would likely end again. Unless its files are damaged,
only `bsweep retry` repeats such a run.
"""

_SCORES = ("test_accuracy", "test_loss")
FAILURES = ("failed", "timeout", "out_of_memory", "diverged")
STATUSES = ("completed", *FAILURES, "interrupted", "running", "damaged", "new")


@dataclass(frozen=True)
class State:
    """The state of a run, such as its status and how much of its training is done.

    `epochs_done` includes a part of the current epoch until the run has a summary. `num_epochs` is
    None if no record was read that tells it. `train_seconds` counts only epochs that are on record.
    """

    status: str = "new"
    message: str = ""
    epochs_done: float = 0.0
    num_epochs: int | None = None
    whole_epochs: int = 0
    train_seconds: float | None = None
    wall_seconds: float | None = None
    can_resume: bool = False
    beside_others: bool = False  # other points ran on its machine meanwhile
    num_examples: float | None = None  # of the complete epochs; None while the run is under way
    test_accuracy: float | None = None  # of the last evaluation
    test_loss: float | None = None
    is_imported: bool = False  # `bsweep import` made it, so no command of bsweep repeats it

    def says(self, num_epochs: int | None = None) -> str:
        """Return the status of a run as text; for a running or interrupted run, add the epoch that
        it has reached.
        """
        of = num_epochs or self.num_epochs
        if self.status not in ("running", "interrupted"):
            return self.status
        epoch = int(self.epochs_done) + (self.status == "running")
        epoch = min(epoch, of) if of else epoch
        return f"{self.status} at epoch {epoch}" + (f" of {of}" if of else "")


NEW = State()


def read_states(study_dir: Path) -> dict[str, State]:
    """Return the states of all runs of a study, by run id."""
    try:
        names = sorted(
            one.name
            for one in os.scandir(study_dir)
            if not one.name.startswith(".") and one.is_dir()
        )
    except FileNotFoundError:
        return {}
    found = ((name, state_of_run(study_dir / name)) for name in names)
    return {name: state for name, state in found if state is not NEW}


def state_of_run(folder: Path) -> State:
    """Return the state of the run in a folder; its status is `new` if the folder has no run.

    The state is `damaged` if the run cannot be read, for example because a file is damaged or was
    written by a newer bsweep.
    """
    paths = RunPaths(folder)
    try:
        ended = read_ended(paths)
        if ended:
            return _ended(*ended, paths)
        return _under_way(paths) if paths.config.exists() else NEW
    except (ValueError, KeyError, TypeError, OSError) as error:
        return State("damaged", str(error))


def _ended(summary: Mapping[str, Any], meta: Mapping[str, Any], paths: RunPaths) -> State:
    return State(
        summary["status"],
        summary["message"],
        epochs_done=summary["epochs"],
        whole_epochs=summary["epochs"],
        train_seconds=summary["train_seconds"],
        wall_seconds=summary["wall_seconds"],
        can_resume=summary["status"] not in RESULTS and bool(checkpoints(paths)),
        beside_others=bool(meta.get("beside_others")),
        is_imported="imported_from" in meta,
        num_examples=(summary["images_per_second"] or 0) * (summary["train_seconds"] or 0) or None,
        **{name: summary[name] for name in _SCORES},
    )


class _Recorded:
    """The facts read so far from the records of a run that has no summary yet, such as its finished
    epochs.
    """

    def __init__(self, metrics: Path) -> None:
        self.num_epochs: int | None = None
        self.epochs: list[tuple[int, float]] = []  # (epoch number, seconds of training)
        self.epochs_done = 0.0
        self.scores: dict[str, Any] = dict.fromkeys(_SCORES)
        self._file = Following(metrics)

    def look(self) -> bool:
        """Read the records that the run has written since the last call. Return False if records
        that were read before are gone.
        """
        news = self._file.news()
        for record in news or ():
            if record["type"] == "start":
                self.num_epochs = self.num_epochs or record["config"]["epochs"]
            elif record["type"] == "step":
                self.epochs_done = record["epochs_done"]
            elif record["type"] == "evaluation":
                self.epochs_done = record.get("epochs_done") or self.epochs_done
                self._score(record)
            elif record["type"] == "epoch":
                # A resumed run repeats epochs: the later record of one counts.
                while self.epochs and self.epochs[-1][0] >= record["epoch"]:
                    self.epochs.pop()
                self.epochs.append((record["epoch"], record["train_seconds"]))
                self.epochs_done = float(record["epoch"])
                self._score(record)
        return news is not None

    def _score(self, record: Mapping[str, Any]) -> None:
        known = {name: record.get(name) for name in _SCORES}
        self.scores |= {name: score for name, score in known.items() if score is not None}


_RECORDED: dict[Path, _Recorded] = {}  # kept, as a study is read every few seconds to watch it


def _recorded(metrics: Path) -> _Recorded:
    found = _RECORDED.setdefault(metrics, _Recorded(metrics))
    if not found.look():
        found = _RECORDED[metrics] = _Recorded(metrics)
        found.look()
    return found


def _under_way(paths: RunPaths) -> State:
    recorded = _recorded(paths.metrics)
    is_running = claims.is_run_claimed(paths.folder)
    return State(
        "running" if is_running else "interrupted",
        ""
        if is_running
        else "it was killed with the process that ran it, or the disk had no space for its summary",
        epochs_done=recorded.epochs_done,
        num_epochs=recorded.num_epochs,
        whole_epochs=len(recorded.epochs),
        train_seconds=sum(seconds for _, seconds in recorded.epochs) if recorded.epochs else None,
        can_resume=is_running or bool(checkpoints(paths)),
        beside_others=_was_beside_others(paths),
        **recorded.scores,
    )


def _was_beside_others(paths: RunPaths) -> bool:
    try:
        return bool(read_meta(paths).get("beside_others"))
    except ValueError:  # a damaged meta.json is no reason to repeat a run
        return False


def counted(statuses: Iterable[str]) -> str:
    """Return a text with the number of runs in each status that occurs, such as `3 completed, 1
    failed`.

    The statuses always have the same order.
    """
    numbers = Counter(statuses)
    return ", ".join(f"{numbers[status]} {status}" for status in STATUSES if numbers[status])
