"""One training step of a worker: forward and backward passes on its examples, exchange, update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from bsweep.clock import Slowdown
from bsweep.data import augment, plan
from bsweep.job import Job
from bsweep.strategies import InBackward


def warm_up(job: Job) -> None:
    """Whole steps that nothing remembers, at the two sizes that the configured batch leads to: its own and a tail's.

    Kernels are loaded and chosen, connections and buckets made, before the clock starts. All workers call it together.

    Raises:
        ValueError: the model's outputs, or what it makes of them, are not as they should be.
    """
    job = replace(job, slowdown=Slowdown(1.0, job.device))
    shares = job.policy.of_batches(job.config.worker_batches)
    num_train, size = len(job.dataset.train_labels), plan.round_size(shares)
    with forgotten(job):
        # Where an epoch's last batch is as large as the others, DDP needs two of them to settle its buckets.
        for number, num_examples in enumerate((size, num_train % size or size)):
            # cuDNN tries what is fastest for full batches alone, and remembers it: others may come at any time.
            torch.backends.cudnn.benchmark = number == 0
            batch = examples(job, num_examples)
            parts = plan.local_steps(batch, job.place.rank, shares)
            for part in {len(part): part for part in parts}.values():
                passes(job, batch, part, 0, shares[job.place.rank].num_passes, check=True)
            job.strategy.rehearse()
            job.heartbeat()


def examples(job: Job, number: int) -> Tensor:
    return torch.arange(min(number, len(job.dataset.train_labels)), device=job.dataset.train_labels.device)


@contextmanager
def forgotten(job: Job) -> Iterator[None]:
    """Train, and have the model's statistics, a scale of losses and the random numbers as they were."""
    kept = [*job.model.buffers(), *(job.vector.scale.state.values() if job.vector.scale else ())]
    values = [tensor.clone() for tensor in kept]
    job.training_model.train()
    with torch.random.fork_rng([job.device] if job.device.type == "cuda" else []):
        yield
    for tensor, value in zip(kept, values, strict=True):
        tensor.copy_(value)


def train_step(job: Job, batch: Tensor, part: Tensor, epoch: int, num_passes: int = 1) -> Tensor:
    """One optimizer step of this worker on the examples `part`, of all workers' `batch`.

    Returns:
        Sum of losses, correct answers and labels of its part, float64 (3,) on the device.
    """
    crops = augment.crop_stream(job.config.seed, epoch)
    totals = passes(job, batch, part, crops, num_passes)
    job.strategy.step()
    return totals


def passes(
    job: Job, batch: Tensor, part: Tensor, crops: int | Tensor, num_passes: int = 1, *, check: bool = False
) -> Tensor:
    """A step's forward and backward passes, which leave this worker's gradient in the vector; see `train_step`.

    `crops` is the epoch's `augment.crop_stream`; `check` says whether to look at what the model returns, and wait.
    """
    strategy = job.strategy
    parts = (plan.worker_part(part, i, num_passes) for i in range(num_passes))
    filled = [indices for indices in parts if len(indices)]
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    job.vector.drop_gradients()
    with job.slowdown.step(len(part)):
        # A worker that has no example of a tail computes one that counts nothing: some exchanges travel within a pass.
        for number, indices in enumerate(filled or [batch[:1]], 1):
            inputs, targets = job.training_examples(indices, crops)
            if isinstance(strategy, InBackward) and number == max(1, len(filled)):
                strategy.before_last_pass()
            with strategy.passes() if isinstance(strategy, InBackward) else nullcontext():
                with job.autocast(), _batchnorm_fit_for(job.model, len(indices)):
                    outputs = job.training_model(inputs)
                if check:
                    job.objective.check(outputs, targets, job.dataset.num_classes)
                loss = job.objective.loss(outputs, targets)
                num_labels = strategy.loss_divisor(len(part), len(batch)) * job.labels_per_example
                job.scaled(loss * (bool(filled) / num_labels)).backward()
            if filled:
                totals += job.objective.score(loss, outputs, targets)
        job.vector.collect_gradients()
    return totals


@contextmanager
def _batchnorm_fit_for(model: nn.Module, num_examples: int) -> Iterator[None]:
    """A lone example, in the tail of an epoch, has no batch statistics where maps are 1x1: use the running ones."""
    if num_examples > 1:
        yield
        return
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    for norm in norms:
        norm.eval()
    yield
    for norm in norms:
        norm.train()
