"""The capture of a training step's passes as CUDA graphs, if every worker can capture them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from bsweep.config.run import RunConfig
from bsweep.core import memory
from bsweep.data import plan
from bsweep.numerics.graphs import BrokenCapture, Graphs, on_capture_stream
from bsweep.runlog.errors import OutOfMemoryInCapture
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.reading import read_json, read_meta
from bsweep.runlog.records import Event
from bsweep.strategies import InBackward, Strategy
from bsweep.train import step
from bsweep.train.job import Job

# The largest relative difference of gradients. Kernels that add in varying order differ by less,
# even in bf16.
_TOLERANCE = 0.1

# How serious it is that a worker has no graph: it was not tried, it failed, there is too little
# memory for it, it cost memory.
_KNOWN, _FAILED, _FULL, _LOST_MEMORY = range(4)

_broken: list[tuple[str, int]] = []


def broken_capture() -> str:
    """Return why the capture of a CUDA graph broke off in this process, whose memory torch 2.13
    then keeps; return "" if none did.
    """
    return _broken[0][0] if _broken else ""


def has_lost_memory() -> bool:
    """Return True if the memory of this process's GPU ran out during a capture: the process then
    has less memory than a new one, and should measure nothing more.
    """
    return any(weight == _LOST_MEMORY for _, weight in _broken)


def captured(job: Job) -> tuple[Job, list[Event]]:
    """Return this worker's training job, with CUDA graphs unless `graph=false` or a worker cannot
    capture them, and a list of warnings to record.

    The graphs hold the passes of full steps and of an epoch's smaller last step. All workers call
    this together and return together, because some take longer to capture than others.

    Args:
        job: This worker's job.

    Raises:
        ValueError: If `graph=true` is configured and a worker cannot have graphs.
        torch.OutOfMemoryError: If `graph=true` is configured and a worker's GPU has not enough
            memory for graphs.
        OutOfMemoryInCapture: If the memory of a worker's GPU ran out during a capture.
    """
    if not job.config.graph:
        return job, []
    graphs, reason, weight = None, no_graph(job), _KNOWN
    if not reason and (reason := _earlier_failure(job)):
        weight = _FAILED
    elif not reason:
        try:
            with step.forgotten(job):
                graphs = _of_steps(job)
        except RuntimeError as error:
            reason, weight = _reason(error)
    every = job.strategy.gather_json({"reason": reason, "weight": weight})
    reasons = [
        (one["weight"], rank, one["reason"])
        for rank, one in zip(job.strategy.members, every, strict=True)
    ]
    if not any(reason for _, _, reason in reasons):
        return replace(job, graphs=graphs), []
    # Either all workers use graphs or none does. The record speaks for all workers, and the others
    # would wait at each step for a worker without a graph.
    del graphs
    memory.give_back_garbage()
    weight, rank, reason = max((one for one in reasons if one[-1]), key=itemgetter(0))
    if len(every) > 1:
        reason = f"rank {rank}: {reason}"
    if weight == _LOST_MEMORY:
        raise OutOfMemoryInCapture(reason)
    if job.config.graph is True:
        kind = torch.OutOfMemoryError if weight == _FULL else ValueError
        raise kind(f"graph=true, but {reason}: leave graph out, or use graph=false.")
    message = (
        "no CUDA graph is used: the host launches the kernels of steps one by one "
        f"({reason}); graph=false saves the memory of the attempt"
    )
    return job, [Event(event="warning", message=message)] if weight else []


def leave_out_next_time(config: RunConfig, paths: RunPaths, strategy: Strategy) -> None:
    """Note in the run's file `meta.json` that its next attempt does without CUDA graphs, unless
    `graph=true` is configured.

    All workers call this together and return when the note is written, because the launcher ends
    them all when the first of them fails, and then looks for the note.
    """
    if config.graph is True:
        return
    if strategy.rank == strategy.members[0]:
        write_json(paths.meta, {**(read_json(paths.meta) or {}), "without_graph": True})
    strategy.gather_json({})


def refuse_lost_memory(config: RunConfig, paths: RunPaths, strategy: Strategy) -> None:
    """Raise OutOfMemoryInCapture on all workers if a worker's process has lost memory in a capture,
    after noting that the run's next attempt does without CUDA graphs.

    All workers call this together.
    """
    own = broken_capture() if has_lost_memory() else ""
    reasons = [one["reason"] for one in strategy.gather_json({"reason": own})]
    if any(reasons):
        leave_out_next_time(config, paths, strategy)
        raise OutOfMemoryInCapture(next(filter(None, reasons)))


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


def drop_left(job: Job, shares: tuple[plan.Share, ...]) -> None:
    """Drop the CUDA graphs if the workers have other shares of a round than the graphs' steps, and
    the batching policy never returns to those.

    Args:
        job: This worker's job.
        shares: The share of each worker, by rank.
    """
    if job.graphs and shares != job.graphs.shares and not job.config.batching.may_return:
        job.graphs.drop()


def _earlier_failure(job: Job) -> str:
    """Return the reason not to capture again what an earlier attempt or point could not capture;
    return "" if there is none.
    """
    if read_meta(job.paths).get("without_graph"):
        return "an earlier attempt at this run ran out of memory in the capture"
    if earlier := broken_capture():
        return (
            "a capture broke off earlier in this process, which would lose more memory with each "
            f"other: {earlier}. Only a new process can try again: type the command again for the "
            "points that need a graph"
        )
    return ""


def _reason(error: RuntimeError) -> tuple[str, int]:
    """Return why a worker has no graph, and how serious that is; remember a capture that broke
    off.
    """
    first, *_ = str(error).splitlines() or [type(error).__name__]
    if isinstance(error, OutOfMemoryInCapture):
        _broken.append((first, _LOST_MEMORY))
        return f"the GPU's memory ran out during the capture: {first}", _LOST_MEMORY
    if memory.is_out_of_memory(error):
        return f"there is not enough memory for graphs and for passes without them: {first}", _FULL
    if isinstance(error, BrokenCapture):
        _broken.append((first, _FAILED))
    return f"the passes cannot be captured: {first}", _FAILED


def _of_steps(job: Job) -> Graphs:
    """Capture the passes of each size of step as CUDA graphs, check the graphs' gradients, and
    return the graphs. The check compares these gradients with those of the passes without a graph.

    The sizes are those of a full round's steps and of the steps of an epoch's smaller last round.

    Raises:
        BrokenCapture: If the passes cannot be captured.
        OutOfMemoryInCapture: If there is not enough memory for the graphs.
        RuntimeError: If a graph gives other gradients, or there is not enough memory beside the
            graphs for what runs without them.
    """
    shares = job.policy.of_batches(job.config.worker_batches)
    num_passes, num_train = shares[job.place.rank].num_passes, len(job.dataset.train_labels)
    graphs, size = Graphs(shares), min(num_train, plan.round_size(shares))
    batches = [job.inputs.first(number) for number in (size, num_train % size)]
    steps = {
        (len(part), len(batch)): (batch, part)
        for batch in batches
        for part in plan.local_steps(batch, job.place.rank, shares)
        if len(part)
    }

    def computing(batch: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda part, crops: step.compute_passes(job, batch, part, crops, num_passes)

    def gradients(compute: Callable[[Tensor, Tensor], Tensor], part: Tensor) -> Tensor:
        torch.manual_seed(0)  # for dropout
        compute(num_train - 1 - part, job.inputs.crops(1, job.config.seed))
        return job.vector.gradients.nan_to_num(0, 0, 0)  # Some may have overflowed in fp16.

    with on_capture_stream(job.device):
        # These passes come before the first graph reserves the memory of a step.
        expected = [gradients(computing(batch), part) for batch, part in steps.values()]
        crops = job.inputs.crops(0, job.config.seed)
        found = [
            graphs.capture(computing(batch), part, crops, len(batch), num_passes)
            for batch, part in steps.values()
        ]
    for graph, (_, part), right in zip(found, steps.values(), expected, strict=True):
        if (gradients(graph.replay, part) - right).norm() > _TOLERANCE * right.norm():
            raise RuntimeError(
                "the gradients of the CUDA graph differ from those without a graph, perhaps "
                "because Python code of the model decides what to compute"
            )
    _try_beside(job, *next(iter(steps.values())), num_passes)
    return graphs


def _try_beside(job: Job, batch: Tensor, part: Tensor, num_passes: int) -> None:
    """Compute the passes of a full step that will run without a graph now and then, while the
    graphs hold their memory.

    Raises:
        RuntimeError: If there is not enough memory for both (`memory.is_out_of_memory`).
    """
    crops = job.inputs.crops(0, job.config.seed)
    noise_of_one = job.config.measures_noise and job.config.num_workers == 1
    if noise_of_one and num_passes == 1:
        step.pass_on_halves(job, part, crops)
    if job.config.batching.may_return or (noise_of_one and num_passes > 1):
        step.compute_passes(job, batch, part, crops, num_passes)
