"""The code that the launchers `horovodrun`, `torchrun` and `srun` share: it starts a point's
processes, waits for them and ends them.
"""

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
from bsweep.core import memory, terminal
from bsweep.core.parent_process import LAUNCHER
from bsweep.core.words import duration
from bsweep.launch import environment, failure, lifeline, preflight
from bsweep.launch.launcher import HostLauncher, LaunchRequest
from bsweep.launch.outcome import Outcome, first_error, recorded
from bsweep.launch.team import ProcessPool, Started, lifeline_seconds
from bsweep.launch.waiting import APART_SECONDS, Seen, Waiting, cause_of_stall
from bsweep.runlog import waits
from bsweep.runlog.files import RunPaths

logger = terminal.logger(__name__)

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 5 * waits.SIGN_SECONDS


class ProcessLauncher(HostLauncher):
    """The base class of launchers that start a point's processes by commands such as torchrun."""

    def launch(self, request: LaunchRequest) -> Outcome:
        """Run a point in processes that commands such as torchrun start, and return how the run
        ended.
        """
        config, paths = request.config, request.paths
        num_kills = memory.num_kills()
        started, codes, timeout = self._run(request)
        ended = recorded(paths)
        failed = not started.is_through and any(command.returncode for command in started.commands)
        if ended and (ended.status in ("diverged", "interrupted") or not failed):
            return ended
        if timeout and not first_error(paths, len(request.ranks)):
            if silent := preflight.silent_hosts(config):
                return Outcome("timeout", failure.loss(silent, timeout), may_pass=True)
            apart = failure.unequal_steps(config, paths)
            lines = failure.last_lines_of_all(config, paths)
            return Outcome("timeout", f"{timeout}{apart}\n{lines}", may_pass=not apart)
        console = started.console.read_text(errors="replace")
        found = [] if timeout else self.failures(console)
        is_starved = memory.num_kills() > num_kills
        return failure.outcome(config, paths, found, started.console, codes, is_starved=is_starved)

    def _run(self, request: LaunchRequest) -> tuple[Started, list[int | None], str | None]:
        """Start the processes of a point, or reuse those of an earlier point; then wait until they
        are done, have failed or take too long.

        Returns:
            The started commands, the exit code of each, and a message on what took too long, or
            None. An exit code is None if the command still ran when the wait ended; such a command
            says nothing about its host.
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
    """Return the shell command that starts one worker or parameter server of a point.

    The process's output goes to the log folder of its rank.

    Args:
        request: The point.
        rank_variable: The environment variable that holds the rank.
        words: The arguments of `python -m`.
    """
    paths = request.paths
    folder = shlex.quote(str(paths.logs.resolve())) + f'/rank."${rank_variable}"'
    read = f". {shlex.quote(str(paths.environment.resolve()))}; "
    run = f"{shlex.join([sys.executable, '-u', '-m', *words])} >{folder}/stdout 2>{folder}/stderr"
    return ["sh", "-c", f"{read}export {LAUNCHER}=$PPID; exec {run}"]


def watched(launch: ProcessesConfig, file: Path, command: Sequence[str]) -> list[str]:
    """Return a command line that runs a command, and ends it early if this launcher is lost or has
    started other processes instead.

    Args:
        launch: The card of the launcher.
        file: The lifeline file, see `bsweep.launch.lifeline`.
        command: The command to run.
    """
    return lifeline.words(file, lifeline_seconds(launch), command)


def meeting_port() -> int:
    """Return a random port for the place where a point's processes meet, below the ports that Linux
    by default gives to client sockets.
    """
    return random.SystemRandom().randrange(20_000, 30_000)


def _wait(started: Started, request: LaunchRequest) -> str | None:
    """Wait until a point's processes are done, have failed or take too long. Return a message if
    they took too long, else None.
    """
    config, paths = request.config, request.paths
    looked_at = time.monotonic()
    waiting = Waiting(config, _touched_at(paths.metrics), looked_at)
    while True:
        left = [command for command in started.commands if command.poll() is None]
        with suppress(subprocess.TimeoutExpired):
            (left or started.commands)[0].wait(_POLL_SECONDS)
        request.on_poll()
        environment.remove_when_read(paths, request.ranks)
        started.look_after()
        if (seconds := time.monotonic() - looked_at) > APART_SECONDS:
            logger.warning(
                f"bsweep: this sweep stood still for {duration(seconds)}, perhaps with its "
                "machine; its processes on other hosts may have ended meanwhile"
            )
        looked_at = time.monotonic()
        codes = [command.poll() for command in started.commands]
        if started.is_through or None not in codes:
            return None
        seen = Seen(
            time.monotonic(),
            codes,
            _signs_of_life(config, paths),
            _touched_at(paths.metrics),
        )
        if waiting.is_over(seen):
            if waiting.has_stalled:
                return f"{waiting.timeout}; {_cause_of_stall(started, request, seen)}"
            return waiting.timeout


def _cause_of_stall(started: Started, request: LaunchRequest, seen: Seen) -> str:
    """Return a message that names the processes that seem to hold up a stalled point, judged by the
    signs that each process writes to a file.
    """

    def signs() -> dict[int, str]:
        return {rank: waits.sign_in(request.paths.waits(rank)) for rank in request.ranks}

    before, ends = signs(), time.monotonic() + _LOOK_SECONDS
    while time.monotonic() < ends:
        request.on_poll()
        started.look_after()
        time.sleep(_POLL_SECONDS)
    return cause_of_stall(request.config, before, signs(), seen)


def _signs_of_life(config: RunConfig, paths: RunPaths) -> dict[int, float]:
    """Return the time at which each worker last touched its file `alive`, by rank; 0 if it has not
    touched it yet.
    """
    return {rank: _touched_at(paths.alive(rank)) for rank in range(config.num_workers)}


def _touched_at(path: Path) -> float:
    """Return the modification time of a file; 0 if there is no file or it cannot be looked at."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
