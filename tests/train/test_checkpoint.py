"""A run that is interrupted, however and whenever, ends with the records and the weights of one
that never was.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from bsweep.numerics.timing import StepClock
from bsweep.runlog.files import RunPaths
from bsweep.train import checkpointing
from bsweep.train.checkpointing import CheckpointSchedule
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job
from tests.strategies.test_equivalence import COLOCATED, DIVIDED, _end_processes, trained  # noqa: F401 (the fixture ends the processes)
from tests.support.running import ROOT, TINY, options

NETWORK = ("model=own", f"model.target={ROOT}/tests/support/noisy_network.py:build")
POINT = (
    *TINY,
    "data.num_train=91",
    *NETWORK,
    "precision=fp32",
    "epochs=2",
    "optimizer.lr=0.05",
    "log_every_steps=2",
)
CODECS = [name for name in options("compression") if name not in ("none", "own")]
# Three an epoch.
ROUNDS = ("strategy.sync_every=2", "allocation.local_batches=[5,9]", "allocation.local_steps=[4,2]")
EVALUATIONS = ("evaluate_every_examples=37", "target_loss=2.5", "stop_at_target=false", "epochs=3")
STAGES = ("optimizer.schedule=multistep", "optimizer.milestones=[0.3,1.3]", "optimizer.gamma=0.5")
RAISED = ("batching=raise_instead_of_decay", *STAGES)
OF_THREE = ((2, 4), (5, 7))  # workers, whose epochs have four steps instead of six
BY_PASSES = ("accumulation_steps=2", "measure.noise_scale=true")
STAGED = ("strategy=pipeline", "strategy.cuts=[1]")
SMALL = ("strategy=allreduce", "local_batch=2")
OVER_HOROVOD = ("strategy.algorithm=horovod", "launch=horovodrun")
BY_NOISE = (
    "batching=noise_scale",
    "batching.every_steps=6",
    "batching.hysteresis=1",
    "optimizer.lr_rule=adascale",
)
POLICIES = (
    ("batching=schedule", "batching.rate=seesaw", "batching.every_epochs=0.4"),
    ("batching=norm_test", "batching.every_steps=4", "batching.theta=0.1"),
    ("batching=cabs", "batching.every_steps=4", "batching.hysteresis=1", "optimizer.lr=0.5"),
    ("batching=goodput", "batching.every_steps=4", "batching.max_local_batch=60"),
)
# In an epoch, at the end of one, in the next.
IN_STEP = ((2, 4), (6, 8), (8, 11))
IN_ROUNDS = ((1, 3), (3, 5))


def case(
    num_workers: int, *overrides: str, breaks: tuple[tuple[int, int], ...] = IN_STEP[2:], **how: Any
) -> Any:
    name = " ".join(word.partition(".")[2] or word for word in overrides)
    return pytest.param(num_workers, overrides, breaks, how, id=name + str(how.get("policy", "")))


@pytest.mark.full(but=4)
@pytest.mark.parametrize(
    ("num_workers", "overrides", "breaks", "how"),
    [
        case(1, "strategy=single", breaks=IN_STEP),
        case(2, "strategy=horovod", breaks=IN_STEP),
        case(1, "strategy=single", "local_batch=4", *BY_PASSES, breaks=((14, 17),)),
        case(2, "strategy=allreduce", *EVALUATIONS, breaks=((1, 2), *IN_STEP)),
        case(2, "strategy=diloco", *ROUNDS, *EVALUATIONS, breaks=IN_ROUNDS),
        case(2, "strategy=ddp", breaks=IN_STEP[1:]),
        case(2, "strategy=ddp", "strategy.hook=powersgd"),
        case(2, "strategy=horovod", *RAISED, breaks=((2, 4), (5, 6))),
        case(2, *SMALL, *BY_NOISE, breaks=((11, 12), (13, 15)), policy="identified"),
        *(case(2, *SMALL, *policy, breaks=((11, 12),), policy="timed") for policy in POLICIES),
        case(2, "strategy=allreduce", "precision=fp16", "compression=topk", overflow=(1, 3)),
        case(2, "strategy=sharded", breaks=IN_STEP),
        case(2, "strategy=sharded", "optimizer=lamb"),
        case(4, "strategy=tensor", "strategy.replicas=2", *DIVIDED, "optimizer=lamb"),
        case(4, "strategy=sharded", "strategy.replicas=2", "optimizer=adamw", breaks=((1, 2),)),
        *(
            case(
                *(2, "strategy=pipedream", "optimizer=adamw", f"strategy.vertical_sync={sync}"),
                breaks=((1, 2),),  # of its epochs, in which it does not save
            )
            for sync in ("false", "true")
        ),
        # Measured cuts may differ from run to run, and dropout with them.
        case(2, *STAGED, "optimizer=adamw", breaks=IN_STEP),
        case(4, *STAGED, "strategy.replicas=2", "optimizer=lamb", "measure.noise_scale=true"),
        case(2, "strategy=parameter_server", "optimizer=adamw"),
        case(3, *COLOCATED, breaks=OF_THREE),
        case(1, "strategy=parameter_server", "strategy.consistency=asynchronous"),
        case(2, "strategy=local_sgd", "strategy.sync_every=4", breaks=IN_STEP),
        case(2, "strategy=diloco", *ROUNDS, *OVER_HOROVOD, breaks=IN_ROUNDS),
        case(
            2, "strategy=diloco", *ROUNDS, "compression=dgc", breaks=IN_ROUNDS[1:], policy="ByRound"
        ),
        *(case(2, "strategy=allreduce", f"compression={codec}") for codec in CODECS),
    ],
)
def test_a_run_that_was_broken_off_ends_as_one_that_never_was(
    num_workers: int,
    overrides: tuple[str, ...],
    breaks: tuple[tuple[int, int], ...],
    how: dict[str, Any],
) -> None:
    whole = trained(num_workers, *overrides, contract=POINT, **how)
    assert whole[0]["moved"] > 0.001
    for break_off in breaks:
        again = trained(num_workers, *overrides, contract=POINT, break_off=break_off, **how)
        for ours, theirs in zip(again, whole, strict=True):
            assert torch.equal(ours["parameters"], theirs["parameters"])
            assert all(map(torch.equal, ours["buffers"], theirs["buffers"]))
            assert ours["scale"] == theirs["scale"]
        for event in ("target_reached", "batch_changed"):
            assert events(again[0], event) == events(whole[0], event)
        assert len(events(whole[0], "target_reached")) == ("target_loss=2.5" in overrides)
        assert events(whole[0], "batch_changed") or how.get("policy") != "timed"
        for kind in ("steps", "epochs", "rounds", "evaluations", "noise_scales"):
            assert untimed(again[0][kind]) == untimed(whole[0][kind])
        for ours, theirs in zip(again[0]["epochs"], whole[0]["epochs"], strict=True):
            assert untimed(ours.get("stage_loads") or []) == untimed(
                theirs.get("stage_loads") or []
            )


def events(run: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return untimed([event for event in run["events"] if event["event"] == name])


def untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records, without what a clock says and how much memory there was."""
    return [
        {
            key: value
            for key, value in record.items()
            if not key.endswith(_MEASURED) and key not in _MEASURED_TOO
        }
        for record in records
    ]


