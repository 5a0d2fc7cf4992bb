"""The rows of metrics in MLflow's runs."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from bsweep.programs.rows import BySteps, Row

_TAG = "bsweep.attempt"
_POLL_SECONDS = 2.0


class TaggedRuns:
    """A reader of the MLflow runs that one program makes, see `Source` in `rows`.

    MLflow tags the runs of a program by what is in its environment, so that runs of other programs
    and of earlier attempts are left out.

    Args:
        place: The address of a store, or the path of an SQLite file or of a folder.
        folder: The folder from which a path counts.
    """

    environment: Mapping[str, str]

    def __init__(self, place: str, folder: Path) -> None:
        # A new SQLite file is set up here: the program must not do it at the same time.
        self._client = client_of(place, folder)
        self._tag, self._steps = secrets.token_hex(8), BySteps()
        self._seen: set[tuple[str, str, int, int]] = set()
        self._looked_at = float("-inf")
        self.begun_at: float | None = None
        self.environment = {"MLFLOW_RUN_CONTEXT": json.dumps({_TAG: self._tag})}
        self.is_ordered = False

    def new_rows(self, *, is_last: bool) -> list[Row]:
        if not is_last and time.monotonic() - self._looked_at < _POLL_SECONDS:
            return []
        try:
            for run in runs_in(self._client, f"tags.`{_TAG}` = '{self._tag}'"):
                if self.begun_at is None:
                    self.begun_at = run.info.start_time / 1000
                for name in run.data.metrics:
                    self._add(run.info.run_id, name)
        except Unreadable:
            if is_last:
                raise
        self._looked_at = time.monotonic()
        return self._steps.rows(is_last=is_last)

    def refuse_ambiguous(self, names: Iterable[str]) -> None:
        pass

    def _add(self, run_id: str, name: str) -> None:
        for one in history(self._client, run_id, name):
            if (key := (run_id, name, one.step, one.timestamp)) not in self._seen:
                self._seen.add(key)
                self._steps.add(f"run {run_id}", one.step, name, one.value, one.timestamp / 1000)


class Unreadable(ValueError):
    """The error about a store that MLflow cannot read, perhaps only now."""


def client_of(place: str, folder: Path) -> MlflowClient:
    """Return MLflow's client for a store.

    Args:
        place: The address of the store, or the path of an SQLite file or of a folder.
        folder: The folder from which a path counts.

    Raises:
        Unreadable: If MLflow cannot read the store.
    """
    path = (folder / Path(place).expanduser()).absolute()
    address = f"sqlite:///{path}"
    if path.is_dir():
        address = path.as_uri()
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer MLflows refuse to read it
    with _readable(place):
        return MlflowClient(tracking_uri=place if ":" in place else address)


def runs_in(client: MlflowClient, wanted: str = "") -> list[Run]:
    """Return the runs of all experiments of a store that fit a search text of MLflow.

    Raises:
        Unreadable: If MLflow cannot read the store.
    """
    with _readable(client.tracking_uri):
        experiments = [one.experiment_id for one in client.search_experiments()]
        found: list[Run] = []
        token = None
        while not found or token:
            page = client.search_runs(experiments, wanted, page_token=token)
            found += page
            token = page.token
            if not page:
                break
        return found


def history(client: MlflowClient, run_id: str, name: str) -> list[Metric]:
    """Return all values of a metric of a run, in the order of their times.

    Raises:
        Unreadable: If MLflow cannot read the store.
    """
    with _readable(client.tracking_uri):
        found = client.get_metric_history(run_id, name)
        return sorted(found, key=lambda one: (one.timestamp, one.step))


@contextmanager
def _readable(place: str) -> Iterator[None]:
    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        first = str(error).splitlines()[0]
        raise Unreadable(f"{place}: MLflow cannot read this store ({first}).") from None
