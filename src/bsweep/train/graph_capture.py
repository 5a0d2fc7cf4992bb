"""Captures the passes of full steps as a CUDA graph, where all workers may have one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from bsweep.data import plan
from bsweep.numerics.graphs import Graph
from bsweep.runlog import Event
from bsweep.strategies import InBackward
from bsweep.train import step
from bsweep.train.job import Job

_TOLERANCE = 0.1  # kernels that add in any order differ by less, in bf16 too


def do_nothing(reason: str) -> None:
    """Be told of a capture that broke off, where nobody wants to know of it."""


def captured(
    job: Job, on_broken_capture: Callable[[str], object] = do_nothing
) -> tuple[Job, list[Event]]:
    """Return the job with a graph of its full steps' passes, where all workers may have one, and
    what is to be said.

    All workers call it together, and leave it together: one takes longer to capture than another.
    `on_broken_capture` is told why this worker's capture broke off: torch 2.13 keeps what it had
    allocated for as long as the process lives.

    Raises:
        ValueError: `graph=true`, and there can be none.
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
    # All or none: the record is of all, and who has none would be waited for at each step.
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    broke_off, rank, reason = max((one for one in reasons if one[-1]), key=itemgetter(0))
    if len(every) > 1:
        reason = f"rank {rank}: {reason}"
    if job.config.graph is True:
        raise ValueError(f"graph=true, but {reason}: leave graph out, or use graph=false.")
    message = (
        f"no CUDA graph, but full steps kernel by kernel ({reason}); graph=false spares the memory "
        "of trying"
    )
    return job, [Event(event="warning", message=message)] if broke_off else []


def no_graph(job: Job) -> str:
    """Return why the passes of this worker's full steps cannot be a graph; empty where they may be
    one.
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
    """RuntimeError if they cannot be captured, or compute anything else than without a graph."""
    shares = job.policy.of_batches(job.config.worker_batches)
    batch = job.inputs.first(plan.round_size(shares))
    part, *_ = plan.local_steps(batch, job.place.rank, shares)
    num_passes = shares[job.place.rank].num_passes

    def launch(part: Tensor, crops: int | Tensor) -> Tensor:
        return step.passes(job, batch, part, crops, num_passes)

    others = len(job.dataset.train_labels) - 1 - part

    def gradients(compute: Callable[[Tensor, int], Tensor]) -> Tensor:
        torch.manual_seed(0)  # for dropout
        compute(others, 1)
        return job.vector.gradients.nan_to_num(0, 0, 0)  # in fp16 some may have overflowed

    expected = gradients(launch)  # before the graph takes a step's memory for itself
    graph = Graph(launch, part, len(batch), num_passes)
    if (gradients(graph.passes) - expected).norm() > _TOLERANCE * expected.norm():
        raise RuntimeError(
            "replayed they give other gradients: does the model choose in Python what to compute?"
        )
    return graph
