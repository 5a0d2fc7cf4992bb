"""Real runs typed as a person would: horovodrun processes, run folders, exit codes, kills."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from bsweep import launch
from bsweep.config.launch import HorovodrunConfig
from bsweep.core.randomness import seed_of
from bsweep.core.ranks import Place, num_cores
from bsweep.launch import environment
from bsweep.runlog.errors import errors_reported
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from bsweep.study import provenance
from bsweep.train import worker
from tests.support.running import (
    TINY,
    Fork,
    bsweep,
    compose,
    forks,
    imported_first,
    popen,
    ran_ok,
    struck,
    tool,
    workers_left,
)

QUICK = (*TINY, "model=tiny_cnn", "epochs=2", "study=s")


def runs(cwd: Path, study: str = "s") -> list[RunPaths]:
    return [RunPaths(p.parent) for p in sorted((cwd / "results" / study).glob("[!.]*/config.yaml"))]


def summary(paths: RunPaths) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(paths.summary.read_text())
    return value


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return popen([tool("bsweep"), "run", *arguments], cwd, output=subprocess.PIPE)


def wait_for_steps(cwd: Path, timeout: float = 60) -> RunPaths:
    """The run folder of the only run, once it trains."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        for paths in runs(cwd):
            if any(record["type"] == "step" for record in read_records(paths.metrics)[0]):
                return paths
        time.sleep(0.1)
    raise AssertionError("no step was recorded")


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The training processes, rank 0 first; parameter servers follow."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        command = child.cmdline()
        # Horovodrun's own command line has it further back.
        if command[2:3] == ["-m"] and command[3] in (
            "bsweep.train.worker",
            "bsweep.train.team_worker",
        ):
            variables = child.environ()
            found[int(variables.get("HOROVOD_RANK") or variables["RANK"])] = child
    return [found[rank] for rank in sorted(found)]


@pytest.mark.full
def test_two_workers_train_and_leave_a_whole_run_folder(tmp_path: Path) -> None:
    result = ran_ok("run", "local_batch=8", "num_workers=2", *QUICK, cwd=tmp_path, fresh=True)
    (paths,) = runs(tmp_path)
    assert paths.folder.name.startswith("b8_w2_horovod_s0-")
    records, warning = read_records(paths.metrics)
    kinds = [record["type"] for record in records]
    assert warning is None
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("epoch") == 2
    assert sum(records[0]["layer_parameters"]) == records[0]["num_parameters"]
    assert records[0]["num_blocks"] > 1
    assert len(records[0]["pieces"]) > 1
    epochs = [record for record in records if record["type"] == "epoch"]
    for epoch in epochs:
        assert epoch["num_steps"] == 6
        assert epoch["global_batch"] == 16
        assert 0 < epoch["step_seconds_p50"] <= epoch["step_seconds_p95"]
        assert epoch["train_seconds"] > epoch["exchange_seconds"] > 0
        vector_bytes = 4 * records[0]["num_parameters"]
        assert epoch["sent_bytes"] == pytest.approx(6 * 2 * vector_bytes / 2, rel=0.01)
    end = summary(paths)
    assert (end["status"], end["num_steps"], end["epochs"], end["global_batch"]) == (
        "completed",
        12,
        2,
        16,
    )
    assert end["train_seconds"] == pytest.approx(sum(epoch["train_seconds"] for epoch in epochs))
    assert end["wall_seconds"] > end["train_seconds"]
    assert end["test_accuracy"] == epochs[-1]["test_accuracy"]
    meta = json.loads(paths.meta.read_text())
    assert meta["versions"]["horovod"] == "0.28.1"
    assert meta["cores"] >= 1
    assert meta["command"].startswith("bsweep run local_batch=8")
    assert {p.name for p in paths.logs.iterdir()} >= {"rank.0", "rank.1", "launcher.log"}
    assert "epoch 2/2" in result.stderr
    assert "images/s" in result.stderr


