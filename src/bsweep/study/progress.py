"""The display of a sweep's progress: printed lines and, on a terminal where points run in turn, a
live line that is updated in place.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

from pydantic_core import from_json
from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from bsweep.config.batching import FIXED
from bsweep.config.run import RunConfig
from bsweep.core import terminal
from bsweep.core.following import GrowingFile
from bsweep.core.words import counted, duration, joined
from bsweep.launch import Outcome
from bsweep.runlog.files import RunPaths
from bsweep.trackers import live

_REFRESH_SECONDS = 0.2


class Progress:
    """The display of a sweep's progress on a console.

    It shows the points done, the current run's epoch, its images or tokens per second, and the
    estimated time that is left.
    """

    def __init__(self, num_points: int, console: Console | None = None) -> None:
        self._console = console or terminal.console()
        self._num_points = num_points
        self.num_done = 0
        """The number of points that were skipped or have begun; the last one's number, too."""
        self._is_beside = False
        self._seconds: dict[int, float] = {}  # of points that have ended, by their numbers
        self._live = progress.Progress(
            progress.BarColumn(bar_width=20),
            # A column of its own wraps the line on a narrow terminal, where the default cuts it.
            progress.TextColumn(
                "{task.description}", style="bold", markup=False, table_column=Column()
            ),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        self._line = self._live.add_task("", total=1.0)

    def be_beside(self, num_done: int) -> None:
        """Show a point that runs at the same time as other points, which other processes show.

        Each of its lines has its number, and there is no live line.
        """
        self.num_done, self._is_beside = num_done, True

    def say(self, line: str) -> None:
        """Print a line that concerns the whole sweep."""
        self._console.print(Text(line))

    def skip(self, config: RunConfig, why: str) -> None:
        self.num_done += 1
        self.note(f"{config.folder}: skipped, {why}", indent="")

    def give_up(self, config: RunConfig, why: str) -> None:
        """Print that a point was interrupted because its files could not be written; `why` is the
        message to show.
        """
        self._end_live_line()
        self.note(f"{config.folder}: interrupted: {why}")

    def note(self, line: str, indent: str = "  ") -> None:
        """Print a line that concerns the current run."""
        has_number = self._is_beside or not indent
        number = f"[{self.num_done}/{self._num_points}] " if has_number else ""
        self.say(f"{number}{indent}{line}")

    def begin(
        self, config: RunConfig, paths: RunPaths, warnings: list[str], *, is_retry: bool = False
    ) -> None:
        """Show the beginning of a run, and the records of earlier attempts."""
        self._config, self._paths, self._warnings = config, paths, warnings
        self._records = GrowingFile(paths.metrics)
        self._tokens_per_example: int | None = None
        self._latest: dict[str, Any] = {"epoch": 0}
        self._scores: dict[str, list[float]] = {}  # of evaluations; without them, of epochs
        self._has_evaluations = False
        self._rounds_done, self._polled_at = 0, 0.0
        self._max_rounds, self._max_seconds = config.strategy.ends_after
        self._began_at = self._trained_at = time.monotonic()
        self.num_done += not is_retry
        self.note(f"{paths.folder}: {self._describe()}", indent="")
        for warning in warnings:
            self.note(f"warning: {warning}")
        earlier = self._new_records()
        live.begin(config, paths, earlier)
        for record in earlier:
            self._store(record)
        self._share_before = self._share_done()
        if resumed := [record["message"] for record in earlier if record.get("event") == "resumed"]:
            self.note(resumed[-1])
        if self._has_live_line:
            self._update_live_line()
            self._live.start()

    def poll(self) -> None:
        """Show the progress that the run's new records tell, at most five times a second.

        A call is cheap enough to be made after every step.
        """
        if time.monotonic() - self._polled_at >= _REFRESH_SECONDS:
            self._polled_at = time.monotonic()
            self._show()

    def end(self, outcome: Outcome) -> None:
        self._show()
        live.copy(self._config, self._paths, None)
        self._end_live_line()
        self._seconds[self.num_done] = time.monotonic() - self._began_at
        first, *rest = outcome.message.splitlines() or [""]
        time_taken = duration(self._seconds[self.num_done])
        self.note(f"{outcome.status} after {time_taken}" + (f": {first}" if first else ""))
        for line in rest:
            self.note(f"| {line}")
        target = self._config.target
        if target and (scores := self._scores.get(target.metric)):
            median = target.best_median(scores)
            decides = (
                "a target needs two evaluations"
                if math.isnan(median)
                else f"{_number(median)} as the best median of three evaluations, which decides "
                f"about the target {target.value:g}"
            )
            self.note(f"{target.score}: {_number(scores[-1])} in the last evaluation, {decides}")

    def _new_records(self) -> list[dict[str, Any]]:
        lines = self._records.new_lines()
        if lines is None:  # workers cut lines to write them anew: the rest was shown
            self._records.new_lines()
        records = []
        for line in lines or ():
            with suppress(ValueError):  # a damaged line is skipped: reports name it
                records.append(from_json(line))
        return records

    def _store(self, record: dict[str, Any]) -> None:
        """Store those values of a record that later lines of the display show."""
        kind = record["type"]
        if kind == "start":
            self._tokens_per_example = record["tokens_per_example"]
        elif kind in ("step", "epoch"):
            self._latest = record
        elif kind == "round":
            self._rounds_done = record["round"]
        # Without evaluations within epochs, those at the ends of epochs have no records.
        if kind == "evaluation" or (kind == "epoch" and not self._has_evaluations):
            self._has_evaluations |= kind == "evaluation"
            for name in ("test_loss", "test_accuracy"):
                if record.get(name) is not None:
                    self._scores.setdefault(name, []).append(record[name])

    def _show(self) -> None:
        for record in self._new_records():
            live.copy(self._config, self._paths, record)
            self._store(record)
            if record["type"] == "start":
                self._trained_at = time.monotonic()
            elif record.get("event") == "warning" and record["message"] not in self._warnings:
                self.note(f"warning: {record['message']}")
            elif record["type"] == "epoch":
                self.note(
                    f"{self._count(record['epoch'])}: {record['train_seconds']:.1f} s, "
                    f"{self._rate(record['images_per_second'])}, train loss "
                    f"{_number(record['train_loss'])}, {self._config.evaluated_part} accuracy "
                    f"{_number(record['test_accuracy'])}{self._time_left()}"
                )
        if self._has_live_line:
            self._update_live_line()

    @property
    def _has_live_line(self) -> bool:
        """True if the display has a live line, which is updated in place on a terminal."""
        return self._console.is_interactive and not self._is_beside

    def _update_live_line(self) -> None:
        """Show the point's number, its description, its epoch, its speed, its score and the time
        that is left.
        """
        target, rate = self._config.target, self._latest.get("images_per_second")
        scores = self._scores.get(target.metric) if target else None
        line = [
            f"point {self.num_done}/{self._num_points}",
            self._describe(),
            self._count(min(self._config.epochs, int(self._epochs_done()) + 1)),
            self._rate(rate) if rate else "starting",
            f"{_number(scores[-1])} of {target.value:g}" if target and scores else "",
        ]
        self._live.update(
            self._line,
            completed=self._share_done(),
            description=joined(line, "  ") + self._time_left(),
            refresh=True,
        )

    def _end_live_line(self) -> None:
        if self._live.live.is_started:
            self._live.stop()

    def _describe(self) -> str:
        config, given = self._config, self._config.allocation
        local_batches = ", ".join(map(str, given.local_batches or ()))
        most = [counted(self._max_rounds, "round")] if self._max_rounds else []
        most += [f"{self._max_seconds:g} s"] if self._max_seconds else []
        facts = [
            f"local batches {local_batches}"
            if local_batches
            else f"local batch {config.examples_per_pass}",
            f"local steps {', '.join(map(str, given.local_steps))}" if given.local_steps else "",
            counted(config.num_workers, "worker"),
            config.strategy.name,
            given.name if given.name != "uniform" else "",
            f"batching {config.batching.name}" if config.batching != FIXED else "",
            " or ".join(most) or counted(config.epochs, "epoch"),
            f"target {config.target}" if config.target else "",
        ]
        return joined(facts, ", ")

    def _rate(self, examples_per_second: float) -> str:
        if self._tokens_per_example:
            return f"{examples_per_second * self._tokens_per_example:.0f} tokens/s"
        what = "examples" if self._config.program.is_own else "images"
        return f"{examples_per_second:.0f} {what}/s"

    def _epochs_done(self) -> float:
        """Return the number of trained epochs, including a part of the current one."""
        latest = self._latest
        if latest.get("type") == "step":
            return float(min(self._config.epochs, latest["epochs_done"]))
        return float(latest["epoch"])

    def _count(self, epoch: int) -> str:
        """Return a text such as `epoch 3/10`, with the number of finished rounds if the rounds of
        the run are limited.
        """
        if self._max_rounds:
            return f"epoch {epoch}, round {self._rounds_done}/{self._max_rounds}"
        return f"epoch {epoch}/{self._config.epochs}"

    def _share_done(self) -> float:
        """Return the share of the run that is done, from 0 to 1.

        It is the largest of the shares of epochs, rounds and seconds, of which each may end the
        run; before the first record of a step or epoch it is 0.
        """
        epochs = self._epochs_done() / self._config.epochs
        rounds = self._rounds_done / (self._max_rounds or math.inf)
        seconds = (time.monotonic() - self._trained_at) / (self._max_seconds or math.inf)
        return min(1.0, max(epochs, rounds, seconds)) if epochs else 0.0

    def _time_left(self) -> str:
        """Return a text with the estimated time that is left, of the whole sweep or only of this
        point; empty while no estimate is possible.

        This run's time is estimated from its own pace, and that of the other points from the mean
        time of those that are done.
        """
        done = self._share_done()
        if done <= self._share_before:
            return ""
        pace = (time.monotonic() - self._trained_at) / (done - self._share_before)
        seconds, others = pace * (1 - done), self._num_points - self.num_done
        if not others and not self._is_beside:
            return f", {duration(seconds)} left"
        if not self._seconds or self._is_beside:
            return f", {duration(seconds)} left of this point"
        seconds += others * sum(self._seconds.values()) / len(self._seconds)
        return f", about {duration(seconds)} left"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
