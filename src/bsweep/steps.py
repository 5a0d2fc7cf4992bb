"""One training step of a worker: forward and backward passes on its examples, exchange, update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from bsweep.data import augment, plan
from bsweep.job import Job
from bsweep.strategies import InBackward


def warm_up(job: Job) -> None:
    """A forward and a backward pass that nothing remembers: kernels are loaded and chosen before the clock starts."""
    local_batch = job.config.local_batches[job.place.rank]
    indices = torch.arange(min(local_batch, len(job.dataset.train_labels)), device=job.device)
    statistics = [buffer.clone() for buffer in job.model.buffers()]
    job.model.train()
    with job.autocast(), _batchnorm_fit_for(job.model, len(indices)):
        examples, labels, _ = job.dataset.train.take(indices)
        outputs = job.model(job.inputs(examples))
    targets = job.targets(labels)
    job.objective.check(outputs, targets, job.dataset.num_classes)
    job.objective.loss(outputs, targets).backward()
    job.vector.collect_gradients()
    for buffer, before in zip(job.model.buffers(), statistics, strict=True):
        buffer.copy_(before)


def train_step(job: Job, batch: Tensor, part: Tensor, epoch: int, num_passes: int = 1) -> Tensor:
    """One optimizer step of this worker on the examples `part`, of all workers' `batch`.

    Returns:
        Sum of losses, correct answers and labels of its part, float64 (3,) on the device.
    """
    strategy = job.strategy
    parts = (plan.worker_part(part, i, num_passes) for i in range(num_passes))
    passes = [indices for indices in parts if len(indices)]
    crops = augment.crop_stream(job.config.seed, epoch)
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    job.vector.drop_gradients()
    with job.slowdown.step(len(part)):
        # A worker that has no example of a tail computes one that counts nothing: some exchanges travel within a pass.
        for number, indices in enumerate(passes or [batch[:1]], 1):
            inputs, targets = job.training_examples(indices, crops)
            if isinstance(strategy, InBackward) and number == max(1, len(passes)):
                strategy.before_last_pass()
            with strategy.passes() if isinstance(strategy, InBackward) else nullcontext():
                with job.autocast(), _batchnorm_fit_for(job.model, len(indices)):
                    outputs = job.training_model(inputs)
                loss = job.objective.loss(outputs, targets)
                num_labels = strategy.loss_divisor(len(part), len(batch)) * job.labels_per_example
                (loss * (bool(passes) / num_labels)).backward()
            if passes:
                totals += job.objective.score(loss, outputs, targets)
        job.vector.collect_gradients()
    strategy.step()
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
