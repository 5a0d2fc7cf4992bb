"""Sweeps inside an allocation of SLURM's: what it says of itself, and points on its nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from bsweep import launch, load
from bsweep.config import slurm
from bsweep.config.values import ConfigError
from bsweep.launch import environment, failure, preflight, srun
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from bsweep.study import states
from tests.support.running import (
    HOSTS,
    ROOT,
    TINY,
    bsweep,
    compose,
    forks,
    popen,
    ran_ok,
    summaries,
    tool,
)
from tests.support.synthetic_study import META, write_run

pytestmark = pytest.mark.full

SLURM = str(ROOT / "scripts/slurm.sh")
CLUSTERS = ROOT / "docs/clusters.md"

ALLOCATION = {
    "SLURM_JOB_NODELIST": "n[01-02],gpu7",
    "SLURM_JOB_ID": "5",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}
POINT = ("local_batch=8", "num_workers=2", "launch.hosts=slurm")


@pytest.mark.parametrize(
    ("more", "hosts"),
    [
        ({}, "n01:2,n02:2,gpu7:1"),
        ({"SLURM_GPUS_ON_NODE": "4"}, "n01:4,n02:4,gpu7:4"),
        ({"SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}, "n01:8,n02:8,gpu7:4"),
        ({"SLURM_TASKS_PER_NODE": "1"}, "n01:1,n02:1,gpu7:1"),
    ],
    ids=["tasks", "GPUs", "a step on one of the nodes", "nothing said"],
)
def test_nodes_and_slots_are_those_of_the_allocation(more: dict[str, str], hosts: str) -> None:
    assert slurm.hosts({**ALLOCATION, **more}) == hosts
    assert slurm.hosts({**ALLOCATION, **more, slurm.HOSTS: "a:1"}) == "a:1", "what the parent found"


def test_servers_beside_workers_are_told_of_the_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    point = ("local_batch=8", "num_workers=5", "strategy=parameter_server", "launch=srun")
    (warning,) = launch.check_machine(compose(*point, "strategy.num_servers=1"))
    assert warning == (
        "1 of 1 servers run beside workers: the SLURM allocation n01:2,n02:2,gpu7:1 has no more "
        "slots"
    )


def test_a_point_in_an_allocation_keeps_its_id_on_other_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = set()
    for nodes in ("n[01-03]", "m[4-6]"):
        for name, value in {**ALLOCATION, "SLURM_JOB_NODELIST": nodes}.items():
            monkeypatch.setenv(name, value)
        ids.add(compose(*POINT).run_id)
    assert len(ids) == 1, "a job that is queued again goes on with its run"
    assert compose(*POINT).launch.named_hosts == "m4:2,m5:2,m6:1"


def test_a_run_in_an_allocation_is_read_with_the_nodes_that_it_had(tmp_path: Path) -> None:
    for seed, settings in enumerate(({"launch.hosts": "slurm"}, {"launch.name": "srun"})):
        meta = {**META, "hosts": "n01:1,n02:1"}
        write_run(tmp_path, local_batch=8, num_workers=2, seed=seed, settings=settings, meta=meta)
    assert load(tmp_path).runs["placement"].tolist() == ["2 nodes", "2 nodes"]


def test_nodes_that_no_worker_uses_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    assert (
        "2 of the allocation's 3 nodes are not used (n02, gpu7): ask SLURM for fewer nodes"
        in launch.check_machine(compose(*POINT))
    )


@pytest.mark.parametrize("command", ["run", "plan", "doctor"])
def test_outside_an_allocation_nothing_is_started(tmp_path: Path, command: str) -> None:
    result = bsweep(command, *POINT, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert (
        "there is none here (SLURM_JOB_NODELIST is not set): start bsweep by sbatch"
        in result.stderr
    )
    assert not list(tmp_path.iterdir())


def test_workers_of_srun_see_the_gpus_that_slurm_gives_on_their_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    parent = {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_HOME": "/cuda"}
    card = compose("local_batch=8", "num_workers=2", "strategy=ddp", "launch=srun").launch
    assert "CUDA_VISIBLE_DEVICES" not in environment.by_file(parent, card)  # type: ignore[arg-type]
    assert environment.by_file(parent, card)["CUDA_HOME"] == "/cuda"  # type: ignore[arg-type]
    torchrun = compose("local_batch=8", "num_workers=2", "strategy=ddp").launch
    assert environment.by_file(parent, torchrun)["CUDA_VISIBLE_DEVICES"] == "2,3"  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["run", "probe", "profile"])
def test_a_command_that_srun_starts_several_times_is_refused(tmp_path: Path, command: str) -> None:
    result = bsweep(
        command,
        *POINT,
        cwd=tmp_path,
        env={**ALLOCATION, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
    )
    assert result.returncode == 2
    assert "srun started this command 2 times" in result.stderr
    assert "leave srun out" in result.stderr
    assert not list(tmp_path.iterdir())


def test_ranks_that_failed_are_read_from_what_srun_prints() -> None:
    printed = (
        "srun: error: h2: task 3: Exited with exit code 3\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=2.2\n"
        "slurmstepd-h1: error: *** STEP 2.2 ON h1 CANCELLED AT 2026-11-22T17:37:22 ***\n"
        "srun: error: h1: tasks 0-1,3: Terminated\n"
        "srun: error: h3: task 4: Segmentation fault (core dumped)\n"
    )
    assert srun.Srun().failures(printed) == [
        (3, 3),
        (0, -signal.SIGTERM),
        (1, -signal.SIGTERM),
        (4, -signal.SIGSEGV),
    ]


def test_a_node_that_slurm_lost_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "log").write_text("srun: error: Node failure on n02\nsrun: Job step aborted\n")
    config = compose("local_batch=8", "num_workers=4", "strategy=ddp", "launch=srun")
    outcome = failure.outcome(config, RunPaths(tmp_path), [], tmp_path / "log", [1])
    assert outcome.message.startswith(
        "host n02 is lost: SLURM lost the node: ask SLURM about the node"
    )
    assert outcome.may_pass


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            (
                "srun: error: Task launch for StepId=2.5 failed on node h3: Communication "
                "connection failure\nsrun: Job"
            ),
            (
                "srun cannot enter the host: Task launch for StepId=2.5 failed on node h3: "
                "Communication connection failure: ask "
            ),
        ),
        (
            (
                "srun: error: Unable to create step for job 3: Requested node configuration is not "
                "available\n"
            ),
            (
                "srun cannot enter the host: Unable to create step for job 3: Requested node "
                "configuration is not available: ask "
            ),
        ),
        (
            "/x/python: No module named bsweep\nsrun: error: h3: task 0: Exited with exit code 1\n",
            f"bsweep does not run there by {sys.executable} (/x/python: No module named bsweep)",
        ),
        (
            "srun: error: Invalid job id\n",
            f"bsweep does not run there by {sys.executable} (srun: error: Invalid job id)",
        ),
        (
            "env: 'srun': No such file or directory\n",
            "there is no srun on this machine",
        ),
    ],
)
def test_why_a_node_does_not_answer_is_read_from_what_srun_prints(said: str, problem: str) -> None:
    assert preflight._explain(1, said).startswith(problem)
    assert "SIGKILL ended the command that asks" in preflight._explain(-signal.SIGKILL, said)


def test_what_srun_cannot_start_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"launch=srun with strategy=.* launch\.hosts=slurm"):
        compose("local_batch=8", "num_workers=2", "strategy=horovod", "launch=srun")


# From here on with a real one.

POINTS = (
    *TINY,
    "model=tiny_cnn",
    "precision=fp32",
    "channels_last=true",
    "launch.threads_per_worker=1",
)
GRID = (*POINTS, "num_workers=2")
LONG = ("local_batch=4", "epochs=40", "checkpoint_every=1", "log_every_steps=1000")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a SLURM of three nodes, with the batch script that the docs show."""
    folder = tmp_path_factory.mktemp("cluster")
    (script,) = re.findall(
        r"```bash\n(#!/bin/sh\n# sweep.sh\n.*?)```", CLUSTERS.read_text(), re.DOTALL
    )
    (folder / "sweep.sh").write_text(script)
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("BSWEEP_HOSTS_PREFIX", f"slurm{os.getpid()}")
        # Batch scripts find a `bsweep` whose processes are forks.
        first = f"{Path(forks().bsweep).parent}:{Path(sys.executable).parent}"
        variables.setenv("PATH", f"{first}:{os.environ['PATH']}")
        started = subprocess.run([SLURM, "up", "3"], capture_output=True, text=True, check=False)
        if started.returncode == 77:
            pytest.skip(started.stderr.strip())
        assert started.returncode == 0, started.stderr
        yield folder
        subprocess.run([SLURM, "down"], check=True, capture_output=True)


