"""The capture of a training step's passes as CUDA graphs, if every worker can capture them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import itemgetter

import torch
from torch import Tensor

from bsweep.core import memory
from bsweep.data import plan
from bsweep.numerics.graphs import BrokenCapture, Compute, Graphs, on_capture_stream
from bsweep.runlog.records import Event
from bsweep.strategies import InBackward
from bsweep.train import step
from bsweep.train.job import Job

# The largest relative difference of gradients. Kernels that add in varying order differ by less,
# even in bf16.
_TOLERANCE = 0.1

# What became of a worker's capture, by how serious it is; `_BROKEN` if it broke off.
_CAPTURED, _NOT_TRIED, _FAILED, _BROKEN = range(4)

_broken: list[BrokenCapture] = []  # in the runs of this process, also in other workers


def broken_capture() -> str:
    """Return why the capture of a CUDA graph broke off in this process or in that of another worker
    of its runs, which keeps the capture's memory up to torch 2.13; return "" if none did.
    """
    return str(_broken[0]) if _broken else ""


def lost_memory() -> str:
    """Return the `broken_capture` if the memory of a GPU ran out in it, otherwise "". The process
    then has too little memory for further runs.
    """
    return next((str(error) for error in _broken if memory.is_out_of_memory(error)), "")


def capture(job: Job) -> list[Event]:
    """Capture the CUDA graphs of this worker's job, unless `graph=false` or a worker cannot capture
    them, and return a list of warnings to record.

    The graphs hold the passes of full steps and of an epoch's smaller last step. All workers call
    this together and return together, because some take longer to capture than others.

    Args:
        job: This worker's job, whose `graphs` this sets.
    """
    job.graphs = None
    if not job.config.graph:
        return []
    graphs = Graphs(job.policy.of_batches(job.config.worker_batches))
    outcome, reason = _try(job, graphs)
    answers = job.strategy.gather_json({"outcome": outcome, "reason": reason})
    worst = max(answers, key=itemgetter("outcome"))
    if worst["outcome"] == _CAPTURED:
        job.graphs = graphs
        return []
    # Either all workers use graphs or none does. The record speaks for all workers, and the others
    # would wait at each step for a worker without a graph.
    graphs.drop()
    if worst["outcome"] == _NOT_TRIED:
        return []
    rank = f"rank {answers.index(worst)}: " if len(answers) > 1 else ""
    reason = rank + worst["reason"]
    if worst["outcome"] == _BROKEN:
        _broken.append(BrokenCapture(reason))
    message = (
        "no CUDA graph is used: the host launches the kernels of steps one by one "
        f"({reason}); graph=false saves the memory of the attempt"
    )
    return [Event(event="warning", message=message)]


def may_capture(job: Job) -> bool:
    """Return True if this worker's passes run on a GPU, and neither a slowdown nor examples that
    are streamed nor an exchange within the backward pass rules a CUDA graph out.
    """
    in_passes = job.config.strategy.can.exchanges_in_passes
    if in_passes is None:  # a strategy of the user's own
        in_passes = isinstance(job.strategy, InBackward)
    is_plain = not (job.slowdown or job.dataset.train.streams or in_passes)
    return job.device.type == "cuda" and is_plain


def drop_left(job: Job, shares: tuple[plan.Share, ...]) -> None:
    """Drop the CUDA graphs if the workers have other shares of a round than the graphs' steps, and
    the batching policy never returns to those.

    Args:
        job: This worker's job.
        shares: The share of each worker, by rank.
    """
    if job.graphs and shares != job.graphs.shares and not job.config.batching.may_return:
        job.graphs.drop()


def _try(job: Job, graphs: Graphs) -> tuple[int, str]:
    """Try to capture CUDA graphs and to compute with them, without a trace in the model.

    Return what became of it, and why this worker cannot have graphs if it failed.
    """
    if not may_capture(job):
        return _NOT_TRIED, ""
    if earlier := broken_capture():
        reason = (
            "a capture broke off earlier in this process, which would lose more memory with each "
            f"other: {earlier}. Only a new process can try again: type the command again for the "
            "points that need a graph"
        )
        return _FAILED, reason
    try:
        with job.restoring():
            _capture_and_check(job, graphs)
    except RuntimeError as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        problem, outcome = "the passes cannot be captured", _FAILED
        if isinstance(error, BrokenCapture):
            outcome = _BROKEN
        elif memory.is_out_of_memory(error):
            problem = "there is not enough memory for graphs and for passes without them"
        return outcome, f"{problem}: {first}"
    return _CAPTURED, ""


def _capture_and_check(job: Job, graphs: Graphs) -> None:
    """Capture the passes of each size of step as CUDA graphs, and compare their gradients with
    those of passes without a graph. Then, while the graphs hold their memory, compute the passes of
    a full step that will run without a graph now and then.

    Raises:
        BrokenCapture: If the passes cannot be captured.
        RuntimeError: If a graph gives other gradients, or there is not enough memory beside the
            graphs for what runs without them (`memory.is_out_of_memory`).
    """
    shares = job.policy.of_batches(job.config.worker_batches)
    num_passes, crops = shares[job.world.rank].num_passes, job.inputs.crops(0, job.config.seed)
    steps = [
        (functools.partial(step.compute_passes, job, batch, num_passes=num_passes), batch, examples)
        for batch, examples in _sizes(job, shares)
    ]
    with on_capture_stream(job.device):
        # These passes come before the first graph reserves the memory of a step.
        expected = [_gradients(job, compute, examples) for compute, _, examples in steps]
        captured = [
            graphs.capture(compute, examples, crops, len(batch), num_passes)
            for compute, batch, examples in steps
        ]
    for graph, gradients, (_, _, examples) in zip(captured, expected, steps, strict=True):
        difference = _gradients(job, graph.replay, examples) - gradients
        if difference.norm() > _TOLERANCE * gradients.norm():
            raise RuntimeError(
                "the gradients of the CUDA graph differ from those without a graph, perhaps "
                "because Python code of the model decides what to compute"
            )
    is_lone = job.noise and job.config.num_workers == 1
    for _, batch, examples in steps[:1]:
        if is_lone and num_passes == 1:
            step.compute_halves(job, examples, crops)
        if job.config.batching.may_return or (is_lone and num_passes > 1):
            step.compute_passes(job, batch, examples, crops, num_passes)


def _sizes(job: Job, shares: Sequence[plan.Share]) -> list[tuple[Tensor, Tensor]]:
    """Return the indices of the examples of all workers and of this one, for a full round's steps
    and for the steps of an epoch's smaller last round; one pair for each size.
    """
    num_train = len(job.dataset.train)
    round_size = min(num_train, plan.round_size(shares))
    sizes: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for batch in (job.inputs.first(size) for size in (round_size, num_train % round_size)):
        for examples in filter(len, plan.local_steps(batch, job.world.rank, shares)):
            sizes[len(examples), len(batch)] = batch, examples
    return list(sizes.values())


def _gradients(job: Job, compute: Compute, examples: Tensor) -> Tensor:
    """Compute the last examples instead of `examples`, and return the gradients."""
    torch.manual_seed(0)  # for dropout
    compute(len(job.dataset.train) - 1 - examples, job.inputs.crops(1, job.config.seed))
    return job.vector.gradients.nan_to_num(0, 0, 0)  # Some may have overflowed in fp16.
