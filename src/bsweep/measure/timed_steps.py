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
from bsweep.core.ranks import Place
from bsweep.numerics.timing import StepClock
from bsweep.strategies.single import Single
from bsweep.train import graph_capture, step, warm_up
from bsweep.train.job import Job

NUM_STEPS, MOST_SECONDS = 20, 2.0  # the most timed steps, and the most seconds for all of them


def config_alone(config: RunConfig) -> RunConfig:
    """Return a configuration for one worker alone, without CUDA graphs where the run's exchanges
    within passes rule them out.
    """
    return replace(
        config,
        num_workers=1,
        graph=config.graph and not config.strategy.can.exchanges_in_passes,
        strategy=SingleConfig(name="single"),
        allocation=UniformConfig(
            name="uniform", devices=None, probe=None, local_batches=None, local_steps=None
        ),
    )


def alone(job: Job) -> Job:
    """Return a copy of this worker's training job in which the worker trains alone and exchanges
    nothing.
    """
    config = config_alone(job.config)
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
        graph_capture.capture(job)
    crops = job.inputs.crops(1, config.seed)
    examples = torch.arange(config.examples_per_step, device=job.dataset.train_labels.device)
    job.training_model.train()
    with job.compiling():
        step.train_step(job, examples, examples, crops, config.accumulation_steps)
    job.heartbeat()
    clock, started = StepClock(job.device, []), time.monotonic()
    for _ in range(times * NUM_STEPS):
        with clock.step():
            step.train_step(job, examples, examples, crops, config.accumulation_steps)
        job.heartbeat()
        if time.monotonic() - started > times * MOST_SECONDS:
            break
    seconds = statistics.median(clock.seconds())
    if job.graphs:
        job.graphs.drop()
    return seconds
