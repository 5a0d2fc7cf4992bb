"""The interface of launchers, which start the workers of points: one for each `launch` choice."""

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
    "bsweep.train.worker", "bsweep.measure.probe_worker", "bsweep.measure.profile_worker"
]
"""The module that a process runs: it trains, or measures for `bsweep probe` or `bsweep profile`."""


@dataclass(frozen=True)
class LaunchRequest:
    """A point for a launcher to run to its end."""

    config: RunConfig
    paths: RunPaths
    """The point's run folder, already prepared."""
    on_poll: Callable[[], None]
    """A function called a few times a second; an exception that it raises ends the run."""
    entry: Entry = "bsweep.train.worker"
    pool: Pool | None = None
    """The sweep's processes, of which some may train the point; None to start fresh ones."""

    @property
    def ranks(self) -> range:
        """The ranks of all processes: workers, then servers."""
        return range(self.config.num_workers + self.config.num_server_processes)

    @property
    def card(self) -> ProcessesConfig:
        """The point's settings of `launch`, for a launcher that starts processes."""
        assert isinstance(self.config.launch, ProcessesConfig), self.config.launch
        return self.config.launch


class Pool(Protocol):
    """The processes that a sweep keeps between points: a `bsweep.launch.team.ProcessPool`."""

    def processes_for(
        self, request: LaunchRequest, launcher: HostLauncher
    ) -> AbstractContextManager[Any]:
        """Provide the processes for a point.

        Args:
            request: The point.
            launcher: The launcher that starts fresh processes if none that are kept can be used.

        Returns:
            A context that yields a `bsweep.launch.team.Started`.
        """


class Launcher(Protocol):
    """An object that runs points. A card's `builds` names its class, which takes no arguments."""

    def launch(self, request: LaunchRequest) -> Outcome:
        """Run a point and return how it ended.

        Args:
            request: The point, with its run folder.

        Returns:
            The status, and the cause of a failure.
        """


class HostLauncher(Launcher, Protocol):
    """A launcher that starts processes by running commands, also on other hosts."""

    def commands(
        self, request: LaunchRequest, words: Sequence[str], lifeline: Path
    ) -> list[list[str]]:
        """Return the commands that start all processes of a point: one, or one for each host.

        Args:
            request: The point.
            words: The arguments of `python -m` in each process.
            lifeline: The file that processes on other hosts watch to see whether the launcher
                lives, see `bsweep.launch.lifeline`.

        Returns:
            The arguments of each command, beginning with the program.
        """

    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return the ranks that failed, first failure first, with their exit codes.

        Args:
            console: What the commands printed.

        Returns:
            Pairs of a rank and its exit code; empty if the output names none.
        """

    def on_host(self, host: str, launch: ProcessesConfig, words: Sequence[str]) -> list[str]:
        """Return a command that runs another one on another host, in this process's working folder.

        Args:
            host: The host's name.
            launch: The launcher's card, with the options of the connection.
            words: The arguments of the command to run, beginning with the program.

        Returns:
            The arguments of the command that runs it, beginning with the program.
        """


def launcher_of(card: LaunchConfig) -> Launcher:
    """Return the launcher for these settings of `launch`; all points of this process share it.

    Args:
        card: The card, one of the group `launch`.

    Returns:
        The launcher, created at the first call for its class.
    """
    launcher: Launcher = _launcher(card.builds)
    return launcher


def host_launcher_of(card: ProcessesConfig) -> HostLauncher:
    """Return the launcher for these settings of `launch`, which are those of one that starts
    processes.

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
