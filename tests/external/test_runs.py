"""Programs of the user's own, started, stopped, resumed and failing as real processes."""

from __future__ import annotations

import json
import os
import platform
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import bsweep as bsweep_package
from bsweep.analysis import load, noise_scale
from tests.support.running import Fork, bsweep, exits, forks, ran_ok, recorded, summaries, wait_for

PACKAGE = Path(bsweep_package.__file__).parent

TRAIN = """\
import json, os, sys, time
import bsweep

run = bsweep.join(num_train=64, num_test=10, num_classes=2)
options = {"steps": 4, "seconds": 0.0, **run.options}
steps, score = 0, run.checkpoint_folder / "score"
print("resumed from", run.resumed_from, score.read_text() if score.exists() else None)
for epoch in run.epochs():
    if options.get("dies_in") == epoch and run.resumed_from is None:
        time.sleep(0.5)
        os.kill(os.getpid(), 9)
    for _ in run.steps([[0] * run.local_batch] * options["steps"]):
        steps += 1
        time.sleep(options["seconds"])
    run.log(train_loss=1 / epoch)
    run.evaluated(test_loss=1 / epoch, test_accuracy=1 - 0.5 / epoch)
    if run.rank == 0 and options.get("saves"):
        (run.checkpoint_folder / "score").write_text(str(epoch))
with open(f"steps{run.rank}", "w") as file:
    file.write(f"{steps} {run.should_stop}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def started(*words: str, command: str = "python train.py") -> tuple[str, ...]:
    return ("run", "program=own", f"program.command={command}", "study=s", *words)


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    (run,) = folder.glob("results/s/b*")
    return recorded(run, kind)


def summary(folder: Path) -> dict[str, Any]:
    (found,) = summaries(folder).values()
    return found


def test_a_program_records_what_it_reports(folder: Path) -> None:
    options = "program.options.width=3"
    ran_ok(*started("local_batch=8", "epochs=2", "launch=inline", options), cwd=folder)
    (start,) = records(folder, "start")
    assert (start["num_train"], start["num_test"], start["num_classes"]) == (64, 10, 2)
    assert start["learning_rate"] is None
    assert [worker["host"] for worker in start["workers"]] == [platform.node()]
    epochs = records(folder, "epoch")
    assert [epoch["test_loss"] for epoch in epochs] == [1.0, 0.5]
    assert [epoch["num_steps"] for epoch in epochs] == [4, 4]
    study = load(folder / "results/s")
    assert list(study.runs["program.options.width"]) == [3]
    assert study.epochs["exchange_seconds"].isna().all()
    assert summary(folder)["status"] == "completed"


@pytest.mark.full(but=1)
@pytest.mark.parametrize("launch", ["torchrun", "horovodrun"])
def test_workers_stop_at_the_same_step(folder: Path, launch: str) -> None:
    options = "program.options={steps: 100000, seconds: 0.001}"
    words = started("local_batch=8", "num_workers=2", f"launch={launch}", options)
    _stop_after(folder, words, '"steps"')
    steps = [(folder / f"steps{rank}").read_text() for rank in (0, 1)]
    assert steps[0] == steps[1]
    assert steps[0].endswith("True")
    assert summary(folder)["status"] == "interrupted"
    assert records(folder, "epoch") == []


STEPS = """\
import itertools
import bsweep

run = bsweep.join(num_train=64)
for step, _ in enumerate(run.steps(itertools.repeat([0] * run.local_batch)), 1):
    if step % 3 == 0:
        run.evaluated(test_accuracy=1 - 0.5 / step)
with open(f"steps{run.rank}", "w") as file:
    file.write(f"{step} {run.should_stop}")
