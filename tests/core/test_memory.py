"""Of what peaks of memory are measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from bsweep.core import memory, ranks
from bsweep.data import plan
from bsweep.data.dataset import Part
from bsweep.numerics.timing import StepClock
from bsweep.train import evaluation, loop, step
from bsweep.train.checkpointing import CheckpointSchedule
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job
from tests.support.gpus import on_gpus
from tests.support.running import TINY, recorded
from tests.support.training import set_up, train


@pytest.mark.parametrize("within", ["null", "40"])
def test_each_epochs_training_and_evaluation_have_peaks_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, within: str
) -> None:
    """A gauge stands for the device's: steps fill it to 10, evaluations to 100."""
    gauge, plain_step, plain_evaluate = [0], step.train_step, evaluation.evaluate

    def train_step(*arguments: Any) -> Tensor:
        gauge[0] = max(gauge[0], 10)
        return plain_step(*arguments)

    def evaluate(job: Job, part: Part) -> tuple[float | None, float | None]:
        gauge[0] = max(gauge[0], 100)
        return plain_evaluate(job, part)

    monkeypatch.setattr(step, "train_step", train_step)
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    monkeypatch.setattr(memory, "reset_peak", lambda _: gauge.__setitem__(0, 1))
    monkeypatch.setattr(memory, "peak_bytes", lambda _: gauge[0])
    point = ("local_batch=32", f"evaluate_every_examples={within}", "model=tiny_cnn", *TINY)
    train(tmp_path, *point, "epochs=3")
    names = ("peak_memory_bytes", "evaluation_peak_memory_bytes")
    peaks = [tuple(epoch[name] for name in names) for epoch in recorded(tmp_path, "epoch")]
    assert peaks == [(10, 100)] * 3
    stopping = ("target_loss=99", "local_batch=8", "evaluate_every_examples=8", "epochs=3")
    folder = train(tmp_path / "stopped", *point, *stopping).paths.folder
    (epoch,) = recorded(folder, "epoch")
    assert epoch["num_steps"] < 12
    assert tuple(epoch[name] for name in names) == (10, None), "of an evaluation at its end"


def test_an_epoch_that_is_resumed_after_its_last_step_has_no_peak_of_training(
    tmp_path: Path,
) -> None:
    job = set_up(tmp_path, "local_batch=8", "model=tiny_cnn", *TINY)
    cursor = Cursor.create(job.device, len(job.dataset.train))
    order = plan.epoch_order(cursor.num_train, seed=0, epoch=1)
    with job.log:
        while not cursor.ends_epoch:
            clock = StepClock(job.device, cursor.step_seconds)
            loop.train_and_record_round(job, cursor, order, clock)
            clock.seconds()
        epoch = loop.train_epoch(job, cursor, CheckpointSchedule(job))
    assert epoch.num_steps > 1
    assert epoch.peak_memory_bytes is None
    assert [worker.peak_bytes for worker in epoch.worker_memory or ()] == [None]


@pytest.mark.parametrize("device", [on_gpus("cuda")])
def test_a_gpus_peak_is_the_same_in_every_epoch_and_grows_with_the_batch(
    tmp_path: Path, device: str
) -> None:
    peaks = []
    for batch in (64, 256):
        images = ("data=synthetic", "data.num_train=1024", "data.num_test=1000")
        point = (f"local_batch={batch}", "model=resnet18", f"device={device}", *images)
        folder = tmp_path / str(batch)
        train(folder, *point, "data.shape=[3,32,32]", "epochs=3")
        (peak,) = {epoch["peak_memory_bytes"] for epoch in recorded(folder, "epoch")}
        peaks.append(peak)
    assert peaks[0] < peaks[1]


@pytest.mark.parametrize(
    ("limits", "num_granted"),
    [
        ({}, None),
        ({"": "50000 100000"}, 1),
        ({"": "max 100000", "a": "199999 100000"}, 1),
        ({"a": "max 100000", "a/b": "6400000 100000"}, None),
    ],
)
def test_cores_are_no_more_than_a_containers_limit_grants(
    limits: dict[str, str], num_granted: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "cgroup").write_text("1:name=systemd:/x\n0::/a/b\n")
    for group, limit in limits.items():
        (tmp_path / group / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(ranks, "GROUPS", tmp_path)
    monkeypatch.setattr(ranks, "OWN_GROUP", tmp_path / "cgroup")
    all_cores = len(os.sched_getaffinity(0))
    assert ranks.num_cores() == min(all_cores, num_granted or all_cores)
