"""How the reports of a program become the records of its run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bsweep.config.run import RunConfig
from bsweep.external.recorder import Recorder
from bsweep.runlog.checkpoint_files import checkpoints
from bsweep.runlog.errors import Diverged, ProgramError
from bsweep.runlog.files import RunPaths
from bsweep.runlog.summary import write_summary
from bsweep.runlog.taken import Taken
from tests.support.running import compose
from tests.support.running import recorded as records

Report = dict[str, Any]

PYTHON = {"python": "3.11.2", "interpreter": "/env/bin/python"}
FACTS = {"num_test": 4, "num_classes": 2, "num_train": None, "accumulation_steps": 1}
JOINED = {"kind": "facts", "is_ready": False, "facts": FACTS, "software": PYTHON}
TORCH = {"torch": "2.13.0"}
UNKNOWN = {"kind": "facts", "is_ready": True, "facts": {}, "software": TORCH}
READY = {**UNKNOWN, "facts": {"num_train": 16, "device": None}}
SCORE = {"kind": "evaluated", "values": {"test_accuracy": 0.75}}
ENDS = {"kind": "end_epoch", "files": {}}
DONE = {"status": "completed"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program").mkdir()
    return tmp_path


def point(*words: str) -> RunConfig:
    command = "program.command='python -c 1'"
    return compose("program=own", command, "local_batch=4", "launch=inline", *words)


def recorded(folder: Path, *reports: Report, words: Sequence[str] = ("epochs=1",)) -> Recorder:
    recorder = Recorder(point(*words), RunPaths(folder), None)
    for report in reports:
        recorder.take({"time": 1.0, **report})
    return recorder


def begins(number: int, **more: Any) -> Report:
    return {"kind": "begin_epoch", "epoch": number, **more}


def steps(*examples: int, **more: Any) -> Report:
    """Return the report of steps of half a second."""
    return {"kind": "steps", "seconds": [0.5] * len(examples), "examples": [*examples], **more}


def epoch(*reports: Report, number: int = 1, **more: Any) -> list[Report]:
    """Return the reports of an epoch of four steps with others before its end."""
    return [begins(number), steps(4, 4, 4, 4), *reports, {**ENDS, **more}]


def stops(reason: str) -> Report:
    return {"kind": "stops", "reason": reason}


LOSS = {"train_loss": 0.25, "sent_bytes": 10.0}
UNMEASURED = {"energy_joules": math.nan, "sent_bytes": math.nan, "wait_seconds": 0.5}
UNMEASURED_EPOCH = {"energy_joules": None, "sent_bytes": None, "wait_seconds": 0.5}
FAST = {"train_seconds": 2.0, "images_per_second": 8.0, "step_seconds_p50": 0.5}
NO_SCORE = {"message": "no evaluation in 4 steps: call run.evaluated(...)"}
ONE, RATE = ("epochs=1",), ("epochs=1", "optimizer.lr=0.5")
METRICS = ("program.metrics=csv:log.csv", "data.num_train=16")
NO_FIELD = {"message": "name its score of a test set by program.fields.test_accuracy"}
TWO_PASSES = [
    *(begins(1, is_pass=True), steps(4, 4, 4, 4), ENDS),
    *(begins(2, is_pass=True), steps(4, 4, 4, 4), stops("passes"), SCORE),
]


@pytest.mark.parametrize(
    ("words", "reports", "wanted"),
    [
        (
            ONE,
            [READY, *epoch({"kind": "log", "values": LOSS}, SCORE)],
            {
                "start": {"num_train": 16, "num_test": 4, "software": {**PYTHON, **TORCH}},
                "epoch": {**FAST, **LOSS, "test_accuracy": 0.75, "exchange_seconds": None},
                "evaluation": {"test_accuracy": 0.75, "num_examples": 16, "epochs_done": 1.0},
                "event": None,
            },
        ),
        # A measurement that is NaN was not made.
        (ONE, [READY, *epoch({"kind": "log", "values": UNMEASURED})], {"epoch": UNMEASURED_EPOCH}),
        # The number of examples is that of an epoch if it is not told.
        (ONE, [UNKNOWN, *epoch()], {"start": {"num_train": 16}}),
        # The rate is recorded only if the program reads it.
        (RATE, [READY, *epoch()], {"epoch": {"learning_rate": None}, "event": NO_SCORE}),
        ((*ONE, *METRICS), [READY, *epoch()], {"event": NO_FIELD}),
        (RATE, [READY, {"kind": "reads_lr"}, *epoch()], {"epoch": {"learning_rate": 0.5}}),
        # The start of loaders counts into the epoch alone.
        (ONE, [READY, *epoch(steps(4, start_seconds=1.5))], {"epoch": {"train_seconds": 4.0}}),
        # A short last step is no fault and, within a pass, may be the last one of a loader.
        (ONE, [READY, begins(1), steps(4, 2), ENDS], {"epoch": {"images_per_second": 6.0}}),
        (
            ONE,
            [READY, begins(1, is_pass=True), steps(4, 2, 4, 4), stops("passes")],
            {"epoch": {"num_steps": 4}},
        ),
        # A program without steps is timed by the clock.
        (
            ("epochs=1", "data.num_train=16"),
            [begins(1, time=10.0), SCORE, {**ENDS, "time": 14.0}],
            {
                "epoch": {"train_seconds": 4.0, "num_steps": 4},
                "event": {"message": "evaluations included"},
            },
        ),
        # An epoch that is not one pass is said, and counted in passes.
        (
            ONE,
            [READY, *epoch(steps(*[4] * 32), SCORE)],
            {
                "event": {"message": "took 144 examples, which are 9 passes over num_train=16"},
                "evaluation": {"epochs_done": 9.0},
            },
        ),
        # A target ends a run within an epoch.
        (
            ("epochs=9", "target_accuracy=0.7"),
            [READY, *epoch(SCORE, stops("target"))],
            {"end": {**DONE, "epochs": 1, "message": "reached a test accuracy of 0.7"}},
        ),
        # A stop after the last epoch has nothing left to stop.
        (ONE, [READY, *epoch(SCORE), stops("asked")], {"end": {**DONE, "epochs": 1}}),
        # A program by steps ends with its last pass.
        (
            ("epochs=2",),
            [READY, *TWO_PASSES],
            {
                "end": {**DONE, "epochs": 2, "num_steps": 8},
                "evaluation": {"epochs_done": 2.0},
                "event": None,
            },
        ),
    ],
)
def test_reports_become_records(
    folder: Path, words: Sequence[str], reports: list[Report], wanted: dict[str, Report | None]
) -> None:
    recorded(folder, JOINED, *reports, words=words).end()
    for kind, values in wanted.items():
        found = records(folder, kind)
        assert bool(found) == bool(values)
        for name, value in (values or {}).items():
            is_text = name == "message"
            assert value in found[-1][name] if is_text else found[-1][name] == value


@pytest.mark.parametrize(
    ("taken", "num_examples"),
    [
        (Taken(4, 4, 8), 16 + 8),
        (Taken(4, 3, 6), 16 + 8),  # its step ends a moment later
        (Taken(6, 5, 10), 16 + 8),  # it is ahead
        (Taken(3, 2, 6), 16 + 9),
        (Taken(1, 0, 0), 16 + 4),
        (Taken(), 16 + 16),  # it says nothing
    ],
)
def test_an_evaluation_counts_what_each_rank_has_taken(
    folder: Path, taken: Taken, num_examples: int
) -> None:
    path = RunPaths(folder).taken(1)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        taken.write(file.fileno(), epoch=1)
    words = ("epochs=1", "num_workers=2", "launch=torchrun")
    recorded(folder, JOINED, READY, begins(1), steps(4, 4, 4, 4), SCORE, words=words)
    assert records(folder, "evaluation")[0]["num_examples"] == num_examples


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([begins(1), steps(5)], "took 5 examples"),
        ([begins(1), steps(4, 3, 4)], "in the middle of an epoch took 3 examples"),
        ([begins(1), steps(2), steps(2)], "took 2 examples"),
        ([begins(1, is_pass=True), steps(4, 2, 2, 4)], "took 2 examples of one worker"),
        ([*epoch(), begins(2), ENDS], "epoch 2 had no step, because run.steps.* got no batch"),
        (
            [*epoch(), begins(2, is_pass=True), steps(4, 4)],
            r"1.5 of 5 passes over 16 examples: let run.steps\(...\) .*, or give epochs=1",
        ),
    ],
)
def test_a_program_that_is_not_the_point_is_told(
    folder: Path, reports: list[Report], said: str
) -> None:
    with pytest.raises(ProgramError, match=said):
        recorded(folder, JOINED, READY, *reports, words=("epochs=5",)).end()


def test_a_program_that_writes_too_few_epochs_is_told_what_to_give(folder: Path) -> None:
    recorder = recorded(folder, JOINED, READY, *epoch(), words=("epochs=2", *METRICS))
    with pytest.raises(ProgramError, match=r"1 of 2 epochs: pass {epochs} on .*epochs=1"):
        recorder.end()


def test_a_loss_that_is_not_finite_is_divergence(folder: Path) -> None:
    with pytest.raises(Diverged, match="train_loss"):
        recorded(folder, READY, *epoch({"kind": "log", "values": {"train_loss": float("inf")}}))
    assert records(folder, "end")[0]["status"] == "diverged"


def test_a_checkpoint_needs_files_that_are_still_those_of_its_epoch(folder: Path) -> None:
    saved = folder / "program/state"
    recorder = recorded(folder, READY, words=("epochs=3",))
    saved.write_text("1")
    files = {"state": [saved.stat().st_size, saved.stat().st_mtime_ns]}
    for report in epoch(files={**files, "removed": [1, 1]}):
        recorder.take({"time": 1.0, **report})
    assert not list(folder.glob("checkpoint/*/complete.json"))
    (folder / "program/cut_short").mkdir()
    (folder / "program/cut_short/state").write_text("of the next epoch")
    for report in epoch(number=2, files=files):
        recorder.take({"time": 1.0, **report})
    (checkpoint,) = checkpoints(RunPaths(folder))
    assert checkpoint.damage(folder / "metrics.jsonl") == ""
    saved.write_text("another")
    assert "damaged" in checkpoint.damage(folder / "metrics.jsonl")


def test_noise_is_recorded_with_its_gradients(folder: Path) -> None:
    noise = {"kind": "noise", "num_samples": 2, "gradient_square": 1.0, "variance": 8.0}
    recorded(folder, READY, *epoch(noise))
    (record,) = records(folder, "noise_scale")
    assert (record["gradient_square"], record["variance"]) == (1.0, 8.0)
    assert record["num_gradients"] == 4
    assert record["gradient_batch"] == 2


def test_the_score_of_a_run_is_its_last_evaluation(folder: Path) -> None:
    better = {"kind": "evaluated", "values": {"test_accuracy": 0.875}}
    reports = [*epoch(SCORE, better), *epoch(number=2)]
    recorded(folder, JOINED, READY, *reports, words=("epochs=2",)).end()
    write_summary(RunPaths(folder), point("epochs=2"), "completed", "", None)
    assert json.loads((folder / "summary.json").read_text())["test_accuracy"] == 0.875
    assert records(folder, "epoch")[1]["test_accuracy"] is None
