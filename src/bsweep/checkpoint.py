"""A run that stopped before its time, and goes on later: where the loop was, and what each worker knew.

Where it was is said in examples, for batches may have changed; steps are counted for the numbers of records alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bsweep.job import Job
from bsweep.strategies import Resumable


@dataclass
class Cursor:
    """Where this worker is in its run: what is to be known of the loop."""

    totals: Tensor  # of the epoch: sums of losses, correct answers and examples of this worker, float64 (3,)
    recent: Tensor  # the same since the last log record
    epoch: int = 1
    position: int = 0  # of the epoch's examples, in their order: those before it are trained
    num_steps: int = 0  # of the run
    global_batch: int = 0  # of the last step
    step_seconds: list[float] = field(default_factory=list)  # of the epoch

    @classmethod
    def of(cls, device: torch.device) -> Cursor:
        totals = torch.zeros(3, dtype=torch.float64, device=device)
        return cls(totals, totals.clone())

    def begin_epoch(self) -> None:
        self.totals.zero_()
        self.recent.zero_()
        self.epoch, self.position, self.step_seconds = self.epoch + 1, 0, []


def save(job: Job, cursor: Cursor) -> None:
    """All workers that are left call this together; the run can be taken up once the first of them has returned."""
    paths, strategy, scale = job.paths, job.strategy, job.vector.scale
    assert isinstance(strategy, Resumable), strategy
    own = {
        "optimizer": job.optimizer.state_dict(),
        "scale": scale.state if scale else {},
        "buffers": [buffer.cpu() for buffer in job.model.buffers()],
        "random": torch.get_rng_state(),
        "random_on_gpu": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "totals": cursor.totals + cursor.recent,
        "at": (cursor.epoch, cursor.position),
    }
    _write(own, paths.rank_checkpoint(strategy.rank))
    strategy.gather(torch.zeros(1, dtype=torch.float64))  # all have written theirs
    if strategy.rank == strategy.members[0]:
        keys = ("epoch", "position", "num_steps", "global_batch", "step_seconds")
        shared = {key: getattr(cursor, key) for key in keys}
        _write({**shared, "strategy": strategy.state(), "policy": job.policy.state()}, paths.checkpoint)


def load(job: Job) -> Cursor | None:
    """Where to go on, everything being put back; None where nothing was saved.

    A worker that was lost begins with a fresh optimizer, and its sums of the epoch are lost. How many steps were taken
    and how long they took is for all what the first that was left had counted. A codec's memory begins empty.
    """
    paths, strategy, policy, scale = job.paths, job.strategy, job.policy, job.vector.scale
    if not paths.checkpoint.exists():
        return None
    assert isinstance(strategy, Resumable), f"{paths.checkpoint} is of another strategy"
    cursor = Cursor.of(job.device)
    shared = torch.load(paths.checkpoint, map_location=cursor.totals.device)
    _bring_up_to_date(shared, policy.config.examples_per_step)
    strategy.load_state(shared.pop("strategy"))
    policy.load_state(shared.pop("policy"))
    for key, value in shared.items():
        setattr(cursor, key, value)
    path = paths.rank_checkpoint(strategy.rank)
    own = torch.load(path, map_location=cursor.totals.device) if path.exists() else None
    if own and own["at"] == (cursor.epoch, cursor.position):  # else it was left by an earlier stop
        job.optimizer.load_state_dict(own["optimizer"])
        if scale:
            for name, value in scale.state.items():
                value.copy_(own["scale"][name])
        _put_back(own["buffers"], list(job.model.buffers()))
        torch.set_rng_state(own["random"].cpu())
        if own["random_on_gpu"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(own["random_on_gpu"].cpu())
        cursor.totals.copy_(own["totals"])
    return cursor


def _put_back(saved: list[Tensor], buffers: list[Tensor]) -> None:
    if len(saved) > len(buffers):  # of a version in which BatchNorm still counted its batches
        saved = [tensor for tensor in saved if tensor.dim() or tensor.dtype != torch.int64]
    for buffer, tensor in zip(buffers, saved, strict=True):
        buffer.copy_(tensor)


def _bring_up_to_date(shared: dict[str, Any], global_batch: int) -> None:
    """Have what was saved before there were policies, when DiLoCo followed speeds itself, say what it says now."""
    if "policy" in shared:
        return
    num_steps = shared["strategy"].pop("num_steps")
    _, meter = shared["strategy"]["of_epoch"]
    meter["exchange_steps"] = meter.pop("num_steps")
    shared["policy"] = {"num_steps": num_steps, "least_steps": min(filter(None, num_steps))}
    shared["global_batch"] = global_batch


def _write(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)
