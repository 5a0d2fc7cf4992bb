"""The warm-up of a worker: steps before the timed training, which leave the model as it was."""

from __future__ import annotations

import io
from dataclasses import replace

import torch

from bsweep.config import user_code
from bsweep.data import plan
from bsweep.train import step
from bsweep.train.job import Job


def make_steps(job: Job) -> None:
    """Make two warm-up steps, one on a full round's examples and one on as many as an epoch's last
    round has.

    This leaves the model as it was. It loads, chooses and compiles kernels, opens connections and
    lays out DDP's buckets. All workers call it together.

    Raises:
        ValueError: If the model's outputs, or the results of its `loss` or `score`, do not have the
            expected form.
    """
    checking = job.objective.checking(job.dataset.num_classes)
    job = replace(job, slowdown=None, objective=checking)
    shares = job.policy.of_batches(job.config.worker_batches)
    num_train, size = len(job.dataset.train), plan.round_size(shares)
    saved = io.BytesIO()  # on the host, as in a checkpoint
    torch.save((job.strategy.state(), job.strategy.own_state()), saved)
    with job.restoring(), job.compiling():
        # DDP needs two steps to settle its buckets, even if an epoch's last batch is a full one.
        for number, num_examples in enumerate((size, num_train % size or size)):
            # cuDNN searches for the fastest kernels for full batches only, and keeps the result.
            # Other sizes may come at any time and would each cost a search.
            torch.backends.cudnn.benchmark = number == 0
            batch = job.inputs.first(num_examples)
            steps = plan.local_steps(batch, job.strategy.replica, shares)
            crops = job.inputs.crops(0, job.config.seed)
            for examples in {len(indices): indices for indices in steps}.values():
                step.compute_passes(
                    job, batch, examples, crops, shares[job.strategy.replica].num_passes
                )
            # Not around the passes: a copy of the parameters beside them might not fit.
            with job.restoring(job.optimizer):
                job.strategy.rehearse()
            job.heartbeat.beat()
        if {"optimizer", "strategy"} & user_code.cards(job.config).keys():
            _refuse_dropped_gradients(job)
    saved.seek(0)
    state, own_state = torch.load(saved, map_location="cpu", weights_only=True)
    job.strategy.load_state(state)
    job.strategy.load_own_state(own_state)


def _refuse_dropped_gradients(job: Job) -> None:
    """Raise ValueError if a step of the user's own strategy or optimizer drops gradients, which
    passes would then not add up in the vector.
    """
    parameters = [p for group in job.optimizer.param_groups for p in group["params"]]
    if any(tensor.grad is None for tensor in (*job.vector.tensors, *parameters)):
        raise ValueError(
            "the strategy or the optimizer sets gradients to None, as zero_grad() does, but bsweep "
            "sets them to zero itself before each step: leave zero_grad() out."
        )
