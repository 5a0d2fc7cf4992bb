"""Studies whose steps to a target and seconds of a step follow known laws: what a prediction has to
find.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bsweep.analysis import Study
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import SCHEMA, Status
from tests.support.synthetic_study import META, write_run

TARGET = 0.9
_EVERY_EXAMPLES = 4_000


@dataclass(frozen=True)
class Truth:
    """S(B) = minimum_steps + minimum_examples / B, and Pollux's form of a step's seconds; all
    known.
    """

    minimum_steps: float = 800.0
    minimum_examples: float = 160_000.0
    pass_seconds: float = 0.02
    example_seconds: float = 0.0005
    sync_seconds: float = 0.01
    sync_worker_seconds: float = 0.002
    overlap: float = 1.5
    scatter: float = 0.06  # of log steps, between seeds
    jitter: float = 0.02  # of log seconds, between runs

    def steps(self, batch: float) -> float:
        return self.minimum_steps + self.minimum_examples / batch

    def step_seconds(self, local_batch: float, workers: int, passes: int = 1) -> float:
        one = self.pass_seconds + self.example_seconds * local_batch
        sync = (
            self.sync_seconds + self.sync_worker_seconds * max(workers - 2, 0)
            if workers > 1
            else 0.0
        )
        return (passes - 1) * one + math.pow(
            one**self.overlap + sync**self.overlap, 1 / self.overlap
        )

    def of_seed(self, rng: np.random.Generator) -> float:
        """The factor by which the steps of one run differ from `steps`."""
        return math.exp(self.scatter * rng.standard_normal())

    def of_run(self, rng: np.random.Generator, workers: int) -> float:
        """The factor by which the steps of one run are slower than `step_seconds`."""
        return math.exp(self.jitter * rng.standard_normal())

    def typical(self, workers: int) -> float:
        """The geometric mean of `of_run`."""
        return 1.0

    def most_accuracy(self, batch: float) -> float:
        """The accuracy at which all runs of a batch size stay."""
        return 1.0

    def reaches(self, batch: float) -> bool:
        return self.most_accuracy(batch) >= TARGET

    def seconds(self, batch: int, workers: int) -> float:
        """The geometric mean of the seconds to the target over runs; infinite if none gets
        there.
        """
        if not self.reaches(batch):
            return math.inf
        step = self.step_seconds(batch / workers, workers) * self.typical(workers)
        return self.steps(batch) * step


def write_target_run(
    study: Path,
    truth: Truth,
    *,
    batch: int,
    workers: int = 1,
    seed: int = 0,
    most_examples: float = math.inf,
    settings: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    noise_scale: float | None = None,
    every_examples: int = _EVERY_EXAMPLES,
    needed: float = 1.0,
    status: Status = "completed",
) -> Path:
    """A run that was ended at its target, or before it after so many examples; its accuracy rises
    in a straight line.

    It ends at the second evaluation that is as good, which confirms the first.

    With a `noise_scale` it recorded one at each evaluation, whose parts scatter. It needs `needed`
    times as many steps.
    """
    own = settings or {}
    folder = write_run(
        study, local_batch=batch // workers, num_workers=workers, seed=seed, num_epochs_done=0,
        settings={"optimizer.lr_rule": "linear", **own}, meta=META | (meta or {}), status=status,
    )  # fmt: skip
    rng = np.random.default_rng([batch, workers, seed, 5])
    steps = needed * truth.steps(batch) * truth.of_seed(rng)
    step_seconds = truth.step_seconds(batch / workers, workers) * truth.of_run(rng, workers)
    every = max(1, every_examples // batch)
    at, records = 0, []
    end = steps + every if truth.reaches(batch) else math.inf
    while at < end and at * batch < most_examples:
        at += every
        shared = {
            "epoch": 1,
            "num_steps": at,
            "num_examples": at * batch,
            "epochs_done": at * batch / 50_000,
        }
        accuracy = min(truth.most_accuracy(batch), TARGET * at / steps)
        evaluation = {
            "test_accuracy": accuracy,
            "test_loss": 1 - accuracy,
            "train_seconds": at * step_seconds,
        }
        records.append({"type": "evaluation", **shared, **evaluation})
        if noise_scale is not None:
            square = 1 + 0.3 * rng.standard_normal()
            variance = noise_scale * (1 + 0.1 * rng.standard_normal())
            parts = {
                "gradient_square": square,
                "variance": variance,
                "num_gradients": 4,
                "gradient_batch": batch / 4,
            }
            records.append({"type": "noise_scale", **shared, **parts})
    with RunPaths(folder).metrics.open("a") as file:
        file.writelines(
            json.dumps({"schema": SCHEMA, "time": 0.0, **record}) + "\n" for record in records
        )
    return folder


def write_target_study(
    study: Path,
    truth: Truth,
    batches: Iterable[int],
    workers: Iterable[int] = (1,),
    seeds: Iterable[int] = (0,),
    **more: Any,
) -> Path:
    """Write a run of each batch, number of workers and seed as `write_target_run` does, and return
    the study's folder.
    """
    for batch, count, seed in itertools.product(batches, workers, seeds):
        write_target_run(study, truth, batch=batch, workers=count, seed=seed, **more)
    return study


def with_energy(study: Study, worker_watts: float, example_joules: float = 0.0) -> Study:
    """The study, whose runs used so much until their last evaluation."""
    last = study.evaluations.groupby("run_id").last().reindex(study.runs["run_id"]).reset_index()
    joules = worker_watts * last["train_seconds"] * study.runs["num_workers"]
    joules += example_joules * last["num_steps"] * study.runs["global_batch"]
    runs = study.runs.assign(train_seconds=last["train_seconds"], energy_joules=joules)
    return replace(study, runs=runs)


def write_branch(
    study: Path,
    source: Path,
    truth: Truth,
    *,
    batch: int,
    workers: int = 1,
    after: int,
    **more: Any,
) -> Path:
    """A run that went on from another one after so many steps, its batch as far from the target as
    that one was.

    Until there its records are the other one's, and its own steps take the time that they do on its
    workers.
    """
    folder = write_target_run(study, truth, batch=batch, workers=workers, **more)
    paths, before = RunPaths(folder), [json.loads(line) for line in RunPaths(source).metrics.open()]
    copied = [one for one in before if one["type"] == "evaluation" and one["num_steps"] <= after]
    begun = copied[-1]
    share = begun["test_accuracy"] / TARGET  # of the way to the target
    own = []
    for line in paths.metrics.open():
        record = json.loads(line)
        if record["type"] == "evaluation":
            record["test_accuracy"] = begun["test_accuracy"] + record["test_accuracy"] * (1 - share)
            record["num_steps"] += begun["num_steps"]
            record["train_seconds"] = begun["train_seconds"] + record["train_seconds"]
            record["num_examples"] += begun["num_examples"]
        own.append(record)
    event = {
        "type": "event", "event": "continued", "message": "it was another run",
        "branch_of": source.name,
        "num_steps": begun["num_steps"], "train_seconds": begun["train_seconds"], "schema": SCHEMA,
        "time": 0.0,
    }  # fmt: skip
    lines = [own[0], *copied, event, *own[1:]]
    paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
