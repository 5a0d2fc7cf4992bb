"""Real runs typed as a person would: horovodrun processes, run folders, exit codes, kills."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shlex
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

from bsweep.config.launch import HorovodrunConfig
from bsweep.core.randomness import seed_of
from bsweep.core.ranks import World, num_cores
from bsweep.launch import environment
from bsweep.runlog.errors import errors_reported
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.reading import read_records
from bsweep.runlog.records import Event
from bsweep.study.checks import check_point
from bsweep.study.provenance import provenance
from bsweep.study.run_point import prepare, read_earlier
from tests.support.running import (
    ROOT,
    TINY,
    Fork,
    compose,
    exits,
    forks,
    imported_first,
    popen,
    ran_ok,
    recorded,
    struck,
    summaries,
    tool,
    wait_for,
    workers_left,
)
from tests.support.saved import save_checkpoint
from tests.support.synthetic_study import write_run
from tests.support.training import train

QUICK = (*TINY, "model=tiny_cnn", "epochs=2", "study=s")
PAIR = (*TINY, "model=tiny_cnn", "local_batch=2", "num_workers=2", "study=s")
ALONE = ("launch=inline", "strategy=single")


def runs(cwd: Path, study: str = "s") -> list[RunPaths]:
    return [RunPaths(p.parent) for p in sorted((cwd / "results" / study).glob("[!.]*/config.yaml"))]


def summary(paths: RunPaths) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(paths.summary.read_text())
    return value


def wait_for_records(cwd: Path, kind: str, num_runs: int = 1) -> None:
    """Wait until so many runs have records of a kind."""
    wait_for(lambda: sum(bool(recorded(one.folder, kind)) for one in runs(cwd)) == num_runs)


@pytest.mark.full
def test_two_workers_train_and_leave_a_whole_run_folder(tmp_path: Path) -> None:
    typed = ("run", "local_batch=8", "num_workers=2", *QUICK)
    result = ran_ok(*typed, cwd=tmp_path, fresh=True)
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
    epochs = recorded(paths.folder, "epoch")
    for epoch in epochs:
        assert epoch["num_steps"] == 6
        assert epoch["global_batch"] == 16
        assert 0 < epoch["step_seconds_p50"] <= epoch["step_seconds_p95"]
        assert epoch["train_seconds"] > epoch["exchange_seconds"] > 0
        vector_bytes = 4 * records[0]["num_parameters"]
        assert epoch["sent_bytes"] == pytest.approx(6 * 2 * vector_bytes / 2, rel=0.01)
    end = summary(paths)
    assert end["status"] == "completed"
    assert (end["num_steps"], end["epochs"], end["global_batch"]) == (12, 2, 16)
    assert end["train_seconds"] == pytest.approx(sum(epoch["train_seconds"] for epoch in epochs))
    assert end["wall_seconds"] > end["train_seconds"]
    assert end["test_accuracy"] == epochs[-1]["test_accuracy"]
    meta = json.loads(paths.meta.read_text())
    assert meta["versions"]["horovod"] == "0.28.1"
    assert meta["cores"] >= 1
    assert meta["command"] == shlex.join(["bsweep", *typed])
    assert {p.name for p in paths.logs.iterdir()} >= {"rank.0", "rank.1", "launcher.log"}
    assert "epoch 2/2" in result.stderr
    assert "images/s" in result.stderr


TORCH = {"torch", "torchvision", "timm", "sklearn"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "code", "others"),
    [
        (("--version",), 0, {"hydra", "pydantic", "numpy"}),
        (("--help",), 0, {"hydra", "pydantic", "numpy"}),
        (("run", "lokal_batch=8"), 2, set()),
        (("report", "nowhere"), 2, set()),
        (("run", "local_batch=8", *QUICK), 0, {"pandas", "matplotlib"}),
    ],
)
def test_the_command_itself_imports_no_torch(
    tmp_path: Path, arguments: tuple[str, ...], code: int, others: set[str]
) -> None:
    """It would take seconds at every start, of which workers alone make use."""
    words = [sys.executable, "-X", "importtime", "-m", "bsweep", *arguments]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == code
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "bsweep.cli.main" in imported
    assert not (TORCH | others) & imported


@pytest.mark.full
def test_inside_horovodrun_the_warm_processes_train_point_after_point(tmp_path: Path) -> None:
    """With a model of one's own, and to the numbers of points that are launched."""
    shutil.copy(ROOT / "examples/small_network.py", tmp_path / "mine.py")
    own = ("model=own", "model.target=mine.py:build", "model.options.width=4,8")
    grid = ("run", "-m", *TINY, "epochs=2", "local_batch=8", "precision=fp64", *own)
    ran_ok(*grid, "num_workers=2", "study=cold", cwd=tmp_path)
    prefix = (forks().horovodrun, "-np", "2", "--gloo")
    ran_ok(*grid, "study=warm", cwd=tmp_path, prefix=prefix)
    cold, warm = (
        {paths.folder.name: summary(paths)["train_loss"] for paths in runs(tmp_path, study)}
        for study in ("cold", "warm")
    )
    assert len(warm) == 2
    assert warm == cold
    assert not list(tmp_path.glob("results/warm/**/launcher.log")), (
        "no process was started for a point"
    )


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("strategy", "killed", "culprit"),
    [
        ("horovod", 1, "rank 1 was ended by SIGKILL"),
        ("ddp", 1, "rank 1 was ended by SIGKILL"),
        ("parameter_server", 2, "rank 2 (server 0) was ended by SIGKILL"),
    ],
)
def test_a_killed_process_is_named_by_rank_and_the_sweep_goes_on(
    tmp_path: Path, strategy: str, killed: int, culprit: str
) -> None:
    function = (
        ("strategies.server", "Server._step")
        if strategy == "parameter_server"
        else ("data.plan", "step_indices")
    )
    (tmp_path / "temporary").mkdir()
    env = {**struck(tmp_path, (killed,), *function, call=30), "TMPDIR": str(tmp_path / "temporary")}
    grid = ("run", "-m", "epochs=500,1", f"strategy={strategy}", *PAIR)
    result = exits(1, *grid, cwd=tmp_path, env=env)
    ends = {end["status"]: end for end in map(summary, runs(tmp_path))}
    assert set(ends) == {"completed", "failed"}
    # Horovodrun saw the survivor's end first.
    if strategy == "horovod" and "then rank 0" in ends["failed"]["message"]:
        culprit = "rank 1 ended without a message, perhaps killed"
    assert culprit in ends["failed"]["message"]
    assert culprit in result.stderr
    assert not workers_left(tmp_path)
    assert not list(tmp_path.glob("temporary/torchelastic_*"))


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
    env = struck(tmp_path, (1,), "data.plan", "step_indices", call=60, number=signal.SIGSTOP)
    stall = ("epochs=500", "launch.stall_timeout_seconds=4")
    exits(1, "run", *PAIR, *stall, cwd=tmp_path, env=env, timeout=120)
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "timeout"
    assert "launch.stall_timeout_seconds=4" in end["message"]
    assert "rank 1 stopped" in end["message"]
    assert recorded(paths.folder, "step")
    assert not workers_left(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_its_workers(tmp_path: Path, number: signal.Signals) -> None:
    grid = ("run", "-m", "epochs=500,501", *PAIR)
    env = struck(tmp_path, (), "train.step", "train_step", call=0)
    process = Fork("bsweep", *grid, cwd=tmp_path, env=env, has_forks=True)
    try:
        wait_for_records(tmp_path, "step")
        os.kill(process.pid, number)
        assert process.wait(60) == 130
    finally:
        process.kill()
    (end,) = summaries(tmp_path).values()
    assert end["status"] == "interrupted"
    assert len(list(tmp_path.glob("pid*"))) == 2
    assert not workers_left(tmp_path)


@pytest.mark.full
def test_a_killed_launcher_leaves_no_orphans_and_the_point_is_repeated(tmp_path: Path) -> None:
    env = struck(tmp_path, (), "train.step", "train_step", call=0)
    command = [tool("bsweep"), "run", "-m", *PAIR, "epochs=3000,3001", "checkpoint_every=null"]
    process = popen(command, tmp_path, env=env)
    wait_for_records(tmp_path, "step")
    workers = [psutil.Process(int(path.read_text())) for path in tmp_path.glob("pid*")]
    process.kill()
    process.wait()
    assert len(workers) == 2
    assert not psutil.wait_procs(workers, timeout=20)[1]
    (paths,) = runs(tmp_path)
    assert not paths.summary.exists()
    again = Fork("bsweep", *command[1:], cwd=tmp_path, has_forks=True)
    aside = tmp_path / "results/s/.previous" / f"{paths.folder.name}.1"
    wait_for(aside.exists)
    os.kill(again.pid, signal.SIGINT)
    again.wait(60)
    assert (aside / "metrics.jsonl").exists(), "the first attempt was not overwritten"


def test_divergence_ends_the_run_and_keeps_what_was_logged(tmp_path: Path) -> None:
    point = ("local_batch=8", "num_workers=2", "optimizer.lr=1e30", *QUICK)
    exits(1, "run", *point, cwd=tmp_path)
    (paths,) = runs(tmp_path)
    assert summary(paths)["status"] == "diverged"
    assert read_records(paths.metrics)[0][-1]["type"] == "end"


TOO_BIG = (
    *("data=synthetic", "data.num_train=512", "data.num_test=8", "data.shape=[3,256,256]"),
    *("model=tiny_cnn", "model.width=512", "local_batch=256", "epochs=1", "study=s"),
)
"""A point whose first layer returns 8 GiB."""


@pytest.mark.full
def test_out_of_memory_is_a_result_of_its_cell(tmp_path: Path) -> None:
    env = imported_first(
        tmp_path,
        "import os, resource\n"
        "if 'HOROVOD_RANK' in os.environ:\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n",
    )
    exits(1, "run", "-m", *TOO_BIG, cwd=tmp_path, env=env)
    (end,) = summaries(tmp_path).values()
    assert end["status"] == "out_of_memory", end["message"]


def test_variables_reach_workers_by_name_alone() -> None:
    in_the_open = {"PATH": "/bin", "SSH_AUTH_SOCK": "/tmp/agent", "PYTHONSAFEPATH": "1"}
    by_file = {"NCCL_DEBUG": "INFO", "HOROVOD_CYCLE_TIME": "2", "MINE_KEY_1": "x"}
    kept_back = dict.fromkeys(("SLACK", "OPENAI", "HF_TOKEN", "DATABASE_URL"), "x")
    given = {**in_the_open, **by_file, **kept_back}
    config = compose(
        "local_batch=8", "launch.network_interface=eth1", "launch.environment=[MINE_KEY_1]"
    ).launch
    assert isinstance(config, HorovodrunConfig)
    assert environment.in_the_open(given, config) == in_the_open
    names = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth1"}
    assert environment.by_file(given, config) == {**by_file, **names}


def test_a_run_of_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results/s" / compose("local_batch=8", *ALONE, *QUICK).run_id
    path = write_run(tmp_path / "results/s", local_batch=8).rename(folder) / "summary.json"
    path.write_text(newer := json.dumps(json.loads(path.read_text()) | {"schema": 99}))
    result = exits(2, "run", "local_batch=8", *ALONE, *QUICK, cwd=tmp_path)
    assert "schema 99" in result.stderr
    assert "Update bsweep" in result.stderr
    assert path.read_text() == newer


FEDNOVA = ("num_workers=2", "strategy=diloco", "strategy.weighting=fednova")
MICROBATCHES = ("num_workers=2", "strategy=pipeline", "strategy.schedule=gpipe", "model=resnet18")
ROUNDS = ("num_workers=2", "strategy=diloco", "strategy.sync_every=5")
MORE = num_cores() + 1


@pytest.mark.parametrize(
    ("doubtful", "sound", "doubt"),
    [
        ((f"num_workers={MORE}",), (), f"{MORE} workers share"),
        ((*ALONE, f"launch.threads_per_worker={MORE}"), ALONE, "launch.threads_per_worker="),
        ((*FEDNOVA, "optimizer=adamw"), (*FEDNOVA, "optimizer=sgd"), "this optimizer"),
        (MICROBATCHES, (*MICROBATCHES, "strategy.microbatches=1"), "one micro-batch at a time"),
        ((*ROUNDS, "strategy.sync_every=6"), ROUNDS, "96 examples is longer than an epoch of 90"),
        (("data.crop_padding=3",), (), "so that random crops lose much: use data.crop_padding=1"),
    ],
)
def test_what_is_doubted_of_a_point_is_a_warning(
    doubtful: tuple[str, ...], sound: tuple[str, ...], doubt: str
) -> None:
    assert doubt in "".join(check_point(compose(*QUICK, "local_batch=8", *doubtful)))
    assert doubt not in "".join(check_point(compose(*QUICK, "local_batch=8", *sound)))


def test_a_worker_has_its_own_threads_and_numbers_and_says_where_it_trained(tmp_path: Path) -> None:
    """Rank 1 of seed 0 drops out other units than rank 0 of seed 1."""
    more = ("local_batch=8", "seed=1", f"launch.threads_per_worker={MORE}", "optimizer.lr=0.1")
    train(tmp_path, *more, *QUICK)
    (start,) = recorded(tmp_path, "start")
    assert (start["threads"], start["learning_rate"]) == (MORE, 0.1)
    assert World(local_workers=2).threads(None) == max(1, num_cores() // 2), "by default"
    (peer,) = start["workers"]
    assert (peer["host"], peer["device"]) == (platform.node(), "cpu")
    assert peer["precision"] == start["precision"]
    assert [start["gpu_software"], peer["driver"], peer["nccl"]] == [None] * 3
    assert torch.initial_seed() == seed_of(1, 0, "dropout")
    keys = [*itertools.product(range(9), range(9), ("dropout", "qsgd"))]
    assert len({seed_of(*key) for key in keys}) == len(keys)


DESTRUCTOR = """
import os, signal, sys, time
from bsweep.core import terminal

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script's shell has it for background jobs
signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.unraisablehook = terminal.interrupt_again
try:
    Interrupted()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_comes_while_a_destructor_runs_is_not_lost() -> None:
    command = [sys.executable, "-c", DESTRUCTOR]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "interrupted\n"


@pytest.mark.parametrize("closing_fails", [False, True])
def test_the_innermost_reporter_says_when_an_error_happened(
    tmp_path: Path, closing_fails: bool
) -> None:
    paths = RunPaths(tmp_path)
    file = paths.rank_logs(0) / "error.json"
    written = []

    def fail_and_close() -> None:
        try:
            with errors_reported(paths, World()):
                raise RuntimeError("the first")
        finally:
            written.append(file.read_text())
            time.sleep(0.001)  # closing takes a while
            if closing_fails:
                raise OSError("no connection to close")

    with pytest.raises((RuntimeError, OSError)), errors_reported(paths, World()):
        fail_and_close()
    assert "the first" in written[0]
    assert file.read_text() == written[0]


def test_runs_of_each_command_of_a_process_record_it() -> None:
    """`bsweep resume` runs the commands of a study one after another."""
    for command in ("bsweep run seed=1", "bsweep run seed=2"):
        assert provenance(command)["command"] == command


def test_what_was_written_after_a_checkpoint_is_gone_when_a_run_resumes(tmp_path: Path) -> None:
    config = compose("local_batch=8", f"results_dir={tmp_path}")
    paths = RunPaths(config.folder)
    paths.folder.mkdir(parents=True)
    with RunLog(paths.metrics) as log:
        log.write(Event(event="warning", message="before"))
        checkpoint, before = save_checkpoint(paths), paths.metrics.read_bytes()
        log.write(Event(event="warning", message="after"))
    earlier = read_earlier(paths)
    assert earlier.checkpoint == checkpoint
    prepare(config, paths, earlier, "bsweep run")
    assert paths.metrics.read_bytes() == before
