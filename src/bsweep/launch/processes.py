"""Processes of a point, whichever command starts them: what they may see, how long they may be
silent, how they end.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from bsweep.config import ProcessesConfig, RunConfig
from bsweep.config.launch import nodes_of, slots_by_host, slots_of
from bsweep.core.fresh_process import LAUNCHER
from bsweep.core.gpus import num_gpus
from bsweep.core.ranks import Place, num_cores
from bsweep.launch import environment, failure, lifeline, preflight, ssh, team
from bsweep.launch.outcome import Outcome, first_error, recorded
from bsweep.launch.team import Commands, Entry, Started, lifeline_seconds
from bsweep.runlog import RunPaths

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 10  # for the other hosts' processes to notice that one host's have failed


def check(config: RunConfig) -> list[str]:
    """See `bsweep.launch.check`."""
    here, workers, hosts = _num_workers_here(config), config.num_workers, config.launch.named_hosts
    gpus, cores = num_gpus(config.device) if here else 0, num_cores()
    if gpus and here > gpus:
        placed = (
            f"launch.hosts={hosts} places {here} workers here"
            if hosts
            else f"{here} workers are to run here"
        )
        raise ValueError(
            f"num_workers={workers}: {placed}, but this machine has {gpus} GPU{'s' * (gpus > 1)}, "
            f"and NCCL takes one "
            "worker a GPU: give each host no more slots than GPUs, name further hosts in "
            "launch.hosts, use fewer "
            "workers, or set device=cpu."
        )
    if hosts:
        return [*_servers_beside_workers(config, hosts), *_idle_nodes(config, hosts)]
    if here < workers:
        return []  # the other hosts' cores are not seen from here
    processes = workers + config.num_server_processes
    if not gpus and processes > cores:
        counts = ((workers, "worker"), (processes - workers, "server"), (cores, "core"))
        *kinds, shared = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count]
        return [
            (
                f"{' and '.join(kinds)} share {shared}: their times say little about workers with "
                f"cores of their own"
            )
        ]
    return too_many_threads(config)


def _num_workers_here(config: RunConfig) -> int:
    """How many of the workers this machine runs."""
    hosts = config.launch.named_hosts
    if hosts:
        return sum(
            number for host, number in nodes_of(hosts, config.num_workers) if ssh.is_here(host)
        )
    place = Place.from_environment()
    return place.local_workers if place.local_workers < place.num_workers else config.num_workers


def _servers_beside_workers(config: RunConfig, hosts: str) -> list[str]:
    """A warning where the hosts have too few slots for servers of their own."""
    beside = config.num_workers + config.num_server_processes - len(slots_of(hosts))
    if beside <= 0:
        return []
    return [
        (
            f"{beside} of {config.num_server_processes} servers run beside workers: "
            f"launch.hosts={hosts} has no more slots"
        )
    ]


def _idle_nodes(config: RunConfig, hosts: str) -> list[str]:
    """A warning where an allocation has nodes that nothing runs on, but that are paid for."""
    used = dict(nodes_of(hosts, config.num_workers, config.num_server_processes))
    idle = [host for host in slots_by_host(hosts) if host not in used]
    assert isinstance(config.launch, ProcessesConfig), config.launch
    if not idle or not config.launch.uses_allocation:
        return []
    some = ", ".join(idle[:3]) + ", ..." * (len(idle) > 3)
    return [
        (
            f"{len(idle)} of the allocation's {len(idle) + len(used)} nodes are not used ({some}): "
            f"ask "
            f"for fewer"
        )
    ]


def too_many_threads(config: RunConfig) -> list[str]:
    """A warning where workers on this machine are given more threads than it has cores."""
    threads, workers, cores = config.launch.threads_per_worker, config.num_workers, num_cores()
    if threads is None or threads * workers <= cores:
        return []
    return [
        (
            f"launch.threads_per_worker={threads} x {workers} workers share {cores} cores: their "
            f"threads take turns"
        )
    ]


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
        failures: Finds in the commands' output which ranks failed, the first one first, and their
            exit codes.
    """
    started, codes, timeout = _run(config, paths, on_poll, entry, commands)
    ended = recorded(paths)
    failed = not started.is_through and any(command.returncode for command in started.commands)
    if ended and (
        ended.status in ("diverged", "interrupted")
        or config.strategy.can.outlives_workers
        or not failed
    ):
        return ended
    if timeout and not first_error(paths, config.num_workers + config.num_server_processes):
        if silent := preflight.silent_hosts(config):
            return Outcome("timeout", failure.loss(silent, timeout), may_pass=True)
        return Outcome(
            "timeout", f"{timeout}\n{failure.last_lines_of_all(config, paths)}", may_pass=True
        )
    console = started.console.read_text(errors="replace")
    found = [] if timeout else failures(console) or _hidden_failures(config, paths)
    return failure.of(config, paths, found, started.console, codes)


