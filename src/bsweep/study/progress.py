"""The display of a sweep's progress: printed lines and, on a terminal where points run in turn, a
live line that is updated in place.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
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
from bsweep.core.words import counted, duration
from bsweep.launch.outcome import Outcome
from bsweep.runlog.files import RunPaths
from bsweep.trackers import live

_REFRESH_SECONDS = 0.2


@dataclass
class _Sweep:
    """The counts that the displays of all points of a sweep share, such as the number of points
    that have begun.
    """

    num_points: int
    num_done: int = 0  # points that have begun count, too
    # Points that run at once have a thread each.
    counting: threading.Lock = field(default_factory=threading.Lock)
    seconds_of_done: list[float] = field(default_factory=list)


class Progress:
    """The display of a sweep's progress on a console.

    It shows the points done, the current run's epoch, its images or tokens per second, and the
    estimated time that is left.
    """

    def __init__(self, num_points: int, console: Console | None = None) -> None:
        self._console = console or terminal.console()
        self._sweep = _Sweep(num_points)
        self._number = 0  # the current point's number
        self._is_again = self._is_beside = False
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

    def beside(self) -> Progress:
        """Return another display of the same sweep, for a point that runs at the same time as other
        points.

        Each line of the new display names the number of the point.
        """
        one = Progress(0, self._console)
        one._sweep, one._is_beside = self._sweep, True
        return one

    def say(self, line: str) -> None:
        """Print a line that concerns the whole sweep."""
        self._console.print(Text(line))

    def skip(self, config: RunConfig, why: str) -> None:
        self._count_point()
        self._say(f"{config.study_dir / config.run_id}: skipped, {why}")

    def put_off(self, config: RunConfig, why: str) -> None:
        """Print that the sweep postpones a point, and why.

        The point gets its number only when it begins.
        """
        self.say(f"{config.study_dir / config.run_id}: postponed, {why}")

    def give_up(self, config: RunConfig, why: str) -> None:
        """Print that a point was interrupted because its files could not be written; `why` is the
        message to show.
        """
        self._end_live_line()
        self._say(f"  {config.study_dir / config.run_id}: interrupted: {why}")

    def begin(self, config: RunConfig, paths: RunPaths, warnings: list[str]) -> None:
        self._config, self._paths = config, paths
        self._records = GrowingFile(paths.metrics)
        self._tokens_per_example: int | None = None
        self._latest: dict[str, Any] = {"epoch": 0}
        self._scores: dict[str, Any] = {}
        self._of_target: list[float] = []  # all evaluations by the target's metric
        self._has_evaluations = False
        self._rounds_done = 0
        self._max_rounds, self._max_seconds = config.strategy.ends_after
        self._began_at = time.monotonic()
        self._polled_at = 0.0
        self._trained_at = self._began_at
        if not self._is_again:
            self._count_point()
        self._is_again = False
        self._say(f"{paths.folder}: {self._describe()}")
        self._said_warnings = warnings
        for warning in warnings:
            self._say(f"  warning: {warning}")
        self._read_earlier()
        if self._has_live_line:
            self._update_live_line()
            self._live.start()

    def poll(self) -> None:
        """Show the progress that the run's new records tell, at most five times a second.

        A call is cheap enough to be made after every step.
        """
        if time.monotonic() - self._polled_at < _REFRESH_SECONDS:
            return
        self._polled_at = time.monotonic()
        self._show()

    def _read_earlier(self) -> None:
        """Read the records that earlier attempts have written, and print where the run resumes."""
        resumed = ""
        earlier = self._new_records()
        live.begin(self._config, self._paths, earlier)
        for record in earlier:
            self._keep(record)
            if record.get("event") == "resumed":
                resumed = record["message"]
        self._share_before = self._share_done()
        if resumed:
            self._say(f"  {resumed}")

    def _keep(self, record: dict[str, Any]) -> None:
        """Store those values of a record that later lines of the display show."""
        if record["type"] == "start":
            self._tokens_per_example = record["tokens_per_example"]
        elif record["type"] in ("step", "epoch"):
            self._latest = record
        elif record["type"] == "round":
            self._rounds_done = record["round"]
        if record["type"] in ("evaluation", "epoch"):
            names = ("test_loss", "test_accuracy")
            self._scores |= {name: record[name] for name in names if record.get(name) is not None}
        # Without evaluations within epochs, those at the ends of epochs have no records.
        self._has_evaluations |= record["type"] == "evaluation"
        of_target = "evaluation" if self._has_evaluations else "epoch"
        if (target := self._config.target) and record["type"] == of_target:
            self._of_target += [record[target.metric]] * (record[target.metric] is not None)

    def _show(self) -> None:
        for record in self._new_records():
            live.copy(self._config, self._paths, record)
            self._keep(record)
            if record["type"] == "start":
                self._trained_at = time.monotonic()
            elif (
                record["type"] == "event"
                and record["event"] == "warning"
                and record["message"] not in self._said_warnings
            ):
                self._say(f"  warning: {record['message']}")
            if record["type"] == "epoch":
                self._say(
                    f"  {self._count(record['epoch'])}: {record['train_seconds']:.1f} s, "
                    f"{self._rate(record['images_per_second'])}, train loss "
                    f"{_number(record['train_loss'])}, {self._config.evaluated_part} accuracy "
                    f"{_number(record['test_accuracy'])}{self._eta()}"
                )
        if self._has_live_line:
            self._update_live_line()

    @property
    def _has_live_line(self) -> bool:
        """True if the display has a live line, which is updated in place on a terminal.

        Points that run at once have none, as the line shows a single point.
        """
        return self._console.is_interactive and not self._is_beside

    def _update_live_line(self) -> None:
        self._live.update(
            self._line,
            completed=self._share_done(),
            description=self._status_line(),
            refresh=True,
        )

    def _end_live_line(self) -> None:
        if self._live.live.is_started:
            self._live.stop()

    def _count_point(self) -> None:
        with self._sweep.counting:
            self._sweep.num_done += 1
            self._number = self._sweep.num_done

    def once_more(self) -> None:
        """Tell the display that the last point is started again, because of a retry."""
        self._is_again = True
        self._sweep.seconds_of_done.remove(self._seconds)

    def note(self, line: str) -> None:
        """Print a line that concerns the current run."""
        self._say(f"  {line}")

    def end(self, outcome: Outcome) -> None:
        self._show()
        live.copy(self._config, self._paths, None)
        self._end_live_line()
        self._seconds = time.monotonic() - self._began_at
        self._sweep.seconds_of_done.append(self._seconds)
        first, *rest = outcome.message.splitlines() or [""]
        self._say(
            f"  {outcome.status} after {duration(self._seconds)}" + (f": {first}" if first else "")
        )
        for line in rest:
            self._say(f"  | {line}")
        if (target := self._config.target) and self._of_target:
            median = target.best_median(self._of_target)
            decides = (
                "a target needs two evaluations"
                if math.isnan(median)
                else f"{_number(median)} as the best median of three evaluations, which decides "
                f"about the target {target.value:g}"
            )
            self._say(
                f"  {target.score}: {_number(self._of_target[-1])} in the last evaluation, "
                f"{decides}"
            )

    def _say(self, line: str) -> None:
        is_of_point = self._is_beside or not line.startswith(" ")
        prefix = f"[{self._number}/{self._sweep.num_points}] " if is_of_point else ""
        self._console.print(Text(prefix + line))

    def _describe(self) -> str:
        c, given = self._config, self._config.allocation
        local_batches = ", ".join(map(str, given.local_batches or ()))
        batches = f"es {local_batches}" if local_batches else f" {c.examples_per_pass}"
        local_steps = ", ".join(map(str, given.local_steps or ()))
        steps = f", local steps {local_steps}" if local_steps else ""
        allocated = f", {given.name}" if given.name != "uniform" else ""
        allocated += f", batching {c.batching.name}" if c.batching != FIXED else ""
        ends = [counted(self._max_rounds, "round")] if self._max_rounds else []
        ends += [f"{self._max_seconds:g} s"] if self._max_seconds else []
        most = " or ".join(ends) or counted(c.epochs, "epoch")
        target = f", target {c.target}" if c.target else ""
        workers = counted(c.num_workers, "worker")
        return (
            f"local batch{batches}{steps}, {workers}, {c.strategy.name}{allocated}, {most}{target}"
        )

    def _status_line(self) -> str:
        rate = self._latest.get("images_per_second")
        epoch = min(self._config.epochs, int(self._epochs_done()) + 1)
        return (
            f"point {self._number}/{self._sweep.num_points}  {self._describe()}  "
            f"{self._count(epoch)}"
            + (f"  {self._rate(rate)}" if rate else "  starting")
            + self._score()
            + self._eta()
        )

    def _score(self) -> str:
        """Return a text with the run's latest value of the metric that its target names, and the
        target; empty without a target or before the first evaluation.
        """
        target = self._config.target
        if not target or target.metric not in self._scores:
            return ""
        return f"  {_number(self._scores[target.metric])} of {target.value:g}"

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

    def _eta(self) -> str:
        """Return a text with the estimated time that is left, of the whole sweep or only of this
        point; empty while no estimate is possible.

        This run's part is estimated from its own pace. The part of the other points is estimated
        from the mean time of those that are done.
        """
        done = self._share_done()
        if done <= self._share_before:
            return ""
        pace = (time.monotonic() - self._trained_at) / (done - self._share_before)
        here = pace * (1 - done)
        others, known = self._sweep.num_points - self._sweep.num_done, self._sweep.seconds_of_done
        if not others and not self._is_beside:
            return f", {duration(here)} left"
        if not known or self._is_beside:
            return f", {duration(here)} left of this point"
        mean = sum(known) / len(known)
        return f", about {duration(here + others * mean)} left"

    def _new_records(self) -> list[dict[str, Any]]:
        lines = self._records.new_lines()
        if lines is None:  # workers cut lines to write them anew: the rest was shown
            self._records.new_lines()
        records = []
        for line in lines or ():
            with suppress(ValueError):  # a damaged line is skipped: reports name it
                records.append(from_json(line))
        return records


class Output:
    """The standard output of a run's workers, read while the workers print it."""

    def __init__(self, paths: RunPaths, num_workers: int) -> None:
        self._files = [GrowingFile(paths.rank_logs(rank) / "stdout") for rank in range(num_workers)]

    def new_lines(self) -> list[str]:
        """Return the complete lines that workers printed since the last call, each with its
        worker's rank in front.
        """
        lines = []
        for rank, file in enumerate(self._files):
            text = b"\n".join(file.new_lines() or ()).decode(errors="replace")
            lines += [f"worker {rank}: {line}" for line in text.splitlines()]
        return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
