"""What the tests of real runs share: composing a configuration, and typing a command."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import math
import os
import random
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
from hydra import compose as hydra_compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsweep.cli import main
from bsweep.compose.hydra_grid import initialized
from bsweep.compose.words import as_hydra_takes
from bsweep.config.parsing import parse
from bsweep.config.run import GROUPS, RunConfig, cards_by_name
from bsweep.core import signals
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from tests.support.ask_forks import ask

ROOT = Path(__file__).parents[2]
HOSTS = str(ROOT / "scripts/hosts.sh")
TINY = (
    "data=synthetic",
    "data.num_train=90",
    "data.num_test=20",
    "data.shape=[3,8,8]",
    "data.crop_padding=1",
)
"""A data set whose last step is uneven for most batches."""


def compose(*overrides: str) -> RunConfig:
    """Return the configuration of one point, as the command line would compose it.

    Hydra takes a tenth of a second to compose a point. It composes the groups that points choose
    once; the values of keys are set in a copy, as Hydra sets them. What is not of the form
    `key=value` is left to Hydra.
    """
    overrides = tuple(map(as_hydra_takes, overrides))
    try:
        parsed = [_parsed(word) for word in overrides]
        values = [one for one in parsed if _is_value(one)]
        groups = [str(one.input_line) for one in parsed if not _is_value(one)]
        composed = copy.deepcopy(_composed(*groups))
        for one in values:
            OmegaConf.update(composed, one.key_or_group, one.value(), merge=True)
    except (HydraException, OmegaConfBaseException):
        composed = _composed(*overrides)  # Hydra says what is wrong
    container = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(container, dict)
    return parse({str(key): value for key, value in container.items()})


@functools.cache
def _composed(*overrides: str) -> DictConfig:
    with initialized():
        return hydra_compose("config", list(overrides))


@functools.cache
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


def _is_value(override: Override) -> bool:
    """Return True if an override sets a key and chooses no group."""
    return (
        override.type == OverrideType.CHANGE
        and override.package is None
        and not override.is_sweep_override()
        and not override.key_or_group.startswith("hydra")
        and override.key_or_group not in (*GROUPS, "experiment")
    )


def options(group: str) -> list[str]:
    """Return the names of the variants of a group."""
    return sorted(cards_by_name(group))


def on(host: str) -> tuple[str, ...]:
    """What puts a command on a host that the fixture `up` brought up."""
    return (HOSTS, "run", host)


def popen(
    command: Sequence[str],
    cwd: Path,
    *,
    env: dict[str, str] | None = None,
    output: IO[str] | int | None = None,
) -> subprocess.Popen[str]:
    """A process that ends with this one, however that ends."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=output,
        stderr=output,
        text=True,
        preexec_fn=signals.end_with_parent,
    )