def _run(
    config: RunConfig,
    paths: RunPaths,
    on_poll: Callable[[], None],
    entry: Entry,
    commands: Commands,
) -> tuple[Started, list[int | None], str | None]:
    """The commands that trained a point, which have ended or wait for another; what took too long,
    if something did.

    Between them, with what each ended by itself: one that had to be ended says nothing of its host.
    """
    launch, ranks = config.launch, range(config.num_workers + config.num_server_processes)
    assert isinstance(launch, ProcessesConfig), launch
    for rank in ranks:
        paths.rank_logs(rank).mkdir(parents=True, exist_ok=True)

    def start(words: Sequence[str], file: Path) -> Sequence[Sequence[str]]:
        environment.write(paths.environment, environment.by_file(os.environ, launch))
        return commands(words, file)

    def poll() -> None:
        on_poll()
        environment.remove_when_read(paths, ranks)

    try:
        with team.of(
            config, paths, entry, environment.in_the_open(os.environ, launch), start
        ) as started:
            timeout = _wait(started, config, paths, poll)
            return started, [command.poll() for command in started.commands], timeout
    finally:
        paths.environment.unlink(missing_ok=True)


def worker_command(
    config: RunConfig, paths: RunPaths, rank_variable: str, words: Sequence[str]
) -> list[str]:
    """What starts a worker or a server: its output goes to the folder of its rank, which a variable
    holds.

    What starts processes ends all of them with the first that fails: where the others have
    something left to do, it is not told.
    """
    folder = shlex.quote(str(paths.logs.resolve())) + f'/rank."${rank_variable}"'
    read = f". {shlex.quote(str(paths.environment.resolve()))}; "
    run = f"{shlex.join([sys.executable, '-u', '-m', *words])} >{folder}/stdout 2>{folder}/stderr"
    single = f"export {LAUNCHER}=$PPID; exec {run}"
    script = (
        f"{run}; echo $? >{folder}/exit_code" if config.strategy.can.outlives_workers else single
    )
    return ["sh", "-c", read + script]


def watched(launch: ProcessesConfig, file: Path, command: Sequence[str]) -> list[str]:
    """A command on another host, which ends there when this machine, or this start, is not heard of
    any more.
    """
    return lifeline.words(file, lifeline_seconds(launch), command)


def _hidden_failures(config: RunConfig, paths: RunPaths) -> list[tuple[int, int]]:
    codes = ((rank, paths.rank_logs(rank) / "exit_code") for rank in range(config.num_workers))
    known = [
        (rank, int(path.read_text()))
        for rank, path in codes
        if path.exists() and path.read_text().strip()
    ]
    return [(rank, code) for rank, code in known if code]


def _wait(
    started: Started, config: RunConfig, paths: RunPaths, on_poll: Callable[[], None]
) -> str | None:
    """Wait for the end of a point; what took too long, if something did. Files' times are the signs
    of life.
    """
    launch = config.launch
    assert isinstance(launch, ProcessesConfig), launch
    launched = seen = paths.metrics.stat().st_mtime
    seen_at = time.monotonic()
    failed_at: float | None = None
    while True:
        with suppress(subprocess.TimeoutExpired):
            next((c for c in started.commands if c.poll() is None), started.commands[0]).wait(
                _POLL_SECONDS
            )
        on_poll()
        started.look_after()
        codes = [command.poll() for command in started.commands]
        if started.is_through or None not in codes:
            return None
        # The first command keeps the workers' meeting point: they do not outlive it.
        outlive = config.strategy.can.outlives_workers and seen != launched
        if codes[0] if outlive else any(codes):
            failed_at = failed_at or time.monotonic()
        elif any(codes) and recorded(paths):
            failed_at = (
                failed_at or time.monotonic()
            )  # what is left waits for the host that was lost
        if failed_at:
            if time.monotonic() - failed_at > _grace_of_others(launch, codes):
                return None
            continue
        beats = _signs_of_life(config, paths)
        beat = max(paths.metrics.stat().st_mtime, *beats.values())
        if beat != seen:
            seen, seen_at = beat, time.monotonic()
        silent = time.monotonic() - seen_at
        if config.strategy.can.outlives_workers and silent > _grace(config) and recorded(paths):
            return None  # what is left was given up by the others, and cannot end
        if seen == launched and silent > launch.start_timeout_seconds:
            return (
                f"the workers were not ready after "
                f"launch.start_timeout_seconds={launch.start_timeout_seconds}"
            )
        if seen != launched and silent > launch.stall_timeout_seconds:
            first = min(beats, key=lambda rank: beats[rank])
            return (
                f"no sign of life for launch.stall_timeout_seconds={launch.stall_timeout_seconds}; "
                f"the first to fall "
                f"silent was {config.process_name(first)}"
            )


def _grace_of_others(launch: ProcessesConfig, codes: Sequence[int | None]) -> float:
    """Seconds for what runs on other hosts to end after the first that failed; for ssh to give up
    others like it.
    """
    grace = min(_GRACE_SECONDS, launch.stall_timeout_seconds / 6)
    return max(grace, ssh.interval_seconds(launch) + 1) if ssh.EXIT_CODE in codes else grace


def _grace(config: RunConfig) -> float:
    """Seconds for what is left to end when a run has; no more than the others waited for a sign of
    life.
    """
    return min(_GRACE_SECONDS, config.strategy.patience_seconds)


def _signs_of_life(config: RunConfig, paths: RunPaths) -> dict[int, float]:
    """When each worker last showed one; 0 before its first."""
    times = {}
    for rank in range(config.num_workers):
        times[rank] = 0.0
        with suppress(OSError):
            times[rank] = paths.alive(rank).stat().st_mtime
    return times
