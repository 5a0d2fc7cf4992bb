"""Which of several failed processes is named, and that one which fails keeps nobody waiting."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from bsweep.config.run import RunConfig
from bsweep.core import parent_process
from bsweep.core.ranks import Place
from bsweep.launch import failure, lifeline, processes, stop
from bsweep.launch.launcher import LaunchRequest
from bsweep.launch.outcome import Outcome
from bsweep.numerics import objective
from bsweep.runlog.errors import WorkerLost, errors_reported, said_by, worker_lost
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.reading import read_json
from bsweep.strategies import ddp
from bsweep.study import attempts
from bsweep.study.progress import Progress
from bsweep.train import peers_check, worker
from tests.support.launching import Scripted
from tests.support.running import TINY, bsweep, compose, imported_first, popen

POINT = ("local_batch=10", "num_workers=2", "strategy=ddp", "model=tiny_cnn", "epochs=1", *TINY)
ACCELERATOR_ERROR = getattr(torch, "AcceleratorError", RuntimeError)  # torch 2.6 lacks it
ERROR = {
    "status": "out_of_memory",
    "message": "OutOfMemoryError: CUDA out of memory",
    "is_consequence": False,
    "traceback": "",
}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    for rank in (0, 1):
        paths.rank_logs(rank).mkdir(parents=True)
    paths.metrics.touch()
    return paths


def point(*overrides: str) -> RunConfig:
    return compose(*POINT, *overrides)


@pytest.mark.parametrize(
    ("number", "named"),
    [(signal.SIGABRT, "rank 0 failed: OutOf"), (signal.SIGKILL, "rank 1 was ended by SIGKILL")],
)
def test_only_a_kill_outranks_what_a_worker_said(paths: RunPaths, number: int, named: str) -> None:
    """NCCL's watchdog aborts those who wait for a worker that failed, and may be quicker than its
    launcher.
    """
    write_json(paths.rank_logs(0) / "error.json", {**ERROR, "time": 1.0})
    outcome = failure.outcome(point(), paths, [(1, -number)], paths.logs / "none")
    assert outcome.message.startswith(named)


def test_a_crashed_worker_is_named_before_those_that_merely_ended(paths: RunPaths) -> None:
    outcome = failure.outcome(point(), paths, [(0, 1), (1, -signal.SIGABRT)], paths.logs / "none")
    assert outcome.message.startswith("rank 1 was ended by SIGABRT")


def test_who_ended_without_a_word_is_named_before_those_who_waited_for_it(paths: RunPaths) -> None:
    """A launcher such as horovodrun may see the survivor's end before that of the killed."""
    write_json(paths.rank_logs(0) / "error.json", {**ERROR, "is_consequence": True, "time": 1.0})
    outcome = failure.outcome(point(), paths, [(0, 1)], paths.logs / "none")
    assert outcome.message.startswith(
        "rank 1 ended without a message, perhaps killed from outside; then rank 0 ended"
    )


def test_an_error_is_told_from_its_first_line_on() -> None:
    assert [said_by(error) for error in (AssertionError(), ValueError("\n\nno"))] == [
        "AssertionError",
        "ValueError: no",
    ]


def test_what_a_user_can_mend_is_said_without_a_traceback(paths: RunPaths) -> None:
    (paths.rank_logs(0) / "stderr").write_text("Traceback of an error")
    with pytest.raises(ValueError, match="labels"), errors_reported(paths, Place()):
        objective.of(nn.Linear(1, 1), torch.ones(1))
    outcome = failure.outcome(point(), paths, [(0, 1)], paths.logs / "none")
    assert outcome.message.startswith("rank 0 failed: ValueError: the labels are floating-point")
    assert "\n" not in outcome.message


def test_of_a_long_traceback_whole_frames_are_quoted(paths: RunPaths) -> None:
    frames = [
        line
        for number in range(9)
        for line in (f'  File "x.py", line {number}, in f', "    f()", "    ^^^")
    ]
    (paths.rank_logs(1) / "stderr").write_text("\n".join(["Traceback", *frames, "ValueError: no"]))
    quoted = failure._last_lines(paths, 1).splitlines()
    assert quoted[0] == '  File "x.py", line 5, in f'
    assert quoted[-1] == "ValueError: no"


def test_tries_are_further_and_further_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(attempts, "pause", pauses.append)
    config = compose(*TINY, "local_batch=8", "launch.retries=9", f"results_dir={tmp_path}")

    def start(*_: object) -> Outcome:
        return (
            Outcome("diverged")
            if len(pauses) == 9
            else Outcome("failed", "a host was lost", may_pass=True)
        )

    assert attempts.run_point(config, [], Progress(1), start) == "diverged"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_pause_between_tries_ends_with_the_sweep() -> None:
    with ThreadPoolExecutor() as pool, stop.Signals() as signals:
        waiting = pool.submit(stop.pause, 60)
        signals.ask_all()
        with pytest.raises(KeyboardInterrupt):
            waiting.result(30)
    stop.pause(0)


