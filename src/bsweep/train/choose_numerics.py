"""The calibration, which decides in which precision and memory format a study's models train, and
whether torch compiles them.

The workers of the first point that needs it measure which ones are the fastest. The calibration
times whole steps as the run makes them, but without the exchange, which costs the same in all
precisions and formats. All workers of the point measure at the same time, because they will train
at the same time. The slowest worker's time counts.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import torch

from bsweep.config.run import RunConfig
from bsweep.core.memory import is_out_of_memory
from bsweep.data.dataset import Dataset
from bsweep.numerics import optim, precision
from bsweep.numerics.clock import Slowdown, StepClock
from bsweep.numerics.compiled import CannotCompile
from bsweep.runlog import calibration_file
from bsweep.runlog.calibration_file import Calibration, Numerics, Timed
from bsweep.runlog.files import RunPaths
from bsweep.strategies import Strategy
from bsweep.train import graph_capture, lone, step
from bsweep.train.job import Job

_MOST_SECONDS = 15.0  # for all batches together; a batch that would exceed this is left out
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 12
# On GPUs, where a single step may be as short as its launch.
_MOST_STEPS_OF_ROUND, _SECONDS_OF_ROUND = 20, 0.1
_HOPELESS = (
    1.5  # a candidate so many times slower than the fastest is not measured again at this batch
)

_Times = dict[int, list[list[float]]]
"""The seconds per step of each precision and memory format, one for each round, by batch size."""

LoneJob = Callable[[Numerics], Job]
"""A function that builds a lone worker's training job in a given precision and memory format."""


def agree(
    config: RunConfig,
    paths: RunPaths,
    dataset: Dataset,
    strategy: Strategy,
    device: torch.device,
    lone_job: LoneJob,
) -> Numerics:
    """Choose the run's precision and memory format, the same for all workers, and return them.

    All workers call this together. They measure only if a calibration was requested that has no
    answer yet, and only if the strategy gives each of them the whole model.

    Args:
        config: The configuration of the run.
        paths: The files of the run's folder.
        dataset: The data set, whose training examples the timed steps take.
        strategy: The strategy, by which the workers agree.
        device: The device of this worker.
        lone_job: Builds the job of a worker without others, in the numerics to be timed.

    Returns:
        The chosen numerics.

    Raises:
        ValueError: If the device does not support the configured precision.
        OutOfMemoryInCapture: If the memory of a worker's GPU ran out while a CUDA graph was
            captured to be timed.
    """
    rounded = precision.choose(config, device)
    on_gpu = device.type == "cuda"
    default = Numerics(rounded, channels_last=True) if on_gpu else calibration_file.PLAIN
    if not calibration_file.is_asked(config):
        return calibration_file.numerics_for(config, None, default)
    path = calibration_file.path_in(paths.folder, config)
    hardware = calibration_file.hardware_of(paths.folder)
    known = calibration_file.begun(paths.metrics, config)
    known = known or calibration_file.asked(path, config, hardware)
    if known is None and strategy.rank == strategy.members[0]:
        known = calibration_file.of_other_runs(config, hardware)
    found = _of_first(strategy, known)
    if found and found.is_open and calibration_file.may_measure(config):
        answer = _measure(config, found, dataset, device, lone_job, strategy)
        answer = replace(answer, example_shape=tuple(dataset.train_inputs.shape[1:]))
        answer = replace(answer, torch=torch.__version__, hardware=hardware or found.hardware)
        # A point on other hardware may have written the first calibration meanwhile.
        path = calibration_file.path_in(paths.folder, config)
        # Another point of the study may have finished its calibration before this one.
        earlier = _of_first(strategy, calibration_file.read_calibration(path))
        found = earlier if earlier and not earlier.is_open else answer
        if strategy.rank == strategy.members[0]:
            calibration_file.write_calibration(path, found)
        has_answer = not found.is_open
        graph_capture.refuse_lost_memory(config, paths, strategy, has_answer=has_answer)
    return calibration_file.numerics_for(config, found, default)


def _of_first(strategy: Strategy, found: Calibration | None) -> Calibration | None:
    """Broadcast the first worker's calibration (step times by precision and memory format), and
    return it on every worker.

    Return None if the first worker has none. Other workers may not see its file, or may see it
    later.
    """
    first = strategy.gather_json({"found": found and asdict(found)})[0]["found"]
    return first and calibration_file.parse(first)


