"""The interface of launchers: classes that start the workers of a point, one class for each variant
of `launch`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from bsweep.config.card import resolve
from bsweep.config.groups import LaunchConfig
from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.launch.outcome import Outcome
from bsweep.runlog.files import RunPaths

Entry = Literal[
    "bsweep.train.worker",
    "bsweep.programs.worker",
    "bsweep.measure.probe_worker",
    "bsweep.measure.profile_worker",
]
"""The module that each process of a point runs: to train, or to measure for `bsweep probe` or
`bsweep profile`.
"""


@dataclass(frozen=True)
class LaunchRequest:
    """A request to a launcher: the point to run, its run folder, and the module that its processes
    run.
    """

    config: RunConfig
    paths: RunPaths
    """The paths of the files in the point's run folder, which must already contain the point's
    configuration.
    """
    on_poll: Callable[[], None]
    """A function that the launcher calls a few times a second. If it raises an exception, the run
    ends.
    """
    entry: Entry = "bsweep.train.worker"
    pool: Pool | None = None
    """The processes that the sweep keeps between points, some of which may train this point; None
    to start fresh ones.
    """

    @property
    def ranks(self) -> range:
        """The ranks of all processes of the point: first the workers, then the servers."""
        return range(self.config.num_workers + self.config.num_server_processes)

    @property
    def card(self) -> ProcessesConfig:
        """The card of the point's launcher, which must be one that starts processes, unlike
        `inline`.
        """
        assert isinstance(self.config.launch, ProcessesConfig), self.config.launch
        return self.config.launch


class Pool(Protocol):
    """The interface of the pool that keeps worker processes running for the next point of a sweep.

    A `bsweep.launch.team.ProcessPool` has this interface.
    """

    def processes_for(
        self, request: LaunchRequest, launcher: HostLauncher
    ) -> AbstractContextManager[Any]:
        """Provide the processes for a point: those of an earlier point if they can train this one,
        otherwise new processes.

        Args:
            request: The point.
            launcher: The launcher that starts fresh processes if none that are kept can be used.

        Returns:
            A context that yields a `bsweep.launch.team.Started`.
        """


class Launcher(Protocol):
    """The interface of a launcher, an object that starts the workers of a point and waits for them.

    The value `builds` of a launcher's card names its class, which takes no arguments.
    """

    def launch(self, request: LaunchRequest) -> Outcome:
        """Start the workers of a point, wait until they end, and return how the run ended.

        Args:
            request: The point, with its run folder.

        Returns:
            The status, and the cause of a failure.
        """


class HostLauncher(Launcher, Protocol):
    """The interface of a launcher that starts a point's processes by commands such as torchrun,
    also on other hosts.
    """

    def commands(
        self, request: LaunchRequest, words: Sequence[str], lifeline: Path
    ) -> list[list[str]]:
        """Return the command lines that start all processes of a point: one for all hosts, or
        separate ones for each host.

        Args:
            request: The point.
            words: The arguments of `python -m` in each process.
            lifeline: The file that processes on other hosts watch to see whether the launcher
                lives, see `bsweep.launch.lifeline`.

        Returns:
            The arguments of each command, beginning with the program.
        """

    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return the ranks of the processes that failed, with their exit codes, the first failure
        first.

        Args:
            console: What the commands printed.

        Returns:
            Pairs of a rank and its exit code; empty if the output names none.
        """

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


def launcher_of(card: LaunchConfig) -> Launcher:
    """Return the launcher that a card of the group `launch` describes.

    All points of this process whose launchers have the same class share one object.

    Args:
        card: The card, one of the group `launch`.

    Returns:
        The launcher, created at the first call for its class.
    """
    launcher: Launcher = _launcher(card.builds)
    return launcher


def host_launcher_of(card: ProcessesConfig) -> HostLauncher:
    """Return the launcher for the card of `horovodrun`, `torchrun`, `srun` or another launcher that
    starts processes.

    Args:
        card: The card, one of the group `launch` that starts processes.

    Returns:
        The launcher, created at the first call for its class.
    """
    launcher: HostLauncher = _launcher(card.builds)
    return launcher


@functools.cache  # `Inline` remembers whether this process may still train
def _launcher(builds: str) -> Any:
    return resolve(builds)()
