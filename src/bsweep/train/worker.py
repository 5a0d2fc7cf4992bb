"""The entry point of a worker or server process, and the set-up of a worker's training job (model,
data, strategy).
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from bsweep import batching, data, models, strategies
from bsweep.config import user_code
from bsweep.config.groups import ModelConfig
from bsweep.config.optimizers import base_learning_rate
from bsweep.config.run import RunConfig
from bsweep.config.saved import read_config
from bsweep.config.strategies import AnyStrategy
from bsweep.config.values import ConfigError
from bsweep.core import memory
from bsweep.core.gpus import num_gpus
from bsweep.core.randomness import seed_of
from bsweep.core.ranks import World
from bsweep.core.signals import end_with_launcher
from bsweep.core.torch_private import allocator_variable
from bsweep.core.words import counted
from bsweep.data.dataset import Dataset
from bsweep.data.inputs import Inputs
from bsweep.numerics import objective, optim, precision
from bsweep.numerics.compiled import Compiled
from bsweep.numerics.precision import LossScale
from bsweep.numerics.vector import Vector
from bsweep.runlog import heartbeat
from bsweep.runlog.errors import Diverged, Stopped, errors_reported
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.locks import worker_claimed
from bsweep.runlog.reading import read_json, read_records
from bsweep.runlog.records import Event, Start
from bsweep.runlog.shared_clock import file_system_time
from bsweep.strategies import InBackward, Staged, Strategy, sharding
from bsweep.train import (
    checkpointing,
    evaluation,
    graph_capture,
    loop,
    noise_meter,
    peers_check,
    team_files,
    warm_up,
)
from bsweep.train.job import Job
from bsweep.train.slowdown import Slowdown
from bsweep.train.team_files import FIT, UNFIT, TeamPaths

Work = Callable[[RunConfig, RunPaths, World], object]


def train(
    config: RunConfig,
    paths: RunPaths,
    world: World,
    *,
    on_step: Callable[[], None] | None = None,
) -> Job:
    """Train one point in this worker process, and return the worker's training job.

    All workers call this together. Rank 0 writes the records.

    Args:
        config: The point's configuration.
        paths: The paths in the run's folder.
        world: This worker's rank and host.
        on_step: Called at each heartbeat: after each step, each batch of an evaluation, and so on.

    Raises:
        Diverged: If the training diverged. All workers raise it, after the records are written.
        Stopped: If the run stops early. All workers raise it, after the checkpoint is saved.
        WorkerLost: If another worker ended.
    """
    limits = config.launch.memory_limit_mb
    with (
        open_job(config, paths, world, on_step) as job,
        memory.limited(limits[world.rank] if limits else None),
    ):
        evaluation.refuse_unknown(job)
        warm_up.make_steps(job)
        warnings = graph_capture.capture(job)
        # Graphs are compared before this: the gradients of a trained model are hardly more than the
        # rounding of kernels, which may add in varying order.
        cursor = checkpointing.load(job)
        warnings += _warnings_of_threads(job)
        job.record(_start_record(job), *warnings)
        loop.train(job, cursor)
    return job


@contextmanager
def open_job(
    config: RunConfig,
    paths: RunPaths,
    world: World,
    on_step: Callable[[], None] | None,
    in_place: AnyStrategy | None = None,
) -> Iterator[Job]:
    """Set up and yield this worker's training job (see `set_up`); afterwards close its run log and,
    unless the worker has failed, its strategy.

    All workers call this together. They may wait for one another when they close the strategy:
    NCCL closes a group by all processes of a host together. A worker that failed would wait there
    for the others, while they wait for it in an exchange.
    """
    torch.set_num_threads(world.threads(config.launch.threads_per_worker))
    job = set_up(config, paths, world, on_step, in_place)
    with job.log:
        try:
            with errors_reported(paths, world):
                yield job
        except (Diverged, Stopped):
            job.strategy.close()
            raise
        job.strategy.close()


def set_up(
    config: RunConfig,
    paths: RunPaths,
    world: World,
    on_step: Callable[[], None] | None = None,
    in_place: AnyStrategy | None = None,
) -> Job:
    """Build and return this worker's training job (its model, data, optimizer and strategy).

    All workers call this together.

    Args:
        config: The run's configuration.
        paths: The paths in the run's folder.
        world: This worker's rank and host.
        on_step: Called at each heartbeat.
        in_place: A strategy to be built in place of the run's own, which still decides about the
            precision.

    Raises:
        ValueError: If, for example, a host has fewer GPUs than workers, or workers differ in
            precision or data.
    """
    _let_segments_grow(config)
    user_code.load_saved(config, paths.own)
    (memory.give_back_at_once if config.launch.memory_limit_mb else memory.keep_for_next_step)()
    run_config, config = config, replace(config, strategy=in_place or config.strategy)
    gpus = num_gpus(config.device)
    strategy = strategies.build(config, world, paths)
    peers_check.refuse_missing_gpus(
        strategy.gather_json(peers_check.gpu_facts(world, gpus)), config.device
    )
    device = choose_device(world, gpus)
    dataset = data.load(config.data, device)
    run_precision = precision.choose(run_config, device)
    precision.round_products(run_precision)
    workers = strategy.gather_json(
        {**peers_check.equipment(device, run_precision), **peers_check.data_facts(dataset)}
    )
    peers_check.refuse_unequal(workers)
    model, model_objective, inputs, parts = _model_and_inputs(
        config, run_precision, strategy, dataset, device
    )
    vector, optimizer = _vector_and_optimizer(config, run_precision, strategy, model)
    noise = noise_meter.build(config, vector, optimizer, strategy)
    slowdown = config.launch.slowdown[world.rank] if config.launch.slowdown else 1.0
    return Job(
        config=config,
        paths=paths,
        world=world,
        device=device,
        precision=run_precision,
        inputs=inputs,
        model=model,
        training_model=strategy.wrap(model) if isinstance(strategy, InBackward) else model,
        objective=model_objective,
        vector=vector,
        optimizer=optimizer,
        strategy=strategy,
        policy=batching.build(config),
        log=RunLog(paths.metrics),
        heartbeat=heartbeat.Heartbeat(paths.heartbeat(world.rank), on_step),
        facts={**parts, **peers_check.on_record(workers)},
        noise=noise,
        slowdown=Slowdown(slowdown, device) if slowdown != 1 else None,
        compiled=Compiled(model) if config.compile else None,
    )


def _model_and_inputs(
    config: RunConfig,
    run_precision: str,
    strategy: Strategy,
    dataset: Dataset,
    device: torch.device,
) -> tuple[nn.Module, objective.Objective, Inputs, dict[str, Any]]:
    """Build the model, with values only where the strategy does not bring them
    (`Strategy.receives_model`), and let a strategy with stages cut it.

    Returns:
        The model, its objective, the conversion of its inputs, and what the start record says of
        its parts.
    """
    has_values = strategy.rank == 0 or not strategy.receives_model
    dtype = precision.stored(run_precision)
    model = models.initial(config, dataset, device if has_values else torch.device("meta"), dtype)
    layout = models.memory_format(config, model)
    inputs = Inputs(dataset, config.data, dtype, layout, config.model.casts_images_first)
    model_objective = objective.build(model, dataset.train.labels)
    parts = _parts(config.model, model)
    if isinstance(strategy, Staged):
        autocast = functools.partial(precision.autocast, run_precision, device)
        strategy.cut(model, inputs.sample, autocast)
    return model, model_objective, inputs, parts


def _parts(card: ModelConfig, model: nn.Module) -> dict[str, Any]:
    """Return the number of the blocks of a whole model and the names of its pieces, without those
    that cannot be told.
    """
    facts: dict[str, Any] = {}
    with suppress(ConfigError):
        facts["num_blocks"] = len(models.blocks(card, model))
    with suppress(ConfigError):
        facts["pieces"] = tuple(name for name, _ in models.pieces(card, model))
    return facts


def _vector_and_optimizer(
    config: RunConfig, run_precision: str, strategy: Strategy, model: nn.Module
) -> tuple[Vector, Optimizer]:
    """Return the parameters of a model that this worker holds, and their optimizer, both prepared
    for the strategy. Random numbers, as of dropout, begin anew.
    """
    # Dropout differs between replicas of the model and between stages, and with the seed.
    stream = strategy.rank if isinstance(strategy, Staged) else strategy.replica
    torch.manual_seed(seed_of(config.seed, stream, "dropout"))
    vector = strategy.vector(model)
    optimizer = optim.build(config.optimizer, vector)
    if run_precision == "fp16":
        vector.scale = LossScale(vector.gradients)
        vector.scale.guard(optimizer)
    strategy.prepare(vector, optimizer)
    return vector, optimizer


def _let_segments_grow(config: RunConfig) -> None:
    """Ask torch to enlarge its segments of GPU memory in place if the run's batch changes: segments
    of a fixed size that fit one batch do not fit the next.

    torch reads this when it first uses a GPU. It stays as it is if the user has set it, or if this
    process has used a GPU before.
    """
    is_set = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & {*os.environ}
    if num_gpus(config.device) and config.batching.changes_batch and not is_set:
        os.environ[allocator_variable()] = "expandable_segments:True"


def choose_device(world: World, gpus: int) -> torch.device:
    """Return the GPU whose number is this worker's rank on its host, or the CPU if there is no
    GPU.
    """
    if not gpus:
        return torch.device("cpu")
    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)


def _start_record(job: Job) -> Start:
    config, dataset = job.config, job.dataset
    launched_at = (read_json(job.paths.meta) or {}).get("launched_at")
    return Start(
        run_id=config.run_id,
        config=asdict(config),
        local_batch=config.examples_per_pass,
        global_batch=config.examples_per_step,
        num_train=len(dataset.train),
        num_test=len(dataset.evaluated),
        classes=dataset.classes,
        num_classes=None if dataset.is_regression else dataset.num_classes,
        chance=dataset.chance,
        tokens_per_example=dataset.tokens_per_example,
        num_parameters=job.vector.num_parameters,
        layer_parameters=_layer_parameters(job.vector),
        precision=job.precision,
        channels_last=job.inputs.layout == torch.channels_last,
        compile=config.compile,
        compile_seconds=job.compiled.seconds if job.compiled else None,
        stages=job.strategy.stages if isinstance(job.strategy, Staged) else None,
        graph=job.graphs is not None if job.device.type == "cuda" else None,
        threads=torch.get_num_threads(),
        start_seconds=None
        if launched_at is None
        else max(0.0, file_system_time(job.paths.folder) - launched_at),
        learning_rate=base_learning_rate(config, config.rate_batch(0)),
        **job.facts,
    )


def _layer_parameters(vector: Vector) -> tuple[int, ...] | None:
    """Return the number of parameters of each layer; None if this worker has only some layers."""
    layers = sharding.layers(vector.slices)
    sizes = tuple(sum(piece.num_elements for piece in layer) for layer in layers)
    return sizes if sum(sizes) == vector.num_parameters else None


def _warnings_of_threads(job: Job) -> list[Event]:
    """Return a warning if this run resumes on a CPU with another number of threads than it had
    before; only the worker that writes the records returns one.

    Sums of several threads are added in another order, so the run's results change in their last
    bits. The configuration rarely names the number of threads: it follows from a host's cores.
    """
    if job.device.type != "cpu" or job.world.rank != 0:
        return []
    records, _ = read_records(job.paths.metrics, with_steps=False)
    starts = (r for r in records if r["type"] == "start" and r["run_id"] == job.config.run_id)
    before = [start["threads"] for start in starts][-1:]
    if before in ([], [now := torch.get_num_threads()]):
        return []
    message = (
        f"a worker computed with {counted(before[0], 'thread')} before, and resumes with {now}, "
        "probably because it may use another number of cores: results may differ in their last "
        "bits, and speeds before and after do not compare. Resume on as many cores as before, or "
        "give launch.threads_per_worker from the beginning"
    )
    return [Event(event="warning", message=message)]


def enter(work: Work) -> NoReturn:
    """Run a process that a launcher started: read the team's folder from the command line, do the
    process's work for one point after another until the launcher has no more, and exit with code 0.

    For each point, the process is a parameter server, or a worker that does `work`. If that fails,
    the process prints the error and exits at once with code 1, because Python's clean-up at exit
    may wait for other workers. The process also ends with its launcher: a torchrun that is killed
    leaves its processes behind, which would train on after the run's end is on record.
    """
    end_with_launcher()
    try:
        # Imported objects stay for good. Scanning them at each collection would take longer than
        # starting a point.
        gc.freeze()
        paths = TeamPaths(Path(sys.argv[1]))
        for run in team_files.runs(paths):
            config = read_config(run.config)  # the sweep has looked for contradictions
            world = World.from_environment(config.num_server_processes)
            with (
                heartbeat.showing_standstill(run.standstill(world.rank)),
                suppress(Diverged, Stopped),
                errors_reported(run, world),
                worker_claimed(run, world.rank),
            ):
                if world.is_server:
                    user_code.load_saved(config, run.own)
                    strategies.serve(config, world, run)
                else:
                    work(config, run, world)
                with suppress(OSError):  # of a full disk, which must not fail a complete run
                    run.clean_exit(world.rank).touch()
            with paths.done(world.rank).open("ab") as file:
                file.write(UNFIT if graph_capture.broken_capture() else FIT)
            user_code.forget()
            memory.give_back_garbage()
    except BaseException:
        traceback.print_exc()
        _leave(1)
    atexit._run_exitfuncs()  # Horovod registers one of these.
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End this process with an exit code, without calling C++ destructors.

    The process has already recorded its work or its failure. After Gloo was used, the destructors
    of torch 2.13 abort one exit in twenty ("terminate called without an active exception").
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":  # python -m bsweep.train.worker TEAM_FOLDER
    enter(train)
