"""The part of `bsweep probe` that runs in a worker: it times steps and exchanges.

It measures the seconds of an exchange, and then the seconds per step by batch size, up to the
largest batch that fits or for which there is time. Workers time their steps at the same time, but
exchange nothing until the end. So no worker waits for one that runs out of memory.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import NoReturn, cast

import torch
from torch import Tensor

from bsweep import batching
from bsweep.allocation import probes
from bsweep.config.allocation import UniformConfig
from bsweep.config.batching import FIXED
from bsweep.config.run import RunConfig
from bsweep.config.strategies import AnyStrategy, SingleConfig
from bsweep.core import memory
from bsweep.core.memory import is_out_of_memory
from bsweep.core.ranks import World
from bsweep.numerics import optim, precision
from bsweep.numerics.timing import StepClock, seconds_of
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.probe_file import PROBE_SCHEMA, ProbedBatch, ProbedWorker
from bsweep.runlog.records import End
from bsweep.strategies.single import Single
from bsweep.train import graph_capture, step, warm_up, worker
from bsweep.train.job import Job

_OWN_BATCH_TIMES = 5  # more steps for the run's own batch, on which most allocations are based
_MOST_SECONDS = 60.0  # for batches larger than the run's own
NUM_STEPS, _MOST_TIMED_SECONDS = 20, 2.0  # the most timed steps of a batch, and their seconds
_NUM_EXCHANGES = 5
_MATRIX_SIDE = {"cpu": 1024, "cuda": 8192}


def measure(
    config: RunConfig, paths: RunPaths, world: World, *, on_step: Callable[[], None] | None = None
) -> None:
    """Measure this worker's seconds per step by batch size, up to its largest batch, and the
    seconds of an exchange.

    All workers call this together. Rank 0 writes `probe.json`.

    Args:
        config: The configuration to be probed.
        paths: The paths in the run's folder, where `probe.json` is written.
        world: This worker's rank and host.
        on_step: Called after each step.

    Raises:
        MemoryError: If not even one example fits into this worker's memory.
        WorkerLost: If another worker ended.
    """
    # `ddp`, `local_sgd` and `diloco` are replaced by a strategy that exchanges the whole gradient
    # vector at each step, without other work at that time.
    in_probe = cast("AnyStrategy", config.strategy.in_probe)
    with worker.open_job(with_graphs_of_run(config), paths, world, on_step, in_probe) as job:
        # With a learning rate of 0, steps cost the same and the model stays finite.
        optim.set_learning_rate(job.optimizer, 0.0)
        exchange_seconds = _exchange_seconds(job)
        # As large as what the run's strategy holds in addition to what the probe's strategy holds.
        beside = job.vector.parameters.new_zeros(
            config.strategy.vectors_held, job.vector.parameters.numel()
        )
        answers = job.strategy.gather_json(asdict(_measure_worker(config, job)))
        del beside
        probe = {
            "schema": PROBE_SCHEMA,
            "probed": probes.settings(config),
            "workers": answers,
            "exchange_seconds": exchange_seconds,
        }
        if world.rank == 0:
            write_json(paths.folder / "probe.json", probe)
            job.log.write(End(status="completed", message=""))


def with_graphs_of_run(config: RunConfig) -> RunConfig:
    """Return the configuration for the probe of a run, without CUDA graphs where the exchanges of
    the run within passes rule them out.
    """
    graph = config.graph and not config.strategy.can.exchanges_in_passes
    return replace(config, graph=graph)


def _measure_worker(config: RunConfig, job: Job) -> ProbedWorker:
    # This comes first: a process that lost memory in a capture measures nothing more.
    peak_flops, limit = _peak_flops(job), _limit_mebibytes(job)
    later_bytes = config.strategy.vectors_of_first_step * job.vector.parameters.nbytes
    batches, stopped_by = _measure_batches(job, config.local_batches[job.world.rank], later_bytes)
    on_gpu = job.device.type == "cuda"
    if on_gpu:
        memory_bytes: int | None = torch.cuda.get_device_properties(job.device).total_memory
    else:
        memory_bytes = int(limit * 2**20) if limit else None
    return ProbedWorker(
        host=platform.node(),
        device=torch.cuda.get_device_name(job.device) if on_gpu else "cpu",
        precision=job.precision,
        memory_bytes=memory_bytes,
        peak_flops=peak_flops,
        batches=tuple(batches),
        largest_batch=batches[-1].local_batch,
        stopped_by=stopped_by,
    )


def _limit_mebibytes(job: Job) -> float | None:
    """Return this worker's memory limit in MiB; None on a GPU, or if the system cannot limit
    memory.

    It is the configured limit, or else this worker's share of the available memory: using all of it
    could end other processes too.
    """
    if job.device.type == "cuda" or not memory.can_limit():
        return None
    if job.config.launch.memory_limit_mb:
        return job.config.launch.memory_limit_mb[job.world.rank]
    return memory.available_bytes() / job.world.local_workers / 2**20


def _measure_batches(job: Job, own_batch: int, later_bytes: int) -> tuple[list[ProbedBatch], str]:
    """Measure the seconds per step at the batch sizes 1, 2, 4 and so on; return them and the reason
    for stopping.

    The batches also include the run's own batch and, if it is reached, the largest batch for which
    there are training examples. When a batch does not fit, the middle between it and the largest
    that fits is tried as well, unless the process lost memory in the capture of a CUDA graph. The
    reason is "examples" (no more training examples for a larger batch), "seconds" (no time for a
    larger batch) or "out_of_memory".
    """
    most = len(job.dataset.train) // job.config.accumulation_steps
    batches: list[ProbedBatch] = []
    batch, spent = 1, 0.0
    while (
        seconds := _seconds_if_it_fits(
            job, batch, later_bytes, _OWN_BATCH_TIMES if batch == own_batch else 1
        )
    ) is not None:
        batches.append(ProbedBatch(batch, seconds))
        # The wall clock is not used, because hosts may be busy.
        spent += seconds + min(NUM_STEPS * seconds, _MOST_TIMED_SECONDS)
        if batch == most:
            return batches, "examples"
        if batch >= own_batch and spent + 4 * seconds > _MOST_SECONDS:
            return batches, "seconds"
        batch = min(_next(batch, own_batch), most)
    if not batches:
        raise MemoryError(
            "a local batch of 1 is out of memory: give this worker more memory, or choose a "
            "smaller model"
        )
    middle = (batches[-1].local_batch + batch) // 2
    if (
        batches[-1].local_batch < middle
        and not graph_capture.lost_memory()
        and (seconds := _seconds_if_it_fits(job, middle, later_bytes)) is not None
    ):
        batches.append(ProbedBatch(middle, seconds))
    return batches, "out_of_memory"


def _next(batch: int, own_batch: int) -> int:
    """Return the next batch size to measure after `batch`: the next power of two, or the run's own
    batch size if it lies between `batch` and that power.
    """
    power = 1 << batch.bit_length()
    return own_batch if batch < own_batch < power else power


def _seconds_if_it_fits(
    job: Job, local_batch: int, later_bytes: int, times: int = 1
) -> float | None:
    """Return the median seconds of a few training steps at one batch size; None if they run out of
    memory.

    A first step is not timed. What kernels of other batches keep does not count against the memory
    limit. In a run, the limit starts before the first step. So the `later_bytes` that a strategy
    allocates in its first step, and the optimizer's state, count.
    """
    limit, states = _limit_mebibytes(job), job.optimizer.state.values()
    tensors = [held for state in states for held in state.values() if isinstance(held, Tensor)]
    counted = (later_bytes + sum(tensor.nbytes for tensor in tensors)) / 2**20
    try:
        with memory.limited(limit and limit - counted):
            seconds = step_seconds(alone(job), local_batch, times)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
    else:
        print(f"local batch {local_batch}: {seconds:.3g} s per step", flush=True)
        return seconds
    # This comes here, because inside `except` the error still holds the step's tensors.
    memory.give_back_garbage()
    print(f"local batch {local_batch}: out of memory ({reason})", flush=True)
    return None


def _peak_flops(job: Job) -> float:
    """Return the highest FLOP/s that this worker reaches in a few large matrix products, in the
    run's precision.

    For a worker with a slowdown, they are divided by its factor.
    """
    side = _MATRIX_SIDE[job.device.type]
    # The numbers are random. With equal numbers fewer transistors switch, so a GPU would draw less
    # power than in training and keep a higher clock.
    dtype = precision.AUTOCAST.get(job.precision, precision.stored(job.precision))
    matrix = torch.randn(side, side, dtype=dtype, device=job.device)
    seconds = []
    for _ in range(1 + NUM_STEPS):
        seconds.append(seconds_of(lambda: matrix @ matrix, job.device))
        job.heartbeat.beat()
    factor = job.slowdown.factor if job.slowdown else 1.0
    return float(2 * side**3 / (min(seconds[1:]) * factor))


def _exchange_seconds(job: Job) -> float:
    """Return the median seconds of an exchange of the whole gradient vector, including the time
    that the codec computes.

    The workers meet before each exchange, so that no waiting is included.
    """
    if job.world.num_workers == 1:
        return 0.0
    seconds = []
    for _ in range(1 + _NUM_EXCHANGES):
        job.vector.gradients.normal_()
        job.strategy.traffic()  # All workers meet here.
        job.strategy.step()
        traffic = job.strategy.traffic()
        exposed = traffic.exposed_exchange_seconds  # the whole exchange: nothing overlaps with it
        assert exposed is not None, job.config.strategy
        seconds.append(exposed + (traffic.codec_seconds or 0.0))
        job.heartbeat.beat()
    return statistics.median(seconds[1:])


def alone(job: Job) -> Job:
    """Return a copy of this worker's training job in which the worker trains alone and exchanges
    nothing.
    """
    config = replace(
        job.config,
        num_workers=1,
        strategy=SingleConfig(name="single"),
        allocation=UniformConfig(name="uniform"),
    )
    strategy = Single(config, config.strategy, World(), job.paths)
    strategy.prepare(job.vector, job.optimizer)
    return replace(job, config=config, world=World(), strategy=strategy, training_model=job.model)


def step_seconds(job: Job, local_batch: int, times: int) -> float:
    """Time training steps of a lone worker at one batch size, and return the median seconds per
    step.

    A first step is not timed; if the run compiles its model, it is compiled before that. On a GPU
    the steps have the CUDA graphs that a run of this batch would have.

    Args:
        job: The job of a lone worker.
        local_batch: The examples per pass.
        times: The factor on `NUM_STEPS` and `_MOST_TIMED_SECONDS`.
    """
    config = replace(job.config, local_batch=local_batch, global_batch=None, batching=FIXED)
    job = replace(job, config=config, policy=batching.build(config))
    if job.compiled:
        job.compiled.forget()
    if job.device.type == "cuda":
        warm_up.make_steps(job)
        graph_capture.capture(job)
    crops = job.inputs.crops(1, config.seed)
    examples = torch.arange(config.examples_per_step, device=job.dataset.train.labels.device)
    job.training_model.train()
    with job.compiling():
        step.train_step(job, examples, examples, crops, config.accumulation_steps)
    job.heartbeat.beat()
    clock, started = StepClock(job.device, []), time.monotonic()
    for _ in range(times * NUM_STEPS):
        with clock.step():
            step.train_step(job, examples, examples, crops, config.accumulation_steps)
        job.heartbeat.beat()
        if time.monotonic() - started > times * _MOST_TIMED_SECONDS:
            break
    seconds = statistics.median(clock.seconds())
    if job.graphs:
        job.graphs.drop()
    return seconds


def main() -> NoReturn:
    """Run `python -m bsweep.measure.probe_worker TEAM_FOLDER`."""
    worker.enter(measure)


if __name__ == "__main__":
    main()
