"""The training job of one worker: its model, data, optimizer, strategy and all else that steps
use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep.batching import Policy
from bsweep.config.run import RunConfig
from bsweep.core.ranks import Place
from bsweep.data.dataset import Dataset
from bsweep.numerics.clock import Phase, Slowdown, untimed
from bsweep.numerics.compiled import Compiled
from bsweep.numerics.graphs import Graphs
from bsweep.numerics.objective import Objective
from bsweep.numerics.precision import autocast
from bsweep.numerics.vector import Vector
from bsweep.runlog.files import RunLog, RunPaths, SignOfLife
from bsweep.runlog.records import Record
from bsweep.strategies import Strategy
from bsweep.train.inputs import Inputs
from bsweep.train.noise_meter import NoiseMeter


@dataclass(frozen=True)
class Job:
    """The training job of one worker: the objects that its training loop and its steps use."""

    config: RunConfig
    paths: RunPaths
    place: Place
    device: torch.device
    precision: str
    dataset: Dataset
    inputs: Inputs
    model: nn.Module
    training_model: nn.Module  # the model itself, or the strategy's wrapper around it
    objective: Objective
    vector: Vector
    optimizer: Optimizer
    strategy: Strategy
    policy: Policy
    # takes the epochs done and the examples behind a step
    learning_rate: Callable[[float, float], float]
    slowdown: Slowdown
    alive: SignOfLife
    log: RunLog
    on_step: Callable[[], None]
    noise: NoiseMeter | None  # None if the run does not measure the gradient noise
    num_blocks: int | None = None  # of the whole model; None if a name of a block is wrong
    pieces: tuple[str, ...] | None = None  # of the whole model, by name; None if it has none
    # the equipment of each worker, by rank; see `bsweep.train.peers_check`
    peers: tuple[Mapping[str, Any], ...] = ()
    graphs: Graphs | None = None  # of the passes of steps
    compiled: Compiled | None = None  # the model, if torch compiles it
    phase: Phase = untimed  # times a named part of a step; see `bsweep.measure.profile_worker`

    def record(self, *records: Record) -> None:
        """Write records to the run log if this worker is the first one."""
        if self.place.rank == 0:
            for record in records:
                self.log.write(record)

    def heartbeat(self) -> None:
        self.alive.show()
        self.on_step()

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context manager for forward passes in the run's precision."""
        return autocast(self.precision, self.device)

    def compiling(self) -> AbstractContextManager[None]:
        """Return the context manager for warm-up steps: it compiles the model for the batch sizes
        of these steps if the run compiles its model.
        """
        return self.compiled.compiling() if self.compiled else nullcontext()

    def scaled(self, loss: Tensor) -> Tensor:
        """Return a loss, or the factor of a loss, times the loss scale of fp16; in other precisions
        return it unchanged.

        See `Vector.scale`. Without the scale, fp16 would round small gradients to zero.
        """
        return loss * self.vector.scale.factor if self.vector.scale else loss

    def sums(self, values: Tensor) -> list[float]:
        """Return the element-wise sum of a small 1-D tensor over all workers; all workers call this
        together.
        """
        return self.strategy.gather(values.to("cpu", torch.float64)).sum(dim=0).tolist()
