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

from bsweep.config.run import RunConfig
from bsweep.core.following import GrowingFile
from bsweep.runlog.checkpoint_files import checkpoints
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import checked, numbered
from bsweep.runlog.summary import read_ending
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
        if self.status not in ("running", "interrupted"):
            return self.status
        epoch, num_epochs = int(self.epochs_done), num_epochs or self.num_epochs
        epoch += self.status == "running" and epoch != num_epochs
        return f"{self.status} at epoch {epoch}" + (f" of {num_epochs}" if num_epochs else "")


NEW = State()


def result_of(config: RunConfig) -> str | None:
    """Return the status of a point if it is a result (completed, diverged or out_of_memory), else
    None.

    A repetition would most likely end in the same way, so a sweep does not run the point again.
    """
    status = read_ending(RunPaths(config.folder)).status
    return status if status in RESULTS else None


def read_states(study_dir: Path) -> dict[str, State]:
    """Return the states of all runs of a study, by run id."""
    if not study_dir.is_dir():
        return {}
    entries = [entry for entry in os.scandir(study_dir) if entry.name[0] != "."]
    names = sorted(entry.name for entry in entries if entry.is_dir())
    states = {name: state_of_run(study_dir / name) for name in names}
    return {name: state for name, state in states.items() if state is not NEW}


def state_of_run(folder: Path) -> State:
    """Return the state of the run in a folder; its status is `new` if the folder has no run.

    The state is `damaged` if the run cannot be read, for example because a file is damaged or was
    written by a newer bsweep.
    """
    paths = RunPaths(folder)
    try:
        ending = read_ending(paths)
        if ending.damage and not claims.is_run_claimed(folder):
            return State("damaged", ending.damage)
        if ending.summary:
            return _ended(ending.summary, ending.meta, paths)
        return _under_way(paths, ending.meta) if paths.config.exists() else NEW
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


class _UnderWay:
    """The facts read so far from the records of a run that has no summary yet, such as its finished
    epochs.
    """

    def __init__(self, metrics: Path) -> None:
        self._metrics, self._file = metrics, GrowingFile(metrics)
        self._forget()

    def _forget(self) -> None:
        self.num_epochs: int | None = None
        self.epochs: list[dict[str, Any]] = []
        self.epochs_done = 0.0
        self.scores: dict[str, Any] = dict.fromkeys(_SCORES)
        self._num_lines = 0

    def look(self) -> None:
        """Read the records that the run has written since the last call, or all of them if records
        that were read before are gone.

        Raises:
            Damaged: As in `read_records`; this object is then of no more use.
            Newer: As in `read_records`; the same.
        """
        lines = self._file.new_lines()
        if lines is None:
            self._forget()
            lines = self._file.new_lines()
        records = []
        for line in lines or ():
            self._num_lines += 1
            records.append(checked(line, f"{self._metrics}:{self._num_lines}"))
        for record in records:
            kind = record["type"]
            if kind == "start":
                self.num_epochs = self.num_epochs or record["config"]["epochs"]
            elif kind in ("step", "evaluation", "epoch"):
                done = record["epoch"] if kind == "epoch" else record.get("epochs_done")
                self.epochs_done = float(done or self.epochs_done)
                scores = {name: record.get(name) for name in _SCORES}
                self.scores |= {name: score for name, score in scores.items() if score is not None}
        self.epochs = numbered([*self.epochs, *records], "epoch")


_UNDER_WAY: dict[Path, _UnderWay] = {}  # kept, as a study is read every few seconds to watch it


def _under_way(paths: RunPaths, meta: Mapping[str, Any]) -> State:
    run = _UNDER_WAY.pop(paths.metrics, None) or _UnderWay(paths.metrics)
    run.look()
    _UNDER_WAY[paths.metrics] = run
    is_running = claims.is_run_claimed(paths.folder)
    was_killed = (
        "it was killed with the process that ran it, or the disk had no space for its summary"
    )
    return State(
        "running" if is_running else "interrupted",
        "" if is_running else was_killed,
        epochs_done=run.epochs_done,
        num_epochs=run.num_epochs,
        whole_epochs=len(run.epochs),
        train_seconds=sum(epoch["train_seconds"] for epoch in run.epochs) if run.epochs else None,
        can_resume=is_running or bool(checkpoints(paths)),
        beside_others=bool(meta.get("beside_others")),
        **run.scores,
    )


def counted(statuses: Iterable[str]) -> str:
    """Return a text with the number of runs in each status that occurs, such as `3 completed, 1
    failed`.

    The statuses always have the same order.
    """
    numbers = Counter(statuses)
    return ", ".join(f"{numbers[status]} {status}" for status in STATUSES if numbers[status])