@pytest.mark.parametrize(
    ("typed", "recorded"),
    [
        (["bsweep run", "study=a b"], "bsweep run 'study=a b'"),
        (["/my programs/train.py", "--fast"], "'/my programs/train.py' --fast"),
    ],
)
def test_the_recorded_command_can_be_typed_again(
    typed: list[str], recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", typed)
    assert provenance._command() == recorded


@pytest.mark.full
def test_the_command_itself_imports_no_torch(tmp_path: Path) -> None:
    """It would take seconds at every start, of which workers alone make use; they are forks."""
    env = imported_first(
        tmp_path,
        "import atexit, json, sys\n"
        f"sys.executable = {forks().python!r}\n"
        "def note():\n"
        "    if sys.argv[0].endswith(('bsweep', 'bsweep run')):\n"
        f"        with open({str(tmp_path / 'noted')!r}, 'a') as file:\n"
        "            print(json.dumps(sorted(sys.modules)), file=file)\n"
        "atexit.register(note)\n",
    )
    for arguments, code in (
        (("--version",), 0),
        (("--help",), 0),
        (("run", "lokal_batch=8"), 2),
        (("report", "nowhere"), 2),
        (("run", "local_batch=8", *QUICK), 0),
    ):
        assert bsweep(*arguments, cwd=tmp_path, env=env, fresh=True).returncode == code
    version, usage, bad, report, run = (
        set(json.loads(line)) for line in (tmp_path / "noted").open()
    )
    for modules in (version, usage, bad, report, run):
        assert "bsweep.cli.main" in modules
        assert not {"torch", "torchvision", "timm", "sklearn"} & modules
    assert not {"hydra", "pydantic", "numpy"} & (version | usage)
    assert "bsweep.study.attempts" in run
    assert not {"pandas", "matplotlib"} & run


@pytest.mark.full
def test_a_second_sweep_skips_completed_points_and_names_all_points(
    tmp_path: Path,
) -> None:
    grid = (
        "-m",
        "local_batch=8,16",
        "num_workers=1",
        "seed=0,1",
        "launch=inline",
        "strategy=single",
        *QUICK,
    )
    ran_ok("run", *grid, cwd=tmp_path)
    assert len(runs(tmp_path)) == 4
    both = bsweep("run", *grid, "local_batch=8", "seed=0", "study=s,t", cwd=tmp_path)
    assert both.stderr.count("completed already") == 1
    assert len(list(tmp_path.glob("results/t/*/summary.json"))) == 1
    before = {paths.folder.name: paths.summary.stat().st_mtime_ns for paths in runs(tmp_path)}
    second = ran_ok("run", *grid, cwd=tmp_path)
    assert second.stderr.count("completed already") == 4
    assert before == {
        paths.folder.name: paths.summary.stat().st_mtime_ns for paths in runs(tmp_path)
    }


@pytest.mark.full
def test_inside_horovodrun_the_warm_processes_train_point_after_point(tmp_path: Path) -> None:
    """With a model of one's own."""
    shutil.copy(
        Path(__file__).parents[2] / "scripts/examples/small_network.py", tmp_path / "mine.py"
    )
    prefix = (forks().horovodrun, "-np", "2", "--gloo")
    own = ("model=own", "model.target=mine.py:build", "model.options.width=4,8")
    point = (*TINY, "epochs=2", "study=s", "local_batch=8")
    ran_ok("run", "-m", *point, *own, cwd=tmp_path, prefix=prefix)
    assert [summary(paths)["num_workers"] for paths in runs(tmp_path)] == [2, 2]
    assert not list(tmp_path.rglob("launcher.log")), "no process was started for a point"


@pytest.mark.full
def test_warm_and_launched_runs_reach_the_same_numbers(tmp_path: Path) -> None:
    point = ("local_batch=8", "num_workers=2", "precision=fp64", *QUICK)
    bsweep("run", *point, cwd=tmp_path)
    prefix = (forks().horovodrun, "-np", "2", "--gloo")
    bsweep("run", *point, "results_dir=warm", cwd=tmp_path, prefix=prefix)
    (cold,), (warm,) = (
        runs(tmp_path),
        [RunPaths(p.parent) for p in (tmp_path / "warm/s").glob("*/config.yaml")],
    )
    assert summary(cold)["train_loss"] == summary(warm)["train_loss"]
    assert cold.folder.name == warm.folder.name


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("strategy", "killed", "culprit"),
    [
        ("horovod", 1, "rank 1 was ended by SIGKILL"),
        ("ddp", 1, "rank 1 was ended by SIGKILL"),
        pytest.param(
            *("local_sgd", 1, "rank 1 was ended by SIGKILL"),
            marks=pytest.mark.full,  # it has the launcher of ddp
        ),
        ("allreduce", 1, "rank 1 was ended by SIGKILL"),
        ("diloco", 1, "rank 1 was ended by SIGKILL"),
        ("parameter_server", 2, "rank 2 (server 0) was ended by SIGKILL"),
    ],
)
def test_a_killed_process_is_named_by_rank_and_the_sweep_goes_on(
    tmp_path: Path, strategy: str, killed: int, culprit: str
) -> None:
    point = ("local_batch=2", "num_workers=2", f"strategy={strategy}", *QUICK[:-2], "study=s")
    function = (
        ("strategies.server", "Server._step")
        if strategy == "parameter_server"
        else ("data.plan", "step_indices")
    )
    (tmp_path / "temporary").mkdir()
    env = {**struck(tmp_path, (killed,), *function, call=30), "TMPDIR": str(tmp_path / "temporary")}
    result = bsweep("run", "-m", "epochs=500,1", *point, cwd=tmp_path, env=env)
    assert result.returncode == 1, result.stderr
    ends = {end["status"]: end for end in map(summary, runs(tmp_path))}
    assert set(ends) == {"completed", "failed"}
    # Horovodrun saw the survivor's end first.
    if strategy == "horovod" and "then rank 0" in ends["failed"]["message"]:
        culprit = "rank 1 ended without a message, perhaps killed"
    assert culprit in ends["failed"]["message"]
    assert culprit in result.stderr
    assert not workers_left(tmp_path)
    assert not list(tmp_path.glob("temporary/torchelastic_*"))


