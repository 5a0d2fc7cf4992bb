"""The timing of a worker's steps at one batch size without other workers, for `bsweep probe`."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from bsweep import batching
from bsweep.config.allocation import UniformConfig
from bsweep.config.batching import FIXED
from bsweep.config.run import RunConfig
from bsweep.config.strategies import SingleConfig
from bsweep.core import memory
from bsweep.core.ranks import Place
from bsweep.numerics import optim
from bsweep.numerics.clock import StepClock
from bsweep.runlog.files import RunPaths, SignOfLife
from bsweep.strategies.single import Single
from bsweep.train import graph_capture, step, warm_up, worker
from bsweep.train.job import Job

NUM_STEPS, MOST_SECONDS = 20, 2.0  # the most timed steps, and the most seconds for all of them


def config_alone(config: RunConfig, rank: int) -> RunConfig:
    """Return a configuration for one worker alone, with the slowdown and memory limit of worker
    `rank`, and without CUDA graphs where the run's exchanges within passes rule them out.
    """
    slowdown, limits = config.launch.slowdown, config.launch.memory_limit_mb
    return replace(
        config,
        num_workers=1,
        graph=config.graph and not config.strategy.can.exchanges_in_passes,
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
    """Return a copy of this worker's training job in which the worker trains alone and exchanges
    nothing.
    """
    config = config_alone(job.config, job.place.rank)
    strategy = Single(config, config.strategy, Place(), job.paths)
    strategy.prepare(job.vector, job.optimizer)
    return replace(job, config=config, place=Place(), strategy=strategy, training_model=job.model)


def step_seconds(job: Job, local_batch: int, times: int) -> float:
    """Time training steps of a lone worker at one batch size, and return the median seconds per
    step.

    A first step is not timed; if the run compiles its model, it is compiled before that. On a GPU
    the steps have the CUDA graphs that a run of this batch would have.

    Args:
        job: The job of a lone worker.
        local_batch: The examples per pass.
        times: The factor on `NUM_STEPS` and `MOST_SECONDS`.
    """
    config = replace(job.config, local_batch=local_batch, global_batch=None, batching=FIXED)
    job = replace(job, config=config, policy=batching.build(config))
    if job.compiled:
        job.compiled.forget()
    if job.device.type == "cuda":
        warm_up.make_steps(job)
        job = graph_capture.captured(job)[0]
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
    job = worker.set_up(config_alone(config, rank), paths, Place())
    optim.set_learning_rate(job.optimizer, 0.0)
    job = replace(job, alive=SignOfLife(paths.alive(rank)))
    tail = torch.arange((local_batch + 1) // 2 * config.accumulation_steps)
    with memory.limited(mebibytes):
        # The kernels for an epoch's smaller last batch stay in memory besides those of full ones.
        step.train_step(job, tail, tail, 1, config.accumulation_steps)
        return step_seconds(job, local_batch, times)
