"""The rows of metrics in TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util import tensor_util

from bsweep.programs.rows import BySteps, Row

PARTS = ("train", "training", "validation", "val", "test", "eval")
"""The folders that writers such as Keras make within a run's folder."""


class EventFiles:
    """A reader of the event files in a folder and its folders, see `Source` in `rows`.

    A scalar has the name of its tag. A scalar from a folder within the folder also has this
    folder's name before its tag, such as `validation/epoch_accuracy`.

    Args:
        folder: The folder; it need not exist.
        of_run: True to read also the files that are there already, but only those of the run that
            has this folder.
    """

    environment: Mapping[str, str]

    def __init__(self, folder: Path, *, of_run: bool = False) -> None:
        self._folder, self._of_run = folder, of_run
        self._old = set() if of_run else set(event_files(folder))
        self._folders: dict[str, set[str]] = {}  # of each tag
        self._loaders: dict[Path, Any] = {}
        self._steps = BySteps()
        self.begun_at: float | None = None
        self.environment = {}
        self.is_ordered = False
        self.settings: dict[str, Any] = {}
        """The hyperparameters that the files name."""

    def new_rows(self, *, is_last: bool) -> list[Row]:
        for path in event_files(self._folder):
            if path in self._old or (self._of_run and run_folder(path) != self._folder):
                continue
            loader = self._loaders.setdefault(path, EventFileLoader(str(path)))
            for event in loader.Load():
                if event.HasField("summary"):
                    self._add(path, event)
                elif self.begun_at is None or event.wall_time < self.begun_at:
                    self.begun_at = event.wall_time  # a file begins with its version
        return self._steps.rows(is_last=is_last)

    def refuse_ambiguous(self, names: Iterable[str]) -> None:
        """Raise ValueError if one of the names is a tag in several folders."""
        for name in names:
            folders = sorted(self._folders.get(name.removesuffix("%"), ()))
            if len(folders) > 1:
                raise ValueError(
                    f"{self._folder}: several folders have the tag {name}. Say which one: "
                    f"{' or '.join(f'{folder}/{name}' for folder in folders)}."
                )

    def _add(self, path: Path, event: Any) -> None:
        inner = "" if path.parent == self._folder else path.parent.name
        for value in event.summary.value:
            plugin = value.metadata.plugin_data
            if plugin.plugin_name == "hparams":
                self.settings |= _settings(plugin.content)
            elif plugin.plugin_name == "scalars":
                number = float(tensor_util.make_ndarray(value.tensor))
                self._folders.setdefault(value.tag, set()).add(inner or ".")
                for tag in {value.tag, f"{inner}/{value.tag}".lstrip("/")}:
                    self._steps.add(str(run_folder(path)), event.step, tag, number, event.wall_time)


def event_files(folder: Path) -> Iterator[Path]:
    """Yield the event files in a folder and in the folders within it, in the order of their names,
    which begin with the time.
    """
    found = folder.rglob("events.out.tfevents.*")
    yield from sorted(found, key=lambda path: (path.name, path))


def run_folder(path: Path) -> Path:
    """Return the folder of the run to which an event file belongs."""
    return path.parents[1] if path.parent.name in PARTS else path.parent


def _settings(content: bytes) -> dict[str, Any]:
    """Return the hyperparameters in the data of TensorBoard's plug-in for them."""
    data = HParamsPluginData.FromString(content)
    return {
        name: getattr(value, value.WhichOneof("kind"))
        for name, value in data.session_start_info.hparams.items()
        if value.WhichOneof("kind")
    }
