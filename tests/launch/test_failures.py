"""Which of several failed processes is named, and that one which fails keeps nobody waiting."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from bsweep.config.run import RunConfig
from bsweep.core import signals
from bsweep.core.ranks import World
from bsweep.launch import failure, lifeline
from bsweep.launch.launcher import LaunchRequest, Outcome
from bsweep.numerics import objective
from bsweep.runlog.errors import WorkerLost, errors_reported
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.taken import FORM, Taken
from bsweep.strategies import ddp
from bsweep.study import claims
from bsweep.study.progress import Progress
from bsweep.study.run_point import run_point
from bsweep.train import peers_check, worker
from tests.study.test_run import TOO_BIG
from tests.support.launching import Scripted
from tests.support.running import TINY, before, compose, exits, popen, summaries, tool

POINT = ("local_batch=10", "num_workers=2", "strategy=ddp", "model=tiny_cnn", "epochs=1", *TINY)
ACCELERATOR_ERROR = getattr(torch, "AcceleratorError", RuntimeError)  # torch 2.6 lacks it
ERROR = {
    "status": "out_of_memory",
    "message": "OutOfMemoryError: CUDA out of memory",
    "is_consequence": False,
    "traceback": "",
}
LATER = {**ERROR, "is_consequence": True}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    for rank in (0, 1):
        paths.rank_logs(rank).mkdir(parents=True)
    paths.metrics.touch()
    return paths


def point(*overrides: str) -> RunConfig:
    return compose(*POINT, *overrides)


def outcome_of(
    paths: RunPaths,
    failures: Sequence[tuple[int, int]],
    *overrides: str,
    console: str = "",
    codes: Sequence[int] = (),
    is_starved: bool = False,
) -> Outcome:
    paths.launcher_log.write_text(console)
    request = LaunchRequest(point(*overrides), paths, lambda: None)
    log = paths.launcher_log
    return failure.outcome(request, failures, log, codes, is_starved=is_starved)


@pytest.mark.parametrize(
    ("error", "failures", "named"),
    [
        (ERROR, [(1, -signal.SIGABRT)], "rank 0 failed: OutOf"),
        (ERROR, [(1, -signal.SIGKILL)], "rank 1 was ended by SIGKILL"),
        (None, [(0, 1), (1, -signal.SIGABRT)], "rank 1 was ended by SIGABRT"),
        (LATER, [(0, 1)], "rank 1 ended without a message, perhaps killed from outside; then"),
    ],
    ids=["an error before a crash", "a kill", "a crash", "a silent end"],
)
def test_the_cause_is_named_before_its_consequences(
    paths: RunPaths,
    error: dict[str, object] | None,
    failures: Sequence[tuple[int, int]],
    named: str,
) -> None:
    """NCCL's watchdog aborts those who wait for a worker that failed, and may be quicker than its
    launcher. A launcher such as horovodrun may see the survivor's end before that of the killed.
    """
    if error:
        write_json(paths.rank_logs(0) / "error.json", {**error, "time": 1.0})
    assert outcome_of(paths, failures).message.startswith(named)


@pytest.mark.parametrize(("num_ended", "after"), [(None, ""), (1, " after 1 of 2 epochs")])
def test_a_rank_that_left_with_exit_code_0_is_not_said_to_be_killed(
    paths: RunPaths, num_ended: int | None, after: str
) -> None:
    """Of the user's own program, it is said when it left."""
    write_json(paths.rank_logs(0) / "error.json", {**LATER, "time": 1.0})
    paths.clean_exit(1).touch()
    if num_ended:
        with paths.taken(1).open("wb") as file:
            Taken(4, 4, 16, has_ended=True).write(file.fileno(), num_ended)
    said = f"rank 1 ended with exit code 0{after}; then rank 0 ended with exit code 1"
    assert outcome_of(paths, [(0, 1)], "epochs=2").message == said


@pytest.mark.parametrize("is_consequence", [False, True])
def test_unequal_steps_of_ranks_are_said_beside_the_first_error(
    paths: RunPaths, is_consequence: bool
) -> None:
    for rank, (num_begun, has_ended) in enumerate([(5, False), (4, True)]):
        first = FORM.pack(num_begun, num_begun - 1, 4 * num_begun, has_ended)
        paths.taken(rank).write_bytes(first + bytes(FORM.size))
    error = {**ERROR, "status": "failed", "is_consequence": is_consequence, "time": 1.0}
    write_json(paths.rank_logs(0) / "error.json", error)
    own = ("program=own", "program.command=ls", "epochs=2", "launch=torchrun")
    config = compose("local_batch=4", "num_workers=2", *own)
    paths.launcher_log.touch()
    request = LaunchRequest(config, paths, lambda: None)
    outcome = failure.outcome(request, [(0, 1)], paths.launcher_log)
    assert outcome.message.startswith("rank 0 ended" if is_consequence else "rank 0 failed: Out")
    assert "rank 1 ended epoch 1 after 4 steps in all, and rank 0 has begun step 5" in (
        outcome.message
    )
    assert not outcome.can_be_retried