"""


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("launch", "workers", "steps"), [("torchrun", 2, 8), ("inline", 1, 16)])
def test_a_program_by_steps_is_a_run(tmp_path: Path, launch: str, workers: int, steps: int) -> None:
    (tmp_path / "train.py").write_text(STEPS)
    words = started("local_batch=8", "epochs=2", f"launch={launch}", f"num_workers={workers}")
    ran_ok(*words, cwd=tmp_path)
    assert (tmp_path / f"steps{workers - 1}").read_text() == f"{steps} True"
    ended = summary(tmp_path)
    assert (ended["status"], ended["epochs"], ended["num_steps"]) == ("completed", 2, steps)
    assert ended["test_accuracy"] == 1 - 0.5 / (3 * (steps // 3))
    assert ended["warnings"] == []
    provenance = load(tmp_path / "results/s").provenance
    assert [*provenance["interpreter"]] == [forks().python]
    assert "versions.horovod" not in provenance


def _stop_after(
    folder: Path, words: Sequence[str], report: str, *, by_signal: bool = False
) -> None:
    """Start a sweep, and stop it after a report, by `bsweep stop` or a signal."""
    sweep, reports = Fork("bsweep", *words, cwd=folder, has_forks=True), "logs/rank.0/reports.jsonl"
    try:
        wait_for(
            lambda: any(report in p.read_text() for p in folder.glob(f"results/s/b*/{reports}"))
        )
        if by_signal:
            os.kill(sweep.pid, signal.SIGTERM)
        else:
            ran_ok("stop", "results/s", cwd=folder)
        sweep.wait(60)
    finally:
        sweep.kill()


def test_a_stopped_program_resumes_at_its_last_whole_epoch(folder: Path) -> None:
    options = "program.options={steps: 10, seconds: 0.1, saves: 1}"
    words = started("local_batch=8", "epochs=2", "launch=inline", options)
    _stop_after(folder, words, '"epoch": 2', by_signal=True)
    assert summary(folder)["status"] == "interrupted"
    ran_ok("resume", "results/s", cwd=folder)
    assert [epoch["num_steps"] for epoch in records(folder, "epoch")] == [10, 10]
    assert (folder / "steps0").read_text() == "10 False"


def test_workers_stop_at_the_target(folder: Path) -> None:
    target = ("target_accuracy=0.7", "stop_at_target=true")
    words = started("local_batch=8", "num_workers=2", "epochs=9", "launch=torchrun", *target)
    ran_ok(*words, cwd=folder)
    steps = [(folder / f"steps{rank}").read_text() for rank in (0, 1)]
    assert steps == ["12 True", "12 True"]
    assert summary(folder)["epochs"] == 3


def test_a_changed_checkpoint_repeats_the_run(folder: Path) -> None:
    words = started("local_batch=8", "epochs=3", "launch=inline")
    options = "program.options={saves: 1, dies_in: 2}"
    bsweep(*words, options, cwd=folder)
    (saved,) = folder.glob("results/s/b*/program/score")
    saved.write_text("9")
    ran = bsweep(*words, options, cwd=folder)
    assert "damaged" in ran.stdout + ran.stderr
    assert "starts from its beginning" in ran.stdout + ran.stderr


BAD = """\
import os, sys, time
print("this is the log", file=sys.stderr)
if KIND == "joins never":
    sys.exit()
import bsweep
run = bsweep.join(num_train=64)
if KIND == "another folder":
    os.chdir("/")
if KIND == "a fork" and os.fork() == 0:
    for epoch in run.epochs():
        for _ in run.steps([[0] * run.local_batch] * 9):
            pass
        run.evaluated(test_loss=77)
    os._exit(0)
if KIND == "silence":
    time.sleep(600)
if KIND == "no epochs":
    sys.exit()
for epoch in run.epochs():
    for _ in run.steps([[0] * run.local_batch] * 8):
        pass
    run.evaluated(test_loss=float("nan") if KIND == "NaN" else 1 / epoch)
    if KIND == "a break" or (KIND == "a break at the end" and epoch == 2):
        break
"""


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("joins never", "failed", "without calling bsweep.join()"),
        ("another folder", "completed", ""),
        ("a fork", "completed", ""),
        ("no epochs", "failed", "after 0 of 2 epochs: let `for epoch in run.epochs()` run"),
        ("NaN", "diverged", "test_loss=nan in epoch 1"),
        ("a break", "failed", "after 1 of 2 epochs"),
        ("a break at the end", "completed", ""),
        ("silence", "timeout", "this is the log"),
    ],
)
def test_bad_programs_are_told(tmp_path: Path, kind: str, status: str, said: str) -> None:
    (tmp_path / "train.py").write_text(f"KIND = {kind!r}\n{BAD}")
    is_silent = ("launch=torchrun", "launch.stall_timeout_seconds=2")
    how = is_silent if kind == "silence" else ("launch=inline",)
    ran = bsweep(*started("local_batch=8", "epochs=2", *how), cwd=tmp_path)
    ended = summary(tmp_path)
    assert ended["status"] == status, ran.stderr
    assert said in ended["message"]
    assert str(PACKAGE) not in ended["message"]  # no line of bsweep's own traceback
    assert "this is the log" in next(tmp_path.glob("results/s/b*/logs/rank.0/stderr")).read_text()
    assert 77 not in [epoch["test_loss"] for epoch in records(tmp_path, "epoch")]


def test_a_program_runs_where_and_with_what_it_was_told(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    script = "import os, bsweep; assert os.environ['WHO'] == 'me'; exec(open('beside.py').read())\n"
    (tmp_path / "there/train.py").write_text(script)
    (tmp_path / "there/beside.py").write_text(TRAIN)
    (tmp_path / "another").write_text(f'#!/bin/sh\necho another\nexec {forks().python} "$@"\n')
    (tmp_path / "another").chmod(0o755)
    options = (
        "program.folder=there",
        f"program.python={tmp_path / 'another'}",
        "program.environment={WHO: me}",
        "program.files=[train.py, beside.py]",
    )
    ran_ok(*started("local_batch=8", "epochs=1", "launch=inline", *options), cwd=tmp_path)
    assert next(tmp_path.glob("results/s/b*/logs/rank.0/stdout")).read_text().startswith("another")
    kept = {path.name for path in tmp_path.glob("results/s/b*/own/program/*")}
    assert kept == {"train.py", "beside.py"}


def test_a_file_that_changes_during_a_sweep_is_refused(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN + "open('train.py', 'a').write('#')\n")
    ran = exits(1, *started("local_batch=8,16", "epochs=1", "launch=inline"), cwd=folder)
    ends = sorted(summary["status"] for summary in summaries(folder).values())
    assert ends == ["completed", "failed"]
    assert "train.py changed since the sweep began" in ran.stderr


NOISE = """\
import bsweep, torch
run = bsweep.join(num_train=64)
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
monitor = bsweep.NoiseScale(model, every=1)
for epoch in run.epochs():
    for _ in run.steps([[0] * 8] * 8):
        batch = torch.randn(8, 4) + 0.2, torch.ones(8, dtype=int)
        monitor.step(batch)
    run.noise(monitor)
    run.evaluated(test_loss=1 / epoch)
