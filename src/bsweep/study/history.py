"""The file in a study's folder that lists the study's `bsweep run` commands and the points of each
command. A command was typed by the user, or trains the runs of `bsweep recommend`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import operator
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from bsweep import data
from bsweep.config.run import RunConfig
from bsweep.config.values import Count, Name, Processes, Seconds
from bsweep.core import terminal
from bsweep.core.ranks import horovodrun_size
from bsweep.runlog.values import MOST

logger = terminal.logger(__name__)

_Examples = Annotated[int, Field(ge=1, lt=MOST)]


@dataclass(frozen=True)
class Planned:
    """A point's run id and the facts on which its training time depends, such as its number of
    workers.

    The strategy ends the run after `max_examples`, None if its epochs end it before, or after
    `max_seconds` of training, None without a limit.
    """

    run_id: Name
    num_workers: Processes
    examples_per_step: _Examples
    num_examples: _Examples | None  # summed over all epochs; None if only the program knows
    epochs: Count
    kind: str  # equal for points that differ only in batch, workers, seed, epochs and rates
    max_examples: _Examples | None = None
    max_seconds: Seconds | None = None

    @property
    def local_batch(self) -> float:
        """The number of examples that a worker trains on in a step, averaged over all workers."""
        return self.examples_per_step / self.num_workers

    def trained_share(self, step_seconds: float) -> float:
        """Return the share of the point's epochs after which it ends, if a step takes so long."""
        assert self.num_examples, "only a point of known size has steps"
        seconds = self.num_examples / self.examples_per_step * step_seconds
        by_rounds = (self.max_examples or math.inf) / self.num_examples
        return min(1.0, by_rounds, (self.max_seconds or math.inf) / seconds)


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
    num_train = data.num_train(config.data)
    num_examples = None if num_train is None else config.epochs * num_train
    max_rounds, max_seconds = config.strategy.ends_after
    max_examples = None
    if max_rounds and num_train:
        rounds_per_epoch = -(-num_train // config.examples_per_round)  # the last may be shorter
        epochs, rounds = divmod(max_rounds, rounds_per_epoch)
        if epochs < config.epochs:
            max_examples = epochs * num_train + rounds * config.examples_per_round
    return Planned(
        config.run_id,
        config.num_workers,
        config.examples_per_step,
        num_examples,
        config.epochs,
        _kind(*_SETTINGS_OF_KIND(config)),
        max_examples,
        max_seconds,
    )


_SETTINGS_OF_KIND = operator.attrgetter(
    "data", "model", "strategy", "compression", "batching", "launch", "allocation.name",
    "optimizer.name", "precision", "channels_last", "compile", "device", "graph",
    "accumulation_steps", "program",
)  # fmt: skip


@functools.cache  # a grid has few kinds
def _kind(*settings: Any) -> str:
    plain = [value if isinstance(value, str | int) else asdict(value) for value in settings]
    for card in plain:
        if isinstance(card, dict):
            card.pop("parallel", None)  # a point that runs alone takes as long with any value
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:8]


def record(study_dir: Path, arguments: Sequence[str], configs: Sequence[RunConfig]) -> None:
    """Append a `bsweep run` command and its points to the study's file of commands, unless the file
    has the command already.

    Args:
        study_dir: The study's folder.
        arguments: The command's arguments as typed.
        configs: The points that the command trains.
    """
    size = horovodrun_size()
    points = tuple(dict.fromkeys(map(planned, configs)))
    command = Command(tuple(arguments), Path.cwd(), size, points)
    if command in read_commands(study_dir):
        return
    line = {
        "time": time.time(),
        "arguments": command.arguments,
        "folder": str(command.folder),
        "num_processes": size,
        "columns": [field.name for field in fields(Planned)],
        "points": [astuple(point) for point in points],
    }
    path = _path(study_dir)
    is_torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    text = "\n" * is_torn + json.dumps(line) + "\n"
    with path.open("ab") as file:
        file.write(text.encode())  # in one call, for another sweep may write, too
        file.flush()
        os.fsync(file.fileno())


def read_commands(study_dir: Path) -> list[Command]:
    """Return the `bsweep run` commands that a study has recorded, each only once, in the order in
    which they were first typed with their present points.

    Damaged lines of the file are left out, and named in a warning.
    """
    commands: dict[tuple[Any, ...], Command] = {}
    path = _path(study_dir)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        _warn(f"{path}: {error.strerror}. Its commands are left out until it can be read")
        return []
    for number, line in enumerate(lines, 1):
        try:
            command = _command(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            _warn(f"{path}:{number}: a damaged line is left out: type its command again")
            continue
        commands.pop(key := (command.arguments, command.folder, command.num_processes), None)
        commands[key] = command
    return list(commands.values())


@functools.cache  # a command that watches a study reads the file every few seconds
def _warn(problem: str) -> None:
    logger.warning(f"bsweep: {problem}")


def _command(line: bytes) -> Command:
    values = json.loads(line)
    points = [dict(zip(values["columns"], point, strict=True)) for point in values["points"]]
    checked: Command = _COMMAND.validate_json(json.dumps({**values, "points": points}), strict=True)
    return checked


_COMMAND = TypeAdapter(Command)


def _path(study_dir: Path) -> Path:
    return study_dir / "commands.jsonl"
