"""Which worker am I? Read from what the launcher put into the environment."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A worker's number among all workers and among those of its host."""

    rank: int = 0
    num_workers: int = 1
    local_rank: int = 0
    local_workers: int = 1

    @classmethod
    def from_environment(cls) -> Place:
        """The place that horovodrun gave to this process; a lone worker's where there is none."""
        env = os.environ
        return cls(
            rank=int(env.get("HOROVOD_RANK", 0)),
            num_workers=int(env.get("HOROVOD_SIZE", 1)),
            local_rank=int(env.get("HOROVOD_LOCAL_RANK", 0)),
            local_workers=int(env.get("HOROVOD_LOCAL_SIZE", 1)),
        )


def inside_horovodrun() -> bool:
    return "HOROVOD_RANK" in os.environ


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_gpus() -> int:
    """GPUs that this process may use; without importing torch where there is no driver."""
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidia0").exists():
        return 0
    import torch

    return torch.cuda.device_count()