@pytest.mark.parametrize("code", [-signal.SIGSEGV, 128 + signal.SIGSEGV])
def test_a_crash_under_a_limit_is_out_of_memory(paths: RunPaths, code: int) -> None:
    crashed = outcome_of(paths, [(1, code)], "launch.memory_limit_mb=[64,32]")
    assert crashed.status == "out_of_memory"
    assert crashed.message.startswith("rank 1 was ended by SIGSEGV under its memory limit of 32")
    assert outcome_of(paths, [(1, code)]).status == "failed"


@pytest.mark.parametrize(
    ("code", "is_starved", "hosts", "status"),
    [
        (-signal.SIGKILL, True, "", "out_of_memory"),
        (-signal.SIGKILL, False, "", "failed"),
        (-signal.SIGSEGV, True, "", "failed"),
        (128 + signal.SIGKILL, True, "launch.hosts='localhost:1,h2:1'", "failed"),
    ],
)
def test_a_worker_that_the_kernel_killed_for_memory_is_out_of_memory(
    paths: RunPaths, code: int, is_starved: bool, hosts: str, status: str
) -> None:
    ended = outcome_of(paths, [(1, code)], *filter(None, [hosts]), is_starved=is_starved)
    assert ended.status == status


MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.mark.full
@pytest.mark.skipif(not os.access(MEMORY / "tasks", os.W_OK), reason="no memory groups (v1) here")
def test_a_run_that_the_kernel_ends_for_memory_is_out_of_memory(tmp_path: Path) -> None:
    group = MEMORY / f"bsweep{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("1400M")
        words = ("strategy=allreduce", "num_workers=2", "launch.retries=0")
        point = shlex.join(("run", *TOO_BIG, *words))
        enter = f"echo $$ > {group}/tasks; exec {tool('bsweep')} {point}"
        subprocess.run(["sh", "-c", enter], cwd=tmp_path, check=False, timeout=300)
        (ended,) = summaries(tmp_path).values()
    finally:
        group.rmdir()
    assert ended["status"] == "out_of_memory"
    assert "killed by the kernel" in ended["message"]


HOROVOD = ("strategy=horovod", "launch.hosts='localhost:1,h2:1'")
NOT_STARTED = "the workers could not be started"


@pytest.mark.parametrize(
    ("overrides", "console", "codes", "said"),
    [
        (
            HOROVOD,
            "[0]<stderr>:warning\nTraceback (most recent call last):\n  z()\nKeyError: 'ib0'\n",
            [1],
            f"{NOT_STARTED} (exit code 1): KeyError: 'ib0'; see ",
        ),
        (
            HOROVOD,
            "ssh not successful for host h2:\nroot@h2: Permission denied (publickey).\n",
            [1],
            "host h2 is lost: root@h2: Permission denied (publickey): add this key there",
        ),
        (
            ("launch.hosts='h1:1,h2:1'",),
            "",
            [1, 255],
            "host h2 is lost: the connection ended, or what ran there was killed: try `ssh HOST",
        ),
        (HOROVOD, "", [1], f"{NOT_STARTED} (exit code 1): it printed nothing; see "),
    ],
    ids=["error", "no key", "no word of ssh", "nothing"],
)
def test_a_launchers_end_is_told_in_a_sentence(
    paths: RunPaths, overrides: tuple[str, ...], console: str, codes: list[int], said: str
) -> None:
    outcome = outcome_of(paths, [], *overrides, console=console, codes=codes)
    assert outcome.message.startswith(said)
    assert "\n" not in outcome.message


