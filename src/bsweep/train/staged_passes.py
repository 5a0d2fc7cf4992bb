"""The passes of a step whose model is divided into stages on several workers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.data import plan
from bsweep.strategies import Staged
from bsweep.train.job import Job, batchnorm_fit_for


def compute(job: Job, strategy: Staged, inputs: Tensor, targets: Tensor, weight: float) -> Tensor:
    """Compute one pass by the stages of this worker's replica.

    Micro-batches have equal size. Where examples are too few for that, the first one fills them up,
    with weight zero.

    Args:
        job: This worker's job.
        strategy: Its strategy.
        inputs: The inputs of the pass (B, ...).
        targets: Their targets (B,) or (B, ...).
        weight: The factor of the losses.

    Returns:
        The sum of losses, the number of correct answers and the number of labels, as a float64
        tensor (3,) on the device; zeros on workers without the last stage.
    """
    rows, number = torch.arange(len(targets)), strategy.num_microbatches
    microbatches = [plan.even_part(rows, i, number) for i in range(number)]
    size = max(map(len, microbatches))
    filled = torch.cat([F.pad(used, (0, size - len(used))) for used in microbatches])
    if len(filled) > len(rows):
        inputs, targets = (tensor[filled.to(tensor.device)] for tensor in (inputs, targets))
    sums = torch.zeros(3, dtype=torch.float64, device=job.device)
    counts = iter(map(len, microbatches))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        count = next(counts)
        used = outputs[: count or 1], targets[: count or 1]
        loss = job.objective.loss(*used)
        if count and weight:
            sums.add_(job.objective.score(loss, *used))
        return loss * (weight if count else 0.0)

    with batchnorm_fit_for(job.model, size):
        strategy.run_passes(inputs, targets, loss)
    return sums
