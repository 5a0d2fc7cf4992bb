"""The processes that a launcher has started, for a single point or for several points of a sweep in
turn.

Processes that train several points are a team (`bsweep.train.team_worker`). Any failure ends the
team, and the next point gets fresh processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from bsweep.config import user_code
from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.core import signals
from bsweep.core.parent_process import end_with_parent
from bsweep.launch import environment, lifeline
from bsweep.launch.launcher import HostLauncher, LaunchRequest
from bsweep.runlog.files import RunPaths
from bsweep.train.team_worker import PATIENCE_SECONDS, SPOILT, TeamPaths

_EXIT_SECONDS = 10


def lifeline_seconds(launch: ProcessesConfig) -> float:
    """Return for how many seconds a launcher may leave its lifeline file untouched before the
    program `bsweep.launch.lifeline` ends the command that it runs.
    """
    return min(PATIENCE_SECONDS, launch.stall_timeout_seconds)


class Started:
    """The running commands, such as torchrun, that a launcher has started for a point.

    The file `console` gets the output of the commands.
    """

    is_through = False
    """True once all processes of a team have reported that they have trained the point that was
    given to them last.
    """

    is_spoilt = False
    """True once a process of a team has reported that it should train no further point."""

    def __init__(
        self, request: LaunchRequest, launcher: HostLauncher, words: Sequence[str], file: Path
    ) -> None:
        environment.write(request.paths.environment, environment.by_file(os.environ, request.card))
        env = environment.in_the_open(os.environ, request.card)
        to_start = launcher.commands(request, words, file)
        self.console = request.paths.launcher_log
        # Keep the file open, for a later start may create another file of the same name.
        self._lifeline = file.open("r+")
        self._touched_at = float("-inf")
        self.commands: list[subprocess.Popen[bytes]] = []
        with self.console.open("wb") as output:
            try:
                with _interrupts_held():
                    self.commands.extend(_start(command, env, output) for command in to_start)
            except BaseException:
                self.end()
                raise

    def look_after(self) -> None:
        """Touch the lifeline file, by which processes see that their launcher lives, at most once a
        second.

        Call this method a few times a second while the processes train.
        """
        if time.monotonic() - self._touched_at > 1:
            self._touched_at = time.monotonic()
            with suppress(OSError):
                os.utime(self._lifeline.fileno())

    def end(self) -> None:
        """End the launcher's commands, the processes below them on this machine and, through the
        lifeline, those on other hosts.

        All commands are told at once, for each needs some time to end its processes on other hosts.
        """
        with suppress(OSError), self._lifeline:
            self._lifeline.truncate(0)  # also ends processes that a killed srun left on other hosts
        signals.end(self.commands, 10)  # horovodrun gives its workers 5 s


class Team(Started):
    """The workers and servers that train several points of a sweep, one after another, without
    being restarted.
    """

    def __init__(self, request: LaunchRequest, launcher: HostLauncher) -> None:
        self.key = key_of(request.config)
        # How long the lifeline may stay untouched before the team counts as lost.
        self._idle_seconds = lifeline_seconds(request.card) / 2
        folder = tempfile.mkdtemp(prefix=".team.", dir=request.config.study_dir)
        self._paths = TeamPaths(Path(folder).resolve())
        self._through = [self._paths.through(rank) for rank in request.ranks]
        for path in self._through:
            path.touch()
        lifeline.begin(self._paths.lifeline)
        self._num_points = 0
        self.train(request.paths)
        words = ["bsweep.train.team_worker", str(self._paths.folder)]
        super().__init__(request, launcher, words, self._paths.lifeline)

    def train(self, run: RunPaths) -> None:
        """Tell all processes of the team to train the point whose run folder is given."""
        self._num_points += 1
        self.is_through = False
        lifeline.go_on(self._paths.lifeline, run.lifeline.resolve())
        self._say(str(run.folder.resolve()))

    def can_train(self, config: RunConfig) -> bool:
        is_waiting = time.monotonic() - self._touched_at < self._idle_seconds
        return (
            is_waiting
            and key_of(config) == self.key
            and all(command.poll() is None for command in self.commands)
        )

    def look_after(self) -> None:
        super().look_after()
        said = [path.read_bytes() for path in self._through]
        self.is_through = all(len(each) == self._num_points for each in said)
        self.is_spoilt = any(SPOILT in each for each in said)

    def end(self) -> None:
        if self.is_through:
            self._say("")
            ends = time.monotonic() + _EXIT_SECONDS
            for command in self.commands:
                with suppress(subprocess.TimeoutExpired):
                    command.wait(max(0.0, ends - time.monotonic()))
        super().end()
        shutil.rmtree(self._paths.folder, ignore_errors=True)

    def _say(self, line: str) -> None:
        with self._paths.points.open("a") as file:
            file.write(f"{line}\n")


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


def by_processes(configs: Mapping[int, RunConfig]) -> list[int]:
    """Return the indices of points, reordered so that points that the same processes can train
    follow each other.

    Apart from that, the order stays as it is.
    """
    keys = {index: key_of(config) or index for index, config in configs.items()}
    first = {key: number for number, key in reversed(list(enumerate(keys.values())))}
    return sorted(configs, key=lambda index: first[keys[index]])


class ProcessPool:
    """A pool that may keep the processes of a point for a later point of the sweep."""

    def __init__(self) -> None:
        self._coming: dict[Path, Hashable] = {}  # keys of points still to be launched, by folder
        self._idle: Team | None = None

    def expect(self, configs: Iterable[RunConfig]) -> None:
        """Store which points the sweep will launch next, so that the pool keeps only processes that
        one of these points can use. These points replace those given earlier.
        """
        keys = ((config.study_dir / config.run_id, key_of(config)) for config in configs)
        self._coming = {folder: key for folder, key in keys if key}

    @contextmanager
    def processes_for(self, request: LaunchRequest, launcher: HostLauncher) -> Iterator[Started]:
        """Provide the processes for a point: those of the point before if they were kept and can
        train this one, otherwise new processes.

        After the block, the processes are kept if all have trained the point, none should stop
        training, and a coming point can use them. Otherwise they are ended.
        """
        self._coming.pop(request.paths.folder, None)
        has_more = key_of(request.config) in self._coming.values()
        team, is_warm = self._idle, self._idle is not None and self._idle.can_train(request.config)
        if team is None or not is_warm:
            self.end()
            assert not has_more or request.entry == "bsweep.train.worker", request.entry
            team = Team(request, launcher) if has_more else None
        started = team or _lone(request, launcher)
        self._idle = None
        try:
            if team and is_warm:
                team.train(request.paths)
            yield started
        finally:
            if team and team.is_through and not team.is_spoilt and has_more:
                self._idle = team
            else:
                started.end()

    def end(self) -> None:
        """End the kept processes, which wait for another point of the sweep."""
        idle, self._idle = self._idle, None
        if idle:
            idle.end()


def _lone(request: LaunchRequest, launcher: HostLauncher) -> Started:
    file = request.paths.lifeline
    lifeline.begin(file)
    words = [request.entry, str(request.paths.folder.resolve())]
    return Started(request, launcher, words, file.resolve())


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


def _start(
    command: Sequence[str], env: Mapping[str, str], output: BinaryIO
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,  # only the parent gets Ctrl-C; it then ends the workers in order
        preexec_fn=end_with_parent,
    )