def test_nodes_that_slurm_lost_together_are_all_named(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[01-04]")
    lost = "srun: error: Node failure on n[01-02,04]\nsrun: error: Node failure on n04, aborting\n"
    outcome = outcome_of(paths, [], "launch=srun", console=lost, codes=[1])
    assert re.findall(r"host (\w+) is lost", outcome.message) == ["n01", "n02", "n04"]
    assert "SLURM lost the node: ask SLURM about the node" in outcome.message
    cut = "srun: error: Node failure on n[01-02]x]\n"
    assert (
        "host n[01-02]x] is lost"
        in outcome_of(paths, [], "launch=srun", console=cut, codes=[1]).message
    )
    assert outcome.can_be_retried


def test_what_a_user_can_mend_is_said_without_a_traceback(paths: RunPaths) -> None:
    (paths.rank_logs(0) / "stderr").write_text("Traceback of an error")
    with pytest.raises(ValueError, match="labels"), errors_reported(paths, World()):
        objective.build(nn.Linear(1, 1), torch.ones(1))
    message = outcome_of(paths, [(0, 1)]).message
    assert message.startswith("rank 0 failed: ValueError: the labels are floating-point")
    assert "\n" not in message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The lifeline of a team."""
    file = tmp_path / "lifeline"
    file.write_text("The launcher lives.")
    return file


def watched(file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(lifeline.words(file, 600, ["sleep", "600"]))


@pytest.mark.parametrize("end", [lambda file: file.write_text(""), Path.unlink])
def test_what_runs_on_a_host_ends_with_its_team(file: Path, end: Callable[[Path], object]) -> None:
    team = watched(file)
    time.sleep(3)  # until it has seen the file: one that it has never seen may be late
    assert team.poll() is None
    end(file)
    assert team.wait(60) == 1


def test_a_command_on_a_host_ends_when_what_watches_it_is_killed(
    file: Path, tmp_path: Path
) -> None:
    words = lifeline.words(file, 600, ["sh", "-c", "echo $$; exec sleep 600"])
    watching = popen(words, tmp_path, output=subprocess.PIPE)
    assert watching.stdout
    command = psutil.Process(int(watching.stdout.readline()))
    watching.kill()
    assert psutil.wait_procs([command], timeout=10)[1] == []


def test_what_lost_its_launcher_while_it_imported_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "end_with_parent", lambda: None)
    signals.end_with_launcher()  # of what nobody names a launcher is known
    monkeypatch.setenv(signals.LAUNCHER, str(os.getppid()))
    signals.end_with_launcher()
    monkeypatch.setenv(signals.LAUNCHER, "1")
    with pytest.raises(SystemExit, match="has ended"):
        worker.enter(lambda config, paths, world: pytest.fail("it took part"))


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
    code = (
        "import time, torch.distributed as dist\n"
        "dist.destroy_process_group = lambda *a, **k: time.sleep(600)\n"
        "if call == 3:\n"
        "    time.sleep(600 if rank == '0' else 0)\n"
        "    raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
    )
    env = before(tmp_path, "train.step", "train_step", code)
    exits(1, "run", *POINT, "study=s", cwd=tmp_path, env=env, timeout=120)
    (summary,) = summaries(tmp_path).values()
    assert summary["status"] == "failed"
    assert summary["message"].startswith("rank 1 failed: RuntimeError: CUDA error: an illegal")
    assert 'loop.py", line' in summary["message"], "where it was"
    (stderr,) = tmp_path.glob("results/s/*/logs/rank.1/stderr")
    assert "in run" in stderr.read_text(), "the traceback is printed"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), True),
        (dist.DistBackendError("NCCL communicator was aborted on rank 1"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False),
        (torch.OutOfMemoryError("NCCL out of memory"), False),
        (ACCELERATOR_ERROR("CUDA error: device-side assert triggered"), False),
        (ACCELERATOR_ERROR("CUDA error: device-side assert triggered by NCCL"), False),
    ],
)
def test_only_a_broken_exchange_within_ddps_pass_is_anothers_fault(
    error: RuntimeError, is_lost: bool
) -> None:
    with pytest.raises(WorkerLost if is_lost else type(error)), ddp.exchange_lost():
        raise error


PEER = {
    "host": "a", "device": "NVIDIA H100", "precision": "bf16", "driver": "580.1", "nccl": "2.28.9",
    "tf32": ["convolutions"], "cuda_visible_devices": None, "num_classes": 10, "num_train": 100,
    "labels": "c0ffee",
}  # fmt: skip


def test_gpus_of_other_precisions_are_refused_and_those_of_one_are_on_record() -> None:
    other = {**PEER, "host": "b", "device": "Tesla T4", "precision": "fp32"}
    said = r"precision=fp32 suits rank 1 on b \(Tesla T4\), but precision=bf16"
    with pytest.raises(ValueError, match=said):
        peers_check.refuse_unequal([PEER, other])
    seen = {"host": "b", "device": "Tesla T4", "driver": "575.2", "cuda_visible_devices": "0"}
    both = [PEER, {**PEER, **seen}]
    peers_check.refuse_unequal(both)
    facts = peers_check.on_record(both)
    assert facts["device"] == "NVIDIA H100, Tesla T4"
    assert facts["gpu_software"] == "driver 580.1, NCCL 2.28.9; driver 575.2, NCCL 2.28.9"
    kept = {"precision": "bf16", "nccl": "2.28.9", "tf32": ["convolutions"]}
    assert facts["workers"][1] == {**seen, **kept}


def test_tries_are_further_and_further_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the first of them waits for workers that a host ends late."""
    pauses: list[float] = []
    monkeypatch.setattr(claims, "has_workers", lambda folder: len(pauses) in (1, 2))
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr("bsweep.study.run_point.time", clock)
    config = compose(*TINY, "local_batch=8", "launch.retries=9", f"results_dir={tmp_path}")

    def start(*_: object) -> Outcome:
        return (
            Outcome("diverged")
            if len(pauses) == 11
            else Outcome("failed", "a host was lost", can_be_retried=True)
        )

    monkeypatch.setattr("bsweep.launch.launch", start)
    assert run_point(config, "bsweep run", [], Progress(1)) == "diverged"
    assert pauses == [1, 0.5, 0.5, 2, 4, 8, 16, 32, 60, 60, 60]
