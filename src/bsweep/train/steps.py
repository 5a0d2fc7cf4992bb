"""One training step of a worker: forward and backward passes on its examples, exchange, update."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor, nn

from bsweep.data import augment, plan
from bsweep.numerics.clock import Slowdown
from bsweep.numerics.graphs import Graph
from bsweep.numerics.undisturbed import undisturbed
from bsweep.runlog import Event
from bsweep.strategies import InBackward
from bsweep.train.job import Job
from bsweep.train.noise_meter import NoiseMeter


def warm_up(job: Job) -> None:
    """Whole steps that nothing remembers, at the two sizes that the configured batch leads to: its
    own and a tail's.

    Kernels are loaded and chosen, connections and buckets made, before the clock starts. All
    workers call it together.

    Raises:
        ValueError: the model's outputs, or what it makes of them, are not as they should be.
    """
    job = replace(job, slowdown=Slowdown(1.0, job.device))
    shares = job.policy.of_batches(job.config.worker_batches)
    num_train, size = len(job.dataset.train_labels), plan.round_size(shares)
    with forgotten(job):
        # Where an epoch's last batch is as large as the others, DDP needs two of them to settle its
        # buckets.
        for number, num_examples in enumerate((size, num_train % size or size)):
            # cuDNN tries what is fastest for full batches alone, and remembers it: others may come
            # at any time.
            torch.backends.cudnn.benchmark = number == 0
            batch = examples(job, num_examples)
            parts = plan.local_steps(batch, job.place.rank, shares)
            for part in {len(part): part for part in parts}.values():
                passes(job, batch, part, 0, shares[job.place.rank].num_passes, check=True)
            job.strategy.rehearse()
            job.heartbeat()


def captured(job: Job) -> tuple[Job, list[Event]]:
    """The job with the passes of its full steps as a CUDA graph, where all workers may have one;
    what is to be said.

    All workers call it together, and leave it together: one takes longer to capture than another.

    Raises:
        ValueError: `graph=true`, and there can be none.
    """
    if not job.config.graph:
        return job, []
    graph, reason, broke_off = _graph_or_why_not(job)
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
        f"of trying"
    )
    return job, [Event(event="warning", message=message)] if broke_off else []


capture_broke_off = False
"""In this process, once: torch 2.13 keeps what the capture had allocated for as long as the process
lives.
"""


def _graph_or_why_not(job: Job) -> tuple[Graph | None, str, bool]:
    """The graph of this worker's full steps; why there is none, and whether that was found by
    trying.
    """
    global capture_broke_off
    if reason := no_graph(job):
        return None, reason, False
    try:
        with forgotten(job):
            return _of_full_steps(job), "", False
    except RuntimeError as error:
        capture_broke_off = True
        first, *_ = str(error).splitlines() or [type(error).__name__]
        return None, f"the passes cannot be captured: {first}", True


def no_graph(job: Job) -> str:
    """Why the passes of this worker's full steps cannot be a graph; empty where they may be one."""
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
    batch = examples(job, plan.round_size(shares))
    part, *_ = plan.local_steps(batch, job.place.rank, shares)
    num_passes = shares[job.place.rank].num_passes

    def launch(part: Tensor, crops: int | Tensor) -> Tensor:
        return passes(job, batch, part, crops, num_passes)

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


_TOLERANCE = 0.1  # kernels that add in any order differ by less, in bf16 too


def examples(job: Job, number: int) -> Tensor:
    return torch.arange(
        min(number, len(job.dataset.train_labels)), device=job.dataset.train_labels.device
    )


@contextmanager
def forgotten(job: Job) -> Iterator[None]:
    """Train, and have the model's statistics, a scale of losses and the random numbers as they
    were.
    """
    job.training_model.train()
    with undisturbed(
        job.model, job.device, *(job.vector.scale.state.values() if job.vector.scale else ())
    ):
        yield


def train_step(job: Job, batch: Tensor, part: Tensor, epoch: int, num_passes: int = 1) -> Tensor:
    """One optimizer step of this worker on the examples `part`, of all workers' `batch`.

    Returns:
        Sum of losses, correct answers and labels of its part, float64 (3,) on the device.
    """
    crops, noise = augment.crop_stream(job.config.seed, epoch), job.noise
    if noise and noise.needs_halves:
        _halves(job, noise, part, crops)
    if (
        job.graph
        and job.graph.fits(part, len(batch), num_passes)
        and not (noise and noise.needs_passes)
    ):
        with job.phase("graph"):
            totals = job.graph.passes(part, crops)
    else:
        totals = passes(job, batch, part, crops, num_passes)
    if noise:
        noise.see_own()
    with job.phase("exchange"):
        job.strategy.step()
    if noise:
        noise.end_step()
    return totals


def _halves(job: Job, noise: NoiseMeter, part: Tensor, crops: int) -> None:
    """Passes on the two halves of a lone worker's examples, for the noise of their gradients;
    nothing remembers them.

    The batch's own gradient is not used beside them: BatchNorm makes it another function than
    theirs.
    """
    job.vector.drop_gradients()
    with forgotten(job), job.phase("noise"), job.slowdown.step(len(part)):
        for half in (plan.worker_part(part, i, 2) for i in range(2)):
            inputs, targets = job.training_examples(half, crops)
            with job.autocast(), _batchnorm_fit_for(job.model, len(half)):
                outputs = job.model(inputs)
            num_labels = len(part) * job.labels_per_example
            job.scaled(job.objective.loss(outputs, targets) / num_labels).backward()
            noise.see_pass(len(half))
    # back into their places, where the replay of a graph leaves its own
    job.vector.collect_gradients()


def passes(
    job: Job,
    batch: Tensor,
    part: Tensor,
    crops: int | Tensor,
    num_passes: int = 1,
    *,
    check: bool = False,
) -> Tensor:
    """A step's forward and backward passes, which leave this worker's gradient in the vector; see
    `train_step`.

    `crops` is the epoch's `augment.crop_stream`; `check` says whether to look at what the model
    returns, and wait.
    """
    strategy = job.strategy
    parts = (plan.worker_part(part, i, num_passes) for i in range(num_passes))
    filled = [indices for indices in parts if len(indices)]
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    job.vector.drop_gradients()
    with job.phase("backward"), job.slowdown.step(len(part)):
        # A worker that has no example of a tail computes one that counts nothing: some exchanges
        # travel within a pass.
        for number, indices in enumerate(filled or [batch[:1]], 1):
            with job.phase("data"):
                inputs, targets = job.training_examples(indices, crops)
            if isinstance(strategy, InBackward) and number == max(1, len(filled)):
                strategy.before_last_pass()
            with strategy.passes() if isinstance(strategy, InBackward) else nullcontext():
                with job.phase("forward"):
                    with job.autocast(), _batchnorm_fit_for(job.model, len(indices)):
                        outputs = job.training_model(inputs)
                    if check:
                        job.objective.check(outputs, targets, job.dataset.num_classes)
                    loss = job.objective.loss(outputs, targets)
                num_labels = strategy.loss_divisor(len(part), len(batch)) * job.labels_per_example
                job.scaled(loss * (bool(filled) / num_labels)).backward()
            if job.noise:
                job.noise.see_pass(len(indices))
            if filled:
                totals += job.objective.score(loss, outputs, targets)
        job.vector.collect_gradients()
    return totals


@contextmanager
def _batchnorm_fit_for(model: nn.Module, num_examples: int) -> Iterator[None]:
    """A lone example, in the tail of an epoch, has no batch statistics where maps are 1x1: use the
    running ones.
    """
    if num_examples > 1:
        yield
        return
    norms = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training
    ]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()
