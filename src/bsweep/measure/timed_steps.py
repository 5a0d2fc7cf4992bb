"""The timing of a worker's steps at one batch size without other workers, for `bsweep probe`."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from bsweep.config.run import RunConfig
from bsweep.core import memory
from bsweep.core.ranks import Place
from bsweep.numerics import optim
from bsweep.numerics.clock import StepClock
from bsweep.runlog.files import RunPaths, SignOfLife
from bsweep.strategies.single import Single
from bsweep.train import lone, step, worker
from bsweep.train.job import Job

NUM_STEPS, MOST_SECONDS = 20, 2.0  # the most timed steps, and the most seconds for all of them


def alone(job: Job) -> Job:
    """Return a copy of this worker's training job in which the worker trains alone and exchanges
    nothing.
    """
    config = lone.config_of(job.config, job.place.rank)
    strategy = Single(config, config.strategy, Place(), job.paths)
    strategy.prepare(job.vector, job.optimizer)
    return replace(job, config=config, place=Place(), strategy=strategy, training_model=job.model)


def step_seconds(job: Job, local_batch: int, times: int) -> float:
    """Time training steps of a lone worker at one batch size, and return the median seconds per
    step.

    A first step is not timed; if the run compiles its model, it is compiled before that.

    Args:
        job: The job of a lone worker.
        local_batch: The examples per pass.
        times: The factor on `NUM_STEPS` and `MOST_SECONDS`.
    """
    job = lone.at_batch(job, local_batch)
    config = job.config
    if job.device.type == "cuda":
        job = lone.as_trained(job)
    examples = torch.arange(config.examples_per_step, device=job.dataset.train_labels.device)
    job.training_model.train()
    with job.compiling():
        step.train_step(job, examples, examples, 1, config.accumulation_steps)
    job.heartbeat()
    clock, started = StepClock(job.device, []), time.monotonic()
    for _ in range(times * NUM_STEPS):
        with clock.step():
            step.train_step(job, examples, examples, 1, config.accumulation_steps)
        job.heartbeat()
        if time.monotonic() - started > times * MOST_SECONDS:
            break
    seconds = statistics.median(clock.seconds())
    if job.graphs:
        job.graphs.drop()
    return seconds


def step_seconds_within(
    mebibytes: float,
    config: RunConfig,
    paths: RunPaths,
    rank: int,
    num_threads: int,
    local_batch: int,
    times: int,
) -> float:
    """Set up a lone CPU worker, time its steps under a memory limit, and return the median seconds
    per step.

    Call this in a process of its own (`bsweep.core.fresh_process`), because a process that has
    failed under a memory limit cannot be used any further.

    Args:
        mebibytes: The memory that steps may take besides the prepared worker, in MiB.
        config: The run's configuration.
        paths: The paths in the run's folder.
        rank: The rank of the worker whose slowdown and limits apply.
        num_threads: The number of threads of torch.
        local_batch: The examples per pass.
        times: The factor on `NUM_STEPS` and `MOST_SECONDS`.
    """
    torch.set_num_threads(num_threads)
    job = worker.set_up(lone.config_of(config, rank), paths, Place())
    optim.set_learning_rate(job.optimizer, 0.0)
    job = replace(job, alive=SignOfLife(paths.alive(rank)))
    tail = torch.arange((local_batch + 1) // 2 * config.accumulation_steps)
    with memory.limited(mebibytes):
        # The kernels for an epoch's smaller last batch stay in memory besides those of full ones.
        step.train_step(job, tail, tail, 1, config.accumulation_steps)
        return step_seconds(job, local_batch, times)
