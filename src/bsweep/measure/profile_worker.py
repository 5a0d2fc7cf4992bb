"""The part of `bsweep profile` that runs in a worker: it times the parts of a step and traces
steps.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import profiler

from bsweep.config.run import RunConfig
from bsweep.core import memory
from bsweep.core.ranks import Place
from bsweep.data import plan
from bsweep.numerics.clock import Phase, PhaseClock, StepClock
from bsweep.runlog import profile_file
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.profile_file import PARTS, Anatomy
from bsweep.runlog.records import End
from bsweep.train import graph_capture, loop, warm_up, worker
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job
from bsweep.train.worker import do_nothing

_MOST_ROUNDS = 40  # half of them are timed in parts
_MOST_SECONDS = 30.0
_TRACED_ROUNDS = 5


def measure(
    config: RunConfig, paths: RunPaths, place: Place, *, on_step: Callable[[], None] = do_nothing
) -> None:
    """Measure how long each part of this worker's training steps takes, and trace some steps.

    All workers call this together. Each worker writes its trace, and rank 0 also writes
    `profile.json`.

    Args:
        config: The configuration to be profiled.
        paths: The paths in the run's folder.
        place: This worker's rank and host.
        on_step: Called after each step.

    Raises:
        WorkerLost: If another worker ended.
    """
    limits = config.launch.memory_limit_mb
    with worker.open_job(config, paths, place, on_step) as job:
        with memory.limited(limits[place.rank] if limits else None):
            warm_up.make_steps(job)
            job, warnings = graph_capture.captured(job)
            found = dissect(job)
        job.record(*warnings)
        folder = profile_file.folder_of(config)
        busy_seconds = trace(job, folder / f"trace.rank{place.rank}.json")
        found = replace(found, busy_seconds=busy_seconds)
        every = job.strategy.gather_json(asdict(found))
        if place.rank == 0:
            write_json(folder / "profile.json", {"workers": every})
        job.record(End(status="completed", message=""))


def dissect(job: Job, most_rounds: int = _MOST_ROUNDS) -> Anatomy:
    """Measure how many seconds each part of this worker's training steps takes.

    All workers call this together. The rounds are of full batches, at a learning rate of 0. In each
    pair of rounds, a randomly chosen one is not timed in parts, which shows the cost of timing. If
    timed and untimed rounds alternated, an exchange at, say, every tenth step would always fall
    into the same half.
    """
    rounds = _Rounds(job)
    seconds = [rounds.seconds_of_one() for _ in range(3)][-1]
    slowest = float(job.strategy.gather(torch.tensor([seconds], dtype=torch.float64)).max())
    pairs = max(1, min(most_rounds, int(_MOST_SECONDS / slowest)) // 2)
    lot = random.Random(0)
    phases, whole, others = (
        PhaseClock(job.device),
        StepClock(job.device, []),
        StepClock(job.device, []),
    )
    job.strategy.traffic()  # This resets the counts of the rounds before.
    steps_before = rounds.cursor.num_steps
    for is_timed in (each for _ in range(pairs) for each in lot.sample([True, False], 2)):
        clock = whole if is_timed else others
        clock.pause()  # the other one's rounds lie between
        with clock.step():
            rounds.one(phases.phase if is_timed else None)
    steps_each = (rounds.cursor.num_steps - steps_before) / 2
    traffic, found = job.strategy.traffic(), phases.seconds()
    waits = traffic.worker_wait_seconds
    return Anatomy(
        parts={part: found[part] / steps_each for part in PARTS if part in found},
        step_seconds=sum(whole.seconds()) / steps_each,
        untimed_step_seconds=sum(others.seconds()) / steps_each,
        wait_seconds=waits[job.place.rank] / (2 * steps_each) if waits else None,
        busy_seconds=None,
        overlaps=traffic.exchange_seconds is None and job.place.num_workers > 1,
    )


def trace(job: Job, path: Path) -> float | None:
    """Run a few training rounds and write a Chrome trace of them, in which each part of a round has
    its name.

    Returns:
        The seconds per step in which the GPU worked, NCCL's exchanges left out; None on a CPU.
    """
    rounds = _Rounds(job)
    activities = [profiler.ProfilerActivity.CPU]
    if job.device.type == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(activities=activities) as traced:
        for _ in range(_TRACED_ROUNDS):
            rounds.one(profiler.record_function)
    path.parent.mkdir(parents=True, exist_ok=True)
    traced.export_chrome_trace(str(path))
    if job.device.type != "cuda":
        return None
    return _busy_seconds(json.loads(path.read_text())["traceEvents"]) / rounds.cursor.num_steps


def _busy_seconds(events: list[dict[str, Any]]) -> float:
    """Return the seconds of a trace in which the GPU ran at least one kernel or memory operation
    other than NCCL's exchanges.
    """
    kernels = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        and not event["name"].startswith("nccl")
    ]
    busy, until = 0.0, float("-inf")
    for begin, end in sorted(kernels):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy / 1e6


class _Rounds:
    """The training rounds that a profile measures: full batches at a learning rate of 0.

    These rounds take about as long as in training, and the model stays finite.
    """

    def __init__(self, job: Job) -> None:
        num_train = len(job.dataset.train_labels)
        self._job = replace(job, learning_rate=lambda epochs_done, rate_batch: 0.0)
        self._size = min(num_train, plan.round_size(job.policy.shares(0.0)))
        order = plan.epoch_order(num_train, seed=job.config.seed, epoch=1)
        self._order = order.to(job.dataset.train_labels.device)
        self._clock = StepClock(job.device, [])
        self.cursor = Cursor.of(job.device, num_train)
        job.training_model.train()
        job.strategy.begin_epoch(1)

    def one(self, phase: Phase | None = None) -> None:
        if self.cursor.position + self._size > len(self._order):
            self.cursor = replace(self.cursor, position=0)
        if phase is None:
            loop.train_round(self._job, self.cursor, self._order, self._clock)
            return
        with _optimizer_in(phase, self._job), phase("loop"):
            loop.train_round(replace(self._job, phase=phase), self.cursor, self._order, self._clock)

    def seconds_of_one(self) -> float:
        started = time.perf_counter()
        self.one()
        if self._job.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started


@contextmanager
def _optimizer_in(phase: Phase, job: Job) -> Iterator[None]:
    """Time each step of this worker's optimizer inside the `with` block as the phase "optimizer" of
    a training step.

    The optimizer itself calls the clock, so strategies need not do so.
    """
    entered: list[AbstractContextManager[object]] = []

    def enter(*_: object) -> None:
        entered.append(phase("optimizer"))
        entered[-1].__enter__()

    def leave(*_: object) -> None:
        entered.pop().__exit__(None, None, None)

    hooks = (
        job.optimizer.register_step_pre_hook(enter),
        job.optimizer.register_step_post_hook(leave),
    )
    yield
    for hook in hooks:
        hook.remove()


def main() -> NoReturn:
    """Run `python -m bsweep.measure.profile_worker FOLDER`."""
    worker.enter(measure)


if __name__ == "__main__":
    main()
