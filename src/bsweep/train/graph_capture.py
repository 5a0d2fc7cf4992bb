"""The capture of a training step's passes as CUDA graphs, if every worker can capture them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
import torch.distributed as dist
from torch import Tensor

from bsweep.config.run import RunConfig
from bsweep.core import memory
from bsweep.data import plan
from bsweep.numerics import optim
from bsweep.numerics.graphs import BrokenCapture, Compute, Graph, Graphs, on_capture_stream
from bsweep.runlog.errors import Diverged, OutOfMemoryInCapture, Stopped
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.reading import read_json, read_meta
from bsweep.runlog.records import Event
from bsweep.strategies import InBackward, Strategy
from bsweep.strategies.base import Meter
from bsweep.train import step
from bsweep.train.job import Job

# The largest relative difference of gradients. Kernels that add in varying order differ by less,
# even in bf16.
_TOLERANCE = 0.1

# How serious it is that a worker has no graph: it was not tried, it failed, there is too little
# memory for it, it cost memory.
_KNOWN, _FAILED, _FULL, _LOST_MEMORY = range(4)

# torch asks for so many steps of DDP before a capture: DDP measures its first ten.
_STEPS_BEFORE_WHOLE = 11

# The captures that broke off in this process: why, and how serious that is.
_broken: list[tuple[str, int]] = []


def broken_capture() -> str:
    """Return why the capture of a CUDA graph broke off in this process, whose memory torch 2.13
    then keeps; return "" if none did.
    """
    return _broken[0][0] if _broken else ""


def lost_memory() -> str:
    """Return the error if the memory of this process's GPU ran out during a capture, otherwise "".
    The process then has less memory than a new one, and should measure nothing more.
    """
    return next((reason for reason, weight in _broken if weight == _LOST_MEMORY), "")


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
    graphs = Graphs(job.policy.of_batches(job.config.worker_batches))
    trials: list[_Trial] = []
    # All workers have captured before one of them replays: a graph may contain an exchange.
    for stage in (_capture, _check):
        own = _tried(stage, job, graphs, trials)
        every = job.strategy.gather_json({"reason": own[0], "weight": own[1]})
        if any(one["reason"] for one in every):
            break
    else:
        return replace(job, graphs=graphs), []
    # Either all workers use graphs or none does. The record speaks for all workers, and the others
    # would wait at each step for a worker without a graph.
    trials.clear()
    graphs.drop()
    reasons = [
        (one["weight"], rank, one["reason"]) for rank, one in enumerate(every) if one["reason"]
    ]
    weight, rank, reason = max(reasons, key=itemgetter(0))
    if len(every) > 1:
        reason = f"rank {rank}: {reason}"
    if weight == _LOST_MEMORY:
        raise OutOfMemoryInCapture(reason)
    if job.config.graph is True:
        kind = torch.OutOfMemoryError if weight == _FULL else ValueError
        raise kind(f"graph=true, but {reason}: leave graph out, or use graph=false.")
    message = (
        f"no CUDA graph is used: the host launches the kernels of steps one by one ({reason}); "
        "graph=false saves the memory of the attempt"
    )
    is_said = weight or job.config.graph == "step"
    return job, [Event(event="warning", message=message)] if is_said else []


@contextmanager
def dropped_at_end(job: Job) -> Iterator[None]:
    """Drop the CUDA graphs at the end of the block, unless the block fails.

    NCCL cannot end a group before the graphs that contain its exchanges have gone (pytorch
    #115388). After a failure, a GPU may wait in a graph for a lost worker, and the process ends.
    """
    try:
        yield
    except (Diverged, Stopped):
        if job.graphs:
            job.graphs.drop()
        raise
    if job.graphs:
        job.graphs.drop()


def leave_out_next_time(config: RunConfig, paths: RunPaths, strategy: Strategy) -> None:
    """Note in the run's file `meta.json` that its next attempt does without CUDA graphs, unless
    `graph=true` is configured.

    All workers call this together and return when the note is written: the launcher ends all
    workers when the first of them fails, and then looks for the note.
    """
    if config.graph is True:
        return
    if strategy.rank == 0:
        write_json(paths.meta, {**(read_json(paths.meta) or {}), "without_graph": True})
    strategy.gather_json({})


def no_graph(job: Job) -> str:
    """Return the reason why it is useless to try to capture this worker's passes as a CUDA graph;
    return "" if there is none.
    """
    in_passes = job.config.strategy.can.exchanges_in_passes
    is_whole = job.config.graph == "step"
    if job.device.type != "cuda":
        return "there is no GPU"
    if is_whole and job.vector.scale:
        return "precision=fp16 decides at each step whether gradients overflowed"
    if is_whole and job.place.num_workers > 1 and not dist.is_nccl_available():
        return "this torch has no NCCL, and only NCCL's exchanges can be captured"
    if job.slowdown.factor != 1:
        return "launch.slowdown stretches the passes"
    if job.dataset.train.streams:
        return "the examples are streamed to the GPU (data.device)"
    if not is_whole and (isinstance(job.strategy, InBackward) if in_passes is None else in_passes):
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


_Stage = Callable[[Job, Graphs, list[_Trial]], None]


def _tried(stage: _Stage, job: Job, graphs: Graphs, trials: list[_Trial]) -> tuple[str, int]:
    """Do a stage of the attempt to have CUDA graphs, without a trace in the model and the meter.

    Return why this worker cannot have graphs, "" if it can, and how serious that is.
    """
    if reason := no_graph(job):
        return reason, _KNOWN
    if reason := _earlier_failure(job):
        return reason, _FAILED
    meter, job.strategy.meter = job.strategy.meter, Meter()
    try:
        with step.forgotten(job):
            stage(job, graphs, trials)
    except RuntimeError as error:
        # Others would wait in an exchange for a worker that goes on without it.
        of_capture = isinstance(error, BrokenCapture | OutOfMemoryInCapture | _OtherNumbers)
        if _is_whole(job) and not of_capture:
            raise
        return _reason(error)
    finally:
        job.strategy.meter = meter
    return "", _KNOWN


def _is_whole(job: Job) -> bool:
    """Return True if a graph is to contain the exchange and the update, too."""
    return job.config.graph == "step"


def _capture(job: Job, graphs: Graphs, trials: list[_Trial]) -> None:
    """Capture the passes of each size of step as CUDA graphs, with `graph=step` the whole steps,
    and add a trial of each graph to `trials`.

    Raises:
        BrokenCapture: If they cannot be captured.
        OutOfMemoryInCapture: If there is not enough memory for the graphs.
    """
    sizes, num_passes = _sizes(job), _num_passes(job)
    rate, crops = torch.zeros_like(job.vector.parameters[0]), job.inputs.crops(0, job.config.seed)

    def with_rate(compute: Compute, part: Tensor, crops: Tensor) -> Tensor:
        with optim.capturable(job.optimizer, rate):
            return compute(part, crops)

    with on_capture_stream(job.device):
        # These steps come before the first graph reserves the memory of a step.
        for _ in range(_STEPS_BEFORE_WHOLE if _is_whole(job) else 1):
            expected = [_computed(job, size.compute, size.part)[0] for size in sizes]
        for size, gradients in zip(sizes, expected, strict=True):
            compute, begin_step = size.compute, None
            if _is_whole(job):
                counted = job.strategy.meter = Meter(is_timed=False)
                compute = functools.partial(with_rate, compute)
                begin_step = functools.partial(_begin_step, job, rate, counted)
            graph = graphs.capture(
                compute, size.part, crops, len(size.batch), num_passes, begin_step
            )
            trials.append(_Trial(graph, size, gradients))


def _sizes(job: Job) -> list[_Size]:
    """Return the sizes of a full round's steps and of the steps of an epoch's smaller last round.

    Whole steps are captured for rounds in which every worker has examples: all exchange at once.
    """
    shares = job.policy.of_batches(job.config.worker_batches)
    num_train, num_passes = len(job.dataset.train_labels), _num_passes(job)
    round_size = min(num_train, plan.round_size(shares))
    found: dict[tuple[int, int], _Size] = {}
    for batch in (job.inputs.first(size) for size in (round_size, num_train % round_size)):
        parts = [plan.local_steps(batch, rank, shares) for rank in range(len(shares))]
        if _is_whole(job) and not all(len(part) for own in parts for part in own):
            continue

        def compute(part: Tensor, crops: Tensor, batch: Tensor = batch) -> Tensor:
            totals = step.compute_passes(job, batch, part, crops, num_passes)
            if _is_whole(job):
                job.strategy.step()
            return totals

        for part in filter(len, parts[job.place.rank]):
            found[len(part), len(batch)] = _Size(batch, part, compute)
    return list(found.values())


def _num_passes(job: Job) -> int:
    return job.policy.of_batches(job.config.worker_batches)[job.place.rank].num_passes


def _begin_step(job: Job, rate: Tensor, counted: Meter) -> None:
    """Do what the host does at the replay of a whole step: hand the learning rate over, and count
    what is exchanged.
    """
    rate.fill_(job.optimizer.param_groups[0]["lr"])
    job.strategy.meter.add_untimed(counted)


def _computed(
    job: Job, compute: Callable[[Tensor, Tensor], object], part: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the last examples instead of those of `part`, and return the gradients and, of whole
    steps, the update of the parameters, which is undone.
    """
    torch.manual_seed(0)  # for dropout
    parameters = job.vector.parameters if _is_whole(job) else job.vector.parameters[:0]
    before = parameters.clone()
    with optim.undone(job.optimizer) if _is_whole(job) else nullcontext():
        compute(len(job.dataset.train_labels) - 1 - part, job.inputs.crops(1, job.config.seed))
        update = parameters - before
    return job.vector.gradients.nan_to_num(0, 0, 0), update  # Some may have overflowed in fp16.


def _check(job: Job, graphs: Graphs, trials: list[_Trial]) -> None:
    """Compare the graphs' numbers with those of steps without a graph, then try what runs without a
    graph beside them.

    Raises:
        RuntimeError: If a graph gives other numbers, or there is not enough memory beside the
            graphs for what runs without them.
    """
    found = [_of_replay(job, trial) for trial in trials]
    for trial, (gradients, update, right_update) in zip(trials, found, strict=True):
        if _differs(gradients, trial.gradients):
            raise _OtherNumbers(
                "the gradients of the CUDA graph differ from those without a graph, perhaps "
                "because Python code of the model decides what to compute"
            )
        if _differs(update, right_update):
            raise _OtherNumbers(
                "the CUDA graph's update of the parameters differs from that of the optimizer"
            )
    if trials:
        _try_beside(job, trials[0].size.batch, trials[0].size.part, _num_passes(job))


def _differs(found: Tensor, right: Tensor) -> bool:
    return bool((found - right).norm() > _TOLERANCE * right.norm())


class _OtherNumbers(RuntimeError):
    """The error of a CUDA graph that computes other numbers than its kernels one by one."""


def _of_replay(job: Job, trial: _Trial) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a replay, its update of the parameters, and the update that the
    optimizer makes of the same gradients, which are still in the vector.
    """
    part = trial.size.part
    gradients, update = _computed(job, trial.graph.replay, part)
    if not _is_whole(job):
        return gradients, update, update
    return gradients, update, _computed(job, lambda *_: job.optimizer.step(), part)[1]


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
