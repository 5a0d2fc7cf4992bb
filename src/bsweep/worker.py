"""A worker: the entry of a training process, and what it sets up before it trains."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import torch

from bsweep import batching, data, loop, memory, models, objective, optim, runlog, strategies
from bsweep.clock import Slowdown
from bsweep.config import RunConfig, own, read
from bsweep.data.dataset import Dataset
from bsweep.errors import Diverged, Stopped, errors_reported
from bsweep.gpus import num_gpus
from bsweep.loop import Job
from bsweep.place import Place
from bsweep.randomness import seed_of
from bsweep.runlog import RunLog, RunPaths, SignOfLife
from bsweep.strategies import InBackward, Strategy
from bsweep.vector import Vector


def do_nothing() -> None:
    """What to do after a step, where nobody wants to know of it."""


def train(
    config: RunConfig,
    paths: RunPaths,
    place: Place,
    *,
    launched_at: float | None = None,
    on_step: Callable[[], None] = do_nothing,
) -> Job:
    """Train one point; every worker calls this together. The first one that is left writes the records.

    Raises:
        Diverged: on all workers alike, after what was trained so far is on record.
        Stopped: on all workers alike, in a state that is saved.
        WorkerLost: another worker ended.
    """
    limits = config.launch.memory_limit_mb
    with prepared(config, paths, place, on_step) as job, memory.limited(limits[place.rank] if limits else None):
        loop.warm_up(job)
        job.record(_start_record(job, launched_at))
        loop.train(job)
    return job


@contextmanager
def prepared(config: RunConfig, paths: RunPaths, place: Place, on_step: Callable[[], None]) -> Iterator[Job]:
    """This worker, until what it does has ended; all workers call it together.

    An error is reported before others hear that the strategy was closed: they would end this process.
    """
    torch.set_num_threads(place.threads(config.launch.threads_per_worker))
    job = prepare(config, paths, place, on_step)
    with job.log:
        try:
            with errors_reported(paths, place):
                yield job
        finally:
            job.strategy.close()


def prepare(config: RunConfig, paths: RunPaths, place: Place, on_step: Callable[[], None] = do_nothing) -> Job:
    """What the loop needs of this worker; all workers call it together."""
    device = choose_device(config, place)
    memory.reset_peak(device)
    own.search(paths.own)
    if config.launch.memory_limit_mb:
        memory.give_back_at_once()
    else:
        memory.keep_for_next_step()
    strategy = strategies.build(config, place, paths)
    dataset = data.load(config.data, device)
    _refuse_unequal(dataset, strategy, place)
    torch.manual_seed(config.seed)  # the same initial weights on every worker
    precision = choose_precision(config, device)
    shape = tuple(dataset.train_inputs.shape[1:])
    model = models.build(config.model, num_classes=dataset.num_classes, shape=shape).to(
        device, dtype=torch.float64 if precision == "fp64" else torch.float32
    )
    model = model.to(memory_format=loop.memory_format(config))  # type: ignore[call-overload]
    torch.manual_seed(seed_of(config.seed, place.rank, "dropout"))  # differs between workers, and between runs
    vector = Vector(model)
    optimizer = optim.build(config.optimizer, vector)
    strategy.prepare(vector, optimizer)
    return Job(
        config=config,
        paths=paths,
        place=place,
        device=device,
        precision=precision,
        dataset=dataset,
        model=model,
        training_model=strategy.wrap(model) if isinstance(strategy, InBackward) else model,
        objective=objective.of(model, dataset.train_labels),
        vector=vector,
        optimizer=optimizer,
        strategy=strategy,
        policy=batching.build(config),
        learning_rate=optim.schedule(config),
        slowdown=Slowdown(config.launch.slowdown[place.rank] if config.launch.slowdown else 1.0, device),
        alive=SignOfLife(paths.alive(place.rank)),
        log=RunLog(paths.metrics),
        on_step=on_step,
    )


def _refuse_unequal(dataset: Dataset, strategy: Strategy, place: Place) -> None:
    """ValueError on all workers if one has other data: hosts may have files of their own under the same path."""
    if place.num_workers == 1:
        return
    labels = dataset.train_labels
    digest = hashlib.sha256(labels[:: max(1, len(labels) // 1000)].cpu().numpy().tobytes()).digest()
    checksum = int.from_bytes(digest[:6], "little")  # exact in float64
    every = strategy.gather(torch.tensor([dataset.num_classes, len(labels), checksum], dtype=torch.float64))
    others = [rank for rank in range(place.num_workers) if not torch.equal(every[rank], every[0])]
    if others:
        (classes, examples, _), (other_classes, other_examples, _) = every[0].tolist(), every[others[0]].tolist()
        raise ValueError(
            f"rank {others[0]} has other data than rank 0: a vocabulary (or classes) of {other_classes:.0f} and "
            f"{other_examples:.0f} training examples, rank 0 has {classes:.0f} and {examples:.0f}, and labels may "
            "differ. Give all hosts the same files."
        )


def choose_device(config: RunConfig, place: Place) -> torch.device:
    """The GPU of this worker's own; the CPU where there is none.

    Raises:
        ValueError: there are too few on this host, or torch cannot use them.
    """
    gpus = num_gpus(config.device)
    if config.device == "cuda" and not gpus:
        raise ValueError(f"device=cuda, but {platform.node()} shows no GPU: leave this host out, or mend its driver.")
    if not gpus:
        return torch.device("cpu")
    if place.local_rank >= gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""
        raise ValueError(
            f"{platform.node()} has {gpus} GPU{'s' * (gpus > 1)}{shown}, and rank {place.rank} is worker "
            f"{place.local_rank + 1} there, but NCCL takes one worker a GPU: give this host no more slots than GPUs "
            "(launch.hosts, or horovodrun -H), or set device=cpu."
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def choose_precision(config: RunConfig, device: torch.device) -> str:
    """`auto` is bf16 where matrix units compute in it; emulated, it would be slower than fp32."""
    if config.precision != "auto":
        return config.precision
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if native else "fp32"


def _start_record(job: Job, launched_at: float | None) -> runlog.Start:
    config, dataset = job.config, job.dataset
    device = torch.cuda.get_device_name(job.device) if job.device.type == "cuda" else "cpu"
    return runlog.Start(
        run_id=config.run_id,
        config=asdict(config),
        local_batch=config.examples_per_pass,
        global_batch=config.examples_per_step,
        num_train=len(dataset.train_labels),
        num_test=len(dataset.test_labels),
        classes=dataset.classes,
        tokens_per_example=dataset.tokens_per_example,
        num_parameters=job.vector.parameters.numel(),
        device=device,
        precision=job.precision,
        threads=torch.get_num_threads(),
        start_seconds=time.time() - launched_at if launched_at else None,
        learning_rate=optim.base_learning_rate(config),
    )


def enter(work: Callable[[RunConfig, RunPaths, Place], object]) -> NoReturn:
    """Be a process that a launcher started with a run folder: a parameter server, or a worker that does this work."""
    paths = RunPaths(Path(sys.argv[1]))
    config = read(paths.config)
    place = Place.from_environment(config.num_server_processes)
    with suppress(Diverged, Stopped), errors_reported(paths, place):
        if place.is_server:
            own.search(paths.own)
            strategies.serve(config, place, paths)
        else:
            work(config, paths, place)
    leave()


def leave() -> NoReturn:
    """End a process whose work is done and on record, without the destructors of C++ libraries.

    After Gloo was used, those of torch 2.13 abort one exit in twenty ("terminate called without an active exception").
    """
    atexit._run_exitfuncs()  # Horovod's is one
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> NoReturn:
    """`python -m bsweep.worker RUN_FOLDER`."""
    enter(lambda config, paths, place: train(config, paths, place, launched_at=_launched_at(paths)))


def _launched_at(paths: RunPaths) -> float | None:
    return (runlog.read_json(paths.meta) or {}).get("launched_at")


if __name__ == "__main__":
    main()
