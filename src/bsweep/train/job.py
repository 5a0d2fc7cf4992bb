"""The training job of one worker: its model, data, optimizer, strategy and all else that steps
use.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep.batching import Policy
from bsweep.config.run import RunConfig
from bsweep.core.ranks import World
from bsweep.data.dataset import Dataset
from bsweep.data.inputs import Inputs
from bsweep.numerics.compiled import Compiled
from bsweep.numerics.graphs import Graphs
from bsweep.numerics.objective import Objective
from bsweep.numerics.precision import autocast
from bsweep.numerics.restoring import restoring
from bsweep.numerics.vector import Vector
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.heartbeat import Heartbeat
from bsweep.runlog.records import Record
from bsweep.strategies import Strategy
from bsweep.train.noise_meter import NoiseMeter
from bsweep.train.slowdown import Slowdown

Phase = Callable[[str], AbstractContextManager[object]]
"""A function that takes the name of a part of a step, and returns a context manager that times it.
"""


@dataclass
class Job:
    """The training job of one worker: the objects that its training loop and its steps use."""

    config: RunConfig
    paths: RunPaths
    world: World
    device: torch.device
    precision: str
    inputs: Inputs
    model: nn.Module
    training_model: nn.Module  # the model itself, or the strategy's wrapper around it
    objective: Objective
    vector: Vector
    optimizer: Optimizer
    strategy: Strategy
    policy: Policy
    log: RunLog
    heartbeat: Heartbeat
    facts: dict[str, Any]  # fields of the start record that are known since the set-up
    # Each of these is None where the run does not ask for it.
    noise: NoiseMeter | None = None  # measures the gradient noise
    slowdown: Slowdown | None = None
    compiled: Compiled | None = None  # the model, compiled by torch
    graphs: Graphs | None = None  # of the passes of steps
    phase: Phase = nullcontext  # times the part of a step with this name

    @property
    def dataset(self) -> Dataset:
        return self.inputs.dataset

    def record(self, *records: Record) -> None:
        """Write records to the run log if this worker is the first one."""
        if self.world.rank == 0:
            for record in records:
                self.log.write(record)

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context manager for forward passes in the run's precision."""
        return autocast(self.precision, self.device)

    def restoring(self, optimizer: Optimizer | None = None) -> AbstractContextManager[None]:
        """Return the context manager for trial passes in training mode, which leave no trace in the
        model; with `optimizer`, trial steps leave none in its parameters and its state.
        """
        self.training_model.train()
        tensors = self.vector.scale.state.values() if self.vector.scale else ()
        return restoring(self.model, self.device, tensors, optimizer)

    def compiling(self) -> AbstractContextManager[None]:
        """Return the context manager for warm-up steps: it compiles the model for the batch sizes
        of these steps if the run compiles its model.
        """
        return self.compiled.compiling() if self.compiled else nullcontext()

    def sums(self, values: Tensor) -> list[float]:
        """Return the element-wise sum of a small 1-D tensor over all workers; all workers call this
        together.
        """
        return self.strategy.gather(values.to("cpu", torch.float64)).sum(dim=0).tolist()
