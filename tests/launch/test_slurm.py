"""Sweeps inside an allocation of SLURM's: what it says of itself, and points on its nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bsweep import launch, load
from bsweep.config import slurm
from bsweep.launch import environment, srun
from bsweep.study import states
from tests.launch.test_host_failures import SMALL, cable
from tests.support.running import (
    ROOT,
    captured,
    compose,
    exits,
    forks,
    popen,
    ran_ok,
    recorded,
    summaries,
    tool,
    wait_for,
)

pytestmark = pytest.mark.full

SLURM = str(ROOT / "scripts/slurm.sh")

ALLOCATION = {
    "SLURM_JOB_NODELIST": "n[01-02],gpu7",
    "SLURM_JOB_ID": "5",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}
STARTED_TWICE = {**ALLOCATION, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
POINT = ("local_batch=8", "num_workers=2", "launch.hosts=slurm")


@pytest.fixture
def in_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("more", "hosts"),
    [
        ({}, "n01:2,n02:2,gpu7:1"),
        ({"SLURM_GPUS_ON_NODE": "4"}, "n01:4,n02:4,gpu7:4"),
        ({"SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}, "n01:8,n02:8,gpu7:4"),
        ({"SLURM_TASKS_PER_NODE": ""}, "n01:1,n02:1,gpu7:1"),
    ],
    ids=["tasks", "GPUs", "a step on one of the nodes", "nothing said"],
)
def test_nodes_and_slots_are_those_of_the_allocation(more: dict[str, str], hosts: str) -> None:
    assert slurm.hosts({**ALLOCATION, **more}) == hosts
    assert slurm.hosts({**ALLOCATION, **more, slurm.HOSTS: "a:1"}) == "a:1", "what the parent found"


@pytest.mark.parametrize("counts", ["2(x2)", "two", "2(x2),0"])
def test_counts_that_contradict_the_nodes_are_refused(counts: str) -> None:
    variables = {"SLURM_TASKS_PER_NODE": counts, "SLURM_JOB_CPUS_PER_NODE": "8"}
    said = f"SLURM_TASKS_PER_NODE={counts}, SLURM_JOB_CPUS_PER_NODE=8: not the slots of the 3 nodes"
    with pytest.raises(ValueError, match=re.escape(said)):
        slurm.hosts({**ALLOCATION, **variables})


@pytest.mark.usefixtures("in_allocation")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "num_workers=5 strategy=parameter_server strategy.num_servers=1 launch=srun",
            "1 of 1 servers run beside workers: the SLURM allocation n01:2,n02:2,gpu7:1 has",
        ),
        ("num_workers=2 launch.hosts=slurm", "2 of the allocation's 3 nodes are not used (n02, "),
    ],
    ids=["servers beside workers", "idle nodes"],
)
def test_what_does_not_suit_the_allocation_is_told(words: str, said: str) -> None:
    (warning,) = launch.check_machine(compose("local_batch=8", *words.split()))
    assert warning.startswith(said)


@pytest.mark.usefixtures("in_allocation")
def test_a_point_in_an_allocation_keeps_its_id_on_other_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = compose(*POINT)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "m[4-6]")
    assert compose(*POINT).run_id == before.run_id, "a job that is queued again resumes its run"
    assert compose(*POINT).launch.named_hosts == "m4:2,m5:2,m6:1"


@pytest.mark.parametrize(
    ("command", "variables", "said"),
    [
        *((command, {}, "start bsweep by sbatch") for command in ("run", "plan", "doctor")),
        *((command, STARTED_TWICE, "leave srun out") for command in ("run", "probe", "profile")),
    ],
)
def test_outside_an_allocation_or_several_times_nothing_is_started(
    tmp_path: Path, command: str, variables: dict[str, str], said: str
) -> None:
    result = exits(2, command, *POINT, cwd=tmp_path, env=variables)
    assert said in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("in_allocation")
def test_workers_of_srun_see_the_gpus_that_slurm_gives_on_their_node() -> None:
    parent = {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_HOME": "/cuda"}
    by_srun, by_torchrun = (
        environment.by_file(parent, compose(*POINT[:2], "strategy=ddp", f"launch={name}").launch)  # type: ignore[arg-type]
        for name in ("srun", "torchrun")
    )
    assert "CUDA_VISIBLE_DEVICES" not in by_srun
    assert by_srun["CUDA_HOME"] == "/cuda"
    assert by_torchrun["CUDA_VISIBLE_DEVICES"] == "2,3"


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


# From here on with a real one.

GRID = (*SMALL, "launch.threads_per_worker=1", "num_workers=2")
LONG = ("local_batch=4", "epochs=40", "checkpoint_every=1", "log_every_steps=1000")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a SLURM of three nodes, with the batch script that the docs show."""
    folder = tmp_path_factory.mktemp("cluster")
    machines = (ROOT / "docs/machines.md").read_text()
    (script,) = re.findall(r"(?s)```bash\n(#!/bin/sh\n# sweep.sh\n.*?)```", machines)
    (folder / "sweep.sh").write_text(script)
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("BSWEEP_HOSTS_PREFIX", f"slurm{os.getpid()}")
        # Batch scripts find a `bsweep` whose processes are forks.
        first = f"{Path(forks().bsweep).parent}:{Path(sys.executable).parent}"
        variables.setenv("PATH", f"{first}:{os.environ['PATH']}")
        started = captured([SLURM, "up", "3"])
        if started.returncode == 77:
            pytest.skip(started.stderr.strip())
        assert started.returncode == 0, started.stderr
        yield folder
        subprocess.run([SLURM, "down"], check=True, capture_output=True)