_MEASURED_TOO = ("time", "servers", "worker_memory", "stage_loads", "bubble")
_MEASURED = ("_seconds", "_joules", "_per_second", "_p50", "_p95", "_memory_bytes")


@pytest.mark.full
@pytest.mark.parametrize("save_seconds", [0.01, 0.5, 7.0])
@pytest.mark.parametrize("synchronised_now", [True, False])
def test_by_default_saving_costs_less_than_a_hundredth_and_asking_is_rare(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, save_seconds: float, synchronised_now: bool
) -> None:
    """On a clock of its own: steps of 50 ms for hours, of a model of 40 MB."""
    now, saved, asked = [0.0], [], []

    def save(job: Job, cursor: Cursor) -> None:
        now[0] += save_seconds
        saved.append(now[0])

    def gather(values: Tensor) -> Tensor:
        asked.append(now[0])
        return values.unsqueeze(0)

    monkeypatch.setattr(
        checkpointing, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    )
    monkeypatch.setattr(checkpointing, "save", save)
    strategy = SimpleNamespace(
        synchronised_now=synchronised_now, saves_within_epochs=True, gather=gather
    )
    fields = {
        "config": SimpleNamespace(checkpoint_every="auto"),
        "vector": SimpleNamespace(num_bytes=40_000_000),
    }
    paths, cpu = RunPaths(tmp_path), torch.device("cpu")
    heartbeat = SimpleNamespace(beat=lambda: None)
    job = SimpleNamespace(**fields, strategy=strategy, paths=paths, heartbeat=heartbeat)
    keeper = CheckpointSchedule(cast(Job, job))
    cursor, clock = Cursor.create(cpu, 10), StepClock(cpu, [])
    while now[0] < 10_000:
        now[0] += 0.05
        cursor.checkpoint_seconds += keeper.after_round(cursor, clock)
        if saved:
            assert cursor.checkpoint_seconds < 0.05 * now[0], "the first one is not known yet"
    assert cursor.checkpoint_seconds == pytest.approx(len(saved) * save_seconds)
    assert saved
    assert cursor.checkpoint_seconds < 0.01 * now[0]
    assert len(asked) <= now[0] * (1.1 if synchronised_now else 0.002)
