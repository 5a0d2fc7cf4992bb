"""Evaluations within epochs: where they are, that training does not know of them, and that a run
ends at its target.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import bsweep as package
from bsweep.analysis import target_of, to_target
from bsweep.runlog.reading import read_records
from bsweep.study import checks
from bsweep.train import evaluation
from tests.strategies.test_equivalence import _end_processes, trained  # noqa: F401 (the fixture ends the processes)
from tests.study.test_run import runs, summary
from tests.support.refusing import refused
from tests.support.running import TINY, compose, ran_ok, recorded
from tests.support.training import set_up
from tests.train.test_checkpoint import POINT, ROUNDS, untimed

NUM_TRAIN, EVERY = 91, 37
STRATEGIES: dict[str, tuple[str, ...]] = {
    "single": ("strategy=single",),
    "horovod": ("strategy=horovod", "strategy.buckets=3"),
    "ddp": ("strategy=ddp",),
    "compressed": ("strategy=allreduce", "compression=topk"),
    "servers": ("strategy=parameter_server", "optimizer=adamw"),
    "local_sgd": ("strategy=local_sgd", "strategy.sync_every=4"),
    "diloco": ("strategy=diloco", *ROUNDS),
}


def evaluated(name: str, *overrides: str, every: int | str = EVERY) -> list[dict[str, Any]]:
    workers = 1 if name == "single" else 2
    return trained(
        workers, *STRATEGIES[name], *overrides, f"evaluate_every_examples={every}", contract=POINT
    )


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", STRATEGIES)
def test_training_is_the_same_bit_for_bit_however_often_it_is_evaluated(name: str) -> None:
    """Of a network with BatchNorm, whose statistics differ between workers, and with dropout."""
    plain, often = evaluated(name, every="null"), evaluated(name)
    assert plain[0]["moved"] > 0.001
    assert not plain[0]["evaluations"]
    within = [one for one in often[0]["evaluations"] if one["num_examples"] % NUM_TRAIN]
    assert within
    for ours, theirs in zip(often, plain, strict=True):
        assert torch.equal(ours["parameters"], theirs["parameters"])
        assert all(map(torch.equal, ours["buffers"], theirs["buffers"]))
    for kind in ("steps", "epochs", "rounds"):
        assert untimed(often[0][kind]) == untimed(plain[0][kind])
    ends = [one for one in often[0]["evaluations"] if one["num_examples"] % NUM_TRAIN == 0]
    for end, epoch in zip(ends, often[0]["epochs"], strict=True):
        assert all(end[key] == epoch[key] for key in ("epoch", "test_loss", "test_accuracy"))


@pytest.mark.full
@pytest.mark.parametrize(("batch", "sizes"), [(8, [8, 8, 4]), (3, [5, 5, 5, 5])])
def test_a_pass_of_an_evaluation_is_as_large_as_one_of_training_or_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(evaluation, "_EVALUATION_IMAGES", 5)
    job = set_up(tmp_path, *TINY, f"local_batch={batch}", "data.num_test=20")
    seen: list[int] = []
    job.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    evaluation.evaluate(job, job.dataset.test)
    assert seen == sizes


@pytest.mark.full(but=1)
@pytest.mark.parametrize("batch", [4, 14, 40])
def test_evaluations_come_at_the_first_step_past_each_multiple(batch: int) -> None:
    given = ("local_batch=null", f"global_batch={batch}", "epochs=3")
    run = evaluated("compressed", *given)[0]
    sizes = [min(batch, NUM_TRAIN - start) for start in range(0, NUM_TRAIN, batch)] * 3
    trained_examples = list(itertools.accumulate(sizes))
    due = [
        next(n for n in trained_examples if n >= least)
        for least in range(EVERY, 3 * NUM_TRAIN + 1, EVERY)
    ]
    expected = sorted({*due, *(NUM_TRAIN * epoch for epoch in (1, 2, 3))})
    found = run["evaluations"]
    assert [one["num_examples"] for one in found] == expected
    assert [one["num_steps"] for one in found] == [
        1 + trained_examples.index(number) for number in expected
    ]
    assert [one["epochs_done"] for one in found] == pytest.approx(
        [number / NUM_TRAIN for number in expected]
    )
    ends = [one["train_seconds"] for one in found if one["num_examples"] % NUM_TRAIN == 0]
    seconds = itertools.accumulate(epoch["train_seconds"] for epoch in run["epochs"])
    assert ends == pytest.approx(list(seconds)), "without what evaluations took"
    assert all(
        one["train_seconds"] < other["train_seconds"] for one, other in itertools.pairwise(found)
    )


def test_local_sgd_is_evaluated_where_workers_have_met() -> None:
    found = evaluated("local_sgd")[0]["evaluations"]
    assert [one["num_examples"] for one in found] == [64, 91, 123, 182], (
        "every fourth step of 16, and ends of epochs"
    )


@pytest.mark.full
def test_ending_at_the_target_does_not_change_the_steps_to_target(tmp_path: Path) -> None:
    point = "model=tiny_cnn num_workers=2 strategy=allreduce local_batch=4 precision=fp32 study=s"
    more = "optimizer.lr=0.02 evaluate_every_examples=20 target_loss=2.1 epochs=12"
    sweep = ("-m", "stop_at_target=true,false")
    ran_ok("run", *sweep, *TINY, *point.split(), *more.split(), cwd=tmp_path)
    ours, theirs = sorted(runs(tmp_path), key=lambda paths: len(read_records(paths.metrics)[0]))
    for paths in (ours, theirs):
        (event,) = recorded(paths.folder, "event")
        assert event["event"] == "target_reached"
        assert event["message"].startswith("reached a test loss of 2.1: evaluation ")
        assert summary(paths)["status"] == "completed"
        assert not summary(paths)["warnings"]
    assert summary(ours)["message"].startswith("reached a test loss of 2.1")
    assert summary(theirs)["message"] == ""
    assert 1 < summary(ours)["num_steps"] < summary(theirs)["num_steps"]
    both = to_target(package.load(tmp_path / "results/s", mix=True), target_of(loss=2.1))
    assert both["reached"].all()
    assert not both["is_bound"].any()
    for name in ("steps", "epochs", "examples"):
        assert both[f"{name}_to_target"].nunique() == 1
    table = package.load(tmp_path / "results/s", mix=True).runs.set_index("run_id")
    assert table["steps_to_target"].to_dict() == both["steps_to_target"].to_dict()


@pytest.mark.parametrize(
    "row",
    [
        ("evaluate_every_examples=271 epochs=3", "=271", "epochs=3 of 90", "less than 90"),
        ("target_accuracy=0.5 epochs=1", "0.5", "epochs=2 or more", "evaluate_every_examples=9"),
        ("target_loss=0.5 epochs=1 evaluate_every_examples=89", "loss of 0.5", "epochs=2 or more"),
        ("target_loss=0.5 epochs=1 evaluate_every_examples=9 local_batch=90", "fewer examples"),
    ],
)
def test_evaluations_that_would_never_come_are_refused(row: tuple[str, ...]) -> None:
    overrides, *expected = row
    point = (*TINY, "model=tiny_cnn", "launch=inline", "strategy=single", "local_batch=8")
    with refused(*expected):
        checks.check_point(compose(*point, *overrides.split()))
    checks.check_point(compose(*point, "target_loss=0.5"))
    checks.check_point(compose(*point, "target_loss=0.5", "epochs=1", "evaluate_every_examples=88"))