def _of_slowest(found: Sequence[Calibration]) -> Calibration:
    """Combine the calibrations of all workers into one, which has the slowest worker's seconds per
    step.

    It has only the batch sizes that all workers measured.
    """
    batches = [
        batch
        for batch in found[0].measured_batches
        if all(batch in one.measured_batches for one in found)
    ]
    if not batches:
        return replace(found[0], measured_batches=(), timed=())

    def slowest(candidate: int, batch: int) -> float:
        return max(
            one.timed[candidate].step_seconds[one.measured_batches.index(batch)] for one in found
        )

    each = tuple(
        replace(timed, step_seconds=tuple(slowest(number, batch) for batch in batches))
        for number, timed in enumerate(found[0].timed)
    )
    noise = max(one.noise for one in found)
    compiling = max(one.compile_seconds or 0.0 for one in found) or None
    return replace(
        found[0],
        measured_batches=tuple(batches),
        timed=each,
        noise=noise,
        compile_seconds=compiling,
    )


def _measure(
    config: RunConfig,
    wanted: Calibration,
    dataset: Dataset,
    device: torch.device,
    lone_job: LoneJob,
    strategy: Strategy,
) -> Calibration:
    """Measure the slowest worker's seconds per step in each precision and memory format to be
    compared and, in the best of them, with a compiled model.

    All workers call this together. Batches for which there is too little time or memory are left
    out.
    """
    native = precision.choose(replace(config, precision="auto"), device)
    precisions = dict.fromkeys(
        _precisions(wanted, native, device) if wanted.precision == "auto" else (wanted.precision,)
    )
    # The first is chosen if the other is not faster.
    both = (True, False) if device.type == "cuda" else (False, True)
    formats: tuple[bool, ...] = both if wanted.channels_last == "auto" else (wanted.channels_last,)
    if dataset.train_inputs.dim() != 4:  # only images (4 dimensions) have several memory formats
        formats = formats[:1]
    candidates = [
        Numerics(one, last, wanted.compile is True) for one in precisions for last in formats
    ]

    batches = _spread(
        sorted({min(batch, len(dataset.train_labels)) for batch in wanted.wanted_batches})
    )
    # To compile takes minutes for each batch, and torch compiles the same code eight times only.
    batches = _ends(batches) if wanted.compile is True else batches

    def timed(*candidates: Numerics, batches: Sequence[int]) -> Calibration:
        own = _timed(candidates, wanted, batches, lone_job, strategy)
        every = strategy.gather_json(asdict(own))
        return _of_slowest([calibration_file.parse(each) for each in every])

    answer = timed(*candidates, batches=batches)
    is_cut_short = bool(graph_capture.lost_by_a_worker(strategy))
    if wanted.compile != "auto" or not answer.timed or is_cut_short:
        return answer
    best = answer.ranked(config)[0][0]
    pair = timed(best, replace(best, compiled=True), batches=_ends(answer.measured_batches))
    return _with_compiled(answer, pair) if pair.timed else answer


def _precisions(wanted: Calibration, native: str, device: torch.device) -> tuple[str, ...]:
    """Return the precisions to be compared, the first of which is chosen if none is faster.

    On GPUs, torch takes cuDNN's kernels of BatchNorm for fp16, and others for bf16. There fp32 is
    not compared, which has no fast products.
    """
    if device.type == "cpu":
        return "fp32", native
    return (native,) if wanted.leaves_out_fp16 else (native, "fp16")


def _with_compiled(answer: Calibration, pair: Calibration) -> Calibration:
    """Return the calibration `answer` with a further candidate, the compiled model.

    Its times are those of the same candidate without compilation, times the ratio of the two, which
    were timed in turns at the nearest batch.

    Args:
        answer: The times without compilation.
        pair: The times of one of these candidates, then those of its compiled model.
    """
    plain, compiled = pair.timed
    ratios = {
        batch: with_it / without
        for batch, without, with_it in zip(
            pair.measured_batches, plain.step_seconds, compiled.step_seconds, strict=True
        )
    }
    same = next(timed for timed in answer.timed if timed.numerics == plain.numerics)
    scaled = tuple(
        seconds * ratios[min(ratios, key=lambda one: abs(math.log(one / batch)))]
        for batch, seconds in zip(answer.measured_batches, same.step_seconds, strict=True)
    )
    return replace(
        answer,
        timed=(*answer.timed, Timed(compiled.numerics, scaled)),
        noise=max(answer.noise, pair.noise),
        compile_seconds=pair.compile_seconds,
    )


