"""Runs that are killed at any moment, or told to stop, and are started again by the same command:
in real processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGSTOP
from typing import Any

import pytest
import torch

from bsweep.analysis import load
from bsweep.runlog.checkpoint_files import checkpoints, request_stop
from bsweep.runlog.files import RunPaths
from tests.strategies.test_equivalence import DIVIDED, DROPPING, LAYERED
from tests.study.test_run import runs, summary
from tests.support.running import (
    TINY,
    Fork,
    before,
    bsweep,
    exits,
    forks,
    popen,
    ran_ok,
    recorded,
    struck,
    summaries,
    wait_for,
)
from tests.train.test_checkpoint import untimed

pytestmark = pytest.mark.full

POINT = (
    *TINY,
    "model=tiny_cnn",
    "precision=fp32",
    "channels_last=false",
    "num_workers=2",
    "log_every_steps=3",
    "optimizer.lr=0.02",
)
EPOCHS = ("local_batch=8", "epochs=6", "checkpoint_every=1")  # of six steps
LONG = ("local_batch=4", "epochs=60", "checkpoint_every=0.4s")
STRATEGIES = {
    "horovod": ("strategy=horovod",),
    "allreduce": ("strategy=allreduce", "compression=topk"),
    "servers": ("strategy=parameter_server",),
    "diloco": ("strategy=diloco", "strategy.sync_every=2"),
}


def records_of(paths: RunPaths) -> dict[str, list[dict[str, Any]]]:
    return {kind: untimed(recorded(paths.folder, kind)) for kind in ("step", "epoch", "round")}


def check_equal(cwd: Path) -> None:
    """The study `s`, which was interrupted, and `whole`, which was not: records to the last bit,
    and none twice.
    """
    ours, theirs = runs(cwd), runs(cwd, "whole")
    assert [paths.folder.name for paths in ours] == [paths.folder.name for paths in theirs]
    for broken, whole in zip(ours, theirs, strict=True):
        assert summary(broken)["status"] == "completed"
        assert records_of(broken) == records_of(whole)
        assert not broken.checkpoints.exists()
        assert not broken.stop.exists()


def has(cwd: Path, number: int) -> Callable[[], bool]:
    """Whether the run has so many checkpoints."""
    return lambda: any(len(checkpoints(paths)) >= number for paths in runs(cwd))


def grown(measure: Callable[[Path], Any], cwd: Path) -> Callable[[], bool]:
    """Return a function that is true once a measure of the study `s` is more than it is now."""
    before = measure(cwd)
    return lambda: bool(measure(cwd) > before)


@contextmanager
def begun(*arguments: str, cwd: Path) -> Iterator[Fork]:
    """The command while it runs; what is left of it is killed."""
    process = Fork("bsweep", "run", *arguments, cwd=cwd, has_forks=True)
    try:
        yield process
    finally:
        process.kill()


def test_a_sweep_waits_for_workers_that_a_killed_one_left(tmp_path: Path) -> None:
    """They could write on, and save a checkpoint later than that from which the sweep resumes."""
    env = struck(tmp_path, (0,), "strategies.allreduce", "AllReduce.sum_gradients", 20, SIGSTOP)
    point = (*POINT, *EPOCHS, "strategy=allreduce")
    killed = Fork("bsweep", "run", *point, "study=s", cwd=tmp_path, env=env, has_forks=True)
    wait_for((tmp_path / "struck0").exists, killed)
    killed.kill()
    with (tmp_path / "said").open("w+") as said:
        again = Fork("bsweep", "run", *point, "study=s", cwd=tmp_path, stderr=said, has_forks=True)
        wait_for(lambda: "another process is running it" in (tmp_path / "said").read_text(), again)
        os.kill(int((tmp_path / "pid0").read_text()), signal.SIGCONT)
        assert again.wait(240) == 0
    ran_ok("run", *point, "study=whole", cwd=tmp_path)
    check_equal(tmp_path)


@pytest.mark.parametrize(
    ("name", "rank", "module", "function", "call"),
    [
        ("horovod", 1, "core.tensor_files", "write_tensors", 3),  # as it saves
        ("servers", 2, "strategies.server", "Server._step", 27),
        ("servers", 0, "runlog.checkpoint_files", "Checkpoint.complete", 2),
        ("diloco", 1, "strategies.diloco", "DiLoCo.end_round", 11),
    ],
)
def test_a_run_with_a_killed_process_resumes_bit_for_bit(
    tmp_path: Path, name: str, rank: int, module: str, function: str, call: int
) -> None:
    point = (*POINT, *EPOCHS, *STRATEGIES[name], "study=s")
    env = struck(tmp_path, (rank,), module, function, call)
    exits(1, "run", *point, cwd=tmp_path, env=env)
    (paths,) = runs(tmp_path)
    latest, *earlier = checkpoints(paths)
    if name == "servers" and earlier:
        flip(latest.server(0))
    for study in ("s", "whole"):
        result = ran_ok("run", *point[:-1], f"study={study}", cwd=tmp_path)
        assert "threads before" not in result.stderr
    check_equal(tmp_path)
    (event,) = (one for one in recorded(paths.folder, "event") if one["event"] == "resumed")
    assert event["message"].startswith("resumed after step ")


def test_a_failure_that_is_no_result_is_tried_again(tmp_path: Path) -> None:
    point = (*POINT, *EPOCHS, *STRATEGIES["allreduce"], "launch.retries=1")
    env = struck(tmp_path, (1,), "train.step", "train_step", 20)
    result = ran_ok("run", "-m", "seed=0,1", *point, "study=s", cwd=tmp_path, env=env)
    assert "[2/2]" in result.stderr, result.stderr
    assert "[3/" not in result.stderr, result.stderr
    assert "\n  retry 1 of 1 in 1 s\n" in result.stderr
    ran_ok("run", "-m", "seed=0,1", *point, "study=whole", cwd=tmp_path)
    check_equal(tmp_path)
    struck_run, _ = runs(tmp_path)
    events = recorded(struck_run.folder, "event")
    (retried,) = (event["message"] for event in events if event["event"] == "retried")
    assert retried.startswith("retry 1 of 1 after failed: rank 1 was ended by SIGKILL")


@pytest.mark.full(but=1)
def test_what_a_point_ends_with_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    env = before(tmp_path, "train.evaluation", "evaluate", "raise RuntimeError('a bug')")
    point = (*POINT, *EPOCHS, *STRATEGIES["allreduce"], "launch.retries=3", "study=s")
    result = exits(1, "run", *point, cwd=tmp_path, env=env)
    assert "retry" not in result.stderr, result.stderr
    assert not list(tmp_path.glob("results/s/.previous/*"))


def lost_a_worker(cwd: Path, *point: str) -> RunPaths:
    """The run of the study `s`, which lost its second worker in the last of six epochs."""
    env = struck(cwd, (1,), "train.step", "train_step", 35)
    exits(1, "run", *point, "study=s", cwd=cwd, env=env)
    (paths,) = runs(cwd)
    return paths


def check_goes_on(
    cwd: Path, point: tuple[str, ...], other: tuple[str, ...], rel: float
) -> tuple[str, ...]:
    """Another run goes on from one that lost a worker, and learns what a whole one does; return
    the words of that other run, whose study is `other`.
    """
    words = (*point, *other, f"resume_from={lost_a_worker(cwd, *point).folder}", "study=other")
    ran_ok("run", *point, "study=whole", cwd=cwd)
    ran_ok("run", *words, cwd=cwd)
    ours, theirs = (records_of(*runs(cwd, study))["epoch"] for study in ("other", "whole"))
    for key in ("epoch", "train_loss", "test_loss", "train_accuracy"):
        values = [[epoch[key] for epoch in epochs] for epochs in (ours, theirs)]
        assert values[0] == pytest.approx(values[1], rel=rel)
    assert len({epoch["test_loss"] for epoch in theirs}) == 6, "it learns"
    return words


def test_another_number_of_workers_goes_on_where_a_run_stands(tmp_path: Path) -> None:
    point = ("global_batch=12", *POINT, *EPOCHS[1:], "strategy=ddp")
    on_three = check_goes_on(tmp_path, point, ("num_workers=3", "strategy=allreduce"), rel=1e-3)
    (source,) = runs(tmp_path)
    smaller = ("global_batch=6", f"resume_from={source.folder}")
    ran_ok("run", *point, *smaller, "study=branch", cwd=tmp_path)
    (other,) = load(tmp_path / "results/branch").runs.to_dict("records")
    assert other["branch_of"] == source.folder.name
    assert other["branch_steps"] == 4 * 8
    assert 0 < other["branch_seconds"] < other["train_seconds"]
    (branched,) = runs(tmp_path, "branch")
    assert [step["global_batch"] for step in records_of(branched)["step"]][-1] == 6, (
        "and not 12, as before"
    )
    ran_ok("run", *point, "study=s", cwd=tmp_path)
    assert not checkpoints(source)
    again = ran_ok("run", *on_three, cwd=tmp_path)
    assert "completed already" in again.stderr, "what it went on from is over, too"
    for wrong, said in (
        ("optimizer.momentum=0.5", "optimizer.momentum=0.9, but this run has 0.5"),
        ("seed=1", "seed=0, but this run has 1"),
    ):
        refused = exits(2, "run", *on_three, wrong, cwd=tmp_path)
        assert said in refused.stderr, refused.stderr


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (("strategy=horovod",), "strategy=ddp"),
        (("strategy=sharded", "optimizer=adamw"), "num_workers=4 strategy.replicas=2"),
        (("strategy=tensor", *DIVIDED, "optimizer=adamw"), "num_workers=4 strategy.replicas=1"),
        (("strategy=tensor", *DIVIDED, "optimizer=lamb"), "num_workers=4 strategy.replicas=4"),
        (
            (
                *("strategy=pipeline", *LAYERED, "optimizer=adamw"),
                *("optimizer.decay_norm_and_bias=false", "optimizer.weight_decay=0.1"),
            ),
            "num_workers=4 strategy.replicas=1",
        ),
        (("strategy=pipeline", *LAYERED, "optimizer=lamb"), "num_workers=4 strategy.cuts=[1,2,4]"),
    ],
)
def test_others_go_on_with_what_two_workers_have_saved(
    tmp_path: Path, words: tuple[str, ...], others: str
) -> None:
    """Two of another strategy, or four with the parts of two. The second stage of the last ones has
    no matrices, so that its optimizer has one group.
    """
    point = ("global_batch=12", *POINT, *EPOCHS[1:], "precision=fp64", *words)
    check_goes_on(tmp_path, point, tuple(others.split()), rel=1e-9)


def test_workers_that_become_one_replica_draw_equal_random_numbers(tmp_path: Path) -> None:
    point = ("global_batch=12", *POINT, *EPOCHS[1:], "strategy=tensor", *DROPPING)
    env = struck(tmp_path, (1,), "train.step", "train_step", 20)
    more = "strategy.replicas=2"
    for study in ("two", "one"):
        exits(1, "run", *point, more, f"study={study}", cwd=tmp_path, env=env)
        (tmp_path / "struck1").unlink()
        (paths,) = runs(tmp_path, study)
        own_files = [checkpoints(paths)[0].own(rank) for rank in range(2)]
        first, second = (torch.load(file)["random"]["cpu"] for file in own_files)
        assert torch.equal(first, second) == (study == "one")
        more = f"resume_from={paths.folder}"


def test_another_strategy_cannot_go_on_with_parts(tmp_path: Path) -> None:
    point = ("local_batch=6", *POINT, *EPOCHS[1:])
    more = f"resume_from={lost_a_worker(tmp_path, *point, 'strategy=sharded').folder}"
    for other in (("strategy=ddp",), ("strategy=pipeline", "strategy.microbatches=2")):
        refused = exits(2, "run", *point, *other, more, cwd=tmp_path)
        assert "the same of sharded, tensor and pipeline in both" in refused.stderr, refused.stderr


def test_a_run_that_is_told_to_stop_saves_where_it_is_and_goes_on_there(tmp_path: Path) -> None:
    """It is told once by a signal, and once by its file."""
    times = ("epochs=60", "checkpoint_every=1000s")
    point = (*POINT, "local_batch=4", *times, *STRATEGIES["servers"])
    seconds = 0.0
    for number, by in enumerate(("SIGTERM", "its file"), 1):
        with begun("-m", "seed=0,1", *point, "study=s", cwd=tmp_path) as process:
            wait_for(grown(num_epochs, tmp_path), process)
            (paths,) = runs(tmp_path)
            if by == "SIGTERM":
                os.kill(process.pid, signal.SIGTERM)
            else:
                request_stop(paths)
            assert process.wait(60) == 130, by
        end = summary(paths)
        assert end["status"] == "interrupted", by
        assert end["message"].startswith("stopped on request after step "), by
        assert len(checkpoints(paths)) == number, by
        assert runs(tmp_path) == [paths], "the sweep has ended with its run"
        assert end["wall_seconds"] > seconds, by
        seconds = end["wall_seconds"]
    for study in ("s", "whole"):
        ran_ok("run", "seed=0", *point, f"study={study}", cwd=tmp_path)
    check_equal(tmp_path)
    assert summary(paths)["wall_seconds"] > seconds


def num_epochs(cwd: Path) -> int:
    """Return the number of epochs that are on record in the study `s`."""
    return sum(len(records_of(paths)["epoch"]) for paths in runs(cwd))


def test_asynchronous_workers_stop_together_where_an_epoch_ends(tmp_path: Path) -> None:
    point = (*POINT, *LONG, *STRATEGIES["servers"], "strategy.consistency=asynchronous", "study=s")
    with begun(*point, cwd=tmp_path) as process:
        wait_for(has(tmp_path, 1), process)
        os.kill(process.pid, signal.SIGHUP)
        assert process.wait(60) == 130
    (paths,) = runs(tmp_path)
    assert summary(paths)["status"] == "interrupted"
    ran_ok("run", *point, cwd=tmp_path)
    assert [epoch["epoch"] for epoch in records_of(paths)["epoch"]] == list(range(1, 61))


def test_a_sweep_inside_horovodrun_goes_on_after_a_kill_and_after_a_stop(tmp_path: Path) -> None:
    prefix = [forks().horovodrun, "-np", "2", "--gloo", forks().bsweep]
    point = ("run", "-m", "local_batch=8,4", *POINT, "epochs=20", "checkpoint_every=0.2s")
    for how in (signal.SIGKILL, signal.SIGTERM, None):
        process = popen([*prefix, *point, "study=s"], tmp_path, output=subprocess.PIPE)
        if how:
            wait_for(grown(how_far, tmp_path), process)
            process.send_signal(how)
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert {end["status"] for end in summaries(tmp_path).values()} == {"completed"}
    ran_ok(*point, "study=whole", cwd=tmp_path, prefix=tuple(prefix[:-1]))
    check_equal(tmp_path)


def test_a_run_inside_horovodrun_that_lost_a_worker_says_so_and_goes_on(tmp_path: Path) -> None:
    prefix = (forks().horovodrun, "-np", "2", "--gloo")
    point = ("run", *POINT, *EPOCHS)
    env = struck(tmp_path, (1,), "train.step", "train_step", 20)
    killed = bsweep(*point, "study=s", cwd=tmp_path, prefix=prefix, env=env)
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert killed.returncode, killed
    assert end["status"] == "interrupted", killed
    assert "another worker ended" in end["message"], killed
    for study in ("s", "whole"):
        ran_ok(*point, f"study={study}", cwd=tmp_path, prefix=prefix)
    check_equal(tmp_path)


def how_far(cwd: Path) -> tuple[int, str]:
    """The number of runs, and the latest checkpoint of the last."""
    found = runs(cwd)
    return len(found), max(
        (c.folder.name for paths in found for c in checkpoints(paths)), default=""
    )


ALONE = (*POINT, *EPOCHS, "epochs=30", "num_workers=1", "launch=inline", "strategy=single")


@pytest.fixture(scope="module")
def killed_with_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was killed when it had two checkpoints, as the study `s`, and with
    the same run uninterrupted, as the study `whole`.
    """
    folder = tmp_path_factory.mktemp("killed")
    with begun(*ALONE, "study=s", cwd=folder) as process:
        wait_for(has(folder, 2), process)
    ran_ok("run", *ALONE, "study=whole", cwd=folder)
    return folder


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def lose_newer(paths: RunPaths) -> None:
    checkpoints(paths)[0].own(0).unlink()


