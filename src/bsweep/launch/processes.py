"""Processes of a point, whichever command starts them: what they may see, how long they may be silent, how they end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from bsweep.config import ProcessesConfig, RunConfig
from bsweep.config.launch import hosts_of_ranks, slots_of
from bsweep.gpus import num_gpus
from bsweep.launch import team
from bsweep.launch.outcome import Outcome, first_error, recorded
from bsweep.launch.team import Commands, Entry, Started
from bsweep.memory import CRASHES
from bsweep.place import Place, num_cores
from bsweep.runlog import RunPaths

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 10  # for the other hosts' processes to notice that one host's have failed
_QUOTED_LINES = 15
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZER)|SECRET|CONNECTION_STRING|PASS|PWD.|.PWD$|CREDENTIAL|PRIVATE|COOKIE|WEBHOOK|KEY$|_PAT$|AUTH(?!_SOCK|ORITY)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"://[^/\s@]*:[^/\s@]+@|-----BEGIN")


def check(config: RunConfig) -> list[str]:
    """See `bsweep.launch.check`."""
    here, workers, hosts = _num_workers_here(config), config.num_workers, config.launch.named_hosts
    gpus, cores = num_gpus(config.device) if here else 0, num_cores()
    if gpus and here > gpus:
        placed = f"launch.hosts={hosts} places {here} workers here" if hosts else f"{here} workers are to run here"
        raise ValueError(
            f"num_workers={workers}: {placed}, but this machine has {gpus} GPU{'s' * (gpus > 1)}, and NCCL takes one "
            "worker a GPU: give each host no more slots than GPUs, name further hosts in launch.hosts, use fewer "
            "workers, or set device=cpu."
        )
    if hosts:
        return _servers_beside_workers(config, hosts)
    if here < workers:
        return []  # the other hosts' cores are not seen from here
    processes = workers + config.num_server_processes
    if not gpus and processes > cores:
        counts = ((workers, "worker"), (processes - workers, "server"), (cores, "core"))
        *kinds, shared = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count]
        return [f"{' and '.join(kinds)} share {shared}: their times say little about workers with cores of their own"]
    return too_many_threads(config)


def _num_workers_here(config: RunConfig) -> int:
    """How many of the workers this machine runs."""
    hosts, place = config.launch.named_hosts, Place.from_environment()
    if hosts:
        return sum(number for host, number in nodes(hosts, config.num_workers) if is_here(host))
    return place.local_workers if place.local_workers < place.num_workers else config.num_workers


def _servers_beside_workers(config: RunConfig, hosts: str) -> list[str]:
    """A warning where the hosts have too few slots for servers of their own."""
    beside = config.num_workers + config.num_server_processes - len(slots_of(hosts))
    if beside <= 0:
        return []
    return [
        f"{beside} of {config.num_server_processes} servers run beside workers: launch.hosts={hosts} has no more slots"
    ]


def too_many_threads(config: RunConfig) -> list[str]:
    """A warning where workers on this machine are given more threads than it has cores."""
    threads, workers, cores = config.launch.threads_per_worker, config.num_workers, num_cores()
    if threads is None or threads * workers <= cores:
        return []
    return [f"launch.threads_per_worker={threads} x {workers} workers share {cores} cores: their threads take turns"]


def launch(
    config: RunConfig,
    paths: RunPaths,
    on_poll: Callable[[], None],
    entry: Entry,
    commands: Commands,
    failures: Callable[[str], list[tuple[int, int]]],
) -> Outcome:
    """Train a point, or measure for one, in processes.

    Args:
        config: The point.
        paths: Its folder, which is prepared.
        on_poll: Called a few times a second.
        entry: The module that processes run of which none are there.
        commands: What starts them.
        failures: Finds in the commands' output which ranks failed, the first one first, and their exit codes.
    """
    assert isinstance(config.launch, ProcessesConfig), config.launch
    for rank in range(config.num_workers + config.num_server_processes):
        paths.rank_logs(rank).mkdir(parents=True, exist_ok=True)
    env = environment(os.environ, config.launch)
    with team.of(config, paths, entry, env, commands) as started:
        timeout = _wait(started, config, paths, on_poll)
    ended = recorded(paths)
    failed = not started.is_through and any(command.returncode for command in started.commands)
    if ended and (ended.status == "diverged" or config.strategy.outlives_workers or not failed):
        return ended
    if timeout and not first_error(paths, config.num_workers + config.num_server_processes):
        return Outcome("timeout", f"{timeout}\n{_last_lines_of_all(config, paths)}")
    console = started.console
    found = [] if timeout else failures(console.read_text(errors="replace")) or _hidden_failures(config, paths)
    return _failure(config, paths, found, console)


def nodes(hosts: str, num_workers: int, num_servers: int = 0) -> list[tuple[str, int]]:
    """Hosts in the order of the ranks, and how many of those run there in a row; a host may come twice."""
    return [(host, len(list(row))) for host, row in groupby(hosts_of_ranks(hosts, num_workers, num_servers))]


def is_here(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", socket.gethostname())


def worker_command(config: RunConfig, paths: RunPaths, rank_variable: str, words: Sequence[str]) -> list[str]:
    """What starts a worker or a server: its output goes to the folder of its rank, which a variable holds.

    What starts processes ends all of them with the first that fails: where the others have something left to do, it is
    not told.
    """
    folder = shlex.quote(str(paths.logs.resolve())) + f'/rank."${rank_variable}"'
    worker = shlex.join([sys.executable, "-u", "-m", *words])
    run = f"{worker} >{folder}/stdout 2>{folder}/stderr"
    return ["sh", "-c", f"{run}; echo $? >{folder}/exit_code" if config.strategy.outlives_workers else f"exec {run}"]


def _hidden_failures(config: RunConfig, paths: RunPaths) -> list[tuple[int, int]]:
    codes = ((rank, paths.rank_logs(rank) / "exit_code") for rank in range(config.num_workers))
    known = [(rank, int(path.read_text())) for rank, path in codes if path.exists() and path.read_text().strip()]
    return [(rank, code) for rank, code in known if code]


def environment(parent: Mapping[str, str], launch: ProcessesConfig) -> dict[str, str]:
    """The parent's variables without anything that looks like a secret: they show in `ps`."""
    passed = {
        name: value
        for name, value in parent.items()
        if not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value)
    }
    if launch.network_interface:
        passed["HOROVOD_GLOO_IFACE"] = passed["GLOO_SOCKET_IFNAME"] = launch.network_interface
        passed["NCCL_SOCKET_IFNAME"] = launch.network_interface
    return passed