def typed(folder: Path, *words: str) -> str:
    """What a command prints on the first node."""
    result = captured([SLURM, "run", *words], cwd=folder, timeout=200)
    assert result.returncode == 0, "\n".join([result.stdout, result.stderr, said_by_jobs(folder)])
    return result.stdout


def said_by_jobs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("slurm-*.out"))


def until(folder: Path, is_so: Callable[[], object]) -> None:
    wait_for(is_so, seconds=120, said=lambda: said_by_jobs(folder))


def until_there(folder: Path, pattern: str) -> None:
    until(folder, lambda: list(folder.glob(pattern)))


def losses(folder: Path, study: str) -> list[tuple[str, list[float]]]:
    """By run, the losses of its epochs."""
    ends = summaries(folder, study).values()
    assert {summary["status"] for summary in ends} == {"completed"}, study
    return [
        (run.name, [one["test_loss"] for one in recorded(run, "epoch")])
        for run in sorted((folder / "results" / study).glob("b*"))
    ]


def events(folder: Path, study: str) -> list[str]:
    every = (folder / "results" / study).glob("b*")
    return [one["event"] for run in every for one in recorded(run, "event")]


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
    every, path = psutil.process_iter(["cmdline"]), str(folder / "results" / study)
    return [one for one in every if path in " ".join(one.info["cmdline"] or ())]


def test_srun_trains_on_two_nodes_what_torchrun_does_on_one(cluster: Path) -> None:
    points = ("-m", *GRID, "local_batch=8,16", "epochs=2")
    shape = ("--wait", "--nodes=2", "--ntasks-per-node=1")
    typed(cluster, "sbatch", *shape, "sweep.sh", *points, "study=srun")
    (meta, _) = (json.loads(path.read_text()) for path in cluster.glob("results/srun/b*/meta.json"))
    assert meta["hosts"] == "h1:1,h2:1"
    assert len(list(cluster.glob("results/srun/b*/logs/launcher.log"))) == 1, (
        "one step has trained both points"
    )
    assert load(cluster / "results/srun").runs["placement"].tolist() == ["2 nodes"] * 2
    ran_ok("run", *points, "strategy=allreduce", "study=torchrun", cwd=cluster)
    ours, theirs = losses(cluster, "srun"), losses(cluster, "torchrun")
    assert [values for _, values in ours] == [values for _, values in theirs]


def is_completed(folder: Path, study: str) -> bool:
    return [end["status"] for end in summaries(folder, study).values()] == ["completed"]