def captured(
    command: Sequence[str], code: int | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its exit code and what it printed. It must exit with
    `code`, if that is given.
    """
    given: dict[str, Any] = {"check": False, "timeout": 600, **options}
    result = subprocess.run(command, capture_output=True, text=True, **given)
    assert code in (None, result.returncode), result.stdout + result.stderr
    return result


def write_program(path: Path, script: str) -> None:
    """Write a program that is a shell script, in place of what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


_STORES: deque[Any] = deque(maxlen=50)  # of older ones no process has use


def meeting_port() -> int:
    """The port of a store that this process keeps, in which others meet, as torchrun keeps one.

    Of one that rank 0 kept, ranks that come before it would wait longer and longer to look again.
    """
    from torch._C._distributed_c10d import TCPStore  # most of what is here needs no torch

    _STORES.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    return int(_STORES[-1].port)


def meeting_at(port: int) -> dict[str, str]:
    """The variables with which processes meet at a `meeting_port`."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def ranks(num_processes: int) -> list[dict[str, str]]:
    """The variables that torchrun gives to each of its processes, and where they meet."""
    there = meeting_at(meeting_port())
    size = {"WORLD_SIZE": str(num_processes), "LOCAL_WORLD_SIZE": str(num_processes)}
    return [
        {**there, **size, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(num_processes)
    ]


def bsweep(
    *arguments: str,
    cwd: Path,
    env: dict[str, str] | None = None,
    prefix: tuple[str, ...] = (),
    timeout: float = 240,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the command as a person would, from a folder of its own.

    It and the processes that it starts are forked from one that has imported what they need. A
    `fresh` one is the installed command, whose processes import for themselves; one that takes all
    of its memory limit has to be.
    """
    command = [*prefix, tool("bsweep") if fresh else forks().bsweep, *arguments]
    variables = {**os.environ, **(env or {})}
    if fresh or prefix:
        return captured(command, cwd=cwd, env=variables, timeout=timeout)
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = Fork(
            "bsweep",
            *arguments,
            cwd=cwd,
            env=variables,
            stdout=stdout,
            stderr=stderr,
            has_forks=True,
        )
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        printed = [(file.seek(0), file.read())[1] for file in (stdout, stderr)]
        return subprocess.CompletedProcess(command, code, *printed)


def exits(code: int, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as `bsweep` does; it must exit with this code, with 2 after plain words."""
    result = bsweep(*arguments, **options)
    assert result.returncode == code, result.stdout + result.stderr
    assert code != 2 or "Traceback" not in result.stderr, result.stderr
    return result


def ran_ok(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as `bsweep` does; it must exit with code 0."""
    return exits(0, *arguments, **options)


def exit_code(*arguments: str) -> int:
    """Run the command in this process, and return its exit code."""
    try:
        return main.run(list(arguments))
    except SystemExit as error:  # of argparse
        return int(str(error.code))


class Fork:
    """`python -m module arguments` without the seconds of its imports; it has what tests use of a
    `Popen`.

    Where it `has_forks`, launchers that it starts and their workers are such processes too.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        cwd: Path,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        env: dict[str, str] | None = None,
        has_forks: bool = False,
    ) -> None:
        server = forks()
        asked = ask(
            server.socket,
            ["-m", module, *arguments],
            cwd=str(cwd),
            env={**os.environ, **(env or {})},
            executable=server.python if has_forks else sys.executable,
            files={0: 0, 1: stdout.fileno() if stdout else 1, 2: stderr.fileno() if stderr else 2},
        )
        self._connection = socket.socket(fileno=asked.detach())
        self._answers = self._connection.makefile("r")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; subprocess.TimeoutExpired if it does not end in time."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._answers.readline())
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


# Horovod waits for other workers by calling this again and again, which takes a whole core.
_PATIENT = """
#include <time.h>

int sched_yield(void) {
    struct timespec moment = {0, 100000};
    nanosleep(&moment, 0);
    return 0;
}
"""


class Forks:
    """`tests.support.forks`: where it listens, and commands whose processes are its forks.

    Args:
        folder: The folder of its socket and of the commands. Where they are, another process has
            started it.
    """

    def __init__(self, folder: Path) -> None:
        names = ("socket", "python", "bsweep", "horovodrun")
        self.socket, self.python, self.bsweep, self.horovodrun = (
            str(folder / name) for name in names
        )
        self._process = None if Path(self.python).exists() else self._started(folder)

    def _started(self, folder: Path) -> subprocess.Popen[str]:
        asks = shlex.join(
            [sys.executable, "-S", str(ROOT / "tests/support/ask_forks.py"), self.socket]
        )
        modules = {"python": "", "bsweep": "-m bsweep", "horovodrun": "-m horovod.runner.launch"}
        for name, module in modules.items():
            write_program(folder / name, f'exec {asks} {module} "$@"')
        # Forks copy large pages of memory faster than as many small ones.
        env = {"OPENBLAS_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        if shutil.which("cc"):
            env["LD_PRELOAD"] = str(folder / "patient.so")
            compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-o", env["LD_PRELOAD"], "-", "-ldl"]
            subprocess.run(compiler, input=_PATIENT, text=True, check=True)
        return popen([sys.executable, "-m", "tests.support.forks", self.socket], ROOT, env=env)

    def wait(self) -> None:
        """Return when it listens."""
        while not Path(self.socket).exists():
            assert not self._process or self._process.poll() is None
            time.sleep(0.05)

    def end(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()


@functools.cache
def forks() -> Forks:
    """Return the server of this process of pytest, or the one that several processes share."""
    server = Forks(Path(os.environ["BSWEEP_TEST_FORKS"]))
    server.wait()
    return server


def summaries(cwd: Path, study: str = "s") -> dict[int, dict[str, Any]]:
    """How each point of a study ended, by its local batch."""
    found = (
        json.loads(path.read_text()) for path in (cwd / "results" / study).glob("*/summary.json")
    )
    return {summary["local_batch"]: summary for summary in found}


def recorded(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The records of a kind in a run's folder."""
    records = read_records(RunPaths(folder).metrics)[0]
    return [record for record in records if record["type"] == kind]


def imported_first(folder: Path, code: str) -> dict[str, str]:
    """Write code into a folder, and return variables with which processes run it first: Python
    starts with `sitecustomize.py`.
    """
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


_BEFORE = """
import os
rank = os.environ.get("RANK", os.environ.get("HOROVOD_RANK"))

def run(call, first=None, *others):
CODE

def run_before_calls():
    import bsweep.MODULE as holder
    *parents, name = "FUNCTION".split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    plain, calls = getattr(holder, name), []
    def function(*arguments, **named):
        calls.append(1)
        run(len(calls), *arguments)
        return plain(*arguments, **named)
    setattr(holder, name, function)

if rank is not None:
    with open(f"FOLDER/pid{rank}", "w") as file:
        file.write(str(os.getpid()))
    run_before_calls()
"""


def before(folder: Path, module: str, function: str, code: str) -> dict[str, str]:
    """Variables with which workers run code before each call of a function.

    The code knows the worker's `rank`, a text, the number of the `call`, and the `first` argument.
    Each worker leaves its process's id in `folder`.
    """
    parts = {"MODULE": module, "FUNCTION": function, "FOLDER": str(folder)}
    program = _BEFORE.replace("CODE", textwrap.indent(code, "    "))
    for name, part in parts.items():
        program = program.replace(name, part)
    return imported_first(folder, program)


def struck(
    folder: Path,
    ranks: Sequence[int],
    module: str,
    function: str,
    call: int,
    number: int = signal.SIGKILL,
) -> dict[str, str]:
    """Variables with which workers send themselves a signal at the nth call of a function, the
    first time only.
    """
    code = (
        f"mark = {str(folder / 'struck')!r} + rank\n"
        f"if int(rank) in {tuple(ranks)} and call == {call} and not os.path.exists(mark):\n"
        "    open(mark, 'w').close()\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
    )
    return before(folder, module, function, code)


def wait_for(
    condition: Callable[[], object],
    process: Fork | subprocess.Popen[str] | None = None,
    seconds: float = 240,
    said: Callable[[], str] = str,
) -> None:
    """Wait until a condition holds, while a process runs. If it takes too long, fail with what was
    said.
    """
    ends = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, f"it has ended: {said()}"
        assert time.monotonic() < ends, said()
        time.sleep(0.05)


def workers_left(folder: Path) -> list[psutil.Process]:
    """Workers of a run that was `struck` which are still there, or not gone at once."""
    pids = [int(path.read_text()) for path in folder.glob("pid*")]
    assert pids
    return psutil.wait_procs(
        [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=5
    )[1]


def write_runs(path: Path) -> None:
    """Write runs that bsweep did not start, a row an epoch, as docs/programs.md shows them."""
    lines = ["run,batch,gpus,epoch,seconds,val_acc"]
    for batch, gpus in itertools.product((32, 64, 128, 256), (1, 2, 4)):
        step_seconds = 0.0024 + 0.00025 * batch + 0.0004 * (gpus - 1)
        seconds = round(20_000 / (batch * gpus) * step_seconds, 2)
        for epoch in range(20):
            accuracy = 0.95 * (1 - math.exp(-0.3914 / (1 + batch * gpus / 400) * (epoch + 1)))
            lines.append(f"b{batch}-g{gpus},{batch},{gpus},{epoch},{seconds},{accuracy:.4f}")
    path.write_text("\n".join(lines) + "\n")


def write_text(path: Path, num_bytes: int, seed: int = 0) -> Path:
    """A text of a few words in random order, that a language model can learn."""
    draw = random.Random(seed)
    words = ("the ", "batch ", "grows ", "and ", "all ", "workers ", "wait.\n")
    path.write_text("".join(draw.choice(words) for _ in range(num_bytes))[:num_bytes])
    return path


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
