"""One worker: steps of each shipped model beside the plain loop, accumulation, and what the steps
consist of.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from bsweep import batching
from bsweep.config.run import RunConfig
from bsweep.core.ranks import Place
from bsweep.measure import profile_worker
from bsweep.runlog import profile_file
from bsweep.study import attempts
from bsweep.train import step, worker
from bsweep.train.job import Job
from tests.support.running import compose, write_text

FP32 = ("precision=fp32", "channels_last=false")


@dataclass(frozen=True)
class Case:
    """A model with the targets of bsweep's default against the plain loop, by batch."""

    name: str
    overrides: tuple[str, ...]
    targets: dict[int, float]
    is_large: bool = False  # some programs of it at a time are all that a machine has memory for

    def config(self, folder: Path, *more: str) -> RunConfig:
        text = (
            [f"data.path={folder / 'book.txt'}"]
            if "data=text" in self.overrides
            else ["data=synthetic"]
        )
        study_of = (f"results_dir={folder}", f"study={self.name.replace(' ', '_')}")
        return compose("local_batch=64", *self.overrides, *text, *study_of, *more)


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


def steps_alone(grid: Grid) -> dict[str, Any]:
    """By model and batch, seconds of a step of the plain fp32 loop, of bsweep in the same, and by
    default.
    """
    found: dict[str, Any] = {}
    for case in grid.cases:
        with tempfile.TemporaryDirectory() as folder:
            write_text(Path(folder) / "book.txt", 200_000)
            same, default = prepare(case, Path(folder))
            model = plain_model(default)
            optimizer = plain_optimizer(default, model)
            for size in grid.batches:
                programs = {
                    "plain": plain_step(
                        model, optimizer, ready(default.dataset, default.device, size)
                    ),
                    "same": of_job(same, size),
                    "default": of_job(default, size),
                }
                print(
                    f"{case.name}, batch {size}, default is {numerics(default)}: ",
                    end="",
                    flush=True,
                )
                rounds = alternating(programs, grid.rounds, calls=calls_of(size))
                print(
                    compared(rounds, "plain", {"default": case.targets.get(size, 1.0)}), flush=True
                )
                found[f"{case.name}, batch {size}"] = rounds
    return found


def prepare(case: Case, folder: Path) -> tuple[Job, Job]:
    """This worker in plain fp32, and as by default."""
    torch.set_num_threads(os.cpu_count() or 1)
    same, default = (
        job_of(case.config(folder, "strategy=single", "launch=inline", *words), Place())
        for words in (FP32, ())
    )
    return same, default


def numerics(job: Job) -> str:
    is_channels_last = job.inputs.layout == torch.channels_last
    return f"{job.precision}, {'channels_last' if is_channels_last else 'contiguous'}"


def job_of(config: RunConfig, place: Place) -> Job:
    attempts.paths_of(config).folder.mkdir(parents=True, exist_ok=True)
    return worker.set_up(config, attempts.paths_of(config), place)


def of_job(job: Job, size: int, num_passes: int = 1) -> Program:
    batch = torch.arange(size, device=job.dataset.train_labels.device)
    job.training_model.train()
    return lambda: step.train_step(
        job, batch, batch, job.inputs.crops(1, job.config.seed), num_passes
    )


def accumulation(grid: Grid) -> dict[str, Seconds]:
    """A step of 64 examples in four passes of 16, of the first model."""
    case = grid.cases[0]
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "book.txt", 200_000)
        same, default = prepare(case, Path(folder))
        model = plain_model(default)
        batch = ready(default.dataset, default.device, 64)
        programs = {
            "plain": plain_step(model, plain_optimizer(default, model), batch, 4),
            "same": of_job(same, 64, 4),
            "default": of_job(default, 64, 4),
        }
        rounds = alternating(programs, grid.rounds)
    print(f"{case.name}, 4 passes of 16: {compared(rounds, 'plain', {'default': 1.0})}", flush=True)
    return {f"{case.name}, 4 passes of 16": rounds}


def parts(grid: Grid) -> dict[str, Any]:
    """What the steps of a lone worker consist of, at the smallest batch, and at 64."""
    found = {}
    sizes = sorted({min(grid.batches), *({64} & {*grid.batches})})
    for case in grid.cases:
        with tempfile.TemporaryDirectory() as folder:
            write_text(Path(folder) / "book.txt", 200_000)
            _, job = prepare(case, Path(folder))
            for size in sizes:
                found[f"{case.name}, batch {size}"] = dissected(
                    job, size, f"{case.name}, batch {size}"
                )
    return found


def dissected(job: Job, size: int, name: str) -> dict[str, float]:
    """The parts of steps at a batch, printed by the first worker; all of them call it together."""
    config = replace(job.config, local_batch=size)
    found = profile_worker.dissect(
        replace(job, config=config, policy=batching.build(config)), most_rounds=28
    )
    if job.place.rank == 0:
        print(
            f"{name}: the parts add up to {found.adds_up_to:.1%} of a step (target: within 5 % of "
            "it)"
        )
        print(profile_file.table([found]), flush=True)
    return {
        **found.parts,
        "step": found.step_seconds,
        "step, parts not timed": found.untimed_step_seconds,
    }
