"""The processes of a point, whichever command starts them: their start, time-outs and end."""

from __future__ import annotations

import random
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.core.fresh_process import LAUNCHER
from bsweep.launch import environment, failure, lifeline, preflight, ssh
from bsweep.launch.launcher import HostLauncher, LaunchRequest
from bsweep.launch.outcome import Outcome, first_error, recorded
from bsweep.launch.team import ProcessPool, Started, lifeline_seconds
from bsweep.runlog.files import RunPaths

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 10  # the time for processes on other hosts to notice a failed one


class ProcessLauncher(HostLauncher):
    """A launcher whose commands start the processes of a point."""

    def launch(self, request: LaunchRequest) -> Outcome:
        """Train or measure a point in processes of its own and return how it ended."""
        config, paths = request.config, request.paths
        started, codes, timeout = self._run(request)
        ended = recorded(paths)
        failed = not started.is_through and any(command.returncode for command in started.commands)
        if ended and (
            ended.status in ("diverged", "interrupted")
            or config.strategy.can.outlives_workers
            or not failed
        ):
            return ended
        if timeout and not first_error(paths, len(request.ranks)):
            if silent := preflight.silent_hosts(config):
                return Outcome("timeout", failure.loss(silent, timeout), may_pass=True)
            return Outcome(
                "timeout", f"{timeout}\n{failure.last_lines_of_all(config, paths)}", may_pass=True
            )
        console = started.console.read_text(errors="replace")
        found = [] if timeout else self.failures(console) or _hidden_failures(config, paths)
        return failure.outcome(config, paths, found, started.console, codes)

    def _run(self, request: LaunchRequest) -> tuple[Started, list[int | None], str | None]:
        """Start the processes of a point and wait for its end.

        Returns:
            The started commands, the exit code of each, and a message on what took too long, or
            None. The exit code is None for a command that had to be ended from here, since such a
            command says nothing about its host.
        """
        paths = request.paths
        for rank in request.ranks:
            paths.rank_logs(rank).mkdir(parents=True, exist_ok=True)
        try:
            pool = request.pool or ProcessPool()
            with pool.processes_for(request, self) as started:
                timeout = _wait(started, request)
                return started, [command.poll() for command in started.commands], timeout
        finally:
            paths.environment.unlink(missing_ok=True)


def worker_command(request: LaunchRequest, rank_variable: str, words: Sequence[str]) -> list[str]:
    """Return the command that starts a worker or a parameter server.

    Its output goes to the log folder of its rank. Launchers end all processes once one fails. If
    the strategy goes on without lost workers, the exit code is therefore written to a file and
    hidden from the launcher.

    Args:
        request: The point.
        rank_variable: The environment variable that holds the rank.
        words: The arguments of `python -m`.
    """
    paths = request.paths
    folder = shlex.quote(str(paths.logs.resolve())) + f'/rank."${rank_variable}"'
    read = f". {shlex.quote(str(paths.environment.resolve()))}; "
    run = f"{shlex.join([sys.executable, '-u', '-m', *words])} >{folder}/stdout 2>{folder}/stderr"
    if request.config.strategy.can.outlives_workers:
        return ["sh", "-c", f"{read}{run}; echo $? >{folder}/exit_code"]
    return ["sh", "-c", f"{read}export {LAUNCHER}=$PPID; exec {run}"]


def watched(launch: ProcessesConfig, file: Path, command: Sequence[str]) -> list[str]:
    """Return a command for another host that ends when this launcher is lost or starts anew.

    Args:
        launch: The card of the launcher.
        file: The lifeline file, see `bsweep.launch.lifeline`.
        command: The command to run there.
    """
    return lifeline.words(file, lifeline_seconds(launch), command)


def meeting_port() -> int:
    """Return a random port for processes to meet at, below the range used for client sockets."""
    return random.SystemRandom().randrange(20_000, 30_000)


def _hidden_failures(config: RunConfig, paths: RunPaths) -> list[tuple[int, int]]:
    codes = ((rank, paths.rank_logs(rank) / "exit_code") for rank in range(config.num_workers))
    known = [
        (rank, int(path.read_text()))
        for rank, path in codes
        if path.exists() and path.read_text().strip()
    ]
    return [(rank, code) for rank, code in known if code]


def _wait(started: Started, request: LaunchRequest) -> str | None:
    """Wait for the end of a point; return a message on what took too long, or None."""
    config, paths, launch = request.config, request.paths, request.card
    launched = seen = paths.metrics.stat().st_mtime
    seen_at = time.monotonic()
    failed_at: float | None = None
    while True:
        left = [command for command in started.commands if command.poll() is None]
        with suppress(subprocess.TimeoutExpired):
            (left or started.commands)[0].wait(_POLL_SECONDS)
        request.on_poll()
        environment.remove_when_read(paths, request.ranks)
        started.look_after()
        codes = [command.poll() for command in started.commands]
        if started.is_through or None not in codes:
            return None
        # The first command hosts the store through which workers meet, so they cannot outlive it.
        outlive = config.strategy.can.outlives_workers and seen != launched
        if codes[0] if outlive else any(codes):
            failed_at = failed_at or time.monotonic()
        elif any(codes) and recorded(paths):
            failed_at = failed_at or time.monotonic()  # the other commands wait for the lost host
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
            return None  # the workers still running were given up by the others and cannot end
        if seen == launched and silent > launch.start_timeout_seconds:
            return (
                "the workers were not ready after "
                f"launch.start_timeout_seconds={launch.start_timeout_seconds}"
            )
        if seen != launched and silent > launch.stall_timeout_seconds:
            first = config.process_name(min(beats, key=lambda rank: beats[rank]))
            limit = f"launch.stall_timeout_seconds={launch.stall_timeout_seconds}"
            return f"no sign of life for {limit}; the first to fall silent was {first}"


def _grace_of_others(launch: ProcessesConfig, codes: Sequence[int | None]) -> float:
    """Return how many seconds the other commands have to end after the first one failed.

    If ssh lost a host, the time is long enough for ssh to give up further hosts lost with it.
    """
    grace = min(_GRACE_SECONDS, launch.stall_timeout_seconds / 6)
    return max(grace, ssh.interval_seconds(launch) + 1) if ssh.EXIT_CODE in codes else grace


def _grace(config: RunConfig) -> float:
    """Return how many seconds the remaining processes have to end after the run has ended.

    This is at most the time that workers wait for a sign of life of each other.
    """
    return min(_GRACE_SECONDS, config.strategy.patience_seconds)


def _signs_of_life(config: RunConfig, paths: RunPaths) -> dict[int, float]:
    """Return when each rank last showed a sign of life, as a file time; 0 before the first sign."""
    times = {}
    for rank in range(config.num_workers):
        times[rank] = 0.0
        with suppress(OSError):
            times[rank] = paths.alive(rank).stat().st_mtime
    return times