def typed(folder: Path, *words: str) -> str:
    """What a command prints on the first node."""
    result = subprocess.run(
        [SLURM, "run", *words], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    said = [path.read_text() for path in folder.glob("slurm-*.out")]
    assert result.returncode == 0, "\n".join([result.stdout, result.stderr, *said])
    return result.stdout


def losses(folder: Path, study: str) -> list[tuple[str, list[float]]]:
    """By run, the losses of its epochs."""
    found = sorted((folder / "results" / study).glob("b*"))
    assert {summary["status"] for summary in summaries(folder, study).values()} == {"completed"}, (
        study
    )
    every = ((run.name, read_records(RunPaths(run).metrics)[0]) for run in found)
    return [
        (name, [record["test_loss"] for record in records if record["type"] == "epoch"])
        for name, records in every
    ]


def events(folder: Path, study: str) -> list[str]:
    found = (
        read_records(RunPaths(run).metrics)[0] for run in (folder / "results" / study).glob("b*")
    )
    return [record["event"] for records in found for record in records if record["type"] == "event"]


@pytest.fixture(scope="module")
def undisturbed(cluster: Path) -> list[float]:
    """The losses of the long point, as torchrun has trained it on one machine."""
    ran_ok("run", *GRID, *LONG, "strategy=allreduce", "study=whole", cwd=cluster)
    ((_, found),) = losses(cluster, "whole")
    return found


def allocation(num_nodes: int) -> list[str]:
    """What runs a command in an allocation of its own, of a task on each node."""
    return [SLURM, "run", "salloc", f"--nodes={num_nodes}", "--ntasks-per-node=1"]


BY_SRUN = ("strategy=allreduce", "launch=srun")


def of_study(folder: Path, study: str) -> list[psutil.Process]:
    """All processes on any node that work on a study."""
    found = psutil.process_iter(["cmdline"])
    return [
        one
        for one in found
        if str(folder / "results" / study) in " ".join(one.info["cmdline"] or ())
    ]


def until(folder: Path, pattern: str) -> None:
    ends = time.monotonic() + 120
    while not list(folder.glob(pattern)):
        assert time.monotonic() < ends, [path.read_text() for path in folder.glob("slurm-*.out")]
        time.sleep(0.2)


def test_srun_trains_on_two_nodes_what_torchrun_does_on_one(cluster: Path) -> None:
    points = (*GRID, "local_batch=8,16", "epochs=2")
    typed(
        cluster,
        "sbatch",
        "--wait",
        "--nodes=2",
        "--ntasks-per-node=1",
        "sweep.sh",
        "-m",
        *points,
        "study=srun",
    )
    (meta, _) = (json.loads(path.read_text()) for path in cluster.glob("results/srun/b*/meta.json"))
    assert meta["hosts"] == "h1:1,h2:1"
    assert len(list(cluster.glob("results/srun/b*/logs/launcher.log"))) == 1, (
        "one step has trained both points"
    )
    ran_ok("run", "-m", *points, "strategy=allreduce", "study=torchrun", cwd=cluster)
    ours, theirs = losses(cluster, "srun"), losses(cluster, "torchrun")
    assert [values for _, values in ours] == [values for _, values in theirs]


QUEUED_AGAIN = {
    "time_over": ("scancel", "--signal=USR1", "--batch"),  # as --signal does before the time limit
    "preempted": ("scontrol", "requeue"),  # with a signal for all processes of the job at once
}


@pytest.fixture(scope="module")
def queued_again(cluster: Path, undisturbed: list[float]) -> Path:
    """The cluster after jobs were queued again, in the ways of QUEUED_AGAIN, and have ended.

    All wait together: SLURM has a job that is queued again wait.
    """
    assert undisturbed
    shape = ("--parsable", "--nodes=2", "--ntasks-per-node=1")
    jobs = {
        study: typed(cluster, "sbatch", *shape, "sweep.sh", *GRID, *LONG, f"study={study}").strip()
        for study in QUEUED_AGAIN
    }
    signalled = {
        f"results/{study}/b4*": (*words, jobs[study]) for study, words in QUEUED_AGAIN.items()
    }
    for pattern in some_first(cluster, signalled):
        typed(cluster, *signalled[pattern])
    ends = time.monotonic() + 120
    for study in QUEUED_AGAIN:
        while (ended := summaries(cluster, study).get(4, {}).get("status")) != "completed":
            assert time.monotonic() < ends, (ended, typed(cluster, "squeue"))
            time.sleep(0.5)
    for job in jobs.values():
        said_by_job = " ".join((cluster / f"slurm-{job}.out").read_text().split())
        assert said_by_job.count("stopped on request after step") == 1, "it has saved"
    return cluster


def some_first(folder: Path, patterns: Iterable[str]) -> Iterator[str]:
    """Patterns of runs, each as soon as such a run has saved a checkpoint."""
    waiting, ends = [*patterns], time.monotonic() + 120
    while waiting:
        assert time.monotonic() < ends, [path.read_text() for path in folder.glob("slurm-*.out")]
        for pattern in [*waiting]:
            if list(folder.glob(f"{pattern}/checkpoint/*/complete.json")):
                waiting.remove(pattern)
                yield pattern
        time.sleep(0.1)


@pytest.mark.parametrize("study", QUEUED_AGAIN)
def test_jobs_that_are_queued_again_have_saved_and_go_on_within_the_point(
    queued_again: Path, undisturbed: list[float], study: str
) -> None:
    assert "resumed" in events(queued_again, study)
    assert losses(queued_again, study)[0][1] == undisturbed


def test_jobs_of_an_array_share_a_sweep_and_one_is_queued_again(
    cluster: Path, undisturbed: list[float]
) -> None:
    points = (*GRID, "local_batch=4,8", "seed=0,1,2", *LONG[1:], "study=array")
    shape = ("--parsable", "--array=1-3", "--nodes=1", "--ntasks-per-node=2")
    job = typed(cluster, "sbatch", *shape, "sweep.sh", "-m", *points).strip()
    said = [cluster / f"slurm-{job}_{number}.out" for number in (1, 2, 3)]
    until(cluster, "results/array/b*/checkpoint/*/complete.json")
    ends = time.monotonic() + 120
    while "epoch 1/40" not in said[1].read_text():
        assert time.monotonic() < ends, said[1].read_text()
        time.sleep(0.2)
    typed(cluster, "scancel", "--signal=USR1", "--batch", f"{job}_2")
    while typed(cluster, "squeue", "--noheader", f"--jobs={job}").strip():
        assert time.monotonic() < ends, typed(cluster, "squeue")
        time.sleep(0.5)
    assert [state.status for state in states.read_states(cluster / "results/array").values()] == [
        "completed"
    ] * 6
    assert undisturbed in [values for _, values in losses(cluster, "array")]
    printed = [path.read_text() for path in said]
    assert all("2 workers, allreduce, 40 epochs" in text for text in printed), (
        "each has trained a part"
    )
    first, again = printed[1].split("bsweep: interrupted; ")
    assert "[6/6]" not in first
    assert "[6/6]" in again, "it has saved, and come again"
    assert sum(text.count(" completed after") for text in printed) == 6, "and none what another has"


def test_a_killed_srun_leaves_no_process_and_the_next_one_resumes(
    cluster: Path, undisturbed: list[float]
) -> None:
    with (cluster / "said").open("w+") as said:
        words = (*GRID, *LONG, *BY_SRUN, "launch.retries=1", "study=killed")
        sweep = popen([*allocation(2), tool("bsweep"), "run", *words], cluster, output=said)
        until(cluster, "results/killed/b*/checkpoint/*/complete.json")
        left = of_study(cluster, "killed")
        sruns = [one for one in left if one.name() == "srun"]
        # It has one that looks after it.
        (step,) = (one for one in sruns if one.parent() not in sruns)
        assert len(left) > 4
        step.kill()
        assert not psutil.wait_procs(left, timeout=60)[1]
        assert sweep.wait(200) == 0, (cluster / "said").read_text()
    assert events(cluster, "killed") == ["resumed", "retried"]
    assert losses(cluster, "killed")[0][1] == undisturbed
    assert not of_study(cluster, "killed")


def cable(what: str, host: str) -> None:
    subprocess.run([HOSTS, what, host], check=True)


STAGES = """
for stage in cut unplugged back; do
    until [ $stage != back ] || [ -e plugged_in ]; do sleep 0.1; done
    "$@" 2>$stage.said
    echo $? >code
    mv code $stage.code
done
"""


def test_a_cut_node_is_named_and_the_same_command_resumes_the_run(
    cluster: Path,
) -> None:
    """Within one allocation, as a batch script would: SLURM itself takes minutes to see that a node
    is back.
    """
    points = (
        *POINTS,
        *LONG[1:],
        "num_workers=3",
        "local_batch=4,8",
        "study=cut",
        "launch.stall_timeout_seconds=12",
    )
    command = [
        *allocation(3),
        "sh",
        "-c",
        STAGES,
        "sh",
        tool("bsweep"),
        "run",
        "-m",
        *points,
        *BY_SRUN,
    ]
    with (cluster / "said").open("w") as said:
        job = popen(command, cluster, output=said)
        until(cluster, "results/cut/b*/checkpoint/*/complete.json")
        cable("cut", "h3")
        try:
            until(cluster, "unplugged.code")
        finally:
            cable("join", "h3")
        assert not of_study(cluster, "cut")
        (cluster / "plugged_in").touch()
        assert job.wait(200) == 0
    assert [(cluster / f"{stage}.code").read_text() for stage in ("cut", "unplugged", "back")] == [
        "1\n",
        "2\n",
        "0\n",
    ]
    first, second = (cluster / "cut.said").read_text().split("[2/2]")
    no_way = "h3: srun cannot enter the host: Task launch for StepId="
    assert "timeout after" in first
    assert "host h3 is lost: no answer to srun" in first
    assert f"skipped, not tried: {no_way}" in second
    assert f"bsweep: {no_way}" in (cluster / "unplugged.said").read_text()
    assert len(losses(cluster, "cut")) == 2
    assert "resumed" in events(cluster, "cut")