def test_an_exception_in_one_worker_is_quoted_from_that_worker(tmp_path: Path) -> None:
    env = imported_first(
        tmp_path,
        "import os\n"
        "if os.environ.get('HOROVOD_RANK') == '1':\n"
        "    import bsweep.strategies.horovod as h\n"
        "    def broken(self): raise RuntimeError('the dog ate the gradient')\n"
        "    h.Horovod.step = broken\n",
    )
    result = bsweep("run", "local_batch=8", "num_workers=2", *QUICK, cwd=tmp_path, env=env)
    assert result.returncode == 1
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "failed"
    assert end["message"].startswith("rank 1 failed: RuntimeError: the dog ate")
    assert 'step.py", line' in end["message"]
    assert "<stderr>" not in end["message"]


def test_a_slowed_worker_makes_the_others_wait_and_sleeps(tmp_path: Path) -> None:
    more = ("strategy=allreduce", "launch.slowdown=[1,4]", "data.num_train=360", "model.width=64")
    ran_ok("run", "local_batch=30", "num_workers=2", *QUICK, *more, cwd=tmp_path)
    (paths,) = runs(tmp_path)
    epochs = [record for record in read_records(paths.metrics)[0] if record["type"] == "epoch"]
    fast, slow = (
        sum(waits) for waits in zip(*(e["worker_wait_seconds"] for e in epochs), strict=True)
    )
    assert fast > slow, (
        "it is ready in a quarter of the other's time; how much longer it waits is the machine's "
        "matter"
    )