def _timed(
    candidates: Sequence[Numerics],
    wanted: Calibration,
    batches: Sequence[int],
    lone_job: LoneJob,
    strategy: Strategy,
) -> Calibration:
    """Measure this worker's seconds per step with each candidate."""
    found, compile_seconds = _times(lambda: _jobs(candidates, lone_job), batches, strategy)
    gc.collect()  # frees the candidates' models; the GPU's cache stays for the run's own model
    by_candidate = zip(*([min(rounds) for rounds in each] for each in found.values()), strict=True)
    timed = [
        Timed(numerics, seconds)
        for numerics, seconds in zip(candidates, by_candidate, strict=bool(found))
    ]
    leasts = [sorted(rounds)[:2] for each in found.values() for rounds in each if len(rounds) > 1]
    noise = statistics.median(second / least - 1 for least, second in leasts) if leasts else 0.0
    return replace(
        wanted,
        measured_batches=tuple(found),
        timed=tuple(timed),
        noise=noise,
        compile_seconds=compile_seconds or None,
    )


def _jobs(candidates: Sequence[Numerics], lone_job: LoneJob) -> list[Job]:
    """Return a training job for each precision and memory format to be compared, at learning rate
    0.

    So its steps leave the parameters as they are. Jobs that differ by precision only share a model,
    except those in fp16, whose optimizer has a loss scale.
    """
    jobs: dict[Numerics, Job] = {}
    kinds = [
        replace(numerics, precision="fp16" if numerics.precision == "fp16" else "")
        for numerics in candidates
    ]
    for numerics, kind in zip(candidates, kinds, strict=True):
        if kind not in jobs:
            job = lone_job(numerics)
            jobs[kind] = replace(job, slowdown=Slowdown(1.0, job.device))
            optim.set_learning_rate(job.optimizer, 0.0)
            job.training_model.train()
    return [
        replace(jobs[kind], numerics=numerics)
        for numerics, kind in zip(candidates, kinds, strict=True)
    ]


def _times(
    make_jobs: Callable[[], list[Job]], batches: Sequence[int], strategy: Strategy
) -> tuple[_Times, float]:
    """Time the training step in each precision and memory format, and return the seconds by batch
    size, and the seconds in which models were compiled.

    The batch sizes are the smallest and, from the largest down, those of the others for which all
    workers have enough time and this worker has enough memory.
    """
    smallest, *larger = batches
    found: _Times = {}
    jobs: list[Job] = []
    with _as_far_as_memory_goes():
        jobs = make_jobs()
        began = time.monotonic()
        found[smallest] = _rounds(
            jobs, smallest, until=began + _MOST_SECONDS / (5 if larger else 1)
        )
    own = (
        (_seconds_of(found[smallest]) / smallest, time.monotonic() - began - _compiling(jobs))
        if found
        else (math.inf, math.inf)
    )
    # The workers agree here, so that all measure the same batches.
    every = [each["seconds"] for each in strategy.gather_json({"seconds": own})]
    per_example, spent = map(max, zip(*every, strict=True))
    costs: dict[int, float] = {}
    # A GPU takes most of the time to choose kernels and to capture graphs, for each batch again.
    least = spent if any(job.device.type == "cuda" for job in jobs) else 0.0
    # An example takes no longer in a larger batch, so this estimate is an upper bound.
    for batch in reversed(larger):
        cost = max(least, per_example * batch)
        if spent + sum(costs.values()) + cost <= _MOST_SECONDS:
            costs[batch] = cost
    with _as_far_as_memory_goes():  # after running out of memory, a process measures nothing more
        for batch in [*costs]:
            del costs[batch]
            found[batch] = _rounds(jobs, batch, until=began + _MOST_SECONDS - sum(costs.values()))
    return dict(sorted(found.items())), _compiling(jobs)


def _compiling(jobs: Sequence[Job]) -> float:
    """Return the seconds in which the models of these jobs were compiled."""
    return sum(job.compiled.seconds for job in jobs if job.compiled)


