"""Workers started by horovodrun, on this machine or on several hosts over ssh.

The `horovodrun` command is used rather than `horovod.run`, which exports knobs that its core reads as 0.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from bsweep.config import HorovodrunConfig, RunConfig
from bsweep.launch.outcome import Outcome, first_error, recorded
from bsweep.place import Place, num_cores, num_gpus
from bsweep.runlog import RunPaths

_POLL_SECONDS = 0.2
_QUOTED_LINES = 15
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASS|PWD.|.PWD$|CREDENTIAL|PRIVATE|COOKIE|WEBHOOK|KEY$|_PAT$|AUTH(?!_SOCK|ORITY)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"://[^/\s@]*:[^/\s@]+@|-----BEGIN")


def check(config: RunConfig, launch: HorovodrunConfig) -> list[str]:
    """See `bsweep.launch.check`."""
    place = Place.from_environment()
    if launch.hosts or place.local_workers < place.num_workers:
        return []  # their GPUs and cores are not seen from here
    gpus, cores, workers = num_gpus(), num_cores(), config.num_workers
    if gpus and config.device != "cpu" and workers > gpus:
        raise ValueError(
            f"num_workers={workers}, but this machine has {gpus} GPU{'s' * (gpus > 1)}, and NCCL takes one worker a "
            f"GPU: use num_workers={gpus}, name further hosts in launch.hosts, or set device=cpu."
        )
    if (not gpus or config.device == "cpu") and workers > cores:
        return [f"{workers} workers share {cores} cores: their times say little about workers with cores of their own"]
    return []


def launch(config: RunConfig, launch: HorovodrunConfig, paths: RunPaths, on_poll: Callable[[], None]) -> Outcome:
    """See `bsweep.launch.launch`."""
    paths.logs.mkdir(exist_ok=True)
    console = paths.logs / "launcher.log"
    with console.open("wb") as output:
        process = subprocess.Popen(
            command(config, launch, paths),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(os.environ, launch),
            start_new_session=True,  # a Ctrl-C is for the parent, which then ends the workers in order
            preexec_fn=_end_with_parent,
        )
        try:
            timeout = _wait(process, launch, paths, on_poll)
        finally:
            _end_tree(process)
    ended = recorded(paths)
    if ended and (process.returncode == 0 or ended.status == "diverged"):
        return ended
    if timeout:
        return Outcome("timeout", f"{timeout}\n{_last_lines_of_all(config, paths)}")
    return _failure(config, paths, console)


def command(config: RunConfig, launch: HorovodrunConfig, paths: RunPaths) -> list[str]:
    """The horovodrun command line of a point."""
    options = {
        "-H": launch.hosts,
        "--ssh-port": launch.ssh_port,
        "--ssh-identity-file": launch.ssh_identity_file,
        "--network-interfaces": launch.network_interface,
        "--gloo-timeout-seconds": launch.start_timeout_seconds,
        "--start-timeout": launch.start_timeout_seconds,
        # Horovod names the stalled ranks in its log first; then this launcher acts; the last is for a lost launcher.
        "--stall-check-warning-time-seconds": max(1, launch.stall_timeout_seconds // 2),
        "--stall-check-shutdown-time-seconds": 2 * launch.stall_timeout_seconds,
        "--output-filename": paths.logs if config.num_workers > 1 else None,
    }
    given = [str(word) for option, value in options.items() if value is not None for word in (option, value)]
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    worker = [sys.executable, "-u", "-m", "bsweep.worker", str(paths.folder.resolve())]
    if config.num_workers == 1:  # horovodrun 0.28.1 cannot name the output folder of a lone worker: it takes log10(0)
        folder = paths.rank_logs(0, 1).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        out, err = (shlex.quote(str(folder / name)) for name in ("stdout", "stderr"))
        worker = ["sh", "-c", f"exec {shlex.join(worker)} >{out} 2>{err}"]
    return [horovodrun, "-np", str(config.num_workers), "--gloo", *given, *worker]


def environment(parent: Mapping[str, str], launch: HorovodrunConfig) -> dict[str, str]:
    """The parent's variables without anything that looks like a secret: horovodrun shows them all in `ps`."""
    passed = {
        name: value
        for name, value in parent.items()
        if not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value)
    }
    if launch.network_interface:
        passed["HOROVOD_GLOO_IFACE"] = launch.network_interface
    return passed


def _wait(
    process: subprocess.Popen[bytes], launch: HorovodrunConfig, paths: RunPaths, on_poll: Callable[[], None]
) -> str | None:
    """Wait for the end; what took too long, if something did. The record file's time is the sign of life."""
    launched = seen = paths.metrics.stat().st_mtime
    seen_at = time.monotonic()
    while True:
        try:
            process.wait(_POLL_SECONDS)
            on_poll()
            return None
        except subprocess.TimeoutExpired:
            on_poll()
        beat = paths.metrics.stat().st_mtime
        if beat != seen:
            seen, seen_at = beat, time.monotonic()
        silent = time.monotonic() - seen_at
        if seen == launched and silent > launch.start_timeout_seconds:
            return f"the workers were not ready after launch.start_timeout_seconds={launch.start_timeout_seconds}"
        if seen != launched and silent > launch.stall_timeout_seconds:
            return f"no sign of life for launch.stall_timeout_seconds={launch.stall_timeout_seconds}"


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """End horovodrun and all it started; it needs a moment to end workers on other hosts."""
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        tree = []
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)  # horovodrun gives its workers 5 s
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for child in tree:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(tree, timeout=5)


def _failure(config: RunConfig, paths: RunPaths, console: Path) -> Outcome:
    """Which worker failed first and why: by its own word, else by horovodrun's."""
    error = first_error(paths, config.num_workers)
    if error:
        rank, outcome = error
        message = f"rank {rank} failed: {outcome.message}\n{_last_lines(config, paths, rank)}"
        return Outcome(outcome.status, message.strip())
    text = console.read_text(errors="replace")
    ended = re.search(r"The first process to do so was:\s*Process name: (\d+)\s*Exit code: (-?\d+)", text)
    if not ended:
        return Outcome("failed", "horovodrun failed:\n" + "\n".join(text.splitlines()[-_QUOTED_LINES:]))
    rank, code = int(ended[1]), int(ended[2])
    message = f"rank {rank} {_cause(code)}\n{_last_lines(config, paths, rank)}"
    return Outcome("failed", message.strip())


def _cause(code: int) -> str:
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        name = signal.Signals(number).name
        hint = " (killed from outside, perhaps by the kernel for lack of memory)" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
    return f"ended with exit code {code}"


def _last_lines(config: RunConfig, paths: RunPaths, rank: int) -> str:
    stderr = paths.rank_logs(rank, config.num_workers) / "stderr"
    if not stderr.exists():
        return ""
    lines = stderr.read_text(errors="replace").strip().splitlines()
    return "\n".join(re.sub(r"^\[\d+\]<stderr>:", "", line) for line in lines[-_QUOTED_LINES:])


def _last_lines_of_all(config: RunConfig, paths: RunPaths) -> str:
    quotes = ((rank, _last_lines(config, paths, rank)) for rank in range(config.num_workers))
    return "\n".join(f"rank {rank}:\n{lines}" for rank, lines in quotes if lines)


def _end_with_parent() -> None:
    """Have the kernel end horovodrun, and so its workers, when the parent is killed: no orphan uses up a GPU."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        _LIBC.prctl(pr_set_pdeathsig, signal.SIGTERM)


_LIBC = ctypes.CDLL(None)  # loaded here, for between fork and exec nothing may take a lock