def test_a_codec_that_cannot_win_is_said_so_on_record(tmp_path: Path) -> None:
    point = ("local_batch=8", "num_workers=2", "compression=topk", "compression.density=1", *QUICK)
    result = ran_ok("run", *point, cwd=tmp_path)
    assert "compression=topk saves no traffic with 2 workers" in result.stderr
    (paths,) = runs(tmp_path)
    assert any("saves no traffic" in warning for warning in summary(paths)["warnings"])
    records = {record["type"]: record for record in read_records(paths.metrics)[0]}
    epoch, vector_bytes = records["epoch"], 4 * records["start"]["num_parameters"]
    assert epoch["sent_bytes"] == 6 * 2 * vector_bytes, (
        "an index and a value for each element, to one other"
    )


@pytest.mark.full
def test_a_stopped_worker_is_a_timeout_and_what_was_logged_is_kept(tmp_path: Path) -> None:
    point = (
        "local_batch=2",
        "num_workers=2",
        *QUICK[:-2],
        "epochs=500",
        "study=s",
        "launch.stall_timeout_seconds=4",
    )
    env = struck(tmp_path, (1,), "data.plan", "step_indices", call=60, number=signal.SIGSTOP)
    result = bsweep("run", *point, cwd=tmp_path, env=env, timeout=120)
    assert result.returncode == 1, result.stderr
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "timeout"
    assert "launch.stall_timeout_seconds=4" in end["message"]
    assert "rank 1 stopped, while the other processes still run" in end["message"]
    assert any(record["type"] == "step" for record in read_records(paths.metrics)[0])
    assert not workers_left(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_its_workers_and_is_started_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    point = ("local_batch=2", "num_workers=2", *QUICK[:-2], "study=s")
    env = struck(tmp_path, (), "train.step", "train_step", call=0)
    process = Fork(
        "bsweep", "run", "-m", "epochs=500,501", *point, cwd=tmp_path, env=env, has_forks=True
    )
    try:
        paths = wait_for_steps(tmp_path)
        os.kill(process.pid, number)
        assert process.wait(60) == 130
    finally:
        process.kill()
    assert summary(paths)["status"] == "interrupted"
    assert len(runs(tmp_path)) == 1
    assert len(list(tmp_path.glob("pid*"))) == 2
    assert not workers_left(tmp_path)


@pytest.mark.full
def test_an_interrupt_while_workers_are_started_is_not_lost(tmp_path: Path) -> None:
    """Python ignores what is raised in a function that a fork calls."""
    env = imported_first(
        tmp_path,
        "import os, signal, sys\n"
        "def interrupt():\n"
        "    if sys.argv[0] == 'bsweep run':\n"
        f"        open({str(tmp_path / 'interrupted')!r}, 'w').close()\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "os.register_at_fork(after_in_parent=interrupt)\n",
    )
    point = ("local_batch=2", "num_workers=2", *QUICK[:-2], "study=s")
    result = bsweep(
        "run",
        *point,
        "epochs=500",
        cwd=tmp_path,
        env=env,
        timeout=60,
        fresh=True,
    )
    assert (tmp_path / "interrupted").exists(), result.stderr
    assert result.returncode == 130, result.stderr
    (paths,) = runs(tmp_path)
    assert summary(paths)["status"] == "interrupted"
    # A zombie has none.
    lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    assert not any(str(paths.folder) in line for line in lines)


@pytest.mark.full
def test_a_killed_launcher_leaves_no_orphans_and_the_point_is_repeated(tmp_path: Path) -> None:
    point = ("local_batch=8", "num_workers=2", *QUICK[:-2], "study=s")
    process = start("-m", *point, "epochs=3000,3001", cwd=tmp_path)
    paths = wait_for_steps(tmp_path)
    workers = workers_of(process)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    assert not paths.summary.exists()
    again = Fork("bsweep", "run", *point, "epochs=3000", cwd=tmp_path, has_forks=True)
    aside = tmp_path / "results/s/.previous"
    for _ in range(600):
        if list(aside.glob("*")):
            break
        time.sleep(0.1)
    os.kill(again.pid, signal.SIGINT)
    again.wait(60)
    assert [p.name for p in aside.iterdir()] == [f"{paths.folder.name}.1"], (
        "the first attempt was not overwritten"
    )


DESTRUCTOR = """
import os, signal, sys, time
from bsweep.core import terminal

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(0.1)

if sys.argv[1] == str(int(signal.SIGINT)):
    signal.signal(signal.SIGINT, signal.default_int_handler)
else:
    # As a script's shell has it for what runs in the background.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.unraisablehook = terminal.interrupt_again
try:
    Interrupted()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_comes_while_a_destructor_runs_is_not_lost(
    number: signal.Signals,
) -> None:
    command = [sys.executable, "-c", DESTRUCTOR, str(int(number))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "interrupted\n"


def test_divergence_ends_the_run_and_keeps_what_was_logged(tmp_path: Path) -> None:
    result = bsweep(
        "run",
        "local_batch=8",
        "num_workers=2",
        *QUICK,
        "optimizer.lr=1e30",
        "log_every_steps=1",
        cwd=tmp_path,
    )
    assert result.returncode == 1
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "diverged"
    assert "training loss became" in end["message"]
    assert read_records(paths.metrics)[0][-1]["type"] == "end"


@pytest.mark.full
def test_out_of_memory_is_a_result_of_its_cell(tmp_path: Path) -> None:
    env = imported_first(
        tmp_path,
        "import os, resource\n"
        "if 'HOROVOD_RANK' in os.environ:\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n",
    )
    data = ("data=synthetic", "data.num_train=256", "data.num_test=8", "data.shape=[3,256,256]")
    # 8 GiB behind its first layer.
    big = (
        *data,
        "model=tiny_cnn",
        "model.width=512",
        "epochs=1",
        "study=s",
    )
    result = bsweep("run", "-m", "local_batch=256", "num_workers=1", *big, cwd=tmp_path, env=env)
    assert result.returncode == 1, result.stderr
    (paths,) = runs(tmp_path)
    assert summary(paths)["status"] == "out_of_memory", summary(paths)["message"]


def test_variables_reach_workers_by_name_alone() -> None:
    given = {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "HOROVOD_CYCLE_TIME": "2",
        "SLACK": "x",
        "OPENAI": "x",
        "HF_TOKEN": "x",
        "DATABASE_URL": "postgres://user:word@example.org/db",
        "MINE_KEY_1": "x",
    }
    config = compose(
        "local_batch=8", "launch.network_interface=eth1", "launch.environment=[MINE_KEY_1]"
    ).launch
    assert isinstance(config, HorovodrunConfig)
    assert environment.in_the_open(given, config) == {
        "PATH": "/bin",
        "SSH_AUTH_SOCK": "/tmp/agent",
    }
    names = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth1"}
    known = {"NCCL_DEBUG": "INFO", "HOROVOD_CYCLE_TIME": "2"}
    assert environment.by_file(given, config) == {**known, "MINE_KEY_1": "x", **names}


def test_a_study_of_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    point = ("run", "local_batch=8", "launch=inline", "strategy=single", *QUICK)
    ran_ok(*point, cwd=tmp_path)
    (paths,) = runs(tmp_path)
    newer = json.dumps({**summary(paths), "schema": 99, "status": "partial"})
    paths.summary.write_text(newer)
    result = bsweep(*point, cwd=tmp_path)
    assert result.returncode == 2
    assert "schema 99" in result.stderr
    assert "Update bsweep" in result.stderr
    assert paths.summary.read_text() == newer


def test_more_workers_than_cores_is_a_warning_on_record(tmp_path: Path) -> None:
    workers = (os.cpu_count() or 1) + 1
    result = ran_ok("run", "local_batch=8", f"num_workers={workers}", *QUICK, cwd=tmp_path)
    assert f"{workers} workers share" in result.stderr
    (paths,) = runs(tmp_path)
    assert any(f"{workers} workers share" in warning for warning in summary(paths)["warnings"])


def test_threads_of_a_worker_are_as_many_as_asked_and_on_record(tmp_path: Path) -> None:
    before, more = torch.get_num_threads(), num_cores() + 1
    config = compose(
        f"launch.threads_per_worker={more}",
        "launch=inline",
        "strategy=single",
        "local_batch=8",
        *QUICK,
    )
    assert f"launch.threads_per_worker={more}" in launch.check_machine(config)[0]
    paths = RunPaths(tmp_path)
    worker.train(config, paths, Place())
    torch.set_num_threads(before)
    assert read_records(paths.metrics)[0][0]["threads"] == more
    assert Place(local_workers=2).threads(None) == max(1, num_cores() // 2)
    assert Place().threads(3) == 3


def test_fednova_is_doubted_with_an_optimizer_that_adapts_its_steps() -> None:
    point = ("local_batch=8", "num_workers=2", "strategy=diloco", "strategy.weighting=fednova")
    doubt = "does not cover this optimizer"
    assert any(
        doubt in warning for warning in launch.check_machine(compose(*point, "optimizer=adamw"))
    )
    assert not any(
        doubt in warning for warning in launch.check_machine(compose(*point, "optimizer=sgd"))
    )


@pytest.mark.parametrize("closing_fails", [False, True])
def test_the_innermost_reporter_says_when_an_error_happened(
    tmp_path: Path, closing_fails: bool
) -> None:
    paths = RunPaths(tmp_path)
    file = paths.rank_logs(0) / "error.json"
    written = []

    def fail_and_close() -> None:
        try:
            with errors_reported(paths, Place()):
                raise RuntimeError("the first")
        finally:
            written.append(file.read_text())
            time.sleep(0.001)  # closing takes a while
            if closing_fails:
                raise OSError("no connection to close")

    with pytest.raises((RuntimeError, OSError)), errors_reported(paths, Place()):
        fail_and_close()
    assert "the first" in written[0]
    assert file.read_text() == written[0]


def test_what_a_worker_draws_is_its_own_and_its_seeds_own(tmp_path: Path) -> None:
    """Rank 1 of seed 0 drops out other units than rank 0 of seed 1."""
    point = (
        "launch=inline",
        "strategy=single",
        "local_batch=8",
        "seed=1",
        "launch.threads_per_worker=1",
        "optimizer.lr=0.1",
        *QUICK,
    )
    before = torch.get_num_threads()
    worker.train(compose(*point), RunPaths(tmp_path), Place())
    torch.set_num_threads(before)
    (start,) = (
        record
        for record in read_records(RunPaths(tmp_path).metrics)[0]
        if record["type"] == "start"
    )
    assert start["learning_rate"] == 0.1
    (peer,) = start["workers"]
    assert (peer["host"], peer["device"], peer["precision"]) == (
        platform.node(),
        "cpu",
        start["precision"],
    )
    assert (start["device"], start["gpu_software"], peer["driver"], peer["nccl"]) == (
        "cpu",
        None,
        None,
        None,
    )
    assert torch.initial_seed() == seed_of(1, 0, "dropout")
    keys = [
        (seed, rank, purpose)
        for seed in range(9)
        for rank in range(9)
        for purpose in ("dropout", "qsgd")
    ]
    assert len({seed_of(*key) for key in keys}) == len(keys)


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    "flags", [("--help",), ("--cfg", "job", "local_batch=8"), ("--info", "config", "local_batch=8")]
)
def test_hydra_flags_work(tmp_path: Path, flags: tuple[str, ...]) -> None:
    result = ran_ok("run", *flags, cwd=tmp_path)
    assert "local_batch" in result.stdout
