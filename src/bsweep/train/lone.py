"""A worker without the others, whose steps are timed as those of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bsweep import batching
from bsweep.config.allocation import UniformConfig
from bsweep.config.batching import FIXED
from bsweep.config.run import RunConfig
from bsweep.config.strategies import SingleConfig
from bsweep.train import graph_capture, warm_up
from bsweep.train.job import Job


def config_of(config: RunConfig, rank: int) -> RunConfig:
    """Return a configuration for one worker alone, with the slowdown and memory limit of worker
    `rank`, and without CUDA graphs where the run's exchanges within passes rule them out.
    """
    slowdown, limits = config.launch.slowdown, config.launch.memory_limit_mb
    is_without = config.strategy.can.exchanges_in_passes and config.graph != "step"
    return replace(
        config,
        num_workers=1,
        graph=False if is_without else config.graph,
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


def at_batch(job: Job, local_batch: int, **changes: Any) -> Job:
    """Return the job of a lone worker for steps of one batch size, none of which is compiled yet.

    Args:
        job: The job of a lone worker.
        local_batch: The examples per pass.
        changes: Further changes of the configuration, by key.
    """
    config = replace(
        job.config, local_batch=local_batch, global_batch=None, batching=FIXED, **changes
    )
    job = replace(job, config=config, policy=batching.build(config))
    if job.compiled:
        job.compiled.forget()
    return job


def as_trained(job: Job) -> Job:
    """Choose or compile the kernels of a lone worker's steps, and return its job with the CUDA
    graphs that a run of this batch would have.
    """
    warm_up.make_steps(job)
    return graph_capture.captured(job)[0]
