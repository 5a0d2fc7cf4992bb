"""The capture of a training step's passes as CUDA graphs, if every worker can capture them."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from bsweep.core import memory
from bsweep.data import plan
from bsweep.numerics.graphs import BrokenCapture, Compute, Graph, Graphs, on_capture_stream
from bsweep.runlog.records import Event
from bsweep.strategies import InBackward
from bsweep.train import halves, step
from bsweep.train.job import Job

# The largest relative difference of gradients. Kernels that add in varying order differ by less,
# even in bf16.
_TOLERANCE = 0.1

# How serious it is that a worker has no graph: it was not tried, it failed, its capture broke off.
_KNOWN, _FAILED, _BROKEN = range(3)

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
    reason, weight = _tried(job, graphs)
    every = job.strategy.gather_json({"reason": reason, "weight": weight})
    reasons = [
        (answer["weight"], rank, answer["reason"])
        for rank, answer in enumerate(every)
        if answer["reason"]
    ]
    if not reasons:
        job.graphs = graphs
        return []
    # Either all workers use graphs or none does. The record speaks for all workers, and the others
    # would wait at each step for a worker without a graph.
    graphs.drop()
    weight, rank, reason = max(reasons, key=itemgetter(0))
    if len(every) > 1:
        reason = f"rank {rank}: {reason}"
    if weight == _BROKEN:
        _broken.append(BrokenCapture(reason))
    message = (
        "no CUDA graph is used: the host launches the kernels of steps one by one "
        f"({reason}); graph=false saves the memory of the attempt"
    )
    return [Event(event="warning", message=message)] if weight else []


def no_graph(job: Job) -> str:
    """Return the reason why it is useless to try to capture this worker's passes as a CUDA graph;
    return "" if there is none.
    """
    in_passes = job.config.strategy.can.exchanges_in_passes
    if job.device.type != "cuda":
        return "there is no GPU"
    if job.slowdown:
        return "launch.slowdown stretches the passes"
    if job.dataset.train.streams:
        return "the examples are streamed to the GPU (data.device)"
    if isinstance(job.strategy, InBackward) if in_passes is None else in_passes:
        return f"strategy={job.config.strategy.name} exchanges within the backward pass"
    return ""


def drop_left(job: Job, shares: tuple[plan.Share, ...]) -> None:
    """Drop the CUDA graphs if the workers have other shares of a round than the graphs' steps, and
    the batching policy never returns to those.

    Args:
        job: This worker's job.
        shares: The share of each worker, by rank.
    """
    if job.graphs and shares != job.graphs.shares and not job.config.batching.may_return:
        job.graphs.drop()


@dataclass(frozen=True)
class _Size:
    """A size of a worker's step, with so many examples and the function that computes them."""

    batch: Tensor  # the indices of the examples of all workers
    part: Tensor  # those of this worker
    compute: Compute


@dataclass(frozen=True)
class _Trial:
    """A CUDA graph, and the gradients that it should give for some examples."""

    graph: Graph
    size: _Size
    gradients: Tensor


def _tried(job: Job, graphs: Graphs) -> tuple[str, int]:
    """Try to capture CUDA graphs and to compute with them, without a trace in the model.

    Return why this worker cannot have graphs, "" if it can, and how serious that is.
    """
    if reason := no_graph(job):
        return reason, _KNOWN
    if earlier := broken_capture():
        reason = (
            "a capture broke off earlier in this process, which would lose more memory with each "
            f"other: {earlier}. Only a new process can try again: type the command again for the "
            "points that need a graph"
        )
        return reason, _FAILED
    try:
        with job.restoring():
            _check(job, _capture(job, graphs))
    except RuntimeError as error:
        return _reason(error)
    return "", _KNOWN


def _reason(error: RuntimeError) -> tuple[str, int]:
    """Return why a worker has no graph, and how serious that is."""
    first, *_ = str(error).splitlines() or [type(error).__name__]
    is_broken = isinstance(error, BrokenCapture)
    if memory.is_out_of_memory(error) and not is_broken:
        what = "there is not enough memory for graphs and for passes without them"
    else:
        what = "the passes cannot be captured"
    return f"{what}: {first}", _BROKEN if is_broken else _FAILED


def _capture(job: Job, graphs: Graphs) -> list[_Trial]:
    """Capture the passes of each size of step as CUDA graphs, and return a trial of each graph.

    Raises:
        BrokenCapture: If they cannot be captured.
    """
    sizes, num_passes = _sizes(job), _num_passes(job)
    crops = job.inputs.crops(0, job.config.seed)
    with on_capture_stream(job.device):
        # These passes come before the first graph reserves the memory of a step.
        expected = [_gradients(job, size.compute, size.part) for size in sizes]
        return [
            _Trial(
                graphs.capture(size.compute, size.part, crops, len(size.batch), num_passes),
                size,
                gradients,
            )
            for size, gradients in zip(sizes, expected, strict=True)
        ]


def _sizes(job: Job) -> list[_Size]:
    """Return the sizes of a full round's steps and of the steps of an epoch's smaller last
    round.
    """
    shares = job.policy.of_batches(job.config.worker_batches)
    num_train, num_passes = len(job.dataset.train_labels), _num_passes(job)
    round_size = min(num_train, plan.round_size(shares))
    sizes: dict[tuple[int, int], _Size] = {}
    for batch in (job.inputs.first(size) for size in (round_size, num_train % round_size)):

        def compute(part: Tensor, crops: Tensor, batch: Tensor = batch) -> Tensor:
            return step.compute_passes(job, batch, part, crops, num_passes)

        for part in filter(len, plan.local_steps(batch, job.place.rank, shares)):
            sizes[len(part), len(batch)] = _Size(batch, part, compute)
    return list(sizes.values())


def _num_passes(job: Job) -> int:
    return job.policy.of_batches(job.config.worker_batches)[job.place.rank].num_passes


def _gradients(job: Job, compute: Compute, part: Tensor) -> Tensor:
    """Compute the last examples instead of those of `part`, and return the gradients."""
    torch.manual_seed(0)  # for dropout
    compute(len(job.dataset.train_labels) - 1 - part, job.inputs.crops(1, job.config.seed))
    return job.vector.gradients.nan_to_num(0, 0, 0)  # Some may have overflowed in fp16.


def _check(job: Job, trials: list[_Trial]) -> None:
    """Compare the graphs' gradients with those of passes without a graph, then try what runs
    without a graph beside them.

    Raises:
        RuntimeError: If a graph gives other gradients, or there is not enough memory beside the
            graphs for what runs without them.
    """
    for trial in trials:
        gradients = _gradients(job, trial.graph.replay, trial.size.part)
        if (gradients - trial.gradients).norm() > _TOLERANCE * trial.gradients.norm():
            raise RuntimeError(
                "the gradients of the CUDA graph differ from those without a graph, perhaps "
                "because Python code of the model decides what to compute"
            )
    if trials:
        _try_beside(job, trials[0].size.batch, trials[0].size.part, _num_passes(job))


def _try_beside(job: Job, batch: Tensor, part: Tensor, num_passes: int) -> None:
    """Compute the passes of a full step that will run without a graph now and then, while the
    graphs hold their memory.

    Raises:
        RuntimeError: If there is not enough memory for both (`memory.is_out_of_memory`).
    """
    crops = job.inputs.crops(0, job.config.seed)
    noise = job.noise if job.config.num_workers == 1 else None
    if noise and num_passes == 1:
        halves.measure(job, noise, part, crops)
    if job.config.batching.may_return or (noise and num_passes > 1):
        step.compute_passes(job, batch, part, crops, num_passes)
