"""The passes on the halves of a lone worker's batch, by which its gradient noise is measured."""

from __future__ import annotations

from torch import Tensor

from bsweep.data import plan
from bsweep.train.job import Job
from bsweep.train.noise_meter import NoiseMeter


def measure(job: Job, noise: NoiseMeter, examples: Tensor, crops: Tensor) -> None:
    """Compute the gradients of the two halves of a lone worker's batch, and show them to the
    gradient noise meter.

    The passes leave no trace in the model. The gradient of the whole batch is not used beside them,
    because with BatchNorm it is a gradient of another function than theirs.

    Args:
        job: This worker's job.
        noise: The meter.
        examples: The indices of the batch's examples.
        crops: The epoch's `Inputs.crops`.
    """
    job.vector.zero_gradients()
    num_labels = len(examples) * job.inputs.labels_per_example
    with job.restoring(), job.slowed(len(examples)):
        for half in (plan.even_part(examples, number, 2) for number in range(2)):
            with job.autocast():
                inputs, targets = job.inputs.training(half, crops)
            loss = job.objective.loss(job.outputs(inputs, job.model), targets)
            job.scaled(loss / num_labels).backward()
            noise.after_pass(len(half))
