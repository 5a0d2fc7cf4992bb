"""Training in the process of the test, by one worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.core.ranks import World
from bsweep.runlog.files import RunPaths
from bsweep.train import worker
from bsweep.train.job import Job
from tests.support.running import compose


def set_up(folder: Path, *overrides: str) -> Job:
    """What a lone worker has before its first step."""
    with _alone(folder, *overrides) as config:
        return worker.set_up(config, RunPaths(folder), World())


def train(folder: Path, *overrides: str) -> Job:
    """Train a run to its end, as a lone worker."""
    with _alone(folder, *overrides) as config:
        return worker.train(config, RunPaths(folder), World())


@contextmanager
def _alone(folder: Path, *overrides: str) -> Iterator[RunConfig]:
    """Make the folder and the configuration of a run, and put the number of threads back."""
    folder.mkdir(exist_ok=True)
    threads = torch.get_num_threads()
    try:
        yield user_code.with_fingerprints(compose("launch=inline", "strategy=single", *overrides))
    finally:
        torch.set_num_threads(threads)
