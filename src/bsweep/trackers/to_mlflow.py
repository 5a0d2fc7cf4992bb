"""The module that writes runs to the tracker MLflow, where each study is an experiment.

By default, the experiment is in an SQLite file beside the runs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

_MOST_PARAMS = 100  # in one request
_MOST_LETTERS = 6000  # in one parameter
_RUN_ID, _FINGERPRINT = "bsweep.run_id", "bsweep.fingerprint"


def place(study_dir: Path) -> str:
    """Return the address in MLFLOW_TRACKING_URI or, if it is unset, the path of `mlflow.db` in the
    study's folder.
    """
    return os.environ.get("MLFLOW_TRACKING_URI") or str(study_dir / "mlflow.db")


def has(stored_in: str, study: str, run_id: str, fingerprint: str) -> bool:
    client = _client(stored_in)
    return [
        run.data.tags.get(_FINGERPRINT)
        for run in _runs(client, _experiment(client, stored_in, study), run_id)
    ] == [fingerprint]


def view(stored_in: str) -> str:
    return f"mlflow ui --backend-store-uri {shlex.quote(_uri(stored_in))}"


class Tracked:
    """One run in MLflow, with the methods of `bsweep.trackers.Tracked`.

    MLflow keeps a replaced run, marked as deleted, until `mlflow gc`. If a run was resumed with
    other settings, it shows the first ones.
    """

    def __init__(self, stored_in: str, study: str, run_id: str, began_at: float) -> None:
        self._client = _client(stored_in)
        experiment = _experiment(self._client, stored_in, study)
        for earlier in _runs(self._client, experiment, run_id):
            self._client.delete_run(earlier.info.run_id)
        self._id = self._client.create_run(
            experiment, start_time=_milliseconds(began_at), tags={_RUN_ID: run_id}, run_name=run_id
        ).info.run_id
        self._stored: set[str] = set()  # settings
        self._noted_at = 0

    def config(self, settings: Mapping[str, Any]) -> None:
        # MLflow refuses another value, as of `launch.retries` in a run that was resumed.
        new = {name: value for name, value in settings.items() if name not in self._stored}
        self._stored |= {*new}
        params = [Param(name, str(value)[:_MOST_LETTERS]) for name, value in new.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._id, params=params[first : first + _MOST_PARAMS])

    def metrics(self, numbers: Mapping[str, float], axis: str, step: int, time: float) -> None:
        at = _milliseconds(time)
        self._client.log_batch(
            self._id, metrics=[Metric(name, value, at, step) for name, value in numbers.items()]
        )

    def note(self, text: str, time: float) -> None:
        # Several events may be of one millisecond, and a tag has one value.
        self._noted_at = max(_milliseconds(time), self._noted_at + 1)
        self._client.log_batch(
            self._id, tags=[RunTag(f"event.{self._noted_at}", text[:_MOST_LETTERS])]
        )

    def end(self, status: str, summary: Mapping[str, float], fingerprint: str, time: float) -> None:
        self.metrics(summary, "run", 0, time)
        self._client.set_tag(self._id, "status", status)
        self._client.set_tag(self._id, _FINGERPRINT, fingerprint)
        theirs = {"completed": "FINISHED", "interrupted": "KILLED", "unfinished": "RUNNING"}.get(
            status, "FAILED"
        )
        if theirs != "RUNNING":
            self._client.set_terminated(self._id, theirs, _milliseconds(time))


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds)


def _uri(stored_in: str) -> str:
    """Return a path or an address in the form that MLflow needs; a path, whose folders may have
    colons in their names, becomes the address of an SQLite file.
    """
    return stored_in if "://" in stored_in else f"sqlite:///{Path(stored_in).absolute()}"


def _client(stored_in: str) -> MlflowClient:
    return MlflowClient(tracking_uri=_uri(stored_in))


def _experiment(client: MlflowClient, stored_in: str, study: str) -> str:
    if known := client.get_experiment_by_name(study):
        return str(known.experiment_id)
    artifacts = None
    if "://" not in stored_in:
        artifacts = (Path(stored_in).absolute().parent / "mlflow-artifacts").as_uri()
    try:
        return str(client.create_experiment(study, artifact_location=artifacts))
    except MlflowException:  # Another process may have made the experiment in the meantime.
        if made := client.get_experiment_by_name(study):
            return str(made.experiment_id)
        raise


def _runs(client: MlflowClient, experiment: str, run_id: str) -> list[Run]:
    return list(client.search_runs([experiment], f"tags.`{_RUN_ID}` = '{run_id}'"))


open = Tracked  # noqa: A001
