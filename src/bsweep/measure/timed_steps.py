"""A try of `bsweep probe`: how long a worker's steps take at one batch, without other workers."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from bsweep.config import RunConfig, SingleConfig, UniformConfig
from bsweep.core import memory
from bsweep.core.ranks import Place
from bsweep.numerics import optim
from bsweep.numerics.clock import StepClock
from bsweep.runlog import RunPaths, SignOfLife
from bsweep.strategies.single import Single
from bsweep.train import step, worker
from bsweep.train.job import Job

NUM_STEPS, MOST_SECONDS = 20, 2.0  # that are timed, unless they take too long together


def lone_config(config: RunConfig, rank: int) -> RunConfig:
    """The run of a worker without others, which is as slow and has as little memory."""
    slowdown, limits = config.launch.slowdown, config.launch.memory_limit_mb
    return replace(
        config,
        num_workers=1,
        strategy=SingleConfig(name="single"),
        allocation=UniformConfig(
            name="uniform", devices=None, probe=None, local_batches=None, local_steps=None
        ),
        launch=replace(
            config.launch,
            slowdown=slowdown and (slowdown[rank],),
            memory_limit_mb=limits and (limits[rank],),
        ),
    )


def alone(job: Job) -> Job:
    """The same worker without others: its steps exchange nothing."""
    config = lone_config(job.config, job.place.rank)
    strategy = Single(config, config.strategy, Place(), job.paths)
    strategy.prepare(job.vector, job.optimizer)
    return replace(job, config=config, place=Place(), strategy=strategy, training_model=job.model)


def step_seconds(job: Job, local_batch: int, times: int) -> float:
    """The median of `times` as many steps as usual, after a first one."""
    config = replace(job.config, local_batch=local_batch, global_batch=None)
    job = replace(job, config=config)
    examples = torch.arange(config.examples_per_step, device=job.dataset.train_labels.device)
    job.training_model.train()
    step.train_step(job, examples, examples, 1, config.accumulation_steps)
    job.heartbeat()
    clock, started = StepClock(job.device, []), time.monotonic()
    for _ in range(times * NUM_STEPS):
        with clock.step():
            step.train_step(job, examples, examples, 1, config.accumulation_steps)
        job.heartbeat()
        if time.monotonic() - started > times * MOST_SECONDS:
            break
    return statistics.median(clock.seconds())


def step_seconds_within(
    mebibytes: float,
    config: RunConfig,
    paths: RunPaths,
    rank: int,
    num_threads: int,
    local_batch: int,
    times: int,
) -> float:
    """As `step_seconds`, of a worker that is prepared for it on the CPU, as for a run, and may take
    so much beside.

    To be called in a process of its own (`bsweep.core.fresh_process`), for one that has failed
    under a limit is of no further use.
    """
    torch.set_num_threads(num_threads)
    job = worker.prepare(lone_config(config, rank), paths, Place())
    optim.set_learning_rate(job.optimizer, 0.0)
    job = replace(job, alive=SignOfLife(paths.alive(rank)))
    tail = torch.arange((local_batch + 1) // 2 * config.accumulation_steps)
    with memory.limited(mebibytes):
        # Its kernels stay beside those of full batches.
        step.train_step(job, tail, tail, 1, config.accumulation_steps)
        return step_seconds(job, local_batch, times)
