"""The tests' own processes: forks that stand for commands."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil

from tests.support.running import Fork, forks


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
