"""The settings classes (cards) of the programs that a worker runs: bsweep's own training loop, or a
command of the user.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from typing_extensions import Self

from bsweep.config.card import Card, Point, Schema, clash
from bsweep.config.optimizers import base_learning_rate
from bsweep.config.user_code import Keywords, Options
from bsweep.config.values import ConfigError, Count, PathName, did_you_mean, show
from bsweep.core.checksums import sha256_of


class ProgramConfig(Card):
    """The base class of the cards of all programs."""

    worker: ClassVar[str] = "bsweep.train.worker:train"
    """The module that each worker process runs, and the function that it calls for a point."""

    is_own: ClassVar[bool] = False
    """True if the program loads data and trains by code that bsweep does not know."""

    def problems(self, point: Point) -> Iterator[str]:
        for group in ("data", "model", "optimizer", "strategy"):
            if self.is_own != (getattr(point, group).name == "program"):
                remedy = (
                    f"a program of your own has its own {group}, and bsweep's has none. Leave it "
                    "out, or add program=own."
                )
                yield clash(point, f"{group} program", remedy)

    def save(self, folder: Path) -> None:
        """Save the files that the card names in a folder of a run."""


class BuiltinConfig(ProgramConfig):
    """bsweep's own training loop: the chosen data, model, optimizer and strategy."""

    name: Literal["builtin"]


# Keys that a program of the user's own does not read: they must have their defaults.
_UNREAD = (
    "precision",
    "channels_last",
    "compile",
    "graph",
    "keep_weights",
    "resume_from",
    "accumulation_steps",
    "evaluate_every_examples",
    "average_batchnorm",
    "launch.slowdown",
    "launch.memory_limit_mb",
    "batching.name",
    "allocation.name",
    "compression.name",
)

# A name in braces, or in two pairs of them, which stand for one pair.
_BRACES = re.compile(r"\{\{([A-Za-z_][\w.]*)\}\}|\{([A-Za-z_][\w.]*)\}")


def _words_of(command: str) -> str:
    if not shlex.split(command):
        raise ValueError("the command is empty: give one such as 'python train.py'")
    return command


Command = Annotated[str, AfterValidator(_words_of)]

Metrics = Annotated[str, Field(pattern=r"^(csv|jsonl):.")]


class FieldsConfig(Schema):
    """The names that the values of an epoch have in what the program writes, see `program.metrics`.

    None: the name of the key, if the program writes such a value.
    """

    epoch: str | None = None
    """the epoch's number, from 0 or 1; null: `epoch`, else each row is an epoch"""
    time: str | None = None
    """when the record was written, in seconds since 1970 or as 2026-01-31T12:00:00; null: `time`,
    else when it arrived
    """
    train_seconds: str | None = None
    """the seconds of the epoch; null: `train_seconds`, else the time since the record before"""
    train_loss: str | None = None
    """loss/train"""
    train_accuracy: str | None = None
    """a fraction; 'acc%' for a column `acc` in per cent"""
    test_loss: str | None = None
    """loss/val"""
    test_accuracy: str | None = None
    """acc/val"""


