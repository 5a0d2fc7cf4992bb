"""The epochs and steps of a program of the user's own: `Loop` counts, times and reports them, and
ends them on all ranks after the same step. `bsweep.join()` and the adapters use it.

It needs nothing but Python's standard library, so that it works beside any framework. Reports are
lines of JSON in a file, which the process that started the program reads. Rank 0 alone reports.

A program by steps does not use `Loop.epochs`. There an epoch is a pass over the training examples,
which ends with the step that takes the last of them.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import stat
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from bsweep.config.target import Target
from bsweep.external.agreement import Agreement
from bsweep.runlog.taken import Taken

CUT_SHORT = "cut_short"
"""The folder, in a program's checkpoint folder, for what it saves in an epoch that is cut short."""

NO_BATCH = (
    "a loader with drop_last leaves out a batch that is larger than the data, a generator is used "
    "up after one epoch, and a step that is left by `break` does not count"
)
"""Why `Loop.steps` may get no batch."""

_FLUSH_SECONDS = 0.5  # between two reports of steps
_USUAL_STEPS = 101
_PASSES = "passes"  # why a program by steps stops: it has trained its passes
_PACKAGES = ("torch", "tensorflow", "jax", "lightning", "keras", "tf_keras")

Batch = TypeVar("Batch")
Examples = int | Callable[[Any], int | None] | None
Finish = Callable[[], object] | None


@dataclass(frozen=True)
class Facts:
    """Facts about the program's data and model that bsweep cannot see; None: not known.

    `num_train` and `num_test` count examples, `num_classes` the classes of the labels,
    `accumulation_steps` the batches of a step.
    """

    num_train: int | None = None
    num_test: int | None = None
    num_classes: int | None = None
    num_parameters: int | None = None
    precision: str | None = None
    accumulation_steps: int = 1


