"""Writes a study of models split over workers with known answers, without training anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bsweep.config.split_strategies import PipelineConfig
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import StageLoad, WorkerMemory
from tests.support.synthetic_study import META, write_run

GLOBAL_BATCH = 64
MODEL_BYTES = 12_000_000
SPLIT = {"replicas": 1, "reduce": "fp32"}
WAYS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("ddp", {}),
    ("sharded", {**SPLIT, "reshard": "forward", "wrap": "blocks"}),
    ("tensor", SPLIT),
    ("tensor", {**SPLIT, "replicas": 2}),
    *(
        ("pipeline", {**SPLIT, "schedule": schedule, "microbatches": number, "cuts": None})
        for schedule in ("gpipe", "interleaved_zero_bubble")
        for number in (4, 8)
    ),
    ("pipedream", {**SPLIT, "vertical_sync": False, "cuts": None}),
)


def seconds_of(strategy: str, workers: int, how: Mapping[str, Any]) -> float:
    """Seconds of training a run: tensor is the slowest, and more micro-batches are faster."""
    slower = {"ddp": 1.0, "sharded": 1.3, "pipeline": 1.1, "pipedream": 1.2}
    slower["tensor"] = 2.0 / how.get("replicas", 1)
    return float(100 / workers * slower[strategy] * (1 + 1 / how.get("microbatches", 100)))


def write_split_study(folder: Path, seeds: int = 1) -> Path:
    """Write the runs of all `WAYS` that two and four workers allow, and return the folder."""
    launched = 0.0
    for count in (2, 4):
        for strategy, how in WAYS:
            if count == 2 and how.get("replicas", 1) > 1:
                continue
            for seed in range(seeds):
                launched += 1
                write_split_run(folder, strategy, count, how, seed=seed, launched_at=launched)
    return folder


def write_split_run(
    folder: Path,
    strategy: str,
    workers: int,
    how: Mapping[str, Any],
    *,
    seed: int = 0,
    launched_at: float = 0.0,
    local_batch: int | None = None,
) -> Path:
    """Write one run, whose workers share the global batch in the way of its strategy."""
    groups = workers if strategy in ("ddp", "sharded") else how.get("replicas", 1)
    run = write_run(
        folder,
        local_batch=local_batch or GLOBAL_BATCH // groups,
        num_workers=workers,
        seed=seed,
        epochs=2,
        settings={"strategy": {"name": strategy, **how}, "global_batch": GLOBAL_BATCH},
        meta=META | {"launched_at": launched_at},
    )
    metrics, summary = RunPaths(run).metrics, RunPaths(run).summary
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = seconds_of(strategy, workers, how) * (1 + 0.01 * seed)
    for line in lines:
        if line["type"] == "start":
            line["global_batch"] = GLOBAL_BATCH
        if line["type"] == "epoch":
            line |= {"train_seconds": seconds / 2, "global_batch": GLOBAL_BATCH}
            line |= dict(_records(strategy, workers, how, line["epoch"]))
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = json.loads(summary.read_text())
    summary.write_text(json.dumps({**told, "train_seconds": seconds, "global_batch": GLOBAL_BATCH}))
    return run


def _records(
    strategy: str, workers: int, how: Mapping[str, Any], epoch: int
) -> Iterator[tuple[str, Any]]:
    parts = 1 if strategy == "ddp" else workers // how.get("replicas", 1)
    held = MODEL_BYTES // parts
    yield (
        "worker_memory",
        [
            asdict(WorkerMemory(held, held, held // 2, 400_000_000 + 10 * held + epoch * worker))
            for worker in range(workers)
        ],
    )
    if strategy == "pipeline":
        # A little more than by formula, less if the backward pass is divided.
        bubble = (0.3 if how["schedule"] == "gpipe" else 0.2) * 4 / how["microbatches"]
        load = StageLoad(0.9 * (1 - bubble), bubble, 0.1 * (1 - bubble), 1_000_000)
        card = PipelineConfig(name="pipeline", **how)
        yield "stage_loads", [asdict(load)] * workers
        yield "bubble", bubble
        yield "textbook_bubble", card.textbook_bubble(workers)
    if strategy == "pipedream":
        yield "stage_loads", [asdict(load_of_stage(worker, workers)) for worker in range(workers)]
        yield "bubble", 0.05


STASHED_BYTES = 1_700_000  # of each older version


def load_of_stage(worker: int, workers: int) -> StageLoad:
    """A worker of PipeDream: the first one has the most versions of its weights."""
    lag = workers - 1 - worker
    return StageLoad(0.9, 0.05, 0.05, 1_000_000, lag + 1, lag * STASHED_BYTES, float(lag))
