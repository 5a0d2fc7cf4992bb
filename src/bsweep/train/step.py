"""One training step of a worker, from its examples to the updated model.

A worker computes the gradient of its part of the batch in one or more passes (forward + backward).
`bsweep.train.graph_capture` may have captured these passes as a CUDA graph. After the passes, the
strategy updates the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bsweep.core.torch_private import private
from bsweep.data import plan
from bsweep.numerics.compiled import Compiled
from bsweep.numerics.constants import constant
from bsweep.numerics.undisturbed import undisturbed
from bsweep.strategies import InBackward, Staged, Strategy
from bsweep.train.job import Job


def train_step(
    job: Job, round_batch: Tensor, part: Tensor, epoch: int, num_passes: int = 1
) -> Tensor:
    """Run one training step of this worker: compute its gradient, then let the strategy update the
    model.

    Args:
        job: This worker's job.
        round_batch: The indices of the round's examples, of all workers. For most strategies, a
            round is one step.
        part: The indices of this worker's examples.
        epoch: The epoch's number, which seeds the random crops.
        num_passes: The number of passes in which the part is computed.

    Returns:
        The sum of losses, the number of correct answers and the number of labels of `part`, as a
        float64 tensor (3,) on the device.
    """
    crops = job.inputs.crops(epoch, job.config.seed)
    if job.noise:
        job.noise.before_passes(lambda: pass_on_halves(job, part, crops))
    graphs = None if job.noise and job.noise.needs_passes else job.graphs
    if graphs and (graph := graphs.of_step(part, len(round_batch), num_passes)):
        with job.phase("graph"):
            totals = graph.replay(part, crops)
    else:
        totals = compute_passes(job, round_batch, part, crops, num_passes)
    if job.noise:
        job.noise.before_exchange()
    with job.phase("exchange"):
        job.strategy.step()
    if job.noise:
        job.noise.after_step()
    return totals


def compute_passes(
    job: Job, round_batch: Tensor, part: Tensor, crops: Tensor, num_passes: int = 1
) -> Tensor:
    """Compute this worker's gradient by forward and backward passes, and write it to the gradient
    vector of `job`.

    Args:
        job: This worker's job.
        round_batch: The indices of the round's examples, of all workers. For most strategies, a
            round is one step.
        part: The indices of this worker's examples.
        crops: The epoch's `Inputs.crops`.
        num_passes: The number of passes in which the part is computed.

    Returns:
        The same sums as `train_step`.
    """
    parts = [plan.even_part(part, i, num_passes) for i in range(num_passes)]
    filled = [indices for indices in parts if len(indices)]
    made = parts if job.strategy.collective_forward else filled or parts[:1]
    num_labels = (
        job.strategy.loss_divisor(len(part), len(round_batch)) * job.inputs.labels_per_example
    )
    totals: Tensor | None = None
    job.vector.drop_gradients()
    with job.phase("backward"), job.slowdown.step(len(part)):
        # In an epoch's last batch a worker may have no example. It then computes one with weight
        # zero, because some strategies exchange within a pass.
        for number, indices in enumerate(made, 1):
            examples = indices if len(indices) else round_batch[:1]
            with job.phase("data"), job.autocast():
                inputs, targets = job.inputs.training(examples, crops)
            if isinstance(job.strategy, Staged):
                weight = bool(len(indices)) / num_labels
                score = _pass_through_stages(job, job.strategy, inputs, targets, weight)
                totals = score if totals is None else totals + score
                continue
            with _exchange_within(job.strategy, is_last=number == len(made)):
                with job.phase("forward"):
                    outputs = _outputs(job, job.compiled or job.training_model, inputs)
                    loss = job.objective.loss(outputs, targets)
                # To scale the loss itself would take an operation in either direction.
                factor = constant(bool(len(indices)) / num_labels, loss.dtype, loss.device)
                if len(made) > 1 or isinstance(job.strategy, InBackward):
                    # A parameter whose view is added to the loss takes the factor itself as its
                    # gradient, to which the next pass or an exchange writes.
                    factor = factor.clone()
                loss.backward(job.scaled(factor.view_as(loss)))
                if len(indices):  # workers may each have a part of the outputs
                    score = job.objective.score(loss, outputs, targets)
                    totals = score if totals is None else totals + score
            if job.noise:
                job.noise.after_pass(len(examples))
        job.vector.collect_gradients()
    if totals is None or not job.strategy.reports_sums:
        return torch.zeros(3, dtype=torch.float64, device=job.device)
    return totals


def _pass_through_stages(
    job: Job, strategy: Staged, inputs: Tensor, targets: Tensor, weight: float
) -> Tensor:
    """Compute one pass by the stages of this worker's replica, and return the sums of its examples
    as `train_step` does.

    Micro-batches have equal size. Where examples are too few for that, the first one fills them up,
    with weight zero.

    Args:
        job: This worker's job.
        strategy: Its strategy.
        inputs: The inputs of the pass.
        targets: Their targets.
        weight: The factor of the losses.
    """
    rows, number = torch.arange(len(targets)), strategy.num_microbatches
    parts = [plan.even_part(rows, i, number) for i in range(number)]
    size = max(map(len, parts))
    filled = torch.cat([F.pad(part, (0, size - len(part))) for part in parts])
    if len(filled) > len(rows):
        inputs, targets = (tensor[filled.to(tensor.device)] for tensor in (inputs, targets))
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    counts = iter(map(len, parts))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        count = next(counts)
        used = outputs[: count or 1], targets[: count or 1]
        loss = job.objective.loss(*used)
        if count and weight:
            totals.add_(job.objective.score(loss, *used))
        return loss * (weight if count else 0.0)

    with _batchnorm_fit_for(job.model, size):
        strategy.run_passes(inputs, targets, loss)
    return totals


def _outputs(job: Job, model: nn.Module | Compiled, inputs: Tensor) -> Any:
    """Return the model's outputs for `inputs`, computed in the run's precision."""
    with job.autocast(), _batchnorm_fit_for(job.model, len(inputs)):
        return model(inputs)


@contextmanager
def _batchnorm_fit_for(model: nn.Module, num_examples: int) -> Iterator[None]:
    """Make BatchNorm use its running statistics while the block runs, if the batch has one example.

    An epoch's last batch may be that small. Where feature maps are 1x1, one example has no
    statistics of its own.
    """
    if num_examples > 1:
        yield
        return
    norms = [m for m in model.modules() if isinstance(m, private("batchnorm")) and m.training]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()


@contextmanager
def _exchange_within(strategy: Strategy, *, is_last: bool) -> Iterator[None]:
    """Let the strategy exchange gradients during the pass in the block, if this is the last pass of
    its step (`is_last`) and the strategy can do so.

    Only strategies of the class `InBackward` exchange during a pass.
    """
    if is_last and isinstance(strategy, InBackward):
        strategy.before_last_pass()
    with strategy.passes() if isinstance(strategy, InBackward) else nullcontext():
        yield


def pass_on_halves(job: Job, part: Tensor, crops: Tensor) -> None:
    """Compute the gradients of the two halves of a lone worker's batch, and pass them to the
    gradient noise meter.

    The passes leave no trace in the model. The gradient of the whole batch is not used beside them,
    because with BatchNorm it is a gradient of another function than theirs.
    """
    assert job.noise, job.config.measures_noise
    job.vector.drop_gradients()
    with forgotten(job), job.phase("noise"), job.slowdown.step(len(part)):
        for half in (plan.even_part(part, i, 2) for i in range(2)):
            with job.autocast():
                inputs, targets = job.inputs.training(half, crops)
            loss = job.objective.loss(_outputs(job, job.model, inputs), targets)
            job.scaled(loss / (len(part) * job.inputs.labels_per_example)).backward()
            job.noise.after_pass(len(half))
    # Tensors get their views of the vector back: the replay of a graph writes its gradients there.
    job.vector.collect_gradients()


@contextmanager
def forgotten(job: Job) -> Iterator[None]:
    """Run the block in training mode, then undo its changes to the model's buffers, the loss scale
    and the random number generators.
    """
    job.training_model.train()
    with undisturbed(
        job.model, job.device, *(job.vector.scale.state.values() if job.vector.scale else ())
    ):
        yield
