"""A worker's side of `bsweep probe`: how fast it steps at which batch, what fits it, and what an
exchange takes.

Workers measure at the same time, but exchange nothing until the end: one that is out of memory
keeps nobody waiting.
"""

from __future__ import annotations

import gc
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import NoReturn, cast

import torch
from torch import Tensor

from bsweep import allocation, runlog
from bsweep.allocation import ProbedBatch, ProbedWorker
from bsweep.config import AnyStrategy, RunConfig
from bsweep.core import fresh_process, memory
from bsweep.core.memory import is_out_of_memory
from bsweep.core.ranks import Place
from bsweep.measure import timed_steps
from bsweep.numerics import optim, precision
from bsweep.numerics.clock import StepClock
from bsweep.runlog import RunPaths
from bsweep.train import worker
from bsweep.train.job import Job
from bsweep.train.worker import do_nothing

_OWN_BATCH_TIMES = 5  # as many of the run's own batch, by which most allocations go
_MOST_SECONDS = 60.0  # for batches larger than the run's own
_NUM_EXCHANGES = 5
_MATRIX_SIDE = {"cpu": 1024, "cuda": 8192}


def measure(
    config: RunConfig, paths: RunPaths, place: Place, *, on_step: Callable[[], None] = do_nothing
) -> None:
    """Measure this worker; all of them call this together. Rank 0 leaves `probe.json` in the
    folder.

    Raises:
        MemoryError: not even one example fits this worker.
        WorkerLost: another worker ended.
    """
    with worker.prepared(_with_exchange(config), paths, place, on_step) as job:
        # Steps cost the same, and the model stays finite.
        optim.set_learning_rate(job.optimizer, 0.0)
        beside = _held_beside(config, job)
        answers = job.strategy.gather_json(asdict(_measure_worker(config, job)))
        del beside
        probe = {
            "schema": allocation.PROBE_SCHEMA,
            "probed": allocation.probed_of(config),
            "workers": answers,
            "exchange_seconds": _exchange_seconds(job),
        }
        if place.rank == 0:
            runlog.write_json(paths.folder / "probe.json", probe)
            job.log.write(runlog.End(status="completed", message=""))


def _with_exchange(config: RunConfig) -> RunConfig:
    """The run with a strategy that exchanges the whole vector at each step.

    Those that hide their exchange in the backward pass, or make it now and then, stand aside for
    the same all-reduce.
    """
    return replace(config, strategy=cast("AnyStrategy", config.strategy.in_probe))


def _held_beside(config: RunConfig, job: Job) -> Tensor | None:
    """As much as the strategy holds beside the model and its optimizer, and what stands in for it
    does not.
    """
    number = config.strategy.vectors_held
    return (
        job.vector.parameters.new_zeros(number, job.vector.parameters.numel()) if number else None
    )


def _measure_worker(config: RunConfig, job: Job) -> ProbedWorker:
    limit = _limit_mebibytes(job)
    # A limit begins before the first steps, which make the optimizers' state.
    later = config.strategy.vectors_of_first_step * job.vector.parameters.nbytes / 2**20
    batches, stopped_by = _measure_batches(
        job, config.local_batches[job.place.rank], limit and limit - later
    )
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
        peak_flops=_peak_flops(job),
        batches=tuple(batches),
        largest_batch=batches[-1].local_batch,
        stopped_by=stopped_by,
    )


def _limit_mebibytes(job: Job) -> float | None:
    """On a CPU this worker's own limit, else its part of what is there: to use it up would end more
    than a probe.

    A process that tries a batch has a model and gradients of its own.
    """
    if job.device.type == "cuda" or not memory.can_limit():
        return None
    if job.config.launch.memory_limit_mb:
        return job.config.launch.memory_limit_mb[job.place.rank]
    own = job.vector.parameters.nbytes + job.vector.gradients.nbytes
    return (memory.available_bytes() / job.place.local_workers - own) / 2**20


