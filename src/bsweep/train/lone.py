"""A worker without the others, whose steps are timed as those of a run."""

from __future__ import annotations

from dataclasses import replace

from bsweep.config.allocation import UniformConfig
from bsweep.config.run import RunConfig
from bsweep.config.strategies import SingleConfig
from bsweep.train import graph_capture, warm_up
from bsweep.train.job import Job


def config_of(config: RunConfig, rank: int) -> RunConfig:
    """Return a configuration for one worker alone, with the slowdown and memory limit of worker
    `rank`.
    """
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


def as_trained(job: Job) -> Job:
    """Choose the kernels of a lone worker's steps, and return its job with the CUDA graphs that a
    run of this batch would have.
    """
    warm_up.make_steps(job)
    return graph_capture.captured(job)[0]