"""


def test_a_program_reports_its_noise_scale(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NOISE)
    bsweep(*started("local_batch=8", "epochs=20", "launch=inline"), cwd=tmp_path)
    study = load(tmp_path / "results/s")
    (noise,) = noise_scale(study)["noise_scale"]
    assert 0 < noise < 1000
    assert [*study.noise_scales["num_steps"]] == [8 * epoch for epoch in range(1, 21)]


def test_a_timing_probe_runs_few_steps(folder: Path) -> None:
    words = started("local_batch=8,16", "launch=inline", "program.options.steps=1000")[1:]
    ran = bsweep("plan", "--probe", *words, cwd=folder)
    assert "tried for a few steps" in ran.stdout, ran.stderr
    assert not (folder / "results").exists()
    assert (folder / "steps0").read_text() == "10 True"


@pytest.mark.parametrize("command", ["probe", "profile"])
def test_what_measures_builtin_training_refuses_programs(folder: Path, command: str) -> None:
    ran = exits(2, command, *started("local_batch=8", "launch=inline")[1:], cwd=folder)
    assert f"bsweep {command} measures bsweep's own training" in ran.stderr


def test_a_program_that_was_killed_is_retried_where_it_saved(folder: Path) -> None:
    words = started("local_batch=8", "epochs=3", "launch=torchrun", "launch.retries=1")
    options = "program.options={saves: 1, dies_in: 2}"
    ran_ok(*words, options, cwd=folder)
    assert [epoch["epoch"] for epoch in records(folder, "epoch")] == [1, 2, 3]
    assert (folder / "steps0").read_text() == "8 False"
    events = [event for event in records(folder, "event") if event["event"] != "warning"]
    assert [event["event"] for event in events] == ["resumed", "retried"]
    assert "SIGKILL" in events[1]["message"]


def test_the_worker_that_failed_first_is_named_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, time, bsweep\n"
        "run = bsweep.join(num_train=8)\n"
        "if run.rank == 1:\n"
        "    print('this is the log', file=sys.stderr)\n"
        "    raise ZeroDivisionError('my own fault')\n"
        "time.sleep(0.3)\n"
        "raise RuntimeError('Connection closed by peer [127.0.0.1]:1')\n"
    )
    exits(1, *started("local_batch=8", "num_workers=2", "launch=torchrun"), cwd=tmp_path)
    message = summary(tmp_path)["message"]
    assert message.startswith("rank 1 failed: ProgramError")
    assert "exit code 1: ZeroDivisionError: my own fault; see " in message
    assert "this is the log\nTraceback (most recent call last)" in message
    assert str(PACKAGE) not in message


def test_nothing_of_a_program_outlives_its_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, time, bsweep\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"  # as TensorFlow does
        "run = bsweep.join(num_train=8)\n"
        "open('pid', 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    command = f"sh -c '{forks().python} train.py; true'"
    words = started("local_batch=8", "launch=torchrun", command=command)
    sweep, pid = Fork("bsweep", *words, cwd=tmp_path, has_forks=True), tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text() != "")
    sweep.kill()
    wait_for(lambda: not psutil.pid_exists(int(pid.read_text())))


@pytest.mark.full
def test_recommend_learns_how_many_examples_a_program_has(folder: Path) -> None:
    words = started("local_batch=8,16", "epochs=3", "launch=inline")[1:]
    options = ("program.options={steps: 20, seconds: 0.01}", "--target-accuracy", "0.7")
    ran = ran_ok("recommend", *words, *options, "--budget", "60s", cwd=folder)
    assert "Fastest to a test accuracy of 0.7" in ran.stdout
    kept = json.loads((folder / "results/s/recommend.json").read_text())
    assert kept["num_train"] == 64
    assert len(kept["probes"]) == 2
