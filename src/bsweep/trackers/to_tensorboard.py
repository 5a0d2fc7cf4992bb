"""The module that writes runs to the tracker TensorBoard, each to a folder with an event file.

The event file also has the run's settings, as hyperparameters and as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import (
    HParamsPluginData,
    SessionEndInfo,
    SessionStartInfo,
)
from tensorboard.summary.writer.event_file_writer import EventFileWriter

_FLUSH_SECONDS = 5


def place(study_dir: Path) -> str:
    return str(study_dir / "tensorboard")


def has(stored_in: str, study: str, run_id: str, fingerprint: str) -> bool:
    return False  # Writing the file again takes almost no time.


def view(stored_in: str) -> str:
    return f"tensorboard --logdir {stored_in}"


class Tracked:
    """One run in TensorBoard, with the methods of `bsweep.trackers.Tracked`."""

    def __init__(self, stored_in: str, study: str, run_id: str, began_at: float) -> None:
        folder = Path(stored_in) / run_id
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._study, self._began_at = study, began_at
        self._writer = EventFileWriter(str(folder), flush_secs=_FLUSH_SECONDS)

    def config(self, settings: Mapping[str, Any]) -> None:
        info = SessionStartInfo(group_name=str(settings["run_id"]), start_time_secs=self._began_at)
        for name, value in settings.items():
            _fill(info.hparams[name], value)
        self._plugin(
            metadata.SESSION_START_INFO_TAG,
            HParamsPluginData(session_start_info=info),
            self._began_at,
        )
        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._text("config", f"| key | value |\n|:---|:---|\n{rows}", self._began_at)

    def metrics(self, numbers: Mapping[str, float], axis: str, step: int, time: float) -> None:
        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=values)))

    def note(self, text: str, time: float) -> None:
        self._text("events", text, time)

    def end(self, status: str, summary: Mapping[str, float], fingerprint: str, time: float) -> None:
        self.metrics({f"summary/{name}": value for name, value in summary.items()}, "run", 0, time)
        self._text("status", status, time)
        of_run = Status.STATUS_SUCCESS if status == "completed" else Status.STATUS_FAILURE
        info = SessionEndInfo(status=of_run, end_time_secs=time)
        self._plugin(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info), time)
        self._writer.close()

    def _text(self, tag: str, text: str, time: float) -> None:
        data = SummaryMetadata.PluginData(plugin_name="text", content=b"{}")
        self._tensor(tag, SummaryMetadata(plugin_data=data), [text.encode()], time)

    def _plugin(self, tag: str, data: HParamsPluginData, time: float) -> None:
        self._tensor(tag, metadata.create_summary_metadata(data), [], time)

    def _tensor(self, tag: str, about: SummaryMetadata, texts: list[bytes], time: float) -> None:
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(texts))])
        tensor = TensorProto(dtype=DT_STRING, string_val=texts, tensor_shape=shape)
        value = Summary.Value(tag=tag, tensor=tensor, metadata=about)
        self._writer.add_event(Event(wall_time=time, summary=Summary(value=[value])))


def _fill(field: Any, value: object) -> None:
    """Write the value of a setting into a protobuf field."""
    if isinstance(value, bool):
        field.bool_value = value
    elif isinstance(value, int | float):
        field.number_value = value
    else:
        field.string_value = value if isinstance(value, str) else json.dumps(value)


open = Tracked  # noqa: A001
