"""The part of `bsweep profile` that runs in a worker: it times the parts of a step and traces
steps.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import profiler

from bsweep.batching import Policy
from bsweep.config.run import RunConfig
from bsweep.core import memory
from bsweep.core.ranks import World
from bsweep.data import plan
from bsweep.numerics.timing import StepClock, Timeline, seconds_of
from bsweep.runlog import profile_file
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.profile_file import PARTS, Anatomy
from bsweep.runlog.records import End
from bsweep.train import graph_capture, loop, warm_up, worker
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job, Phase

_MOST_ROUNDS = 40  # half of them are timed in parts
_MOST_SECONDS = 30.0
_TRACED_ROUNDS = 5


def measure(
    config: RunConfig, paths: RunPaths, world: World, *, on_step: Callable[[], None] | None = None
) -> None:
    """Measure how long each part of this worker's training steps takes, and trace some steps.

    All workers call this together. Each worker writes its trace, and rank 0 also writes
    `profile.json`.

    Args:
        config: The configuration to be profiled.
        paths: The paths in the run's folder.
        world: This worker's rank and host.
        on_step: Called after each step.

    Raises:
        WorkerLost: If another worker ended.
    """
    limits = config.launch.memory_limit_mb
    with worker.open_job(config, paths, world, on_step) as job:
        with memory.limited(limits[world.rank] if limits else None):
            warm_up.make_steps(job)
            warnings = graph_capture.capture(job)
            anatomy = dissect(job)
        job.record(*warnings)
        folder = profile_file.folder_of(config)
        busy_seconds = trace(job, folder / f"trace.rank{world.rank}.json")
        every = job.strategy.gather_json({**asdict(anatomy), "busy_seconds": busy_seconds})
        if world.rank == 0:
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
    seconds = [seconds_of(rounds.train, job.device) for _ in range(3)][-1]
    slowest = float(job.strategy.gather(torch.tensor([seconds], dtype=torch.float64)).max())
    pairs = max(1, min(most_rounds, int(_MOST_SECONDS / slowest)) // 2)
    lot = random.Random(0)
    whole, parts = Timeline(job.device), Timeline(job.device)
    job.strategy.traffic()  # This resets the counts of the rounds before.
    steps_before = rounds.cursor.num_steps
    for is_timed in (each for _ in range(pairs) for each in lot.sample([True, False], 2)):
        with whole.phase("timed" if is_timed else "untimed"):
            rounds.train(parts.phase if is_timed else None)
    steps_each = (rounds.cursor.num_steps - steps_before) / 2
    traffic, seconds_by_part = job.strategy.traffic(), parts.totals()
    seconds_of_rounds = whole.totals()
    waits = traffic.worker_wait_seconds
    return Anatomy(
        parts={
            name: seconds_by_part[name] / steps_each for name in PARTS if name in seconds_by_part
        },
        step_seconds=seconds_of_rounds["timed"] / steps_each,
        untimed_step_seconds=seconds_of_rounds["untimed"] / steps_each,
        wait_seconds=waits[job.world.rank] / (2 * steps_each) if waits else None,
        busy_seconds=None,
        overlaps=traffic.exchange_seconds is None and job.world.num_workers > 1,
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
            rounds.train(profiler.record_function)
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


class _Unchanging(Policy):
    """A policy that keeps the shares with which another policy begins."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.config)
        self.pass_batches, self._shares = policy.pass_batches, policy.shares(0.0)

    def shares(self, epochs_done: float) -> tuple[plan.Share, ...]:
        return self._shares


class _Rounds:
    """The training rounds that a profile measures: full batches at a learning rate of 0.

    These rounds take about as long as in training, and the model stays finite.
    """

    def __init__(self, job: Job) -> None:
        num_train = len(job.dataset.train)
        optimizer = replace(job.config.optimizer, lr=0.0)  # of which only the steps read the rate
        config, policy = replace(job.config, optimizer=optimizer), _Unchanging(job.policy)
        self._job = replace(job, config=config, policy=policy)
        self._size = min(num_train, plan.round_size(policy.shares(0.0)))
        order = plan.epoch_order(num_train, seed=job.config.seed, epoch=1)
        self._order = order.to(job.dataset.train.labels.device)
        self._clock = StepClock(job.device, [])
        self.cursor = Cursor.create(job.device, num_train)
        job.training_model.train()
        job.strategy.begin_epoch(1)

    def train(self, phase: Phase | None = None) -> None:
        """Train one round, in which `phase` times the parts of steps if it is given."""
        if self.cursor.position + self._size > len(self._order):
            self.cursor = replace(self.cursor, position=0)
        job = self._job if phase is None else replace(self._job, phase=phase)
        with ExitStack() as timing:
            if phase:
                timing.enter_context(_optimizer_in(phase, job))
                timing.enter_context(phase("loop"))
            loop.train_and_record_round(job, self.cursor, self._order, self._clock)


@contextmanager
def _optimizer_in(phase: Phase, job: Job) -> Iterator[None]:
    """Time each step of this worker's optimizer inside the `with` block as the phase "optimizer" of
    a training step.

    The optimizer itself calls the clock, so strategies need not do so.
    """
    timed = ExitStack()

    def enter(*_: object) -> None:
        timed.enter_context(phase("optimizer"))

    def leave(*_: object) -> None:
        timed.close()

    hooks = (
        job.optimizer.register_step_pre_hook(enter),
        job.optimizer.register_step_post_hook(leave),
    )
    yield
    for hook in hooks:
        hook.remove()


def main() -> NoReturn:
    """Run `python -m bsweep.measure.profile_worker TEAM_FOLDER`."""
    worker.enter(measure)


if __name__ == "__main__":
    main()