def _wait(started: Started, config: RunConfig, paths: RunPaths, on_poll: Callable[[], None]) -> str | None:
    """Wait for the end of a point; what took too long, if something did. Files' times are the signs of life."""
    launch = config.launch
    assert isinstance(launch, ProcessesConfig), launch
    launched = seen = paths.metrics.stat().st_mtime
    seen_at = time.monotonic()
    failed_at: float | None = None
    while True:
        with suppress(subprocess.TimeoutExpired):
            next((c for c in started.commands if c.poll() is None), started.commands[0]).wait(_POLL_SECONDS)
        on_poll()
        started.look_after()
        codes = [command.poll() for command in started.commands]
        if started.is_through or None not in codes:
            return None
        # The first command keeps the workers' meeting point: they do not outlive it.
        if codes[0] if config.strategy.outlives_workers else any(codes):
            failed_at = failed_at or time.monotonic()
        elif any(codes) and recorded(paths):
            failed_at = failed_at or time.monotonic()  # what is left waits for the host that was lost
        if failed_at and time.monotonic() - failed_at > _GRACE_SECONDS:
            return None
        beats = _signs_of_life(config, paths)
        beat = max(paths.metrics.stat().st_mtime, *beats.values())
        if beat != seen:
            seen, seen_at = beat, time.monotonic()
        silent = time.monotonic() - seen_at
        if config.strategy.outlives_workers and silent > _grace(config) and recorded(paths):
            return None  # what is left was given up by the others, and cannot end
        if seen == launched and silent > launch.start_timeout_seconds:
            return f"the workers were not ready after launch.start_timeout_seconds={launch.start_timeout_seconds}"
        if seen != launched and silent > launch.stall_timeout_seconds:
            first = min(beats, key=lambda rank: beats[rank])
            return (
                f"no sign of life for launch.stall_timeout_seconds={launch.stall_timeout_seconds}; the first to fall "
                f"silent was rank {first}"
            )


