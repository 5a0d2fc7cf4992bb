"""What becomes of a study when a disk is full, a file is damaged, or its file system has no
locks. `bsweep resume` ends with the numbers of a study without damage, or says what is wrong.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import bsweep as package
from bsweep import analysis
from bsweep.cli import main
from bsweep.launch import failure
from bsweep.launch.launcher import LaunchRequest, Outcome
from bsweep.runlog.checkpoint_files import request_stop
from bsweep.runlog.files import RunPaths
from bsweep.study import run_point, states
from bsweep.study.progress import Progress
from tests.study.test_run import runs
from tests.support.mutations import damaged, fuzz
from tests.support.running import TINY, bsweep, compose, exits, ran_ok, struck
from tests.support.synthetic_study import META, write_run, write_study

ALIKE = (*TINY, "model=tiny_cnn", "study=s", "precision=fp32", "channels_last=false")
SHORT = ("-m", "local_batch=8,16", "epochs=1", "launch=inline", "strategy=single", *ALIKE)
PAIR = ("run", "num_workers=2", "local_batch=2", *ALIKE)


@pytest.mark.full
def test_a_damaged_run_is_named_and_repeated_by_the_same_sweep(tmp_path: Path) -> None:
    ran_ok("run", *SHORT, cwd=tmp_path)
    broken, sound = runs(tmp_path)
    for path in (broken.metrics, broken.summary, broken.meta, broken.config):
        path.write_bytes(b"")
    study = package.load(tmp_path / "results/s")
    assert list(study.runs["run_id"]) == [sound.folder.name]
    assert [*study.skipped] == [broken.folder.name]
    assert f"1 left out, damaged: {broken.folder.name}" in repr(study)
    reported = ran_ok("report", "results/s", cwd=tmp_path)
    assert f"{broken.folder.name}: left out of the report: " in reported.stderr
    page = (tmp_path / "results/s/report/report.html").read_text()
    assert "1 run left out, not readable." in page
    before = sound.summary.stat().st_mtime_ns
    again = ran_ok("run", *SHORT, cwd=tmp_path)
    assert again.stderr.count("completed already") == 1
    assert sound.summary.stat().st_mtime_ns == before
    assert not package.load(tmp_path / "results/s").skipped


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Yield a new folder that is a disk of its own, as small as that."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "256k") as folder:
        yield folder


def fill(disk: Path) -> Path:
    """Leave no space on a disk; return what takes it."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 512):
            pass
    return ballast


@pytest.mark.full
def test_a_full_disk_is_a_failed_point_that_says_where_and_what_to_do(tiny_disk: Path) -> None:
    cwd, there = tiny_disk.parent, f"results_dir={tiny_disk}"
    ran_ok("run", *SHORT, there, "local_batch=8", cwd=cwd)
    ballast = fill(tiny_disk)
    full = exits(1, "run", *SHORT, there, cwd=cwd)
    assert f"no space left for {tiny_disk}/s/" in full.stderr
    assert "Free some space there" in full.stderr
    assert full.stderr.count("completed already") == 1
    assert "Traceback" not in full.stderr
    assert len(package.load(tiny_disk / "s").runs) >= 1
    for state in states.read_states(tiny_disk / "s").values():
        assert f" {state.status}" in full.stderr, "the console and the files say the same"
    report = exits(2, "report", str(tiny_disk / "s"), cwd=cwd)
    assert f"no space left for {tiny_disk}/s/report. Free some" in report.stderr
    # Its launcher had no room for what it had to say.
    silent = RunPaths(next(tiny_disk.glob("s/b8_*")))
    request = LaunchRequest(compose("local_batch=8"), silent, lambda: None)
    launcher = failure.outcome(request, [], Path(os.devnull), [120])
    assert f"no space left for {silent.logs}. Free some space there" in launcher.message
    ballast.unlink()
    again = ran_ok("run", *SHORT, there, cwd=cwd)
    assert again.stderr.count("completed already") == 1, again.stderr
    assert package.load(tiny_disk / "s").runs["status"].tolist() == ["completed"] * 2