def test_a_preempted_job_has_saved_and_goes_on_within_the_point(
    cluster: Path, undisturbed: list[float]
) -> None:
    """It is queued again with a signal for all processes of the job at once."""
    shape = ("--parsable", "--nodes=2", "--ntasks-per-node=1")
    words = (*GRID, *LONG, "study=preempted")
    job = typed(cluster, "sbatch", *shape, "sweep.sh", *words).strip()
    until_there(cluster, "results/preempted/b*/checkpoint/*/complete.json")
    typed(cluster, "scontrol", "requeue", job)
    until(cluster, lambda: is_completed(cluster, "preempted"))
    said = " ".join((cluster / f"slurm-{job}.out").read_text().split())
    assert said.count("stopped on request after step") == 1, "it has saved"
    assert "resumed" in events(cluster, "preempted")
    assert losses(cluster, "preempted")[0][1] == undisturbed


def test_jobs_of_an_array_share_a_sweep_and_one_is_queued_again(
    cluster: Path, undisturbed: list[float]
) -> None:
    points = (*GRID, "local_batch=4,8", "seed=0,1,2", *LONG[1:], "study=array")
    shape = ("--parsable", "--array=1-3", "--nodes=1", "--ntasks-per-node=2")
    job = typed(cluster, "sbatch", *shape, "sweep.sh", "-m", *points).strip()
    said = [cluster / f"slurm-{job}_{number}.out" for number in (1, 2, 3)]
    until_there(cluster, "results/array/b*/checkpoint/*/complete.json")
    until(cluster, lambda: "epoch 1/40" in said[1].read_text())
    typed(cluster, "scancel", "--signal=USR1", "--batch", f"{job}_2")
    until(cluster, lambda: not typed(cluster, "squeue", "--noheader", f"--jobs={job}").strip())
    every = states.read_states(cluster / "results/array").values()
    assert [state.status for state in every] == ["completed"] * 6
    assert undisturbed in [values for _, values in losses(cluster, "array")]
    printed = [path.read_text() for path in said]
    assert all("2 workers, allreduce, 40" in text for text in printed), "each has trained a part"
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
        until_there(cluster, "results/killed/b*/checkpoint/*/complete.json")
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


STAGES = """
for stage in cut unplugged back; do
    until [ $stage != back ] || [ -e plugged_in ]; do sleep 0.1; done
    "$@" 2>$stage.said
    echo $? >code
    mv code $stage.code
done
"""


def test_a_cut_node_is_named_and_the_same_command_resumes_the_run(cluster: Path) -> None:
    """Within one allocation, as a batch script would: SLURM itself takes minutes to see that a node
    is back.
    """
    grid = (*GRID, *LONG[1:], "num_workers=3", "local_batch=4,8", "launch.stall_timeout_seconds=12")
    sweep = [tool("bsweep"), "run", "-m", *grid, *BY_SRUN, "study=cut"]
    command = [*allocation(3), "sh", "-c", STAGES, "sh", *sweep]
    with (cluster / "said").open("w") as said:
        job = popen(command, cluster, output=said)
        until_there(cluster, "results/cut/b*/checkpoint/*/complete.json")
        cable("cut", "h3")
        try:
            until_there(cluster, "unplugged.code")
        finally:
            cable("join", "h3")
        assert not of_study(cluster, "cut")
        (cluster / "plugged_in").touch()
        assert job.wait(200) == 0
    codes = [(cluster / f"{stage}.code").read_text() for stage in ("cut", "unplugged", "back")]
    assert codes == ["1\n", "2\n", "0\n"]
    first, second = (cluster / "cut.said").read_text().split("[2/2]")
    no_way = "h3: srun cannot enter the host: Task launch for StepId="
    assert "timeout after" in first
    assert "host h3 is lost: no answer to srun" in first
    assert f"skipped, not tried: {no_way}" in second
    assert f"bsweep: {no_way}" in (cluster / "unplugged.said").read_text()
    assert len(losses(cluster, "cut")) == 2
    assert "resumed" in events(cluster, "cut")
