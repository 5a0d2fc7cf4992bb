"""The tests' own processes: forks that stand for commands, and what a run of the tests leaves
behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import conftest
from tests.support import ask_forks
from tests.support.running import ROOT, Fork, forks, popen


def test_a_stand_in_ends_as_its_process_does_and_ends_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "print(os.getcwd(), flush=True)\n"
        "exec(os.environ['DO'])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [forks().python, "-u", "-m", "bsweep", "--version"]
    for do, code in (
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ):
        ended = subprocess.run(
            command,
            cwd=tmp_path,
            env={**env, "DO": do},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == code, ended.stderr
        assert ended.stdout.startswith(f"{tmp_path}\n"), ended.stderr
    stands = subprocess.Popen(
        command, cwd=tmp_path, env={**env, "DO": "time.sleep(60)"}, stdout=subprocess.PIPE
    )
    assert stands.stdout
    assert stands.stdout.readline()
    process = psutil.Process(int((tmp_path / "pid").read_text()))
    stands.kill()
    stands.communicate()
    assert not psutil.wait_procs([process], timeout=5)[1]
    with (tmp_path / "output").open("w") as output:
        assert Fork("bsweep", "frobnicate", cwd=tmp_path, stdout=output, stderr=output).wait() == 2


def test_a_process_whose_stand_in_has_ended_at_once_ends_too(tmp_path: Path) -> None:
    """Otherwise a sweep that is killed as it begins would train on, beside the next one."""
    code = "import os, time; open('pid', 'w').write(f'{os.getpid()}'); time.sleep(60)"
    connection = ask_forks.ask(
        forks().socket,
        ["-c", code],
        cwd=str(tmp_path),
        env=dict(os.environ),
        executable=sys.executable,
        files={},
    )
    connection.close()
    time.sleep(1)  # in which it may begin
    path = tmp_path / "pid"
    ends = time.monotonic() + 30
    while path.exists() and psutil.pid_exists(int(path.read_text() or 1)):
        assert time.monotonic() < ends, "it still runs"
        time.sleep(0.1)


def test_a_stand_in_has_the_files_that_it_is_given_and_torch() -> None:
    receiver, sender = os.pipe()
    code = f"import os, sys; os.write({sender}, b'%d' % ('torch._dynamo' in sys.modules))"
    subprocess.run([forks().python, "-B", "-c", code], pass_fds=[sender], check=True)
    os.close(sender)
    with os.fdopen(receiver) as file:
        assert file.read() == "1"


def test_tests_know_of_no_allocation_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_NODELIST", "SLURMD_NODENAME", "BSWEEP_HOSTS"):
        monkeypatch.setenv(name, "n[1-2]")
    before = set(os.environ)
    conftest.forget_allocation()
    assert before - set(os.environ) == {"SLURM_JOB_NODELIST", "SLURMD_NODENAME", "BSWEEP_HOSTS"}


def test_tests_that_are_told_to_end_leave_no_process_and_no_folder(tmp_path: Path) -> None:
    test = "tests/strategies/test_equivalence.py::test_another_batch_size_reaches_other_weights"
    folder = tmp_path / "t"  # short, for a socket's path may have 107 characters
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={folder}",
        test,
    ]
    run = popen(command, ROOT, env={"TMPDIR": str(tmp_path)}, output=subprocess.DEVNULL)
    while run.poll() is None and not list(folder.glob("contract0/alone1/*.pickle")):
        time.sleep(0.05)
    started = psutil.Process(run.pid).children(recursive=True)
    assert started
    run.terminate()
    assert run.wait(60) == 2, "interrupted"
    assert not psutil.wait_procs(started, timeout=10)[1]
    of_torch = {  # that of torch 2.6 stays where a process was killed
        *tmp_path.glob("torchinductor_*"),
        *(path.parent for path in tmp_path.glob("*/_remote_module_non_scriptable.py")),
    }
    assert set(tmp_path.iterdir()) <= {folder, *of_torch}