class OwnProgramConfig(ProgramConfig):
    """A training program of your own, which bsweep starts once for each worker: see
    docs/programs.md.
    """

    name: Literal["own"]
    command: Command
    """program.command='python train.py --lr {lr}': words in braces are keys of the point"""
    options: Options = field(default_factory=Keywords)
    """your program's own settings: program.options.width=16,32 gives {width}, and
    bsweep.join().options
    """
    python: PathName | None = None
    """the interpreter for `python` in the command; null: bsweep's own"""
    folder: PathName | None = None
    """the folder in which the command starts; null: the one in which bsweep was started"""
    environment: Options = field(default_factory=Keywords)
    """more environment variables: '{OMP_NUM_THREADS: 4}'"""
    files: tuple[PathName, ...] | None = None
    """[train.py,model.py]: files that count into the run id; null: the files that the command names
    """
    metrics: Metrics | None = None
    """csv:FILE | jsonl:FILE: what the program writes, if it does not call bsweep.join()"""
    fields: FieldsConfig = FieldsConfig()
    """the names of the values in it; null: the name of the key, if there is such a value"""
    files_sha256: str | None = None  # of the files' content, by `with_fingerprints`
    most_steps: Count | None = None
    """The steps after which the program is asked to stop, to time them; None: train to the end."""

    brings: ClassVar[Mapping[str, str]] = {
        "data": "program",
        "model": "program",
        "optimizer": "program",
        "strategy": "program",
    }
    internal: ClassVar[tuple[str, ...]] = ("files_sha256", "most_steps")
    worker: ClassVar[str] = "bsweep.external.worker:run_program"
    is_own: ClassVar[bool] = True
    changes_no_number: ClassVar[tuple[str, ...]] = ("folder", "files", "most_steps")

    @property
    def path(self) -> Path:
        """The folder in which the command starts."""
        return Path(self.folder or ".").expanduser().absolute()

    def with_fingerprints(self) -> Self:
        path = self.path
        if not path.is_dir():
            raise ConfigError(f"program.folder={path}: there is no such folder.")
        words = shlex.split(self.command)
        interpreter = self._interpreter(words[0])
        if interpreter is None and not _BRACES.search(words[0]):
            near = did_you_mean(words[0], [entry.name for entry in path.iterdir()])
            raise ConfigError(
                f"program.command={self.command}, program.python={show(self.python)}: the program "
                f"{words[0]} is not found.{near} Give its path, or 'python train.py' for a script."
            )
        if interpreter and _first_line(Path(interpreter)).endswith(b"\r\n"):
            raise ConfigError(
                f"program.command={self.command}: {words[0]} has Windows line ends, with which its "
                f"first line names no interpreter. Remove them: sed -i 's/\\r$//' {words[0]}"
            )
        if words[0] in ("python", "python3") and len(words) > 1 and words[1].endswith(".py"):
            _refuse_missing(path, words[1], f"program.command={self.command}")
        for name in self.files or ():
            _refuse_missing(path, name, "program.files")
        written = path / (self.metrics or "").partition(":")[2]
        named = tuple(word for word in words if (path / word).is_file() and path / word != written)
        files = named if self.files is None else self.files
        digests = {name: sha256_of(path / name) for name in files}
        text = json.dumps(digests, sort_keys=True).encode()
        sha256 = hashlib.sha256(text).hexdigest() if files else None
        return replace(self, folder=str(path), files=files, files_sha256=sha256)

    def save(self, folder: Path) -> None:
        """Copy the files that count into the run id to a folder.

        Args:
            folder: The folder of a run's own code.
        """
        for name in self.files or ():
            # The copy of a file outside of the program's folder, too, lies within the run's folder.
            parts = ("_" if part == ".." else part for part in Path(name.lstrip("/")).parts)
            path = (folder / "program").joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.path / name, path)

    def _interpreter(self, word: str) -> str | None:
        """Return the path of the program that a command's first word names; None if it is not
        found.
        """
        if word in ("python", "python3"):
            return shutil.which(self.python or sys.executable)
        return shutil.which(word) or shutil.which(str(self.path / word))

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        keys = _UNREAD if point.checkpoint_every is None else (*_UNREAD, "checkpoint_every")
        given, usual = map(operator.attrgetter(*keys), (point, type(point)()))
        for key, value, default in zip(keys, given, usual, strict=True):
            if value != default:
                remedy = (
                    "your program decides about this. Leave it out; program.options.NAME=... "
                    "passes a value on to the program."
                )
                yield clash(point, f"{key.removesuffix('.name')} program", remedy)
        if point.local_batch or point.global_batch:
            yield from self._problems_of_texts(point)

    def _problems_of_texts(self, point: Point) -> Iterator[str]:
        """Yield an error message for each wrong word in braces, and for metrics that bsweep could
        not read.
        """
        values = values_of(point)
        try:
            self.command_of(values)
            if self.metrics is not None:
                self.metrics_of(values)
        except ConfigError as error:
            yield from error.problems
        metrics = self.metrics
        if metrics is None and self.fields != FieldsConfig():
            yield "program.fields without program.metrics: name a file by program.metrics=csv:FILE."
        if metrics and getattr(point.data, "num_train", None) is None:
            yield f"program.metrics={metrics} needs an epoch's size: data.num_train=50000."
        if metrics and "{" not in metrics and getattr(point.launch, "parallel", 1) != 1:
            yield (
                f"program.metrics={metrics} with launch.parallel: points would write the same "
                "file. Use csv:{run_folder}/log.csv, also in the command."
            )

    def command_of(self, values: Mapping[str, Any]) -> list[str]:
        """Return the words of the command for one worker.

        Args:
            values: The values that words in braces stand for, by name.

        Raises:
            ConfigError: If a word in braces is unknown or has no value.
        """
        words = [
            self._filled(word, values, f"program.command={self.command}")
            for word in shlex.split(self.command)
        ]
        return [self._interpreter(words[0]) or words[0], *words[1:]]

    def metrics_of(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Return the kind and the path of the file with the metrics that the program writes.

        Args:
            values: The values that words in braces stand for, by name.

        Raises:
            ConfigError: If a word in braces is unknown or has no value.
        """
        assert self.metrics
        kind, _, place = self.metrics.partition(":")
        return kind, self._filled(place, values, f"program.metrics={self.metrics}")

    def _filled(self, text: str, values: Mapping[str, Any], given: str) -> str:
        """Return a text with its words in braces replaced by values; `given` is the key of the
        text, for messages.
        """

        def value_of(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return f"{{{literal}}}"
            if name not in values:
                raise ConfigError(
                    f"{given}: {{{name}}} is not a key of the point."
                    f"{did_you_mean(name, list(values))} Known: {', '.join(sorted(values))}. To "
                    f"pass {{{name}}} on as it is, write {{{{{name}}}}}."
                )
            if values[name] is None:
                key = f"optimizer.{name}" if name == "lr" else name
                raise ConfigError(
                    f"{given}: {{{name}}} has no value: give {key}=..., or leave it out."
                )
            return str(values[name])

        return _BRACES.sub(value_of, text)


def _first_line(script: Path) -> bytes:
    """Return the first line of a script; of another program nothing."""
    with suppress(OSError), script.open("rb") as file:  # it may be executed, but not read
        return file.readline() if file.read(2) == b"#!" else b""
    return b""


def _refuse_missing(folder: Path, name: str, key: str) -> None:
    if not (folder / name).is_file():
        near = did_you_mean(name, [str(path.relative_to(folder)) for path in folder.glob("*")])
        raise ConfigError(f"{key}: there is no file {folder / name}.{near}")


def values_of(config: Point) -> dict[str, Any]:
    """Return the values of a point by the names that a command may have in braces. A program also
    gets them in its environment, and from `bsweep.join()`.

    Args:
        config: A point with `program=own`.

    Returns:
        The values; None for a value that the user did not give. An option of the program has its
        own name, unless a key of the point has this name, and `options.NAME`.
    """
    program = config.program
    options: dict[str, Any] = program.options if isinstance(program, OwnProgramConfig) else {}
    folder = config.study_dir.absolute() / config.run_id
    return {
        **options,
        **{f"options.{name}": value for name, value in options.items()},
        "local_batch": config.examples_per_pass,
        "global_batch": config.examples_per_step,
        "num_workers": config.num_workers,
        "epochs": config.epochs,
        "seed": config.seed,
        "lr": base_learning_rate(config, config.rate_batch(0)),
        "study": config.study,
        "run_id": config.run_id,
        "run_folder": str(folder),
        "checkpoint_folder": str(folder / "program"),
    }


AnyProgram = Annotated[BuiltinConfig | OwnProgramConfig, Field(discriminator="name")]
