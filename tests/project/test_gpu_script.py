"""scripts/gpu.sh, with stand-ins for `nvidia-smi` and for the Python that tests, measures and
trains.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running import ROOT, captured, write_program

STEPS = ["pytest", "benches", "bsweep"]  # tests, benches, the sweep
Script = Callable[..., subprocess.CompletedProcess[str]]
PYTHON = """
echo "$*" >>calls
echo "output of $2"
case "$*" in *"$SLOW"*) exec sleep 60;; *"$FAILING"*) exit 3;; esac
"""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A function that runs it in a checkout, on a machine with GPUs of such names, to an exit with
    this code.
    """
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    programs = tmp_path / "programs"
    write_program(programs / "nvidia-smi", 'printf "$GPUS"')
    write_program(programs / "python", PYTHON)

    def run(
        *arguments: str, code: int = 0, gpus: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        variables = {"GPUS": gpus, "PATH": path, "SLOW": "none", "FAILING": "none", **env}
        command = [f"{tmp_path}/scripts/gpu.sh", "--python", f"{programs}/python", *arguments]
        return captured(command, code, env={**os.environ, **variables}, cwd="/", timeout=60)

    return run


def calls(folder: Path) -> list[str]:
    """What was run since the last time."""
    log = folder / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [line for line in lines if line != "-m bsweep.core.gpus"]


def test_without_a_gpu_it_says_so_and_does_nothing(script: Script, tmp_path: Path) -> None:
    hidden = {"gpus": "Tesla T4\\n", "CUDA_VISIBLE_DEVICES": ""}
    for result in (script(code=2), script(code=2, **hidden)):
        assert result.stderr.startswith("No GPU")
    assert not calls(tmp_path)


def test_what_cannot_work_ends_it_before_the_tests(script: Script, tmp_path: Path) -> None:
    """GPUs that torch cannot use, and a disk that is full."""
    script(code=3, gpus="Tesla K80\\n", FAILING="bsweep.core.gpus")
    write_program(tmp_path / "programs/df", "echo head; echo / 9 8 1500000 9%")
    result = script(code=1, gpus="NVIDIA H200\\n")
    assert "has 1 GB left, and this takes up to 2: make room" in result.stderr
    assert not calls(tmp_path)


def test_a_dry_run_says_what_it_would_do(script: Script, tmp_path: Path) -> None:
    result = script("--dry-run", "data.root=cifar10", gpus="Tesla T4\\nTesla T4\\n")
    where, set_up, tests, bench, sweep, _ = result.stderr.splitlines()
    assert where == "In results/2x_tesla_t4, on 2 x Tesla T4:"
    assert set_up.endswith("python -m bsweep.core.gpus")
    assert "-m pytest -m gpu" in tests
    assert "-m benches" in bench
    assert "--json results/2x_tesla_t4/bench.json alone together" in bench
    assert "experiment=paper results_dir=results/2x_tesla_t4 num_workers=2 local_batch=256" in sweep
    assert sweep.rstrip().endswith("data.root=cifar10")
    assert not calls(tmp_path)
    assert not (tmp_path / "results").exists()


def test_what_is_done_is_not_done_again(script: Script, tmp_path: Path) -> None:
    result = script(code=1, gpus="NVIDIA H200\\n", FAILING="benches")
    assert "Failed: bench." in result.stderr
    folder = tmp_path / "results/1x_nvidia_h200"
    assert [line.split()[1] for line in calls(tmp_path)] == STEPS, "in the order of worth"
    assert (folder / "tests.log").read_text() == "output of pytest\n"
    result = script(gpus="NVIDIA H200\\n")
    assert "tests: already done" in result.stderr
    again = calls(tmp_path)
    assert [line.split()[1] for line in again] == STEPS[1:], "the sweep knows what of it is done"
    assert "together" not in again[0], "there is one GPU"


def test_it_ends_in_time_and_goes_on_later(script: Script, tmp_path: Path) -> None:
    result = script("--seconds", "2", code=1, gpus="NVIDIA H200\\n", SLOW="benches")
    assert "The 2 seconds are over: bench is left" in result.stderr
    assert len(calls(tmp_path)) == 2
    script(gpus="NVIDIA H200\\n")
    assert len(calls(tmp_path)) == 2
