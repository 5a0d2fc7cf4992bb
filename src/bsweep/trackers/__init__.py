"""The trackers to which the records of a run are passed on, while it trains or afterwards.

The trackers are TensorBoard, MLflow and Weights & Biases. The records in the run's folder stay the
only source of all numbers: a tracker gets what they say and no more. While a run trains, separate
processes pass its records on (`bsweep.trackers.live`). So no worker waits for a tracker or knows of
one, and a tracker that fails does not end a run.
"""

from __future__ import annotations

import importlib
import importlib.util
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from bsweep.config.values import TrackerName

NAMES: tuple[TrackerName, ...] = typing.get_args(TrackerName)
_PACKAGES: Mapping[TrackerName, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


class Tracked(Protocol):
    """One run within a tracker; it replaces an earlier run of the same name there."""

    def config(self, settings: Mapping[str, Any]) -> None:
        """Store the settings of the run, by dotted keys."""

    def metrics(self, numbers: Mapping[str, float], axis: str, step: int, time: float) -> None:
        """Store the numbers of a record.

        Args:
            numbers: The numbers by their names, `kind/name`.
            axis: The name of what `step` counts, such as `epoch`.
            step: The number of the record.
            time: The time of the record, in seconds since 1970.
        """

    def note(self, text: str, time: float) -> None:
        """Store the text of an event."""

    def end(self, status: str, summary: Mapping[str, float], fingerprint: str, time: float) -> None:
        """Store the end of the run.

        Args:
            status: How the run ended.
            summary: The final numbers by their names.
            fingerprint: The hash of the run's files, see `bsweep.trackers.records.fingerprint`.
            time: The time of the end, in seconds since 1970.
        """


class Sink(Protocol):
    """The interface of each module `to_NAME`, which writes runs to the tracker NAME."""

    def place(self, study_dir: Path) -> str:
        """Return the folder, file or address where the tracker stores a study's runs by default."""

    def has(self, where: str, study: str, run_id: str, fingerprint: str) -> bool:
        """Return True if the tracker already has this run with files of the hash `fingerprint`."""

    def open(self, where: str, study: str, run_id: str, began_at: float) -> Tracked:
        """Begin a run in the tracker."""

    def view(self, where: str) -> str:
        """Return the command that shows the tracker's runs."""


def sink(name: TrackerName) -> Sink:
    """Return the module that passes records on to a tracker; it imports the tracker's package."""
    return typing.cast(Sink, importlib.import_module(f"bsweep.trackers.to_{name}"))


def check_trackers(names: Iterable[TrackerName]) -> None:
    """Raise ValueError if a tracker's package is not installed."""
    for name in names:
        missing = [package for package in _PACKAGES[name] if not _is_installed(package)]
        if missing:
            raise ValueError(
                f"{name}: {', '.join(missing)} not installed: pip install 'bsweep[{name}]'"
            )


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    # A folder of that name has no origin; wandb, for example, makes a folder `wandb`.
    return spec is not None and spec.origin is not None
