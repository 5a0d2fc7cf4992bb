"""The module that writes runs to the tracker TensorBoard, each to a folder with an event file.

The event file also has the run's settings, as hyperparameters and as text.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

_FLUSH_SECONDS = 5


def place(study_dir: Path) -> str:
    return str(study_dir / "tensorboard")


def has(stored_in: str, study: str, run_id: str, fingerprint: str) -> bool:
    return False  # Writing the file again takes almost no time.


def view(stored_in: str) -> str:
    return f"tensorboard --logdir {shlex.quote(stored_in)}"


class Tracked:
    """One run in TensorBoard, with the methods of `bsweep.trackers.Tracked`."""

    def __init__(self, stored_in: str, study: str, run_id: str, began_at: float) -> None:
        folder = Path(stored_in) / run_id
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._run_id, self._began_at = run_id, began_at
        self._writer = EventFileWriter(str(folder), flush_secs=_FLUSH_SECONDS)

    def config(self, settings: Mapping[str, Any]) -> None:
        values = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in settings.items()
        }
        self._write(hparams_pb(values, self._run_id, self._began_at), self._began_at)
        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._write(text_pb("config", f"| key | value |\n|:---|:---|\n{rows}"), self._began_at)

    def metrics(self, numbers: Mapping[str, float], axis: str, step: int, time: float) -> None:
        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._write(Summary(value=values), time, step)

    def note(self, text: str, time: float) -> None:
        self._write(text_pb("events", text), time)

    def end(self, status: str, summary: Mapping[str, float], fingerprint: str, time: float) -> None:
        self.metrics({f"summary/{name}": value for name, value in summary.items()}, "run", 0, time)
        self._write(text_pb("status", status), time)
        success = Status.STATUS_SUCCESS if status == "completed" else Status.STATUS_FAILURE
        info = SessionEndInfo(status=success, end_time_secs=time)
        data = metadata.create_summary_metadata(HParamsPluginData(session_end_info=info))
        end = Summary.Value(
            tag=metadata.SESSION_END_INFO_TAG, metadata=data, tensor=metadata.NULL_TENSOR
        )
        self._write(Summary(value=[end]), time)
        self._writer.close()

    def _write(self, summary: Summary, time: float, step: int = 0) -> None:
        self._writer.add_event(Event(wall_time=time, step=step, summary=summary))


open = Tracked  # noqa: A001
