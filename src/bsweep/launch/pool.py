"""The team of processes that a launcher has started, and the pool that keeps a team for later
points of a sweep.

Any failure ends the team, and the next point gets fresh processes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from bsweep.config import user_code
from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.core import signals
from bsweep.core.signals import LAUNCHER
from bsweep.launch import environment, lifeline
from bsweep.launch.launcher import LaunchRequest
from bsweep.runlog.files import RunPaths
from bsweep.train.team_files import PATIENCE_SECONDS, UNFIT, TeamPaths

_EXIT_SECONDS = 10
_PREFIX = ".team."

Watched = Callable[[Sequence[str]], list[str]]
"""The type of a function that returns a command which runs another one, and ends it early if its
launcher is lost.
"""

Commands = Callable[[LaunchRequest, Sequence[str], Watched], list[list[str]]]
"""The type of the method `ProcessLauncher.commands`."""


class Team:
    """The workers and servers that commands such as torchrun have started. They train the points of
    a sweep that they are given, one after another.

    Args:
        request: The first point.
        commands_for: The method of its launcher that gives the commands, see `ProcessLauncher`.
        folder: Where the team has its folder of files.
        key: That of the points which it can train, see `key_of`.
    """

    def __init__(
        self, request: LaunchRequest, commands_for: Commands, folder: Path, key: Hashable
    ) -> None:
        self._key = key
        lifeline_seconds = min(PATIENCE_SECONDS, request.card.stall_timeout_seconds)
        # How long the lifeline may stay untouched before the team counts as lost.
        self._idle_seconds = lifeline_seconds / 2
        self._paths = TeamPaths(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder)).resolve())
        self._done = [self._paths.done(rank) for rank in request.ranks]
        for path in (self._paths.points, *self._done):
            path.touch()
        self._paths.lifeline.write_text("The launcher lives.\n")
        self._touched_at = float("-inf")
        self._num_points = 0
        self.is_done = False
        """True once all processes have reported that they have trained the latest point."""
        self.is_fit = True
        """False once a process has reported that it should train no further point."""
        self.console = request.paths.launcher_log
        """The file with the output of the commands."""
        self.commands: list[subprocess.Popen[bytes]] = []
        """The running commands."""
        environment.write(request.paths.environment, environment.by_file(os.environ, request.card))
        env = environment.in_the_open(os.environ, request.card)
        worker = _worker_command(request, self._paths.folder)
        watched = partial(lifeline.words, self._paths.lifeline, lifeline_seconds)
        to_start = commands_for(request, worker, watched)
        try:
            with _interrupts_held(), self.console.open("wb") as output:
                for command in to_start:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=env,
                        start_new_session=True,  # the parent alone gets Ctrl-C, and ends workers
                        preexec_fn=signals.end_with_parent,
                    )
                    self.commands.append(process)
        except BaseException:
            self.end()
            raise

    def begin(self, run: RunPaths) -> None:
        """Tell all processes of the team to train the point whose run folder is given."""
        self._num_points += 1
        self.is_done = False
        self._write_line(str(run.folder.resolve()))

    def can_train(self, key: Hashable) -> bool:
        """Return True if the team waits for points, and can train those of a key."""
        is_waiting = time.monotonic() - self._touched_at < self._idle_seconds
        is_alive = all(command.poll() is None for command in self.commands)
        return key == self._key and is_waiting and is_alive

    def look_after(self) -> None:
        """See whether the processes have trained the point. Touch the lifeline file, by which they
        see that their launcher lives, at most once a second.

        Call this method a few times a second while the processes train.
        """
        if time.monotonic() - self._touched_at > 1:
            self._touched_at = time.monotonic()
            with suppress(OSError):
                os.utime(self._paths.lifeline)
        reports = [path.read_bytes() for path in self._done]
        self.is_done = all(len(report) == self._num_points for report in reports)
        self.is_fit = not any(UNFIT in report for report in reports)

    def end(self) -> None:
        """End the team: let processes that have trained their point exit. End all others, those on
        other hosts through the lifeline.

        All commands are told at once, for each needs some time to end its processes on other hosts.
        """
        if self.is_done:
            self._write_line("")
            ends = time.monotonic() + _EXIT_SECONDS
            for command in self.commands:
                with suppress(subprocess.TimeoutExpired):
                    command.wait(max(0.0, ends - time.monotonic()))
        with suppress(OSError):
            self._paths.lifeline.write_text("")  # also reaches what a killed srun left elsewhere
        signals.end(self.commands, 10)  # horovodrun gives its workers 5 s
        shutil.rmtree(self._paths.folder, ignore_errors=True)

    def _write_line(self, line: str) -> None:
        with self._paths.points.open("a") as file:
            file.write(f"{line}\n")


def _worker_command(request: LaunchRequest, team: Path) -> list[str]:
    """Return the shell command that starts one worker or parameter server of a point.

    The process's output goes to the log folder of its rank.
    """
    paths = request.paths
    folder = shlex.quote(str(paths.logs.resolve())) + '/rank."${HOROVOD_RANK-$RANK}"'
    read = f". {shlex.quote(str(paths.environment.resolve()))}; "
    module = request.entry.partition(":")[0]
    words = shlex.join([sys.executable, "-u", "-m", module, str(team)])
    run = f"{words} >{folder}/stdout 2>{folder}/stderr"
    return ["sh", "-c", f"{read}export {LAUNCHER}=$PPID; exec {run}"]


def key_of(config: RunConfig) -> Hashable:
    """Return a key that is equal for points that the same processes can train, one after another.

    Return None for a point that needs processes of its own.
    """
    launch, strategy = config.launch, config.strategy
    if not isinstance(launch, ProcessesConfig) or not launch.reuse or launch.memory_limit_mb:
        return None
    if not strategy.can.leaves_processes_clean:
        return None
    variables = tuple(sorted(strategy.variables().items()))
    # The user's own code may change settings of torch, or torch itself.
    code = tuple(sorted({str(card.fingerprint) for card in user_code.cards(config).values()}))
    return launch, config.num_workers, config.num_server_processes, variables, code


class ProcessPool:
    """A pool that may keep the processes of a point for a later point of the sweep."""

    def __init__(self) -> None:
        self._keys: dict[Path, Hashable] = {}  # see `key_of`; of the sweep's points, by folder
        self._coming = set[Path]()  # the folders of points still to be launched
        self._idle: Team | None = None

    def ordered(self, configs: Sequence[RunConfig]) -> list[RunConfig]:
        """Return the points that the sweep will launch next, reordered so that those that the same
        processes can train follow each other. Apart from that, the order stays as it is.

        The pool keeps only processes that one of these points can use.
        """
        folders = [config.folder for config in configs]
        self._keys = {
            folder: key_of(config) or folder
            for folder, config in zip(folders, configs, strict=True)
        }
        self._coming = set(folders)
        first = {key: number for number, key in reversed([*enumerate(self._keys.values())])}
        return sorted(configs, key=lambda c: first[self._keys[c.folder]])

    @contextmanager
    def team_for(self, request: LaunchRequest, commands_for: Commands) -> Iterator[Team]:
        """Provide the processes for a point: those of the point before if they were kept and can
        train this one, otherwise new processes.

        After the block, the processes are kept if all have trained the point, none should stop
        training, and a coming point can use them. Otherwise they are ended.
        """
        self._coming.discard(request.paths.folder)
        key = self._keys.get(request.paths.folder)
        has_more = key in (self._keys[folder] for folder in self._coming)
        team, self._idle = self._idle, None
        if team and not team.can_train(key):
            team.end()
            team = None
        if not team:
            for left in request.paths.logs.glob(f"{_PREFIX}*"):  # by a launcher that was killed
                shutil.rmtree(left, ignore_errors=True)
            # The folder of a run may be moved away while its team trains another one.
            folder = request.config.study_dir if has_more else request.paths.logs
            team = Team(request, commands_for, folder, key)
        try:
            team.begin(request.paths)
            yield team
        finally:
            if team.is_done and team.is_fit and has_more:
                self._idle = team
            else:
                team.end()

    def end(self) -> None:
        """End the kept processes, which wait for another point of the sweep."""
        idle, self._idle = self._idle, None
        if idle:
            idle.end()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay signals such as Ctrl-C until the end of the `with` block, in which processes are
    started.

    Python drops exceptions raised within a fork's callbacks. Nobody would then end a process whose
    start was interrupted.
    """
    held: list[int] = []
    with signals.handled(lambda number, _: held.append(number)):
        yield
    if held:
        raise KeyboardInterrupt
