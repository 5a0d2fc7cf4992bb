"""Trackers: sinks to which the records of a run are passed on, while it runs or afterwards.

Run folders come in; what TensorBoard, MLflow or Weights & Biases keep goes out. The records stay
the one source, and a sink reads nothing but them. Processes of their own pass them on
(`bsweep.trackers.live`): no worker waits for a tracker or knows of one, and one that fails costs no
run.
"""

from __future__ import annotations

import importlib
import importlib.util
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from bsweep.config import TrackerName

NAMES: tuple[TrackerName, ...] = typing.get_args(TrackerName)
_PACKAGES: Mapping[TrackerName, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


class Tracked(Protocol):
    """One run within a tracker, from its beginning: what an earlier one of this name had there is
    replaced.
    """

    def config(self, settings: Mapping[str, Any]) -> None:
        """Take the settings of the run, by dotted keys."""

    def metrics(self, numbers: Mapping[str, float], axis: str, step: int, time: float) -> None:
        """Take numbers of a record.

        Args:
            numbers: By name, `kind/name`.
            axis: What `step` counts, such as `epoch`.
            step: The number of the record.
            time: Seconds since 1970.
        """

    def note(self, text: str, time: float) -> None:
        """Take what an event says."""

    def end(self, status: str, summary: Mapping[str, float], fingerprint: str, time: float) -> None:
        """Take the end of the run: final numbers by name, and what tells its files from others."""


class Sink(Protocol):
    """A module of this folder."""

    def place(self, study_dir: Path) -> str:
        """Where a study goes by default."""

    def has(self, where: str, study: str, run_id: str, fingerprint: str) -> bool:
        """Whether a run is there already, as it is in its files."""

    def open(self, where: str, study: str, run_id: str, began_at: float) -> Tracked:
        """Begin a run."""

    def view(self, where: str) -> str:
        """The command that shows what is there."""


def sink(name: TrackerName) -> Sink:
    """The module that passes records on; it imports the tracker's package."""
    return typing.cast(Sink, importlib.import_module(f"bsweep.trackers.to_{name}"))


def check_trackers(names: Iterable[TrackerName]) -> None:
    """ValueError if a tracker's package is not installed."""
    for name in names:
        missing = [package for package in _PACKAGES[name] if not _is_installed(package)]
        if missing:
            raise ValueError(
                f"{name}: {', '.join(missing)} not installed: pip install 'bsweep[{name}]'"
            )


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    # Not a folder of that name, as wandb makes them.
    return spec is not None and spec.origin is not None
