"""The trackers (TensorBoard, MLflow, Weights & Biases), to which bsweep copies the records of runs
if it is asked to.

The files in a run's folder stay the only source of its numbers: a tracker gets what they say and no
more. `bsweep export` copies the records that it finds. If the configuration names trackers,
separate processes copy a run's records while it trains (`bsweep.trackers.live`). So no worker waits
for a tracker or knows of one, and a tracker that fails does not end a run.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from bsweep.config.values import TrackerName
from bsweep.core.extras import refuse_missing

NAMES: tuple[TrackerName, ...] = typing.get_args(TrackerName)
_PACKAGES: Mapping[TrackerName, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


class Tracked(Protocol):
    """The interface for writing one run to a tracker; the run replaces an earlier one of the same
    name in the same study.
    """

    def config(self, settings: Mapping[str, Any]) -> None:
        """Store the settings of the run in the tracker, each under its dotted key."""

    def metrics(self, numbers: Mapping[str, float], axis: str, step: int, time: float) -> None:
        """Store the numbers of one record in the tracker.

        Args:
            numbers: The numbers by their names, such as `epoch/train_loss`.
            axis: The name of what `step` counts, such as `epoch`.
            step: The number of the epoch, the step or the round that the record is about.
            time: The time of the record, in seconds since 1970.
        """

    def note(self, text: str, time: float) -> None:
        """Store the text of an event in the tracker."""

    def end(self, status: str, summary: Mapping[str, float], fingerprint: str, time: float) -> None:
        """Store in the tracker how the run ended, and its final numbers.

        Args:
            status: How the run ended.
            summary: The final numbers by their names.
            fingerprint: The hash of the run's files, see `bsweep.trackers.records.fingerprint`.
            time: The time of the end, in seconds since 1970.
        """


class Sink(Protocol):
    """The interface of a module such as `to_mlflow`, which writes runs to one tracker."""

    def place(self, study_dir: Path) -> str:
        """Return the folder, file or address where bsweep lets the tracker store a study's runs
        unless the user gives another place.
        """

    def has(self, stored_in: str, study: str, run_id: str, fingerprint: str) -> bool:
        """Return True if the tracker says that it stores this run with the same hash of the run's
        files; False for TensorBoard and Weights & Biases, which are not asked.
        """

    def open(self, stored_in: str, study: str, run_id: str, began_at: float) -> Tracked:
        """Create the run in the tracker, and return an object that writes to it."""

    def view(self, stored_in: str) -> str:
        """Return the shell command that shows the runs in the tracker, or sends them to it."""


def sink(name: TrackerName) -> Sink:
    """Return bsweep's module that writes runs to a tracker; this imports the tracker's own
    package.
    """
    return typing.cast(Sink, importlib.import_module(f"bsweep.trackers.to_{name}"))


def check_trackers(names: Iterable[TrackerName]) -> None:
    """Raise ValueError if a Python package that a tracker needs is not installed."""
    for name in names:
        refuse_missing(name, _PACKAGES[name], name)
