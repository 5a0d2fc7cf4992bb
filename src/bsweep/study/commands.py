"""The file in a study's folder that lists the `bsweep run` commands typed for the study and the
points of each command.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from bsweep import data
from bsweep.config.groups import LaunchConfig
from bsweep.config.run import RunConfig
from bsweep.core.ranks import Place, inside_horovodrun


@dataclass(frozen=True)
class Planned:
    """A point's run id and the facts on which its training time depends, such as its number of
    workers.
    """

    run_id: str
    num_workers: int
    examples_per_step: int
    num_examples: int  # summed over all epochs
    epochs: int
    kind: str  # equal for points that differ only in batch, workers, seed, epochs and rates

    @property
    def local_batch(self) -> float:
        """The number of examples that a worker trains in a step, averaged over all workers."""
        return self.examples_per_step / self.num_workers


@dataclass(frozen=True)
class Command:
    """A recorded `bsweep run` command: its `arguments` as typed and the `folder` in which they were
    typed.

    `num_processes` is the size of the horovodrun around it, or None without one. `points` are the
    points that it trains.
    """

    arguments: tuple[str, ...]
    folder: Path
    num_processes: int | None
    points: tuple[Planned, ...]


def planned(config: RunConfig) -> Planned:
    return Planned(
        config.run_id,
        config.num_workers,
        config.examples_per_step,
        config.epochs * data.prepare(config.data).num_train,
        config.epochs,
        _kind(
            config.data,
            config.model,
            config.strategy,
            config.compression,
            config.batching,
            config.launch,
            config.allocation.name,
            config.optimizer.name,
            config.precision,
            config.channels_last,
            config.device,
            config.graph,
            config.accumulation_steps,
        ),
    )


@functools.cache  # a grid has few kinds
def _kind(*parts: Any) -> str:
    text = json.dumps([part if isinstance(part, str | int) else _told(part) for part in parts])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _told(part: Any) -> dict[str, Any]:
    told = asdict(part)
    if isinstance(part, LaunchConfig):
        told.pop("parallel", None)  # a point that runs alone takes as long with any value
    return told


def keep(study_dir: Path, arguments: Sequence[str], configs: Sequence[RunConfig]) -> None:
    """Append a `bsweep run` command and its points to the study's file of commands, unless the file
    has the command already.

    Args:
        study_dir: The study's folder.
        arguments: The command's arguments as typed.
        configs: The points that the command trains.
    """
    size = Place.from_environment().num_workers if inside_horovodrun() else None
    points = tuple(dict.fromkeys(map(planned, configs)))
    command = Command(tuple(arguments), Path.cwd(), size, points)
    if command in read_commands(study_dir):
        return
    line = {
        "time": time.time(),
        "arguments": command.arguments,
        "folder": str(command.folder),
        "num_processes": size,
        "columns": _COLUMNS,
        "points": [astuple(point) for point in points],
    }
    text = json.dumps(line) + "\n"
    with _path(study_dir).open("ab") as file:
        if file.tell() and not _ends_whole(_path(study_dir)):
            text = "\n" + text
        file.write(text.encode())  # in one call, for another sweep may write, too
        file.flush()
        os.fsync(file.fileno())


def read_commands(study_dir: Path) -> list[Command]:
    """Return the `bsweep run` commands that a study has recorded, each only once, in the order in
    which they were last typed.

    Damaged lines of the file are left out.
    """
    commands: dict[tuple[Any, ...], Command] = {}
    try:
        lines = _path(study_dir).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            kept = json.loads(line)
            places = [kept["columns"].index(name) for name in _COLUMNS]
            points = tuple(
                [Planned(*[point[place] for place in places]) for point in kept["points"]]
            )
            command = Command(
                tuple(kept["arguments"]), Path(kept["folder"]), kept["num_processes"], points
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            continue
        commands.pop(key := (command.arguments, command.folder, command.num_processes), None)
        commands[key] = command
    return list(commands.values())


_COLUMNS = [one.name for one in fields(Planned)]


def _path(study_dir: Path) -> Path:
    return study_dir / "commands.jsonl"


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