@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "at once"])
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(errno.ENOSPC, "no space left", "summary.json"), "no space left"),
        (OSError(errno.EACCES, "no access", "summary.json"), "'summary.json'"),
    ],
)
def test_a_summary_that_cannot_be_written_keeps_no_sweep_from_stopping(
    is_asked: bool,
    error: OSError,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def launch(request: LaunchRequest) -> Outcome:
        if not is_asked:
            raise KeyboardInterrupt
        request_stop(request.paths)
        return Outcome("interrupted", "stopped on request")

    def write_summary(*_: object) -> None:
        raise error

    monkeypatch.setattr("bsweep.launch.launch", launch)
    monkeypatch.setattr(run_point, "write_summary", write_summary)
    config = compose("local_batch=8", f"results_dir={tmp_path}")
    with pytest.raises(run_point.StopRequested):
        run_point.run_point(config, "bsweep run", [], Progress(1))
    assert shown in capsys.readouterr().err


def test_a_full_shared_memory_that_stops_horovodrun_is_named(tmp_path: Path) -> None:
    fill = "mount -t tmpfs -o size=64k none /dev/shm && head -c 64k /dev/zero >/dev/shm/x && "
    alone = ("unshare", "--mount", "sh", "-c", f'{fill} exec "$@"', "sh")
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs may be mounted here")
    full = exits(1, *PAIR, "strategy=horovod", cwd=tmp_path, prefix=alone)
    said = "no space left for /dev/shm. Free some space there, or give it a larger SIZE"
    assert said in full.stderr


def test_a_folder_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.chdir(tmp_path)
    assert main.run(["run", *SHORT]) == 2
    assert "results/s/.sweeps: this file system has no locks (flock)" in capsys.readouterr().err
    assert not runs(tmp_path)


def test_runs_that_do_not_compare_are_refused_by_name_unless_mixed(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,))
    other = META | {"cpu": "Other CPU", "python": "3.13.1", "versions": {"torch": "2.12.1+cpu"}}
    alone = write_run(study, local_batch=8, seed=1, meta=other).name
    refused = exits(2, "report", str(study), cwd=tmp_path)
    assert f"Test CPU, 2 cores (2 runs); Other CPU, 2 cores (1 run: {alone})" in refused.stderr
    assert f"torch: 2.13 (2 runs); 2.12 (1 run: {alone})" in refused.stderr
    assert "--mix" in refused.stderr
    with pytest.raises(ValueError, match="mix=True"):
        package.load(study)
    mixed = package.load(study, mix=True)
    assert any("different torch" in line for line in mixed.warnings)
    assert analysis.cells(mixed.runs)["n"].tolist() == [1, 1, 1], "they are never averaged"


def test_patches_and_what_was_asked_for_are_no_mixture(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", local_batches=(32,), num_workers=(1,))
    patched = META | {"versions": {"torch": "2.13.1"}, "commit": "other"}
    for seed, precision, meta in ((0, "fp32", META), (1, "fp32", patched), (0, "bf16", META)):
        of = {"precision": precision}
        write_run(study, local_batch=8, seed=seed, settings=of, precision=precision, meta=meta)
    assert sorted(analysis.cells(package.load(study).runs)["n"]) == [1, 1, 2]
    write_run(study, local_batch=64, precision="bf16")
    with pytest.raises(ValueError, match=r"precision on \w+: fp32 \(1 run\); bf16 \(1 run: b64"):
        package.load(study)


GRID = (
    "-m", "seed=0,1", "local_batch=8", "epochs=4", "checkpoint_every=1", "launch=inline",
    "strategy=single", "launch.threads_per_worker=1", *TINY, "model=tiny_cnn", "study=s",
)  # fmt: skip
COMPLETED, KILLED = "b8_w1_single_s0-*/", "b8_w1_single_s1-*/"
LATEST = f"{KILLED}checkpoint/epoch00003.000000000000/"
FILES = (
    "commands.jsonl",
    *(f"{COMPLETED}{name}" for name in ("metrics.jsonl", "summary.json", "meta.json")),
    *(f"{KILLED}{name}" for name in ("metrics.jsonl", "meta.json", "config.yaml")),
    *(f"{LATEST}{name}" for name in ("complete.json", "shared.pt", "rank.0.pt")),
)


def losses(study: Path) -> list[float]:
    """The test loss that each run ends with, and that tells whether it trained the same."""
    found = (json.loads(path.read_text()) for path in sorted(study.glob("*/summary.json")))
    return [one["test_loss"] for one in found if one["status"] == "completed"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A study with a completed run and a killed one that has checkpoints, and what it ends with."""
    cwd = tmp_path_factory.mktemp("killed")
    env = {**struck(cwd, (0,), "train.step", "train_step", 48 + 30), "RANK": "0"}
    assert bsweep("run", *GRID, cwd=cwd, env=env).returncode == -9
    study = cwd / "results/s"
    shutil.copytree(study, cwd / "kept")
    ran_ok("resume", "results/s", cwd=cwd)
    return cwd, losses(study)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("num_mutations", [1, 50])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_changes_no_number_or_is_named(
    name: str, num_mutations: int, killed: tuple[Path, list[float]]
) -> None:
    cwd, expected = killed
    study = cwd / "results/s"
    (kept,) = (cwd / "kept").glob(name)
    whole, is_json = kept.read_bytes(), name.endswith(("json", "jsonl"))
    if name.endswith(".json"):
        whole = json.dumps(json.loads(whole)).encode()  # in one line

    def read(content: bytes) -> bool:
        shutil.rmtree(study)
        shutil.copytree(cwd / "kept", study)
        (study / kept.relative_to(cwd / "kept")).write_bytes(content)
        result = bsweep("resume", "results/s", cwd=cwd)
        assert "Traceback" not in result.stderr, (content, result.stderr)
        if result.returncode:
            assert "bsweep: " in result.stderr, (content, result.stderr)
            return False
        assert losses(study) == expected, (content, result.stderr)
        return True

    fuzz(f"resume with {Path(name).name}", read, num_mutations, damaged(whole, is_json))