def test_nodes_that_slurm_lost_together_are_all_named(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[01-04]")
    console = paths.logs / "console"
    console.write_text(
        "srun: error: Node failure on n[01-02,04]\nsrun: error: Node failure on n04, aborting\n"
    )
    outcome = failure.outcome(
        compose("local_batch=8", "strategy=ddp", "launch=srun"), paths, [], console, [1]
    )
    assert re.findall(r"host (\w+) is lost", outcome.message) == ["n01", "n02", "n04"]


def test_a_host_that_ssh_lost_without_a_word_is_no_matter_of_slurm(paths: RunPaths) -> None:
    console = paths.logs / "console"
    console.touch()
    outcome = failure.outcome(point("launch.hosts='h1:1,h2:1'"), paths, [], console, [1, 255])
    assert outcome.message.startswith(
        "host h2 is lost: the connection ended, or what ran there was killed: try `ssh HOST true`"
    )


def test_what_a_start_has_left_on_a_host_ends_when_another_one_begins(tmp_path: Path) -> None:
    """Though somebody touches the file, as the launcher of the other start does."""
    file = tmp_path / "lifeline"
    lifeline.begin(file)
    left = subprocess.Popen(lifeline.words(file, 600, ["sleep", "600"]))
    lifeline.begin(file)
    ours = subprocess.Popen(lifeline.words(file, 600, ["sleep", "600"]))
    assert left.wait(60) == 1
    assert ours.poll() is None
    file.write_text("")
    assert ours.wait(60) == 1, "what starts processes lets go of them when it ends"


def test_a_start_that_has_gone_on_to_another_run_goes_by_that_one_alone(tmp_path: Path) -> None:
    """The run before may be retried, by another sweep, while this one's processes train
    elsewhere.
    """
    file, before, now = (tmp_path / name for name in ("lifeline", "before", "now"))
    lifeline.begin(file)
    lifeline.go_on(file, before)
    ours = subprocess.Popen(lifeline.words(file, 600, ["sleep", "600"]))
    lifeline.go_on(file, now)
    lifeline.begin(before)
    with pytest.raises(subprocess.TimeoutExpired):
        ours.wait(5)
    lifeline.begin(now)
    assert ours.wait(60) == 1


def test_what_a_start_has_left_ends_where_its_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "lifeline"
    lifeline.begin(file)
    left = subprocess.Popen(lifeline.words(file, 600, ["sleep", "600"]))
    time.sleep(3)  # until it has seen the file: one that it has never seen may be late
    file.unlink()
    assert left.wait(60) == 1


def test_what_was_stopped_with_its_launcher_waits_for_it_anew(tmp_path: Path) -> None:
    """Its clock has gone on by an hour between two looks at the file."""
    file = tmp_path / "lifeline"
    lifeline.begin(file)
    code = (
        "import runpy, subprocess, sys, time; monotonic = time.monotonic; start = monotonic()\n"
        "time.monotonic = lambda: monotonic() + 3600 * (monotonic() > start + 1.5)\n"
        f"sys.argv = {lifeline.words(file, 60, ['sleep', '3'])[1:]}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_command_on_a_host_ends_when_what_watches_it_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "lifeline"
    lifeline.begin(file)
    words = lifeline.words(file, 600, ["sh", "-c", "echo $$; exec sleep 600"])
    watching = popen(words, tmp_path, output=subprocess.PIPE)
    assert watching.stdout
    command = psutil.Process(int(watching.stdout.readline()))
    watching.kill()
    assert psutil.wait_procs([command], timeout=10)[1] == []


def test_what_watches_a_command_on_a_host_imports_nothing_of_this_package(tmp_path: Path) -> None:
    """Every start on a host waits for it."""
    file = tmp_path / "lifeline"
    lifeline.begin(file)
    python, *words = lifeline.words(file, 600, ["true"])
    traced = [python, "-X", "importtime", *words]
    result = subprocess.run(traced, capture_output=True, text=True, timeout=60, check=True)
    assert "psutil" in result.stderr
    assert "bsweep" not in result.stderr


def test_what_a_killed_launcher_has_started_ends_with_it(tmp_path: Path) -> None:
    """It would train on, and write to a run whose end is on record."""
    work = (
        "from bsweep.train import worker; worker.work_and_leave(lambda: (print('works', "
        "flush=True), time.sleep(600)))"
    )
    words = ["sh", "-c", '"$@" & echo $!; wait', "sh", sys.executable, "-c", f"import time; {work}"]
    launcher = popen(words, tmp_path, output=subprocess.PIPE)
    assert launcher.stdout
    started = psutil.Process(int(launcher.stdout.readline()))
    assert launcher.stdout.readline() == "works\n"
    launcher.kill()
    started.wait(20)


def test_what_lost_its_launcher_while_it_imported_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parent_process, "end_with_parent", lambda: None)
    parent_process.end_with_launcher()  # of what nobody names a launcher is known
    monkeypatch.setenv(parent_process.LAUNCHER, str(os.getppid()))
    parent_process.end_with_launcher()
    monkeypatch.setenv(parent_process.LAUNCHER, "1")
    with pytest.raises(SystemExit, match="has ended"):
        worker.work_and_leave(pytest.fail)


def test_a_sweep_that_stood_still_says_so(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its launcher on another host has ended meanwhile, as it found no sweep any more."""
    stopped, monotonic = [0.0], time.monotonic
    clock = SimpleNamespace(monotonic=lambda: monotonic() + stopped[0], sleep=time.sleep)
    monkeypatch.setattr(processes, "time", clock)

    def stop() -> None:
        stopped[0] = 70.0

    Scripted(["sh", "-c", "exit 1"]).launch(LaunchRequest(point(), paths, stop))
    assert "bsweep: this sweep stood still for 1 min 10 s" in capsys.readouterr().err


def test_a_launcher_that_waits_in_vain_tells_the_first_error(paths: RunPaths) -> None:
    """And not that it took too long, where a process said what was wrong and did not end."""
    write_json(paths.rank_logs(1) / "error.json", {**ERROR, "time": 1.0})
    config = point("launch.start_timeout_seconds=1")
    outcome = Scripted(["sleep", "60"]).launch(LaunchRequest(config, paths, lambda: None))
    assert (outcome.status, outcome.message) == (
        "out_of_memory",
        f"rank 1 failed: {ERROR['message']}",
    )


def test_a_worker_that_fails_waits_for_nobody(tmp_path: Path) -> None:
    """Though the others are deep in a step, and giving the group up would wait for them, as NCCL's
    does.
    """
    env = imported_first(
        tmp_path,
        "import os, time\n"
        "if 'RANK' in os.environ:\n"
        "    import torch.distributed as dist\n"
        "    import bsweep.train.step as step\n"
        "    dist.destroy_process_group = lambda *a, **k: time.sleep(600)\n"
        "    plain, calls = step.train_step, []\n"
        "    def failing(*a, **k):\n"
        "        calls.append(1)\n"
        "        if len(calls) == 3:\n"
        "            time.sleep(600 if os.environ['RANK'] == '0' else 0)\n"
        "            raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
        "        return plain(*a, **k)\n"
        "    step.train_step = failing\n",
    )
    began = time.monotonic()
    result = bsweep("run", *POINT, "study=s", cwd=tmp_path, env=env, timeout=120)
    assert result.returncode == 1, result.stderr
    assert time.monotonic() - began < 100, "not the stall timeout, by far"
    (summary,) = tmp_path.glob("results/s/*/summary.json")
    found = read_json(summary)
    assert found
    assert found["status"] == "failed"
    assert found["message"].startswith(
        "rank 1 failed: RuntimeError: CUDA error: an illegal memory access"
    )
    assert "in failing" in (summary.parent / "logs/rank.1/stderr").read_text(), (
        "the traceback is printed"
    )


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (
            RuntimeError(
                "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
            ),
            True,
        ),
        (dist.DistBackendError("NCCL communicator was aborted on rank 1"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False),
        (torch.OutOfMemoryError("NCCL out of memory"), False),
        (ACCELERATOR_ERROR("CUDA error: device-side assert triggered"), False),
    ],
)
def test_only_a_broken_exchange_within_ddps_pass_is_anothers_fault(
    error: RuntimeError, is_lost: bool
) -> None:
    with pytest.raises(WorkerLost if is_lost else type(error)), ddp.exchange_lost():
        raise error


def test_what_a_gpu_raises_in_an_exchange_is_this_workers_own() -> None:
    with pytest.raises(ACCELERATOR_ERROR, match="assert"), worker_lost():
        raise ACCELERATOR_ERROR("CUDA error: device-side assert triggered")


PEER = {
    "host": "a", "device": "NVIDIA H100", "precision": "bf16", "driver": "580.1", "nccl": "2.28.9",
    "tf32": ["convolutions"], "cuda_visible_devices": None, "num_classes": 10, "num_train": 100,
    "labels": "c0ffee",
}  # fmt: skip


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"device": "Tesla T4", "precision": "fp32"},
            r"precision=fp32 suits rank 1 on b \(Tesla T4\), but precision=bf16",
        ),
        ({"num_train": 90}, "rank 1 has different data from rank 0.* 90 training examples"),
    ],
)
def test_what_would_stall_workers_or_mix_their_numbers_is_refused(
    other: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        peers_check.refuse_unequal([PEER, {**PEER, "host": "b", **other}])


def test_other_gpus_of_one_precision_are_told_and_on_record() -> None:
    both = [
        PEER,
        {**PEER, "host": "b", "device": "Tesla T4", "driver": "575.2", "cuda_visible_devices": "0"},
    ]
    peers_check.refuse_unequal(both)
    assert peers_check.devices(both) == "NVIDIA H100, Tesla T4"
    assert peers_check.gpu_software(both) == "driver 580.1, NCCL 2.28.9; driver 575.2, NCCL 2.28.9"
    assert peers_check.on_record(both)[1] == {
        "host": "b", "device": "Tesla T4", "precision": "bf16", "driver": "575.2", "nccl": "2.28.9",
        "tf32": ["convolutions"], "cuda_visible_devices": "0",
    }  # fmt: skip
