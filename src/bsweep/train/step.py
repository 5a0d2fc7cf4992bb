"""One training step of a worker, from its examples to the updated model; it reads from top to
bottom.

A worker computes the gradient of its part of the batch in one or more passes, forward and backward;
`bsweep.train.graph_capture` may have made one launch of them. Then the strategy exchanges gradients
and updates the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bsweep.data import augment, plan
from bsweep.numerics.undisturbed import undisturbed
from bsweep.strategies import InBackward, Strategy
from bsweep.train.job import Job


def train_step(job: Job, batch: Tensor, part: Tensor, epoch: int, num_passes: int = 1) -> Tensor:
    """Make one optimizer step of this worker on the examples `part`, of all workers' `batch`.

    Returns:
        Sum of losses, correct answers and labels of its part, float64 (3,) on the device.
    """
    crops = augment.crop_stream(job.config.seed, epoch)
    job.noise.before_passes(lambda: _pass_on_halves(job, part, crops))
    graph = None if job.noise.needs_passes else job.graph
    if graph and graph.fits(part, len(batch), num_passes):
        with job.phase("graph"):
            totals = graph.passes(part, crops)
    else:
        totals = passes(job, batch, part, crops, num_passes)
    job.noise.before_exchange()
    with job.phase("exchange"):
        job.strategy.step()
    job.noise.after_step()
    return totals


def passes(
    job: Job, batch: Tensor, part: Tensor, crops: int | Tensor, num_passes: int = 1
) -> Tensor:
    """Leave this worker's gradient in the vector, by forward and backward passes.

    Args:
        batch: The examples of all workers, by their numbers.
        part: Those of this worker.
        crops: The epoch's `augment.crop_stream`.
        num_passes: By how many passes the part is shared.

    Returns:
        As `train_step`.
    """
    parts = (plan.worker_part(part, i, num_passes) for i in range(num_passes))
    filled = [indices for indices in parts if len(indices)]
    num_labels = job.strategy.loss_divisor(len(part), len(batch)) * job.inputs.labels_per_example
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    job.vector.drop_gradients()
    with job.phase("backward"), job.slowdown.step(len(part)):
        # A worker that has no example of a tail computes one that counts nothing: some exchanges
        # travel within a pass.
        for number, indices in enumerate(filled or [batch[:1]], 1):
            with job.phase("data"):
                inputs, targets = job.inputs.training(indices, crops)
            with _exchange_within(job.strategy, is_last=number == max(1, len(filled))):
                with job.phase("forward"):
                    outputs = _outputs(job, job.training_model, inputs)
                    loss = job.objective.loss(outputs, targets)
                job.scaled(loss * (bool(filled) / num_labels)).backward()
            job.noise.after_pass(len(indices))
            if filled:
                totals += job.objective.score(loss, outputs, targets)
        job.vector.collect_gradients()
    return totals


def _outputs(job: Job, model: nn.Module, inputs: Tensor) -> Any:
    """Return what the model makes of some examples, in the run's precision."""
    with job.autocast(), _batchnorm_fit_for(job.model, len(inputs)):
        return model(inputs)


@contextmanager
def _batchnorm_fit_for(model: nn.Module, num_examples: int) -> Iterator[None]:
    """Use BatchNorm's running statistics for a lone example, as in the tail of an epoch: where maps
    are 1x1 it has none of its own.
    """
    if num_examples > 1:
        yield
        return
    norms = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training
    ]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()


@contextmanager
def _exchange_within(strategy: Strategy, *, is_last: bool) -> Iterator[None]:
    """Let a strategy that exchanges within backward passes do so in this one, the last of its step
    or an earlier one.
    """
    if is_last and isinstance(strategy, InBackward):
        strategy.before_last_pass()
    with strategy.passes() if isinstance(strategy, InBackward) else nullcontext():
        yield


def _pass_on_halves(job: Job, part: Tensor, crops: int) -> None:
    """Show the gradients of the two halves of a lone worker's examples to who measures their noise;
    nothing remembers the passes.

    The batch's own gradient is not used beside them: BatchNorm makes it another function than
    theirs.
    """
    job.vector.drop_gradients()
    with forgotten(job), job.phase("noise"), job.slowdown.step(len(part)):
        for half in (plan.worker_part(part, i, 2) for i in range(2)):
            inputs, targets = job.inputs.training(half, crops)
            loss = job.objective.loss(_outputs(job, job.model, inputs), targets)
            job.scaled(loss / (len(part) * job.inputs.labels_per_example)).backward()
            job.noise.after_pass(len(half))
    # back into their places, where the replay of a graph leaves its own
    job.vector.collect_gradients()


@contextmanager
def forgotten(job: Job) -> Iterator[None]:
    """Train, and then have the model's statistics, a scale of losses and the random numbers as they
    were.
    """
    job.training_model.train()
    with undisturbed(
        job.model, job.device, *(job.vector.scale.state.values() if job.vector.scale else ())
    ):
        yield