def _measure_batches(
    job: Job, own_batch: int, limit: float | None
) -> tuple[list[ProbedBatch], str]:
    """Seconds per step at batches that double from 1 until one does not fit, and why they end
    there.

    The run's own batch is one of them; so is the middle between the largest that fitted and the
    first that did not.
    """
    most = len(job.dataset.train_labels) // job.config.accumulation_steps
    found: list[ProbedBatch] = []
    batch, spent = 1, 0.0
    while (
        seconds := _step_seconds(job, batch, limit, _OWN_BATCH_TIMES if batch == own_batch else 1)
    ) is not None:
        found.append(ProbedBatch(batch, seconds))
        # Not the wall: hosts may be busy.
        spent += seconds + min(timed_steps.NUM_STEPS * seconds, timed_steps.MOST_SECONDS)
        if batch == most:
            return found, "examples"
        if batch >= own_batch and spent + 4 * seconds > _MOST_SECONDS:
            return found, "seconds"
        batch = min(_next(batch, own_batch), most)
    if not found:
        raise MemoryError(
            "out of memory with a local batch of 1: give this worker more, or choose a smaller "
            "model"
        )
    middle = (found[-1].local_batch + batch) // 2
    if (
        found[-1].local_batch < middle
        and (seconds := _step_seconds(job, middle, limit)) is not None
    ):
        found.append(ProbedBatch(middle, seconds))
    return found, "out_of_memory"


def _next(batch: int, own_batch: int) -> int:
    """The next power of two, or the run's own batch where that comes before."""
    power = 1 << batch.bit_length()
    return own_batch if batch < own_batch < power else power


def _step_seconds(job: Job, local_batch: int, limit: float | None, times: int = 1) -> float | None:
    """The median of a few steps after a first one; None if they do not fit into memory.

    Under a limit, each batch has a process of its own, as in training: a failure there cannot spoil
    the next.
    """
    try:
        if limit is None:
            seconds = timed_steps.step_seconds(timed_steps.alone(job), local_batch, times)
        else:
            arguments = (
                job.config,
                job.paths,
                job.place.rank,
                torch.get_num_threads(),
                local_batch,
                times,
            )
            seconds = fresh_process.call(
                timed_steps.step_seconds_within, limit, *arguments, on_poll=job.on_step
            )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
    else:
        print(f"local batch {local_batch}: {seconds:.3g} s per step", flush=True)
        return seconds
    gc.collect()  # not above: the error holds the step's tensors
    torch.cuda.empty_cache()
    print(f"local batch {local_batch}: out of memory ({reason})", flush=True)
    return None


def _peak_flops(job: Job) -> float:
    """FLOP/s of a large matrix product in the run's precision, the best of a few; a slowed worker
    is as slow in it.
    """
    side = _MATRIX_SIDE[job.device.type]
    # Of equal numbers fewer transistors switch: a GPU would draw less power than in training, and
    # keep a higher clock.
    dtype = precision.AUTOCAST.get(job.precision, precision.stored(job.precision))
    matrix = torch.randn(side, side, dtype=dtype, device=job.device)
    clock = StepClock(job.device, [])
    for _ in range(1 + timed_steps.NUM_STEPS):
        with clock.step():
            matrix @ matrix
        job.heartbeat()
    return float(2 * side**3 / (min(clock.seconds()[1:]) * job.slowdown.factor))


def _exchange_seconds(job: Job) -> float:
    """One exchange of the whole vector and a codec's computing for it, nobody waiting; the median
    of a few.
    """
    if job.place.num_workers == 1:
        return 0.0
    seconds = []
    for _ in range(1 + _NUM_EXCHANGES):
        job.vector.gradients.normal_()
        job.strategy.traffic()  # all workers meet here
        job.strategy.step()
        traffic = job.strategy.traffic()
        exposed = traffic.exposed_exchange_seconds  # all of it: nothing computes meanwhile
        assert exposed is not None, job.config.strategy
        seconds.append(exposed + (traffic.codec_seconds or 0.0))
        job.heartbeat()
    return statistics.median(seconds[1:])


def main() -> NoReturn:
    """`python -m bsweep.measure.probe_worker FOLDER`."""
    worker.enter(measure)


if __name__ == "__main__":
    main()