class Loop:
    """The epochs and steps of a run in this process. All ranks make the same calls."""

    def __init__(self, point: Mapping[str, Any], facts: Facts, folder: Path) -> None:
        """Create it, and report that the program takes part.

        Args:
            point: The point and this worker's place in it, as `worker` writes them.
            facts: What the program says about its data and model.
            folder: This rank's log folder.
        """
        self._point, self._facts = point, facts
        self._num_train: int | None = facts.num_train or point["num_train"]
        self._target = Target(**point["target"]) if point["target"] else None
        meeting = folder.parent / "rank.0/meeting.json"
        self._agreement = Agreement(point["rank"], point["num_workers"], meeting)
        self._reports = (folder / "reports.jsonl").open("a") if point["rank"] == 0 else None
        self._taken_file: int | None = os.open(folder / "taken", os.O_CREAT | os.O_WRONLY)
        self._clock = _Clock()
        self._epoch, self._is_pass, self._taken = 0, True, Taken()  # in the epoch
        self._num_steps = self._num_examples = 0  # in all; the examples are those of all workers
        self._scores: list[float] = list(point["scores"])
        self._evaluation: dict[str, float] = {}  # of this step
        self._flushed_at = float("-inf")
        self._wish = ""
        self._is_ready = self._is_in_step = False
        self.stops = ""
        """Why the program should end now; an empty text if it should not."""
        self.is_cut = False
        """True if it should end within an epoch."""
        python = {"python": sys.version.split()[0], "interpreter": sys.executable}
        self.report("facts", is_ready=False, facts=asdict(facts), software=python)
        atexit.register(self.flush)
        os.register_at_fork(after_in_child=self._detach)

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs, see `Run.epochs`."""
        self._is_pass = False
        for epoch in range(self._point["first_epoch"], self._point["epochs"] + 1):
            self._begin_epoch(epoch)
            try:
                yield epoch
            finally:  # also where the loop is left by `break`
                self.flush()
                self._taken.has_ended = True
                if self._num_steps or self._taken.num_begun:
                    self._show_taken()
            self.report("end_epoch", files=files_in(Path(self._point["checkpoint_folder"])))
            if not self.stops:
                self._decide(at_epoch_end=True)
            if self.stops:
                break

    def steps(
        self,
        batches: Iterable[Batch],
        ends_step: Callable[[int], bool] | None = None,
        examples: Examples = None,
        finish: Finish = None,
    ) -> Iterator[Batch]:
        """Yield the batches of an iterable, and time each step, see `Run.steps`.

        Args:
            batches: As for `Run.steps`.
            ends_step: Called after each batch with the number of batches since the last step;
                returns True if the program has made a step of the optimizer. None: a step takes the
                batches that the program told `bsweep.join()`.
            examples: As for `Run.steps`.
            finish: As for `Run.steps`.
        """
        num_batches = self._facts.accumulation_steps
        usual_size = self._point["local_batch"] // num_batches
        self.see_data(batches)
        self._say_ready()
        start, before = time.perf_counter(), self._num_steps
        iterator = iter(batches)  # a loader may start its processes
        self._clock.start_seconds += time.perf_counter() - start
        while not self.stops:
            begun, sizes = now(), list[int]()
            for batch in iterator:
                if not sizes:
                    self.begin_step(is_open=True)
                try:
                    yield batch
                except GeneratorExit:  # the loop was left by `break`
                    self._is_in_step = False
                    self.flush()
                    raise
                size = size_of(batch, examples)
                sizes.append(usual_size if size is None else size)
                if ends_step(len(sizes)) if ends_step else len(sizes) == num_batches:
                    break
            if not sizes:
                break
            self.end_step(begun, sum(sizes), finish)
        if self._num_steps == before and not self.stops and self._is_pass:
            raise ValueError(f"bsweep: run.steps(...) got no batch: {NO_BATCH}.")

    def see_data(self, batches: object) -> None:
        """Take the number of training examples from a data loader, if it is not known yet."""
        data = getattr(batches, "dataset", None)
        if self._num_train is None and isinstance(data, Sized):
            self._num_train = len(data)

    def begin_step(self, *, is_open: bool = False) -> None:
        """Count the beginning of a step.

        Args:
            is_open: True if the program may evaluate before the end of the step, which is an
                evaluation after it.

        Raises:
            ValueError: Outside of `epochs`, if the number of training examples is not known.
        """
        if self._is_pass:
            self._begin_pass_if_due()
        else:
            self._taken.num_begun += 1
            self._show_taken()
        self._is_in_step = is_open

    def end_step(self, begun: Any, examples: int, finish: Finish = None) -> None:
        """Count a step.

        Args:
            begun: The time at which it began, see `now`.
            examples: The examples of this worker.
            finish: As for `Run.steps`.
        """
        if finish:
            finish()
        self._say_ready()
        self._is_in_step = False
        self._num_steps += 1
        self._num_examples += examples * self._point["num_workers"]
        self._taken.num_steps += 1
        self._taken.num_examples += examples
        has_evaluated = bool(self._evaluation)
        self._clock.add(begun, examples, has_evaluated=has_evaluated)
        if has_evaluated or time.perf_counter() - self._flushed_at > _FLUSH_SECONDS:
            self.flush(waits=has_evaluated)
        if self._num_steps >= self._agreement.next_step:
            self._decide()

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._taken = epoch, Taken()
        self.report("begin_epoch", epoch=epoch, is_pass=self._is_pass)

    def _begin_pass_if_due(self) -> None:
        if self._num_train is None:
            raise ValueError(
                "bsweep: steps outside of run.epochs() are counted in passes over the training "
                "examples: say their number by bsweep.join(num_train=50000)."
            )
        is_full = self._num_examples >= self._epoch * self._num_train
        if is_full and self._epoch < self._point["epochs"]:
            if self._epoch:
                self.flush()
                self.report("end_epoch", files={})
            self._begin_epoch(self._epoch + 1)

    def evaluated(self, values: Mapping[str, float]) -> None:
        """Report an evaluation, see `Run.evaluated`."""
        self._evaluation |= values
        if not self._is_in_step:
            self.flush()
        if self._target and self._target.metric in values:
            self._scores.append(values[self._target.metric])
            if self._target.is_confirmed_by(self._scores):
                self._wish = self._wish or "target"

    def flush(self, *, waits: bool = True) -> None:
        """Report the steps since the last call and then the evaluation after them, if there are
        some.

        Args:
            waits: False leaves out the steps that a GPU has not finished.
        """
        self._flushed_at = time.perf_counter()
        steps = self._clock.taken(waits=waits)
        if steps["seconds"]:
            self.report("steps", **steps)
        if self._evaluation and not self._is_in_step:
            self.report("evaluated", values=self._evaluation)
            self._evaluation = {}

    def report(self, kind: str, **values: Any) -> None:
        """Write a report, on rank 0."""
        if self._reports:
            # NaN is written, too: it means diverged.
            report = json.dumps({"kind": kind, "time": time.time(), **values})
            self._reports.write(f"{report}\n")
            self._reports.flush()

    def _detach(self) -> None:
        """Report nothing and agree with nobody, since this process is a fork of the program."""
        self._reports = self._taken_file = None
        self._clock = _Clock()
        self._agreement = Agreement(0, 1, Path())

    def _show_taken(self) -> None:
        if self._taken_file is not None:
            self._taken.write(self._taken_file, self._epoch)
            if self._taken.has_ended:
                os.fsync(self._taken_file)  # for other hosts

    def _say_ready(self) -> None:
        if self._is_ready:
            return
        self._is_ready = True
        torch = sys.modules.get("torch")
        on_gpu = bool(torch and torch.cuda.is_available() and torch.cuda.is_initialized())
        threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        modules = {name: sys.modules.get(name) for name in _PACKAGES}
        versions = {name: getattr(module, "__version__", "") for name, module in modules.items()}
        facts = {
            "num_train": self._num_train,
            "device": torch.cuda.get_device_name() if torch and on_gpu else None,
            "threads": torch.get_num_threads() if torch else int(threads or 0) or None,
        }
        software = {name: version for name, version in versions.items() if version}
        self.report("facts", is_ready=True, facts=facts, software=software)

    def _decide(self, *, at_epoch_end: bool = False) -> None:
        """Agree with all ranks whether to stop here; rank 0 decides."""
        point = self._point
        left: dict[str, int] = {}  # steps, by the reason to stop after them
        if point["most_steps"] is not None:
            left["enough steps"] = point["most_steps"] - self._num_steps
        if self._is_pass:
            examples = (self._num_train or 0) * point["epochs"] - self._num_examples
            left[_PASSES] = math.ceil(examples / point["global_batch"])
        if point["rank"] == 0 and not self._wish:
            ended = [reason for reason, steps in left.items() if steps <= 0]
            self._wish = ended[0] if ended else "asked" if self._is_asked() else ""
        self.stops = self._agreement.decide(
            self._wish, self._num_steps, min(left.values(), default=None), at_epoch_end=at_epoch_end
        )
        if self._agreement.has_given_up and left.get(_PASSES, 1) <= 0:
            self.stops = _PASSES
        if self.stops:
            self.flush()
            self.is_cut = not at_epoch_end
            self.report("stops", reason=self.stops)

    def _is_asked(self) -> bool:
        try:
            return Path(self._point["stop_file"]).stat().st_size > 0
        except OSError:
            return False


class _Clock:
    """A clock of steps, see `now`."""

    def __init__(self) -> None:
        self._steps: deque[tuple[Any, Any, int, bool]] = deque()
        self._usual: deque[float] = deque(maxlen=_USUAL_STEPS)  # seconds of steps
        self.start_seconds = 0.0  # in which loaders started, since the last call of `taken`

    def add(self, begun: Any, examples: int, *, has_evaluated: bool) -> None:
        """End a step; one in which the program evaluated counts with the usual seconds of steps."""
        end = time.perf_counter() if isinstance(begun, float) else now()
        self._steps.append((begun, end, examples, has_evaluated))

    def taken(self, *, waits: bool) -> dict[str, Any]:
        """Return the seconds and the examples of the steps since the last call, and the seconds in
        which loaders started; of a GPU's steps only those that it has finished, unless `waits` is
        True.
        """
        report: dict[str, Any] = {"seconds": [], "examples": []}
        while self._steps:
            begun, end, examples, has_evaluated = self._steps[0]
            if isinstance(end, float):
                seconds = end - begun
            elif waits or end.query():
                end.synchronize()
                seconds = begun.elapsed_time(end) / 1000
            else:
                break
            self._steps.popleft()
            if not has_evaluated:
                self._usual.append(seconds)
            elif self._usual:
                seconds = statistics.median(self._usual)
            report["seconds"].append(seconds)
            report["examples"].append(examples)
        if report["seconds"]:
            report["start_seconds"], self.start_seconds = self.start_seconds, 0.0
        return report


def now() -> Any:
    """Return the time at which a step begins: an event on the GPU if torch uses one in this
    process, otherwise the seconds of the host's clock.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def files_in(folder: Path) -> dict[str, list[int]]:
    """Return the size and the modification time of each file in a program's checkpoint folder,
    without those of an epoch that was cut short.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        with suppress(FileNotFoundError):  # the program removes it meanwhile
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and inside.parts[0] != CUT_SHORT:
                files[str(inside)] = [status.st_size, status.st_mtime_ns]
    return files


def size_of(batch: Any, examples: Examples = None) -> int | None:
    """Return the number of examples in a batch; None if it cannot be seen.

    Args:
        batch: What a data loader yields.
        examples: As for `Run.steps`.
    """
    if isinstance(examples, int):
        return examples
    if examples is not None:
        return examples(batch)
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else None
    if isinstance(batch, Mapping):
        return size_of(next(iter(batch.values()), None))
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes) or not batch:
        return None
    is_text = isinstance(batch[0], str | bytes)
    if hasattr(batch[0], "shape") or (isinstance(batch[0], Mapping | Sequence) and not is_text):
        return size_of(batch[0])
    return len(batch)
