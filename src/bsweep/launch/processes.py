"""The code that the launchers `horovodrun`, `torchrun` and `srun` share: it waits for a point's
processes, which `Team` in `pool` starts and ends, and says how the point ended.
"""

from __future__ import annotations

import random
import subprocess
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bsweep.config.launch import ProcessesConfig
from bsweep.core import memory, terminal
from bsweep.core.words import duration
from bsweep.launch import environment, failure
from bsweep.launch.launcher import Launcher, LaunchRequest, Outcome, recorded
from bsweep.launch.pool import ProcessPool, Team, Watched
from bsweep.launch.waiting import APART_SECONDS, Waiting, cause_of_stall
from bsweep.runlog import heartbeat

logger = terminal.logger(__name__)

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 5 * heartbeat.SIGN_SECONDS


class ProcessLauncher(Launcher):
    """The base class of launchers that start a point's processes by commands such as torchrun, on
    this machine or on other hosts.
    """

    @abstractmethod
    def commands(
        self, request: LaunchRequest, worker: Sequence[str], watched: Watched
    ) -> list[list[str]]:
        """Return the command lines that start all processes of a point: one for all hosts, or one
        or more for each host.

        Args:
            request: The point.
            worker: The command that starts one worker or parameter server, and finds its rank in
                the environment.
            watched: Returns a command that runs another one, such as one on another host, and ends
                it early if this launcher is lost.

        Returns:
            The arguments of each command, beginning with the program.
        """

    @abstractmethod
    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return the rank and the exit code of each failed process that the commands' output names,
        the likely cause first.

        Args:
            console: What the commands printed.

        Returns:
            Pairs of a rank and its exit code; empty if the output names none.
        """

    @abstractmethod
    def on_host(self, host: str, launch: ProcessesConfig, words: Sequence[str]) -> list[str]:
        """Return a command line that runs a given command on another host, in this process's
        working folder.

        Args:
            host: The host's name.
            launch: The launcher's card, with the options of the connection.
            words: The arguments of the command to run, beginning with the program.

        Returns:
            The arguments of the command that runs it, beginning with the program.
        """

    def launch(self, request: LaunchRequest) -> Outcome:
        """Run a point in processes that commands such as torchrun start, and return how the run
        ended.
        """
        paths, num_kills = request.paths, memory.num_kills()
        for rank in request.ranks:
            paths.rank_logs(rank).mkdir(parents=True, exist_ok=True)
        try:
            with (request.pool or ProcessPool()).team_for(request, self.commands) as team:
                timeout = _wait(team, request)
                # A command that still runs says nothing about its host.
                codes = [command.poll() for command in team.commands]
        finally:
            paths.environment.unlink(missing_ok=True)
        end = recorded(paths)
        failed = not team.is_done and any(command.returncode for command in team.commands)
        if end and (end.status in ("diverged", "interrupted") or not failed):
            return end
        console = team.console
        failures = [] if timeout else self.failures(console.read_text(errors="replace"))
        is_starved = memory.num_kills() > num_kills
        return failure.outcome(
            request, failures, console, codes, is_starved=is_starved, timeout=timeout
        )


def meeting_port() -> int:
    """Return a random port for the place where a point's processes meet, below the ports that Linux
    by default gives to client sockets.
    """
    return random.SystemRandom().randrange(20_000, 30_000)


def _wait(team: Team, request: LaunchRequest) -> str:
    """Wait until a point's processes are done, have failed or take too long. Return a message if
    they took too long, else an empty text.
    """
    config, paths = request.config, request.paths
    looked_at = time.monotonic()
    waiting = Waiting(config, _touched_at(paths.metrics), looked_at)
    while True:
        running = [command for command in team.commands if command.poll() is None]
        with suppress(subprocess.TimeoutExpired):
            (running or team.commands)[0].wait(_POLL_SECONDS)
        request.on_poll()
        environment.remove_when_read(paths, request.ranks)
        team.look_after()
        if (seconds := time.monotonic() - looked_at) > APART_SECONDS:
            logger.warning(
                f"bsweep: this sweep stood still for {duration(seconds)}, perhaps with its "
                "machine; its processes on other hosts may have ended meanwhile"
            )
        looked_at = time.monotonic()
        codes = [command.poll() for command in team.commands]
        if team.is_done or None not in codes:
            return ""
        signs = {rank: _touched_at(paths.heartbeat(rank)) for rank in range(config.num_workers)}
        sign = sum((_touched_at(paths.metrics), *signs.values()))
        if waiting.is_over(time.monotonic(), codes, sign):
            if waiting.has_stalled:
                return f"{waiting.timeout}; {_cause_of_stall(team, request, signs)}"
            return waiting.timeout


def _cause_of_stall(team: Team, request: LaunchRequest, alive: Mapping[int, float]) -> str:
    """Return a message that names the processes that seem to hold up a stalled point, judged by the
    signs that each process writes to a file.
    """

    def signs() -> dict[int, str]:
        return {rank: heartbeat.read_sign(request.paths.standstill(rank)) for rank in request.ranks}

    before, ends = signs(), time.monotonic() + _LOOK_SECONDS
    while time.monotonic() < ends:
        request.on_poll()
        team.look_after()
        time.sleep(_POLL_SECONDS)
    return cause_of_stall(request.config, before, signs(), alive)


def _touched_at(path: Path) -> float:
    """Return the modification time of a file; 0 if there is no file or it cannot be looked at."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