def _seconds_of(rounds: Sequence[Sequence[float]]) -> float:
    """Estimate the least number of seconds that it takes to time all precisions and memory formats
    at one batch size.

    The estimate uses rounds that were timed.
    """
    leasts = [min(own) for own in rounds]
    again = [least for least in leasts if least < _HOPELESS * min(leasts)]
    return 2 * sum(leasts) + (_LEAST_ROUNDS - 1) * sum(again)


@contextmanager
def _as_far_as_memory_goes() -> Iterator[None]:
    """Run the block, and suppress its error if the block runs out of memory or cannot compile."""
    try:
        yield
    except CannotCompile as error:
        print(error, flush=True)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise


def _spread(batches: Sequence[int]) -> list[int]:
    """Return at most four of the sorted batch sizes: the smallest, the largest and up to two
    between.
    """
    return sorted({batches[(len(batches) - 1) * third // 3] for third in range(4)})


def _ends(batches: Sequence[int]) -> list[int]:
    """Return the smallest and the largest of the sorted batch sizes."""
    return sorted({batches[0], batches[-1]})


def _rounds(jobs: Sequence[Job], batch: int, until: float) -> list[list[float]]:
    """Time one training step of each job in several rounds, at one batch size, and return the
    seconds per step.

    There is a list for each job, with a value for each round in which it was timed. The jobs take
    turns, because a machine's speed changes over time.
    """
    if jobs[0].device.type == "cuda":
        return _rounds_of_graphs(jobs, batch, until)
    for job in jobs:
        with job.compiling():
            _step_seconds(job, batch)  # The first step chooses and compiles kernels.
    seconds: list[list[float]] = [[] for _ in jobs]
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() > until + _compiling(jobs):
            break
        fastest = min((min(own) for own in seconds if own), default=0.0)
        for job, own in zip(jobs, seconds, strict=True):
            if not own or min(own) < _HOPELESS * fastest:
                own.append(_step_seconds(job, batch))
    return seconds


def _rounds_of_graphs(jobs: Sequence[Job], batch: int, until: float) -> list[list[float]]:
    """Time the training steps of jobs on a GPU, and return the seconds per step as `_rounds` does.

    The jobs do not take turns, because a GPU's speed changes little, and only one graph at a time
    should hold memory. Those that are left share the time that is left evenly.
    """
    found = []
    for number, job in enumerate(jobs):
        left = until + _compiling(jobs) - time.monotonic()
        found.append(_rounds_of_graph(job, batch, left / (len(jobs) - number)))
    return found


def _rounds_of_graph(job: Job, batch: int, most_seconds: float) -> list[float]:
    """Time the training steps of a job on a GPU in several rounds, and return the seconds per step.

    The steps replay a CUDA graph if a run would do so. After `most_seconds`, in which models were
    not compiled, no round begins, unless there are fewer than `_LEAST_ROUNDS`.
    """
    until = time.monotonic() + most_seconds - _compiling([job])
    precision.round_products(job.precision)
    graph = job.config.graph and "auto"
    job = replace(job, config=lone.config_of(job.config, 0))
    job = lone.as_trained(lone.at_batch(job, batch, accumulation_steps=1, graph=graph))
    examples, clock = job.inputs.first(batch), StepClock(job.device, [])
    num_steps = 1  # in the first round, which is not used
    for number in range(_MOST_ROUNDS):
        passed = clock.seconds()  # waits for the GPU: the host may be rounds ahead of it
        if number == 1:
            fitting = int(_SECONDS_OF_ROUND / max(1e-9, passed[0]))
            num_steps = max(1, min(_MOST_STEPS_OF_ROUND, fitting))
        if number > _LEAST_ROUNDS and time.monotonic() > until + _compiling([job]):
            break
        with clock.step():
            for _ in range(num_steps):
                step.train_step(job, examples, examples, 1)
        job.heartbeat()
    seconds = [each / num_steps for each in clock.seconds()[1:]]
    if job.graphs:
        job.graphs.drop()
    return seconds


def _step_seconds(job: Job, batch: int) -> float:
    examples = job.inputs.first(batch)
    started = time.perf_counter()
    step.train_step(job, examples, examples, 1)
    seconds = time.perf_counter() - started
    job.heartbeat()
    return seconds
