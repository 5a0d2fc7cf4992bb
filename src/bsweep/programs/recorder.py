"""Turns the reports of the user's own program into the records of its run."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bsweep.config.program_point import learning_rate
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig
from bsweep.core.checksums import sha256_of
from bsweep.core.words import listed
from bsweep.numerics.noise_scale import DECAY
from bsweep.programs.joined import files_in
from bsweep.runlog.checkpoint_files import checkpoint_at, crc32_of_records, prune
from bsweep.runlog.errors import Diverged, ProgramError
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.measured import Evaluation, NoiseScale
from bsweep.runlog.reading import read_records
from bsweep.runlog.records import End, Epoch, Event, Record, Start, Step
from bsweep.runlog.shared_clock import file_system_time
from bsweep.runlog.taken import Taken, read_taken

_MOST_SECONDS_APART = 5.0  # by which other ranks may end an epoch later than rank 0
_POLL_SECONDS = 0.02


class Recorder:
    """The writer of a run's records from the reports of its rank 0.

    Args:
        config: The point.
        paths: Its run folder.
        launched_at: When the point was launched, by the clock of the run's file system.
    """

    def __init__(self, config: RunConfig, paths: RunPaths, launched_at: float | None) -> None:
        self._config, self._paths, self._log = config, paths, RunLog(paths.metrics)
        self._launched_at, self._ready_at = launched_at, launched_at
        self._waiting: list[Record] = []  # until the start is on record
        self._is_started = False
        self._facts: dict[str, Any] = {}
        self._reads_lr = "{lr}" in _command(config)
        self._seconds: list[float] = []  # of the epoch's steps
        self._examples = self._last_examples = 0  # of the epoch and of its last step, of a worker
        self._values: dict[str, float] = {}
        self._scores: dict[str, float] = {}
        self._noise: Mapping[str, Any] = {"num_samples": 0, "gradient_square": 0, "variance": 0}
        self._before = _Before(paths)
        self._epoch = self._done = self._before.num_epochs
        self._begun_at: float | None = None
        self._saved = files_in(paths.program)
        self._warned: set[str] = set()
        self.has_joined = self._is_ready = False
        self._is_cut = False
        self.stops = ""
        """Why the program was told to stop; an empty text if it was not."""

    def take(self, report: Mapping[str, Any]) -> None:
        """Record one report.

        Raises:
            Diverged: If a loss is infinite or NaN; the end is on record then.
            ProgramError: If the program trains with another batch than the point's.
        """
        kind = report["kind"]
        if kind == "joined":
            self.has_joined = True
        elif kind == "reads_lr":
            self._reads_lr = True
        elif kind == "ready":
            self._is_ready = True
            self._ready_at = file_system_time(self._paths.folder) - report.get("seconds_ago", 0.0)
            self._facts = {**report["facts"], **{k: report[k] for k in ("device", "threads")}}
        elif kind == "begin_epoch":
            self._begin_epoch(report)
        elif kind == "steps":
            self._take_steps(report)
        elif kind == "log":
            self._values |= report["values"]
            self._refuse_divergence(report["values"])
        elif kind == "evaluated":
            self._take_evaluation(report)
        elif kind == "noise":
            self._take_noise(report)
        elif kind == "end_epoch":
            self._end_epoch(report)
        elif kind == "warning":
            self._warn(report["message"], once=report["once"])
        elif kind == "stops":
            self.stops, self._is_cut = report["reason"], report["cuts"]

    def end(self) -> None:
        """Write the run's last record, after the program ended without an error.

        Raises:
            ProgramError: If the program has not reported what a run needs.
        """
        if not self.has_joined:
            raise ProgramError(
                "the program ended without calling bsweep.join(): call it, as docs/programs.md "
                "shows, or name a file that the program writes by program.metrics"
            )
        if self._seconds and self._epoch == self._done + 1 and not self.stops:
            self._end_epoch({})  # its loop was left by `break`
        if self.stops == "asked":
            self._write(
                End(
                    status="interrupted",
                    message=f"stopped on request in epoch {self._epoch}; start the same sweep "
                    "again to resume",
                )
            )
        elif self._done < self._config.epochs and not self.stops:
            fewer = f", or give epochs={self._done}" if self._done else ""
            raise ProgramError(
                f"the program ended after {self._done} of {self._config.epochs} epochs: let "
                f"`for epoch in run.epochs()` run to its end{fewer}"
            )
        else:
            if not self._before.has_scores and not self._config_times_steps:
                message = "the program reported no score of a test set: call run.evaluated(...)"
                self._warn(message, once="")
            reached = f"reached {self._config.target}" if self.stops == "target" else ""
            self._write(
                End(
                    status="completed",
                    message=reached,
                    epochs=self._done,
                    num_steps=self._before.num_steps,
                )
            )
        self._start()
        self._log.close()

    def close(self) -> None:
        """Write what waits for the start of the run, and close the records."""
        self._log.close()

    @property
    def num_done(self) -> int:
        """The number of epochs that are on record."""
        return self._done

    @property
    def _config_times_steps(self) -> bool:
        program = self._config.program
        return isinstance(program, OwnProgramConfig) and program.most_steps is not None

    def _begin_epoch(self, report: Mapping[str, Any]) -> None:
        self._epoch = report["epoch"]
        self._seconds, self._examples, self._values, self._scores = [], 0, {}, {}
        self._begun_at = report["time"]

    def _take_steps(self, report: Mapping[str, Any]) -> None:
        local_batch, given = self._config.examples_per_pass, report["examples"]
        if wrong := [number for number in given if number > local_batch]:
            raise ProgramError(
                f"a step of the program took {wrong[0]} examples of one worker, but the point has "
                f"local_batch={local_batch}: use run.local_batch as the batch size of the loader"
            )
        begun = len(self._seconds)
        before_last = [*([self._last_examples] if begun else []), *given[:-1]]
        if few := [number for number in before_last if number < local_batch]:
            raise ProgramError(
                f"a step in the middle of an epoch took {few[0]} examples of one worker, but the "
                f"point has local_batch={local_batch}: use run.local_batch as the batch size of "
                "the loader, or say the examples of a step by run.steps(..., examples=...)"
            )
        self._last_examples = given[-1]
        self._seconds += report["seconds"]
        self._examples += sum(given)
        every = self._config.log_every_steps
        if len(self._seconds) // every > begun // every:
            self._write_step(begun)

    def _write_step(self, begun: int) -> None:
        workers = self._config.num_workers
        recent = self._seconds[begun:]
        examples = self._examples * len(recent) / len(self._seconds) * workers
        num_train = self._num_train()
        self._write(
            Step(
                epoch=self._epoch,
                step=self._before.num_steps + len(self._seconds),
                train_loss=self._values.get("train_loss"),
                learning_rate=self._rate(),
                images_per_second=examples / sum(recent) if sum(recent) else None,
                global_batch=self._config.examples_per_step,
                epochs_done=self._epoch
                - 1
                + (min(1.0, self._examples * workers / num_train) if num_train else 0.0),
            )
        )

    def _take_evaluation(self, report: Mapping[str, Any]) -> None:
        self._refuse_divergence(report["values"])
        self._scores = report["values"]
        self._before.has_scores = True
        before, workers = self._before, self._config.num_workers
        examples = before.num_examples + self._examples * workers
        num_train = self._num_train()
        self._write(
            Evaluation(
                epoch=self._epoch,
                num_steps=before.num_steps + len(self._seconds),
                num_examples=examples if self._seconds else None,
                epochs_done=examples / num_train if num_train and self._seconds else None,
                train_seconds=before.train_seconds + sum(self._seconds) if self._seconds else None,
                test_loss=self._scores.get("test_loss"),
                test_accuracy=self._scores.get("test_accuracy"),
            )
        )

    def _take_noise(self, report: Mapping[str, Any]) -> None:
        """Record the mean of the gradient noise over the steps since the last such report."""
        before, workers = self._before, self._config.num_workers
        names, now = ("gradient_square", "variance"), report["num_samples"]
        # The weight of a step's measurement falls by DECAY with each later one, see `Average`.
        earlier = self._noise["num_samples"] if self._noise["num_samples"] <= now else 0
        if (num_new := now - earlier) == 0:
            return
        sums = {name: report[name] * _weight(now) for name in names}
        for name in names:
            sums[name] -= DECAY**num_new * self._noise[name] * _weight(earlier)
        self._noise = report
        num_examples, num_train = before.num_examples + self._examples * workers, self._num_train()
        self._write(
            NoiseScale(
                epoch=self._epoch,
                num_steps=before.num_steps + len(self._seconds),
                num_examples=num_examples,
                epochs_done=num_examples / num_train if num_train else None,
                **{name: value / _weight(num_new) for name, value in sums.items()},
                num_gradients=2 * num_new * workers,
                gradient_batch=self._config.examples_per_pass / 2,
            )
        )

    def _end_epoch(self, report: Mapping[str, Any]) -> None:
        if self.stops == "asked" and self._is_cut:
            return  # a resumed run trains this epoch as a whole
        if not self._seconds and self.stops:
            return
        if not self._seconds and self._is_ready:
            raise ProgramError(
                f"epoch {self._epoch} had no step, because run.steps(...) got no batch: a loader "
                "with drop_last leaves out a batch that is larger than the data, and a generator "
                "is used up after one epoch"
            )
        if self._seconds:
            examples = self._examples_of_all_ranks()
        else:
            self._steps_from_wall(report["time"])
            examples = self._examples * self._config.num_workers
        seconds = sum(self._seconds)
        if self._num_train() is None and not self.stops:
            self._facts["num_train"] = examples  # one epoch takes each example once
        ordered = sorted(self._seconds)
        values = self._values.get
        self._write(
            Epoch(
                epoch=self._epoch,
                num_steps=len(self._seconds),
                train_seconds=seconds,
                train_loss=values("train_loss"),
                train_accuracy=values("train_accuracy"),
                test_loss=self._scores.get("test_loss"),
                test_accuracy=self._scores.get("test_accuracy"),
                images_per_second=examples / seconds if seconds else 0.0,
                step_seconds_p50=statistics.median(ordered),
                step_seconds_p95=ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
                learning_rate=self._rate(),
                global_batch=self._config.examples_per_step,
                exchange_seconds=values("exchange_seconds"),
                wait_seconds=values("wait_seconds"),
                sent_bytes=_whole(values("sent_bytes")),
                received_bytes=_whole(values("received_bytes")),
                peak_memory_bytes=_whole(values("peak_memory_bytes")),
                energy_joules=values("energy_joules"),
            )
        )
        self._start()
        self._done = self._epoch
        self._before.num_steps += len(self._seconds)
        self._before.num_examples += examples
        self._before.train_seconds += seconds
        self._keep_checkpoint(report.get("files", {}))

    def _examples_of_all_ranks(self) -> int:
        """Return the examples that all ranks took in the epoch that rank 0 has ended; a rank that
        does not say it counts as rank 0 does.
        """
        ends_at = time.monotonic() + _MOST_SECONDS_APART
        ranks = [Taken(0, len(self._seconds), self._examples)]
        for rank in range(1, self._config.num_workers):
            while True:
                epochs = read_taken(self._paths.taken(rank))
                taken = epochs[self._epoch - 1] if epochs else Taken()
                if taken.has_ended or not taken.num_begun or time.monotonic() > ends_at:
                    break
                time.sleep(_POLL_SECONDS)
            ranks.append(taken if taken.num_begun else ranks[0])
        num_steps = [taken.num_steps for taken in ranks]
        if len({*num_steps}) > 1:
            message = (
                f"the ranks took {listed(num_steps)} steps in epoch {self._epoch}: give all of "
                "them equally many batches"
            )
            self._warn(message, once="ranks")
        return sum(taken.num_examples for taken in ranks)

    def _steps_from_wall(self, now: float) -> None:
        """Take the time of an epoch whose steps the program did not time from the clock."""
        num_train = self._num_train()
        if num_train is None:
            raise ProgramError(
                "the program timed no step and did not say num_train: wrap its loader in "
                "run.steps(...), or call bsweep.join(num_train=50000)"
            )
        message = (
            "the program timed no step (run.steps): train_seconds is the time from an epoch's "
            "beginning to its end, evaluations included"
        )
        self._warn(message, once="wall")
        steps = math.ceil(num_train / self._config.examples_per_step)
        self._seconds = [max(0.0, now - (self._begun_at or now)) / steps] * steps
        self._examples = num_train // self._config.num_workers

    def _keep_checkpoint(self, files: Mapping[str, Sequence[int]]) -> None:
        """If the program saved files in this epoch, note that a later attempt can resume from them.

        Args:
            files: The size and the modification time of each file at the end of the epoch.
        """
        saved = {name: (size, changed) for name, (size, changed) in files.items()}
        if not saved or saved == self._saved or self._done >= self._config.epochs:
            return
        self._saved = saved
        sha256: dict[str, str] = {}
        with suppress(FileNotFoundError):
            sha256 = {name: sha256_of(self._paths.program / name) for name in saved}
        if not sha256 or files_in(self._paths.program) != saved:
            return  # the program has begun to save the next one
        checkpoint = checkpoint_at(self._paths, self._done + 1, 0)
        checkpoint.folder.mkdir(parents=True, exist_ok=True)
        num_bytes = self._log.sync()
        base = os.path.relpath(self._paths.program, checkpoint.folder)
        checkpoint.complete(
            {
                "epoch": self._done + 1,
                "position": 0,
                "num_steps": self._before.num_steps,
                "train_seconds": self._before.train_seconds,
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
                message = f"the program reported {name}={value} in epoch {self._epoch}"
                self._write(End(status="diverged", message=message))
                self._start()
                raise Diverged(message)

    def _num_train(self) -> int | None:
        told = self._facts.get("num_train")
        return told if told is not None else getattr(self._config.data, "num_train", None)

    def _rate(self) -> float | None:
        return learning_rate(self._config) if self._reads_lr else None

    def _start(self) -> None:
        """Write the record of the start, and the records that waited for it."""
        if self._is_started:
            return
        num_train = self._num_train()
        if num_train is None:
            if not self._config_times_steps:
                raise ProgramError(
                    "the program did not say how many training examples it has: call "
                    "bsweep.join(num_train=50000), or give data.num_train=50000"
                )
            num_train = 0
        data, facts = self._config.data, self._facts
        self._is_started = True
        config = asdict(self._config)
        self._log.write(
            Start(
                run_id=self._config.run_id,
                config=config,
                local_batch=self._config.examples_per_pass,
                global_batch=self._config.examples_per_step,
                num_train=num_train,
                num_test=facts.get("num_test") or getattr(data, "num_test", None),
                classes=(),
                num_classes=facts.get("num_classes") or getattr(data, "num_classes", None),
                num_parameters=facts.get("num_parameters"),
                device=facts.get("device") or "cpu",
                precision=facts.get("precision") or "unknown",
                channels_last=None,
                workers=self._workers(),
                threads=facts.get("threads"),
                start_seconds=self._start_seconds,
                learning_rate=self._rate(),
            )
        )
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._log.write(record)

    def _workers(self) -> tuple[dict[str, str], ...] | None:
        """Return the host of each worker, by rank; None if a worker has not begun yet."""
        ranks = range(self._config.num_workers)
        try:
            return tuple(
                {"host": (self._paths.rank_logs(rank) / "host").read_text()} for rank in ranks
            )
        except FileNotFoundError:
            return None

    @property
    def _start_seconds(self) -> float | None:
        if self._launched_at is None or self._ready_at is None:
            return None
        return max(0.0, self._ready_at - self._launched_at)

    def _write(self, record: Record) -> None:
        if self._is_started or self._num_train() is not None:
            self._start()
            self._log.write(record)
        else:
            self._waiting.append(record)

    def _warn(self, message: str, once: str) -> None:
        if once not in self._warned:
            self._warned.add(once)
            self._write(Event(event="warning", message=message))


class _Before:
    """The totals of a run's finished epochs."""

    def __init__(self, paths: RunPaths) -> None:
        records, _ = read_records(paths.metrics, with_steps=False)
        epochs = [record for record in records if record["type"] == "epoch"]
        self.num_epochs = len(epochs)
        self.num_steps = sum(epoch["num_steps"] for epoch in epochs)
        self.train_seconds = float(sum(epoch["train_seconds"] for epoch in epochs))
        self.num_examples = round(
            sum(epoch["images_per_second"] * epoch["train_seconds"] for epoch in epochs)
        )
        self.has_scores = any(
            epoch["test_loss"] is not None or epoch["test_accuracy"] is not None for epoch in epochs
        )


def new_reports(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the reports after `offset` bytes of a file, and the offset after the last whole line.

    A missing file has no reports.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read()
    except FileNotFoundError:
        return [], offset
    whole = text[: text.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole)


def _command(config: RunConfig) -> str:
    return config.program.command if isinstance(config.program, OwnProgramConfig) else ""


def _weight(num_samples: int) -> float:
    """Return the sum of the weights of so many measurements of the gradient noise."""
    return float(1 - DECAY**num_samples) / (1 - DECAY)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
