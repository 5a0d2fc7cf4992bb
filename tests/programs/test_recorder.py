"""How the reports of a program become the records of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bsweep.config.run import RunConfig
from bsweep.numerics.noise_scale import DECAY, Average
from bsweep.programs.recorder import Recorder
from bsweep.runlog.checkpoint_files import checkpoints
from bsweep.runlog.errors import Diverged, ProgramError
from bsweep.runlog.files import RunPaths
from bsweep.runlog.summary import write_summary
from tests.support.running import compose

READY = {
    "kind": "ready",
    "num_train": 16,
    "device": None,
    "threads": None,
    "software": {"torch": "2.13.0"},
}
PYTHON = {"python": "3.11.2", "interpreter": "/env/bin/python"}
JOINED = {"kind": "joined", "software": PYTHON, "facts": {"num_test": 4, "num_classes": 2}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program").mkdir()
    return tmp_path


def point(*words: str) -> RunConfig:
    command = "program.command='python -c 1'"
    return compose("program=own", command, "local_batch=4", "launch=inline", *words)


def recorded(folder: Path, *reports: dict[str, Any], config: RunConfig | None = None) -> Recorder:
    recorder = Recorder(config or point("epochs=1"), RunPaths(folder), None)
    for report in reports:
        recorder.take({"time": 1.0, **report})
    return recorder


def epoch(*reports: dict[str, Any], number: int = 1, **more: Any) -> list[dict[str, Any]]:
    """Return the reports of an epoch of four steps with others before its end."""
    return [
        {"kind": "begin_epoch", "epoch": number},
        {"kind": "steps", "epoch": number, "seconds": [0.5] * 4, "examples": [4] * 4},
        *reports,
        {"kind": "end_epoch", "epoch": number, "files": {}, **more},
    ]


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record for record in found if record["type"] == kind]


def test_an_epoch_is_recorded_with_what_was_measured(folder: Path) -> None:
    values = {"train_loss": 0.25, "sent_bytes": 10.0}
    scores = {"test_loss": 0.5, "test_accuracy": 0.75}
    reports = epoch({"kind": "log", "values": values}, {"kind": "evaluated", "values": scores})
    recorded(folder, JOINED, READY, *reports).end()
    (found,) = records(folder, "epoch")
    assert found["train_seconds"] == 2.0
    assert found["images_per_second"] == 8.0
    assert (found["step_seconds_p50"], found["step_seconds_p95"]) == (0.5, 0.5)
    assert (found["train_loss"], found["sent_bytes"]) == (0.25, 10)
    assert found["exchange_seconds"] is None
    assert found["learning_rate"] is None
    (evaluation,) = records(folder, "evaluation")
    assert evaluation["test_accuracy"] == 0.75
    assert evaluation["epochs_done"] == 1.0
    assert records(folder, "end")[0]["status"] == "completed"


def test_the_rate_is_recorded_only_if_the_program_reads_it(folder: Path) -> None:
    config = point("epochs=1", "optimizer.lr=0.5")
    recorded(folder, READY, *epoch(), config=config)
    assert records(folder, "epoch")[0]["learning_rate"] is None
    recorded(folder, READY, {"kind": "reads_lr"}, *epoch(), config=config)
    assert records(folder, "epoch")[-1]["learning_rate"] == 0.5


def test_a_program_without_steps_is_timed_by_the_clock_and_says_so(folder: Path) -> None:
    begun = {"kind": "begin_epoch", "epoch": 1, "time": 10.0}
    ends = {"kind": "end_epoch", "epoch": 1, "files": {}, "time": 14.0}
    knows = point("epochs=1", "data.num_train=16")
    recorded(folder, JOINED, begun, ends, config=knows).end()
    assert records(folder, "epoch")[0]["train_seconds"] == 4.0
    (warning, no_score) = [event["message"] for event in records(folder, "event")]
    assert "evaluations included" in warning
    assert "no evaluation in 4 steps" in no_score


def test_the_number_of_examples_is_that_of_an_epoch_if_not_told(folder: Path) -> None:
    ready = {**READY, "num_train": None}
    recorded(folder, JOINED, ready, *epoch()).end()
    assert records(folder, "start")[0]["num_train"] == 16


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ([[5]], "took 5 examples"),
        ([[4, 3, 4]], "in the middle of an epoch took 3 examples"),
        ([[2], [2]], "took 2 examples"),  # though each step is reported alone
    ],
)
def test_another_batch_is_refused(folder: Path, examples: list[list[int]], said: str) -> None:
    step = {"kind": "steps", "epoch": 1}
    steps = [{**step, "seconds": [1.0] * len(some), "examples": some} for some in examples]
    with pytest.raises(ProgramError, match=said):
        recorded(folder, READY, {"kind": "begin_epoch", "epoch": 1}, *steps)


def test_a_short_last_step_is_no_fault(folder: Path) -> None:
    step = {"kind": "steps", "epoch": 1, "seconds": [1.0] * 2, "examples": [4, 2]}
    ends = {"kind": "end_epoch", "epoch": 1, "files": {}}
    recorded(folder, READY, {"kind": "begin_epoch", "epoch": 1}, step, ends)
    assert records(folder, "epoch")[0]["images_per_second"] == 3.0


def test_a_loss_that_is_not_finite_is_divergence(folder: Path) -> None:
    with pytest.raises(Diverged, match="train_loss"):
        recorded(folder, READY, *epoch({"kind": "log", "values": {"train_loss": float("inf")}}))
    assert records(folder, "end")[0]["status"] == "diverged"


def test_a_target_ends_a_run_within_an_epoch(folder: Path) -> None:
    config = point("epochs=9", "target_accuracy=0.7")
    stops = {"kind": "stops", "reason": "target", "cuts": True}
    score = {"kind": "evaluated", "values": {"test_accuracy": 0.9}}
    recorded(folder, JOINED, READY, *epoch(score, stops), config=config).end()
    (end,) = records(folder, "end")
    assert (end["status"], end["epochs"]) == ("completed", 1)
    assert end["message"] == "reached a test accuracy of 0.7"


def test_a_checkpoint_needs_files_that_are_still_those_of_its_epoch(folder: Path) -> None:
    config = point("epochs=3")
    saved = folder / "program/state"
    recorder = recorded(folder, READY, config=config)
    saved.write_text("1")
    files = {"state": [saved.stat().st_size, saved.stat().st_mtime_ns]}
    for report in epoch(files={**files, "removed": [1, 1]}):
        recorder.take({"time": 1.0, **report})
    assert not list(folder.glob("checkpoint/*/complete.json"))
    for report in epoch(number=2, files=files):
        recorder.take({"time": 1.0, **report})
    (checkpoint,) = checkpoints(RunPaths(folder))
    assert checkpoint.damage(folder / "metrics.jsonl") == ""
    saved.write_text("another")
    assert "damaged" in checkpoint.damage(folder / "metrics.jsonl")


def test_noise_is_recorded_of_the_steps_since_the_last_report(folder: Path) -> None:
    average, reports = Average(), []
    for square, variance in ((1.0, 8.0), (3.0, 10.0), (5.0, 60.0)):
        average = average.joined(square, variance, 1)
        found = {"gradient_square": average.squared_norm, "variance": average.trace}
        reports.append({"kind": "noise", "num_samples": average.num_samples, **found})
    recorded(folder, READY, *epoch(reports[0], reports[0], reports[2]))
    first, second = records(folder, "noise_scale")
    assert (first["gradient_square"], first["variance"]) == (1.0, 8.0)
    assert first["num_gradients"] == 2
    assert second["gradient_square"] == pytest.approx((5 + DECAY * 3) / (1 + DECAY))
    assert second["variance"] == pytest.approx((60 + DECAY * 10) / (1 + DECAY))
    assert second["num_gradients"] == 4


def passes(*numbers_of_steps: int, **steps: Any) -> list[dict[str, Any]]:
    """Return the reports of a program by steps: of passes, of which the last has not ended."""
    reports: list[dict[str, Any]] = []
    for number, num_steps in enumerate(numbers_of_steps, 1):
        reports += [{"kind": "end_epoch", "files": {}}] * (number > 1)
        reports.append({"kind": "begin_epoch", "epoch": number, "is_pass": True})
        taken = {"seconds": [0.5] * num_steps, "examples": [4] * num_steps}
        reports.append({"kind": "steps", **taken, **steps})
    return reports


def test_a_program_by_steps_ends_with_its_last_pass(folder: Path) -> None:
    score = {"kind": "evaluated", "values": {"test_accuracy": 0.75}}
    config, stops = point("epochs=2"), {"kind": "stops", "reason": "passes", "cuts": True}
    recorded(folder, JOINED, READY, *passes(4, 4), stops, score, config=config).end()
    assert [epoch["num_steps"] for epoch in records(folder, "epoch")] == [4, 4]
    assert records(folder, "evaluation")[0]["epochs_done"] == 2.0
    (end,) = records(folder, "end")
    assert (end["status"], end["epochs"], end["num_steps"]) == ("completed", 2, 8)
    assert records(folder, "event") == []


def test_a_program_by_steps_that_ends_too_early_is_told_what_to_write(folder: Path) -> None:
    with pytest.raises(ProgramError) as raised:
        recorded(folder, JOINED, READY, *passes(4, 2), config=point("epochs=5")).end()
    assert "after 1.5 of 5 passes over 16 examples" in str(raised.value)
    assert "let run.steps(...) or run.should_stop end its loop" in str(raised.value)
    assert "or give epochs=1" in str(raised.value)


def test_small_batches_within_a_pass_are_the_last_ones_of_a_loader(folder: Path) -> None:
    steps = {"seconds": [1.0] * 4, "examples": [4, 2, 4, 4]}
    recorded(folder, READY, *passes(4, **steps))
    with pytest.raises(ProgramError, match="took 2 examples of one worker"):
        recorded(folder, READY, *passes(4, **{**steps, "examples": [4, 2, 2, 4]}))


def test_an_epoch_that_is_not_one_pass_is_said_and_counted_in_passes(folder: Path) -> None:
    long = {"kind": "steps", "seconds": [0.5] * 32, "examples": [4] * 32}
    score = {"kind": "evaluated", "values": {"test_accuracy": 0.75}}
    recorded(folder, JOINED, READY, *epoch(long, score)).end()
    (warning,) = records(folder, "event")
    assert "took 144 examples, which are 9 passes over num_train=16" in warning["message"]
    assert records(folder, "evaluation")[0]["epochs_done"] == 9.0


def test_the_score_of_a_run_is_its_last_evaluation(folder: Path) -> None:
    config = point("epochs=2")
    scores = [{"kind": "evaluated", "values": {"test_accuracy": score}} for score in (0.5, 0.75)]
    recorded(folder, JOINED, READY, *epoch(*scores), *epoch(number=2), config=config).end()
    write_summary(RunPaths(folder), config, "completed", "", None)
    assert json.loads((folder / "summary.json").read_text())["test_accuracy"] == 0.75
    assert records(folder, "epoch")[1]["test_accuracy"] is None


def test_the_start_of_loaders_counts_into_the_epoch_alone(folder: Path) -> None:
    start = {"kind": "steps", "seconds": [0.5], "examples": [4], "start_seconds": 1.5}
    recorded(folder, READY, *epoch(start))
    (found,) = records(folder, "epoch")
    assert (found["train_seconds"], found["step_seconds_p95"]) == (4.0, 0.5)


def test_the_software_is_that_of_the_program(folder: Path) -> None:
    recorded(folder, JOINED, READY, *epoch()).end()
    (start,) = records(folder, "start")
    assert start["software"] == {**PYTHON, "torch": "2.13.0"}


def test_missing_evaluations_are_counted_in_steps(folder: Path) -> None:
    recorded(folder, JOINED, READY, *epoch()).end()
    (warning,) = records(folder, "event")
    assert "no evaluation in 4 steps: call run.evaluated(...)" in warning["message"]
