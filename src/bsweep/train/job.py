"""All that a worker needs to train: what each step, the loop and the probe work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep import runlog
from bsweep.batching import Policy
from bsweep.config import ImageConfig, RunConfig
from bsweep.core.ranks import Place
from bsweep.data import augment
from bsweep.data.dataset import Dataset
from bsweep.numerics.clock import Phase, Slowdown, untimed
from bsweep.numerics.graphs import Graph
from bsweep.numerics.objective import Objective
from bsweep.numerics.precision import AUTOCAST
from bsweep.numerics.vector import Vector
from bsweep.runlog import RunLog, RunPaths, SignOfLife
from bsweep.runlog.calibration_file import Numerics
from bsweep.strategies import Strategy
from bsweep.train.noise_meter import NoiseHook


@dataclass(frozen=True)
class Job:
    """All that steps and the loop need: what to train, on what, and this worker's place among the
    others.
    """

    config: RunConfig
    paths: RunPaths
    place: Place
    device: torch.device
    numerics: Numerics
    peers: tuple[
        Mapping[str, Any], ...
    ]  # what each worker computes on, by rank; see `bsweep.train.peers_check`
    dataset: Dataset
    model: nn.Module
    training_model: nn.Module  # the same, or what a strategy wraps around it
    objective: Objective
    vector: Vector
    optimizer: Optimizer
    strategy: Strategy
    policy: Policy
    learning_rate: Callable[
        [float, float], float
    ]  # of the epochs done and the examples behind a step
    slowdown: Slowdown
    alive: SignOfLife
    log: RunLog
    on_step: Callable[[], None]
    noise: NoiseHook  # a meter of the gradient's noise, where it is measured
    graph: Graph | None = None  # of the passes of full steps
    phase: Phase = untimed  # around what a step does, by name; see `bsweep.measure.profile_worker`

    @property
    def precision(self) -> str:
        return self.numerics.precision

    def record(self, *records: runlog.Record) -> None:
        """One worker writes: the first of those that still take part."""
        if self.place.rank == self.strategy.members[0]:
            for record in records:
                self.log.write(record)

    def heartbeat(self) -> None:
        self.alive.show()
        self.on_step()

    def first_examples(self, number: int) -> Tensor:
        """Return the numbers of so many training examples, or of all if there are fewer."""
        labels = self.dataset.train_labels
        return torch.arange(min(number, len(labels)), device=labels.device)

    def inputs(self, examples: Tensor) -> Tensor:
        """Inputs of the model: images normalised, in the model's memory format; tokens as int64;
        others as they are.
        """
        return model_inputs(
            self.dataset,
            examples,
            self.vector.parameters.dtype,
            memory_format(self.numerics.channels_last),
        )

    def training_examples(self, indices: Tensor, crops: int | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs of the model and its targets: images cropped and flipped at random, by
        `augment.crop_stream`.
        """
        examples, labels, indices = self.dataset.train.take(indices)
        if self.dataset.mean is not None and isinstance(self.config.data, ImageConfig):
            examples = augment.crop_and_flip(
                examples,
                indices,
                stream=crops,
                padding=self.config.data.crop_padding,
                flip=self.config.data.flip,
            )
        return self.inputs(examples), self.targets(labels)

    def targets(self, labels: Tensor) -> Tensor:
        """What the model is to answer: classes and tokens as int64, other numbers in the model's
        precision.
        """
        return model_targets(labels, self.vector.parameters.dtype)

    @property
    def labels_per_example(self) -> int:
        """Losses that an example counts for: of the image, of each token, of each number."""
        return self.dataset.train_labels[0].numel()

    def autocast(self) -> AbstractContextManager[None]:
        return autocast(self.precision, self.device)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss that gradients are of, which fp16 would round to zero; see `Vector.scale`."""
        return loss * self.vector.scale.factor if self.vector.scale else loss

    def sums(self, values: Tensor) -> list[float]:
        """Sums over workers of a few numbers."""
        return self.strategy.gather(values.to("cpu", torch.float64)).sum(dim=0).tolist()


def model_inputs(
    dataset: Dataset, examples: Tensor, dtype: torch.dtype, layout: torch.memory_format
) -> Tensor:
    if examples.is_floating_point():
        return examples.to(dtype)
    if dataset.mean is None or dataset.std is None:
        return examples.long()
    return augment.normalize(examples, dataset.mean, dataset.std, dtype=dtype, memory_format=layout)


def model_targets(labels: Tensor, dtype: torch.dtype) -> Tensor:
    return labels.to(dtype) if labels.is_floating_point() else labels.long()


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    dtype = AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()


def memory_format(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format
