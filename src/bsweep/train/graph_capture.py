"""The capture of a training step's passes as a CUDA graph, if every worker can capture them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from bsweep.core import memory
from bsweep.data import plan
from bsweep.numerics.graphs import Graph
from bsweep.runlog.records import Event
from bsweep.strategies import InBackward
from bsweep.train import step
from bsweep.train.job import Job

# The largest relative difference of gradients. Kernels that add in varying order differ by less,
# even in bf16.
_TOLERANCE = 0.1


def do_nothing(reason: str) -> None:
    """Do nothing; this is the default function to call if the capture of a CUDA graph breaks
    off.
    """


def captured(
    job: Job, on_broken_capture: Callable[[str], object] = do_nothing
) -> tuple[Job, list[Event]]:
    """Return this worker's training job, with a CUDA graph unless `graph=false` or a worker cannot
    capture one, and a list of warnings to record.

    The graph holds the passes of full steps, but not those of an epoch's smaller last step. All
    workers call this together and return together, because some take longer to capture than others.

    Args:
        job: This worker's job.
        on_broken_capture: Called with the reason if this worker's capture breaks off. torch 2.13
            then keeps the memory that the capture had allocated for as long as the process lives.

    Raises:
        ValueError: If `graph=true` is configured and a worker cannot have a graph.
    """
    if not job.config.graph:
        return job, []
    graph, reason, broke_off = None, no_graph(job), False
    if not reason:
        try:
            with step.forgotten(job):
                graph = _of_full_steps(job)
        except RuntimeError as error:
            first, *_ = str(error).splitlines() or [type(error).__name__]
            reason, broke_off = f"the passes cannot be captured: {first}", True
            on_broken_capture(reason)
    every = job.strategy.gather_json({"reason": reason, "broke_off": broke_off})
    reasons = [
        (one["broke_off"], rank, one["reason"])
        for rank, one in zip(job.strategy.members, every, strict=True)
    ]
    if not any(reason for _, _, reason in reasons):
        return replace(job, graph=graph), []
    # Either all workers use a graph or none does. The record speaks for all workers, and the others
    # would wait at each step for a worker without a graph.
    del graph
    memory.give_back_garbage()
    broke_off, rank, reason = max((one for one in reasons if one[-1]), key=itemgetter(0))
    if len(every) > 1:
        reason = f"rank {rank}: {reason}"
    if job.config.graph is True:
        raise ValueError(f"graph=true, but {reason}: leave graph out, or use graph=false.")
    message = (
        "no CUDA graph is used: the host launches the kernels of full steps one by one "
        f"({reason}); graph=false saves the memory of the attempt"
    )
    return job, [Event(event="warning", message=message)] if broke_off else []


def no_graph(job: Job) -> str:
    """Return the reason why it is useless to try to capture this worker's passes as a CUDA graph;
    return "" if there is none.
    """
    in_passes = job.config.strategy.can.exchanges_in_passes
    if job.device.type != "cuda":
        return "there is no GPU"
    if job.slowdown.factor != 1:
        return "launch.slowdown stretches the passes"
    if job.dataset.train.streams:
        return "the examples are streamed to the GPU (data.device)"
    if isinstance(job.strategy, InBackward) if in_passes is None else in_passes:
        return f"strategy={job.config.strategy.name} exchanges within the backward pass"
    return ""


def _of_full_steps(job: Job) -> Graph:
    """Capture the passes of a full step as a CUDA graph, check the graph's gradients, and return
    the graph. The check compares these gradients with those of the passes without a graph.

    A full step is not the smaller last step of an epoch.

    Raises:
        RuntimeError: If the passes cannot be captured, or the graph gives other gradients.
    """
    shares = job.policy.of_batches(job.config.worker_batches)
    batch = job.inputs.first(plan.round_size(shares))
    part, *_ = plan.local_steps(batch, job.place.rank, shares)
    num_passes = shares[job.place.rank].num_passes

    def compute_all(part: Tensor, crops: Tensor) -> Tensor:
        return step.compute_passes(job, batch, part, crops, num_passes)

    others = len(job.dataset.train_labels) - 1 - part

    def gradients(compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        torch.manual_seed(0)  # for dropout
        compute(others, job.inputs.crops(1, job.config.seed))
        return job.vector.gradients.nan_to_num(0, 0, 0)  # Some may have overflowed in fp16.

    expected = gradients(compute_all)  # before the graph reserves the memory of a step
    crops = job.inputs.crops(0, job.config.seed)
    graph = Graph(compute_all, part, crops, len(batch), num_passes)
    if (gradients(graph.replay) - expected).norm() > _TOLERANCE * expected.norm():
        raise RuntimeError(
            "the gradients of the CUDA graph differ from those without a graph, perhaps because "
            "Python code of the model decides what to compute"
        )
    return graph
