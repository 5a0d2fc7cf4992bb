"""A process that has imported what tests' processes need, and forks for each: what takes seconds is
done once.

`tests.support.running` starts it, and asks it for processes over the socket that it listens at. It
imports torch and uses nothing of it, so that no thread is lost in a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib.util
import inspect
import marshal
import multiprocessing
import os
import platform
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from bsweep.compose import hydra_grid, words
from bsweep.core import signals
from bsweep.runlog import reading, records
from bsweep.runlog.json_schemas import Meta, Summary

_IMPORTED = (
    "bsweep.strategies.diloco",
    "bsweep.strategies.parameter_server",
    "bsweep.measure.probe_worker",
    "bsweep.measure.profile_worker",
    "bsweep.report",
    "bsweep.cli.run",
    "horovod.runner.launch",
    "horovod.torch",
    "hydra.main",
    "pytest",
    "torch._dynamo",  # by its optimizers, when they are built
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.distributed.run",
)
_MOST_FILES = 16
_NAMESPACES = ("net", "uts", "mnt")
_HIGH = 500  # numbers from here on are nobody's


def main(path: str) -> None:
    signals.end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    gc.disable()  # nothing of this is garbage
    has_horovod = importlib.util.find_spec("horovod") is not None  # most tests do without
    for module in _IMPORTED:
        if has_horovod or not module.startswith("horovod."):
            importlib.import_module(module)
    # Hydra finds its plugins, its parser gets to know the grammar, and pydantic the schema.
    assert hydra_grid.composed(words.read(["local_batch=8"]))[0].run_id
    for schema in (*reading._TYPES.values(), Meta, Summary):
        records.adapter(schema)
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch's, which take its operators apart where a process ends
    # The rendezvous of torchrun asks for its stack again and again. For each frame whose file is no
    # module's that is known, all modules are looked through: more than a second of the processor's
    # for each launch.
    inspect.modulesbyfile |= {"<frozen runpy>": "runpy", __file__: "tests.support.forks"}
    gc.freeze()  # a fork that looks through all that is here would have to copy it
    gc.enable()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen(100)
        Path(f"{path}.new").rename(path)
        while True:
            connection, _ = server.accept()
            if not os.fork():
                server.close()
                _keep(connection, str(Path(path).with_name("python")))
            connection.close()


def _keep(connection: socket.socket, python: str) -> NoReturn:
    """Fork what is asked for, and say its id and its exit code; it is killed with the process that
    asked for it.

    What it starts by multiprocessing, to which `python` stands for Python, are such forks too.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        multiprocessing.set_executable(python)
        _, files, *_ = socket.recv_fds(connection, 1, _MOST_FILES)
        with connection.makefile("rb") as asked, connection.makefile("w") as file:
            wanted = marshal.load(asked)
            ended, lives = os.pipe()
            pid = os.fork()
            if not pid:
                lives = fcntl.fcntl(lives, fcntl.F_DUPFD_CLOEXEC, _HIGH)
                _enter_namespaces(connection)
                _become(_moved(files), **wanted)
            for number in (lives, *files):
                os.close(number)
            with contextlib.suppress(OSError):  # it has ended already, as is seen below
                print(pid, file=file, flush=True)
            watched: list[int | socket.socket] = [ended, connection]
            if ended not in select.select(watched, [], [])[0]:
                os.kill(pid, signal.SIGKILL)
                os._exit(0)
            _, status, used = os.wait4(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if seconds := wanted["env"].get("BSWEEP_TEST_SECONDS"):
                with Path(seconds).open("a") as log:
                    print(used.ru_utime + used.ru_stime, file=log)
            with contextlib.suppress(OSError):  # nobody may wait for it any more
                print(code, file=file, flush=True)
            os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _enter_namespaces(connection: socket.socket) -> None:
    """Move this process to the host of scripts/hosts.sh where the process that asked for it is."""
    size = struct.calcsize("3i")
    asking, *_ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    for name in _NAMESPACES:
        there = Path(f"/proc/{asking}/ns/{name}")
        if there.exists() and there.readlink() != Path(f"/proc/self/ns/{name}").readlink():
            with there.open() as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f"no way into {there}")
    vars(platform)["_uname_cache"] = None  # holds the name of the host that was left


def _moved(files: Iterable[int]) -> list[int]:
    """The same open files by other numbers, alone: of a pipe's end nobody else may keep a copy."""
    moved = []
    for file in files:
        moved.append(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH))
        os.close(file)
    return moved


def _become(
    files: list[int],
    numbers: list[int],
    command: list[str],
    cwd: str,
    env: dict[str, str],
    executable: str,
    cores: list[int],
    umask: int,
    ignored: list[int],
) -> NoReturn:
    """Be `python command` from here on, to which `executable` is Python, on the cores and with the
    umask of the one that asked for it. It ignores the signals that the other ignores.
    """
    os.sched_setaffinity(0, cores)
    os.umask(umask)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    for number, file in zip(numbers, files, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    os.environ.pop(signals.LAUNCHER, None)  # the parent is another here
    tempfile.tempdir = None  # what was found here is not where the variables say
    option, what, *arguments = command
    if option != "-c":
        os.setsid()  # torchrun ends its whole process group
    sys.argv, sys.orig_argv, sys.executable = [what, *arguments], [executable, *command], executable
    code: Any = 0
    try:
        for folder in filter(None, env.get("PYTHONPATH", "").split(os.pathsep)):
            if (Path(folder) / "sitecustomize.py").exists():
                runpy.run_path(f"{folder}/sitecustomize.py")
        if option == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif option == "a file":
            runpy.run_path(what, run_name="__main__")
        else:
            exec(what, {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main(sys.argv[1])
