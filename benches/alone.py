"""One worker: steps of each shipped model beside the plain loop."""

from __future__ import annotations

import gc
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from benches.common import (
    Program,
    Seconds,
    alternating,
    calls_of,
    compared,
    plain_model,
    plain_optimizer,
    plain_step,
    ready,
)
from bsweep.config.run import RunConfig
from bsweep.core.ranks import World
from bsweep.runlog.files import RunPaths
from bsweep.train import graph_capture, step, warm_up, worker
from bsweep.train.job import Job
from tests.support.running import compose, write_text

FP32 = ("precision=fp32", "channels_last=false")
GPU_TARGETS = {
    8: 2.5,
    64: 3.0,
}  # of the cifar stem on one H100 or H200, beside convolutions in TF32


@dataclass(frozen=True)
class Case:
    """A model with the targets of bsweep's default against the plain loop, by batch."""

    name: str
    overrides: tuple[str, ...]
    targets: dict[int, float]
    is_large: bool = False  # some programs of it at a time are all that a machine has memory for

    def config(self, folder: Path, size: int, *more: str) -> RunConfig:
        is_text = "data=text" in self.overrides
        data = f"data.path={folder / 'book.txt'}" if is_text else "data=synthetic"
        study = (f"results_dir={folder}", f"study={self.name.replace(' ', '_')}")
        return compose(f"local_batch={size}", *self.overrides, data, *study, *more)


RESNET = Case("resnet18 imagenet", ("model.stem=imagenet",), {8: 1.15, 64: 1.15, 128: 1.15})
CASES = (
    RESNET,
    Case("resnet18 cifar", ("model.stem=cifar",), {8: 1.5, 64: 2.2}),
    Case("vgg16", ("model=vgg16",), {}, is_large=True),
    Case("llama_tiny", ("data=text", "model=llama_tiny", "optimizer=adamw"), {}),
)


@dataclass(frozen=True)
class Grid:
    """What the benches of steps go over, in so many alternating rounds."""

    cases: tuple[Case, ...] = CASES
    batches: tuple[int, ...] = (8, 16, 32, 64, 128, 256)  # of one worker
    rounds: int = 7


QUICK = Grid((RESNET,), (8, 64), rounds=3)


def steps_alone(grid: Grid) -> dict[str, Seconds]:
    """Return, by model and batch, the seconds of a step of the plain fp32 loop, of bsweep in the
    same, and by default.
    """
    torch.set_num_threads(os.cpu_count() or 1)
    on_gpu, results = torch.cuda.is_available(), {}
    for case in grid.cases:
        for size in grid.batches:
            with tempfile.TemporaryDirectory() as folder:
                write_text(Path(folder) / "book.txt", 200_000)
                same, default = (
                    job_of(case.config(Path(folder), size, "strategy=single", *words), World())
                    for words in (("launch=inline", *FP32), ("launch=inline",))
                )
                model = plain_model(default)
                batch = ready(default.dataset, default.device, size)
                plain = plain_step(model, plain_optimizer(default, model), batch)
                programs = {"plain": with_tf32(plain)}
                programs |= {"plain without TF32": plain} if on_gpu else {}  # a CPU has no TF32
                programs |= {"same": step_of(same, size), "default": step_of(default, size)}
                rounds = alternating(programs, grid.rounds, calls=calls_of(size))
            targets = GPU_TARGETS if on_gpu and "cifar" in case.name else case.targets
            print(
                f"{case.name}, batch {size}, default is {numerics(default)}: "
                f"{compared(rounds, 'plain', {'default': targets.get(size, 1.0)})}",
                flush=True,
            )
            results[f"{case.name}, batch {size}"] = rounds
            del same, default, model, plain, programs
            gc.collect()
    return results


def with_tf32(program: Program) -> Program:
    """A program that runs as torch has it by default: convolutions in TF32 where a GPU has it.

    A job has switched that off for the whole process.
    """

    def run() -> None:
        allowed = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = True
        try:
            program()
        finally:
            torch.backends.cudnn.allow_tf32 = allowed

    return run


def numerics(job: Job) -> str:
    is_channels_last = job.inputs.layout == torch.channels_last
    graph = ", CUDA graph" if job.graphs else ""
    return f"{job.precision}, {'channels_last' if is_channels_last else 'contiguous'}{graph}"


def job_of(config: RunConfig, world: World) -> Job:
    """Set a job up as a run would: on a GPU, steps of its local batch are a CUDA graph."""
    paths = RunPaths(config.folder)
    paths.folder.mkdir(parents=True, exist_ok=True)
    job = worker.set_up(config, paths, world)
    if job.device.type == "cuda":
        warm_up.make_steps(job)
        for warning in graph_capture.capture(job):
            print(warning.message, flush=True)
    return job


def step_of(job: Job, size: int) -> Program:
    batch = torch.arange(size, device=job.dataset.train.labels.device)
    job.training_model.train()
    return lambda: step.train_step(job, batch, batch, job.inputs.crops(1, job.config.seed))