def cut_both(paths: RunPaths) -> None:
    newer, older = checkpoints(paths)
    newer.own(0).write_bytes(newer.own(0).read_bytes()[:1000])
    older.shared.write_bytes(b"")


def delete_records(paths: RunPaths) -> None:
    paths.metrics.unlink()


def lose_an_epoch(paths: RunPaths) -> None:
    """Leave an epoch out of the records, with checksums that hold: a worker that a kill left behind
    may have saved such a checkpoint.
    """
    newer, _ = checkpoints(paths)
    facts = newer.facts or {}
    lines = paths.metrics.read_bytes()[: facts["metrics_bytes"]].splitlines(keepends=True)
    content = b"".join(line for line in lines if b'"epoch": 1,' not in line)
    paths.metrics.write_bytes(content)
    sums = {"metrics_bytes": len(content), "metrics_crc32": zlib.crc32(content)}
    newer.complete({**facts, **sums})


OLDER, BEGINNING = "resumes from an earlier checkpoint", "the run starts from its beginning"


@pytest.mark.parametrize(
    ("damage", "named", "then"),
    [
        (lose_newer, "rank.0.pt is missing", OLDER),
        (cut_both, "rank.0.pt is damaged", BEGINNING),
        (delete_records, "bytes of results/s/", BEGINNING),
        (lose_an_epoch, "epoch 1 is not on record", BEGINNING),
    ],
)
def test_a_damaged_run_goes_on_from_what_is_sound_or_is_repeated(
    tmp_path: Path,
    killed_with_two: Path,
    damage: Callable[[RunPaths], None],
    named: str,
    then: str,
) -> None:
    shutil.copytree(killed_with_two, tmp_path, dirs_exist_ok=True)
    (paths,) = runs(tmp_path)
    damage(paths)
    result = ran_ok("run", *ALONE, "study=s", cwd=tmp_path)
    check_equal(tmp_path)
    (warning,) = (text for text in summary(paths)["warnings"] if "results/s/" in text)
    assert f"warning: {warning}" in result.stderr
    assert named in warning
    assert then in warning
    assert any(tmp_path.glob("results/s/.previous/*/checkpoint")) == (then == BEGINNING)


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("rank", "function"),
    [
        (1, ("core.tensor_files", "write_tensors")),
        (0, ("runlog.checkpoint_files", "Checkpoint.complete")),
    ],
)
def test_a_checkpoint_that_finds_no_room_is_a_warning(
    tmp_path: Path, rank: int, function: tuple[str, str]
) -> None:
    code = f"if rank == '{rank}' and call == 2: raise OSError(28, 'No space left on device')"
    env = before(tmp_path, *function, code)
    point = (*POINT, *EPOCHS, *STRATEGIES["allreduce"], "study=s")
    ran_ok("run", *point, cwd=tmp_path, env=env)
    (paths,) = runs(tmp_path)
    (warning,) = (text for text in summary(paths)["warnings"] if "No space left" in text)
    assert str(paths.checkpoints.relative_to(tmp_path)) in warning


def test_a_run_that_resumes_on_fewer_cores_says_so(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("a machine of one core has no fewer")
    point = (*POINT, *EPOCHS, "num_workers=1", "strategy=allreduce", "study=s")
    env = struck(tmp_path, (0,), "runlog.checkpoint_files", "Checkpoint.complete", 2)
    exits(1, "run", *point, cwd=tmp_path, env=env)
    os.sched_setaffinity(0, {min(cores)})
    try:
        again = ran_ok("run", *point, cwd=tmp_path)
    finally:
        os.sched_setaffinity(0, cores)
    (paths,) = runs(tmp_path)
    events = recorded(paths.folder, "event")
    assert [one["event"] for one in events] == ["resumed", "warning"]
    assert f"{len(cores)} threads before, and resumes with 1, probably because" in again.stderr
