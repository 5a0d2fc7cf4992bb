"""Makes whole steps before the first clock starts, and lets nothing remember them."""

from __future__ import annotations

from dataclasses import replace

import torch

from bsweep.data import plan
from bsweep.numerics.clock import Slowdown
from bsweep.train import step
from bsweep.train.job import Job


def make_steps(job: Job) -> None:
    """Compute steps of the two sizes that the configured batch leads to: its own and a tail's.

    Kernels are loaded and chosen, connections and buckets made. All workers call it together.

    Raises:
        ValueError: the model's outputs, or what it makes of them, are not as they should be.
    """
    checking = job.objective.checking(job.dataset.num_classes)
    job = replace(job, slowdown=Slowdown(1.0, job.device), objective=checking)
    shares = job.policy.of_batches(job.config.worker_batches)
    num_train, size = len(job.dataset.train_labels), plan.round_size(shares)
    with step.forgotten(job):
        # Where an epoch's last batch is as large as the others, DDP needs two of them to settle its
        # buckets.
        for number, num_examples in enumerate((size, num_train % size or size)):
            # cuDNN tries what is fastest for full batches alone, and remembers it: others may come
            # at any time.
            torch.backends.cudnn.benchmark = number == 0
            batch = job.inputs.first(num_examples)
            parts = plan.local_steps(batch, job.place.rank, shares)
            for part in {len(part): part for part in parts}.values():
                step.passes(job, batch, part, 0, shares[job.place.rank].num_passes)
            job.strategy.rehearse()
            job.heartbeat()