def _grace(config: RunConfig) -> float:
    """Seconds for what is left to end when a run has; no more than the others waited for a sign of life."""
    return min(_GRACE_SECONDS, config.strategy.patience_seconds)


def _signs_of_life(config: RunConfig, paths: RunPaths) -> dict[int, float]:
    """When each worker last showed one; 0 before its first."""
    times = {}
    for rank in range(config.num_workers):
        times[rank] = 0.0
        with suppress(OSError):
            times[rank] = paths.alive(rank).stat().st_mtime
    return times


def _failure(config: RunConfig, paths: RunPaths, failures: Sequence[tuple[int, int]], console: Path) -> Outcome:
    """Which process failed first and why: one that was killed, else by its own word, else by the command's.

    Other signals than SIGKILL may be consequences: NCCL's watchdog aborts those who wait for a worker that failed.
    """
    num_processes = config.num_workers + config.num_server_processes
    silent = [(r, code) for r, code in failures if not (paths.rank_logs(r) / "error.json").exists()]
    killed = [(rank, code) for rank, code in silent if _signal(code) == signal.SIGKILL]
    error = first_error(paths, num_processes)
    if error and not killed:
        rank, outcome, trace = error
        message = f"{_who(config, rank)} failed: {outcome.message}\n{trace or _last_lines(paths, rank)}"
        return Outcome(outcome.status, message.strip())
    if not failures:
        lines = console.read_text(errors="replace").splitlines()[-_QUOTED_LINES:]
        return Outcome("failed", "the workers could not be started:\n" + "\n".join(lines))
    crashed = [(rank, code) for rank, code in silent if _signal(code) not in (None, signal.SIGTERM)]
    rank, code = (killed or crashed or silent or failures)[0]
    limits = config.launch.memory_limit_mb
    if limits and rank < config.num_workers and _signal(code) in CRASHES:
        cause = f"{_cause(code)} under its memory limit of {limits[rank]:g} MiB, as by kernels that find no room"
        return Outcome("out_of_memory", f"{_who(config, rank)} {cause}")
    return Outcome("failed", f"{_who(config, rank)} {_cause(code)}\n{_last_lines(paths, rank)}".strip())


def _who(config: RunConfig, rank: int) -> str:
    return f"rank {rank}" if rank < config.num_workers else f"rank {rank} (server {rank - config.num_workers})"


def _cause(code: int) -> str:
    number = _signal(code)
    if number:
        hint = " (killed from outside, perhaps by the kernel for lack of memory)" if number == signal.SIGKILL else ""
        return f"was ended by {number.name}{hint}"
    return f"ended with exit code {code}"


def _signal(code: int) -> signal.Signals | None:
    """The signal that ended a process, by its exit code or by that of a shell around it."""
    number = -code if code < 0 else code - 128
    return signal.Signals(number) if number in set(signal.Signals) else None


def _last_lines(paths: RunPaths, rank: int) -> str:
    stderr = paths.rank_logs(rank) / "stderr"
    if not stderr.exists():
        return ""
    return "\n".join(stderr.read_text(errors="replace").strip().splitlines()[-_QUOTED_LINES:])


def _last_lines_of_all(config: RunConfig, paths: RunPaths) -> str:
    ranks = range(config.num_workers + config.num_server_processes)
    quotes = ((rank, _last_lines(paths, rank)) for rank in ranks)
    return "\n".join(f"{_who(config, rank)}:\n{lines}" for rank, lines in quotes if lines)
