"""Turns the reports of the user's own program into the records of its run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from bsweep.config.programs import OwnProgramConfig, values_of
from bsweep.config.run import RunConfig
from bsweep.core.checksums import sha256_of
from bsweep.core.words import listed
from bsweep.external.client import SCORES, TRAINED
from bsweep.external.foreign_records import end_record, epoch_record, start_record
from bsweep.external.loop import NO_BATCH, files_in
from bsweep.runlog.checkpoint_files import checkpoint_at, crc32_of_records, prune
from bsweep.runlog.errors import Diverged, ProgramError
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.reading import read_records
from bsweep.runlog.records import Evaluation, Event, NoiseScale, Record, Status, Step
from bsweep.runlog.shared_clock import file_system_time
from bsweep.runlog.taken import Taken, read_taken

_MOST_SECONDS_APART = 5.0  # by which other ranks may end an epoch later than rank 0
_POLL_SECONDS = 0.02


@dataclass
class _Epoch:
    """The reports of rank 0 on one epoch, summed up.

    `is_pass` is True in a program by steps. `step_seconds` are those of each step, `start_seconds`
    those in which the loaders started. `examples` are those of the worker, `last_size` those of the
    last step; before the first one it is infinite.
    """

    number: int
    is_pass: bool = False
    begun_at: float = math.nan
    step_seconds: list[float] = field(default_factory=list)
    start_seconds: float = 0.0
    examples: int = 0
    last_size: float = math.inf
    values: dict[str, float] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return len(self.step_seconds)

    @property
    def train_seconds(self) -> float:
        return sum(self.step_seconds) + self.start_seconds


class Recorder:
    """The writer of a run's records from the reports of its rank 0.

    Args:
        config: A point with `program=own`.
        paths: Its run folder.
        launched_at: When the point was launched, by the clock of the run's file system.
    """

    def __init__(self, config: RunConfig, paths: RunPaths, launched_at: float | None) -> None:
        assert isinstance(config.program, OwnProgramConfig), config.program
        self._config, self._program, self._paths = config, config.program, paths
        self._log = RunLog(paths.metrics)
        self._launched_at = launched_at
        records, _ = read_records(paths.metrics, with_steps=False)
        self._epochs = [record for record in records if record["type"] == "epoch"]
        self._evaluations = [record for record in records if record["type"] == "evaluation"]
        self._num_examples = round(
            sum(epoch["images_per_second"] * epoch["train_seconds"] for epoch in self._epochs)
        )
        self._epoch = _Epoch(self.num_done)
        self._waiting: list[Record] = []  # until the start is on record
        start_seconds = None if launched_at is None else 0.0
        self._facts: dict[str, Any] = {"device": "cpu", "start_seconds": start_seconds}
        self._facts["num_train"] = getattr(config.data, "num_train", None)
        self._software: dict[str, str] = {}
        self._accumulation_steps = 1
        self._reads_lr = "{lr}" in self._program.command
        self._saved: Mapping[str, Sequence[int]] = files_in(paths.program)
        self._warned: set[str] = set()
        self._is_started = self._has_joined = self._is_ready = False
        self.stops = ""
        """Why the program was told to stop; an empty text if it was not."""

    @property
    def num_done(self) -> int:
        """The number of epochs that are on record."""
        return len(self._epochs)

    @property
    def scores(self) -> list[float]:
        """The losses or accuracies of all evaluations by which the target counts."""
        metric = self._config.target.metric if self._config.target else ""
        scores = (evaluation.get(metric) for evaluation in self._evaluations)
        return [score for score in scores if score is not None]

    @property
    def reaches_target(self) -> bool:
        """True if the program is to end because it has reached its target."""
        target = self._config.target if self._config.stop_at_target else None
        return target is not None and target.is_confirmed_by(self.scores)

    def take(self, report: Mapping[str, Any]) -> None:
        """Record one report.

        Raises:
            Diverged: If a loss is infinite or NaN; the end is on record then.
            ProgramError: If the program trains with another batch than the point's, or not at all.
        """
        getattr(self, f"_take_{report['kind']}")(report)

    def end(self) -> None:
        """Write the run's last record, after the program ended without an error.

        Raises:
            ProgramError: If the program has not reported what a run needs.
        """
        if not self._has_joined:
            raise ProgramError(
                "the program ended without calling bsweep.join(): call it, as docs/programs.md "
                "shows, or name a file that the program writes by program.metrics"
            )
        epoch = self._epoch
        if epoch.step_seconds and self.stops != "asked" and (self.stops or not epoch.is_pass):
            self._end_epoch()  # its loop was left by `break`, or it is the last pass
        if self.stops == "asked" and self.num_done < self._config.epochs:
            message = f"stopped on request in epoch {epoch.number}"
            self._end("interrupted", f"{message}; start the same sweep again to resume")
            return
        if self.num_done < self._config.epochs and not self.stops:
            raise ProgramError(self._too_short())
        if not self._evaluations and self._program.most_steps is None:
            remedy = "call run.evaluated(...), or evaluate more often"
            if self._program.metrics:
                remedy = "name its score of a test set by program.fields.test_accuracy"
            message = f"the program reported no evaluation in {self._sum('num_steps')} steps"
            self._warn(f"{message}: {remedy}", once="")
        self._end("completed", f"reached {self._config.target}" * (self.stops == "target"))

    def close(self) -> None:
        """Close the records."""
        self._log.close()

    def _sum(self, name: str) -> Any:
        """Return the sum of a value over the epochs that are on record."""
        return sum(epoch[name] for epoch in self._epochs)

    def _end(self, status: Status, message: str) -> None:
        self._write(end_record(status, message, self.num_done, self._sum("num_steps")))
        self._start()

    def _too_short(self) -> str:
        done, planned = str(self.num_done), f"{self._config.epochs} epochs"
        remedy = "let `for epoch in run.epochs()` run to its end, or leave it out"
        if self._program.metrics:
            remedy = "pass {epochs} on in program.command"
        if self._epoch.is_pass:
            done = f"{self.num_done + self._passes(self._examples()):.1f}"
            planned = f"{self._config.epochs} passes over {self._num_train} examples"
            remedy = "let run.steps(...) or run.should_stop end its loop"
        fewer = f", or give epochs={self.num_done}" if self.num_done else ""
        return f"the program ended after {done} of {planned}: {remedy}{fewer}"

    def _take_facts(self, report: Mapping[str, Any]) -> None:
        self._has_joined = True
        self._is_ready |= report["is_ready"]
        self._software |= report["software"]
        self._facts |= {name: fact for name, fact in report["facts"].items() if fact is not None}
        self._accumulation_steps = self._facts.pop("accumulation_steps", self._accumulation_steps)
        if report["is_ready"] and self._launched_at is not None:
            ready_at = file_system_time(self._paths.folder) - report.get("seconds_ago", 0.0)
            self._facts["start_seconds"] = max(0.0, ready_at - self._launched_at)

    def _take_reads_lr(self, report: Mapping[str, Any]) -> None:
        self._reads_lr = True

    def _take_warning(self, report: Mapping[str, Any]) -> None:
        self._warn(report["message"], once=report["once"])

    def _take_stops(self, report: Mapping[str, Any]) -> None:
        self.stops = report["reason"]

    def _take_begin_epoch(self, report: Mapping[str, Any]) -> None:
        self._epoch = _Epoch(report["epoch"], report.get("is_pass", False), report["time"])

    def _take_steps(self, report: Mapping[str, Any]) -> None:
        epoch, begun = self._epoch, self._epoch.num_steps
        for size in report["examples"]:
            self._refuse_size(size)
            epoch.examples += size
            epoch.last_size = size
        epoch.step_seconds += report["seconds"]
        epoch.start_seconds += report.get("start_seconds", 0.0)
        self._write_step(begun)

    def _take_wall(self, report: Mapping[str, Any]) -> None:
        """Take the time of an epoch from what a program wrote."""
        self._divide(report["seconds"])
        self._write_step(0)

    def _refuse_size(self, size: int) -> None:
        """Raise ProgramError if a step that took so many examples contradicts the point."""
        epoch, local_batch = self._epoch, self._config.examples_per_pass
        if size > local_batch:
            step = f"a step of the program took {size}"
        elif epoch.last_size < local_batch and (size < local_batch or not epoch.is_pass):
            step = f"a step in the middle of an epoch took {epoch.last_size}"
        else:
            return
        batches = self._accumulation_steps
        wanted = f"run.local_batch // {batches}" if batches > 1 else "run.local_batch"
        raise ProgramError(
            f"{step} examples of one worker, but the point has local_batch={local_batch}: use "
            f"{wanted} as the batch size of the loader, or say the examples of a step by "
            "run.steps(..., examples=...)"
        )

    def _write_step(self, begun: int) -> None:
        """Sample the steps of the epoch after the first `begun` ones."""
        epoch, every = self._epoch, self._config.log_every_steps
        if epoch.num_steps // every == begun // every:
            return
        recent, examples = epoch.step_seconds[begun:], self._examples()
        self._write(
            Step(
                epoch=epoch.number,
                step=self._sum("num_steps") + epoch.num_steps,
                train_loss=epoch.values.get("train_loss"),
                learning_rate=self._rate(),
                images_per_second=(examples * len(recent) / epoch.num_steps / sum(recent))
                if sum(recent)
                else None,
                global_batch=self._config.examples_per_step,
                epochs_done=epoch.number - 1 + min(1.0, self._passes(examples)),
            )
        )

    def _take_log(self, report: Mapping[str, Any]) -> None:
        values = report["values"]
        self._refuse_divergence({name: values[name] for name in TRAINED if name in values})
        # NaN stands for what was not measured.
        self._epoch.values |= {
            name: value for name, value in values.items() if not math.isnan(value)
        }

    def _take_evaluated(self, report: Mapping[str, Any]) -> None:
        self._refuse_divergence(report["values"])
        self._epoch.values |= report["values"]
        self._evaluations.append(report["values"])
        so_far = self._so_far()
        if self._is_ready:
            so_far["train_seconds"] = self._sum("train_seconds") + self._epoch.train_seconds
        else:  # the program has timed no step
            so_far = {"num_steps": self._sum("num_steps")}
        scores = {name: report["values"].get(name) for name in SCORES}
        self._write(Evaluation(epoch=self._epoch.number, **so_far, **scores))

    def _take_noise(self, report: Mapping[str, Any]) -> None:
        self._write(
            NoiseScale(
                epoch=self._epoch.number,
                **self._so_far(),
                gradient_square=report["gradient_square"],
                variance=report["variance"],
                num_gradients=2 * report["num_samples"] * self._config.num_workers,
                gradient_batch=self._config.examples_per_pass / 2,
            )
        )

    def _so_far(self) -> dict[str, Any]:
        """Return the steps, examples and passes of the run until now."""
        examples = self._num_examples + self._examples()
        return {
            "num_steps": self._sum("num_steps") + self._epoch.num_steps,
            "num_examples": examples,
            "epochs_done": self._passes(examples) or None,
        }

    def _take_end_epoch(self, report: Mapping[str, Any]) -> None:
        epoch = self._epoch
        if self.stops == "asked" or (self.stops and not epoch.step_seconds):
            return  # a resumed run trains this epoch as a whole
        if not epoch.step_seconds and self._is_ready:
            raise ProgramError(
                f"epoch {epoch.number} had no step, because run.steps(...) got no batch: {NO_BATCH}"
            )
        if not epoch.step_seconds:
            self._divide(max(0.0, report["time"] - epoch.begun_at))
            message = (
                "the program timed no step (run.steps): train_seconds is the time from an epoch's "
                "beginning to its end, evaluations included"
            )
            self._warn(message, once="wall")
        self._end_epoch()
        self._keep_checkpoint(report.get("files", {}))

    def _end_epoch(self) -> None:
        epoch, examples = self._epoch, self._examples_of_ended_epoch()
        if self._num_train is None and not self.stops:
            self._facts["num_train"] = examples
            message = (
                f"num_train={examples} is what epoch {epoch.number} took, with what a sampler may "
                "have taken twice: say the number of training examples by "
                "bsweep.join(num_train=...)"
            )
            self._warn(message, once="num_train")
        num_train = self._num_train or examples
        if abs(examples - num_train) >= self._config.examples_per_step and not self.stops:
            message = (
                f"epoch {epoch.number} of the program took {examples} examples, which are "
                f"{self._passes(examples):.3g} passes over num_train={num_train}: epochs_done "
                "counts passes"
            )
            self._warn(message, once="passes")
        values = {**epoch.values, "train_seconds": epoch.train_seconds, "lr": self._rate()}
        record = epoch_record(self._config, epoch.number, epoch.step_seconds, examples, values)
        self._write(record)
        self._start()
        self._epochs.append(asdict(record))
        self._num_examples += examples
        self._epoch = _Epoch(epoch.number, epoch.is_pass)

    def _examples(self) -> int:
        """Return the examples that all ranks have taken in the epoch so far, in as many steps as
        rank 0 has ended.

        Another rank may be in the last of these steps: it counts with the mean of its earlier ones.
        """
        epoch, ranks = self._epoch, self._taken_by_ranks()
        known = [taken if taken.num_steps else ranks[0] for taken in ranks]
        means = [taken.num_examples / max(1, taken.num_steps) for taken in known]
        steps = [min(taken.num_begun, epoch.num_steps) for taken in ranks]
        return round(sum(mean * number for mean, number in zip(means, steps, strict=True)))

    def _examples_of_ended_epoch(self) -> int:
        """Return the examples that all ranks took in the epoch that rank 0 has ended."""
        ranks = self._taken_by_ranks(_MOST_SECONDS_APART)
        num_steps = [taken.num_steps for taken in ranks]
        if len({*num_steps}) > 1:
            message = (
                f"the ranks took {listed(num_steps)} steps in epoch {self._epoch.number}: give all "
                "of them equally many batches"
            )
            self._warn(message, once="ranks")
        return sum(taken.num_examples for taken in ranks)

    def _taken_by_ranks(self, seconds: float = 0.0) -> list[Taken]:
        """Return what each rank has taken in the epoch. A rank that does not say it, as in a
        program by steps, counts as rank 0.

        Args:
            seconds: How long to wait for ranks that have not ended the epoch.
        """
        epoch, ends_at = self._epoch, time.monotonic() + seconds
        ranks = [Taken(epoch.num_steps, epoch.num_steps, epoch.examples)]
        for rank in range(1, self._config.num_workers):
            while True:
                epochs = [ranks[0], *read_taken(self._paths.taken(rank))]
                taken = epochs[epoch.number] if epoch.number < len(epochs) else Taken()
                if taken.has_ended or not taken.num_begun or time.monotonic() >= ends_at:
                    break
                time.sleep(_POLL_SECONDS)
            ranks.append(taken if taken.num_begun or taken.has_ended else ranks[0])
        return ranks

    def _passes(self, examples: int) -> float:
        """Return the passes over the training examples; 0 if their number is not known."""
        return examples / self._num_train if self._num_train else 0.0

    def _divide(self, seconds: float) -> None:
        """Divide the seconds of an epoch evenly among its steps."""
        num_train, epoch = self._num_train, self._epoch
        if num_train is None:
            raise ProgramError(
                "the program timed no step and did not say num_train: wrap its loader in "
                "run.steps(...), or call bsweep.join(num_train=50000)"
            )
        steps = math.ceil(num_train / self._config.examples_per_step)
        epoch.step_seconds = [seconds / steps] * steps
        epoch.examples = num_train // self._config.num_workers

    def _keep_checkpoint(self, files: Mapping[str, Sequence[int]]) -> None:
        """If the program saved files in this epoch, note that a later attempt can resume from them.

        Args:
            files: The size and the modification time of each file at the end of the epoch.
        """
        if not files or files == self._saved or self.num_done >= self._config.epochs:
            return
        self._saved = files
        sha256: dict[str, str] = {}
        with suppress(FileNotFoundError):
            sha256 = {name: sha256_of(self._paths.program / name) for name in files}
        if not sha256 or files_in(self._paths.program) != files:
            return  # the program has begun to save the next one
        checkpoint = checkpoint_at(self._paths, self.num_done + 1, 0)
        checkpoint.folder.mkdir(parents=True, exist_ok=True)
        num_bytes = self._log.sync()
        base = os.path.relpath(self._paths.program, checkpoint.folder)
        checkpoint.complete(
            {
                "epoch": self.num_done + 1,
                "position": 0,
                "num_steps": self._sum("num_steps"),
                "train_seconds": float(self._sum("train_seconds")),
                "num_workers": self._config.num_workers,
                "metrics_bytes": num_bytes,
                "metrics_crc32": crc32_of_records(self._paths.metrics, num_bytes),
                "time": file_system_time(self._paths.folder),
                "sha256": {f"{base}/{name}": value for name, value in sha256.items()},
            }
        )
        prune(self._paths)

    def _refuse_divergence(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if not math.isfinite(value):
                message = f"the program reported {name}={value} in epoch {self._epoch.number}"
                self._end("diverged", message)
                raise Diverged(message)

    @property
    def _num_train(self) -> int | None:
        num_train: int | None = self._facts["num_train"]
        return num_train

    def _rate(self) -> float | None:
        return values_of(self._config)["lr"] if self._reads_lr else None

    def _start(self) -> None:
        """Write the record of the start, if it is not written, and the records that waited for it.

        Raises:
            ProgramError: If the number of training examples is not known.
        """
        if not self._is_started:
            if self._num_train is None and self._program.most_steps is None:
                raise ProgramError(
                    "the program did not say how many training examples it has: call "
                    "bsweep.join(num_train=50000), or give data.num_train=50000"
                )
            self._is_started = True
            facts = {**self._facts, "num_train": self._num_train or 0, "workers": self._workers()}
            facts |= {"learning_rate": self._rate(), "software": self._software}
            self._log.write(start_record(self._config, **facts))
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._log.write(record)

    def _workers(self) -> tuple[dict[str, str], ...] | None:
        """Return the host of each worker, by rank; None if a worker has not begun yet."""
        logs = [self._paths.rank_logs(rank) for rank in range(self._config.num_workers)]
        with suppress(FileNotFoundError):
            return tuple({"host": (folder / "host").read_text()} for folder in logs)
        return None

    def _write(self, record: Record) -> None:
        self._waiting.append(record)
        if self._is_started or self._num_train is not None:
            self._start()

    def _warn(self, message: str, once: str) -> None:
        if once not in self._warned:
            self._warned.add(once)
            self._write(Event(event="warning", message=message))
