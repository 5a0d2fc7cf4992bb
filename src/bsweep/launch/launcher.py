"""The seam between a point and what starts its workers: a `Launcher` for each card of `launch`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from bsweep.config import ProcessesConfig, RunConfig, resolve
from bsweep.config.groups import LaunchConfig
from bsweep.launch.outcome import Outcome
from bsweep.runlog import RunPaths

Entry = Literal[
    "bsweep.train.worker", "bsweep.measure.probe_worker", "bsweep.measure.profile_worker"
]
"""The module that a process runs: it trains, or measures for `bsweep probe` or `bsweep profile`."""


@dataclass(frozen=True)
class LaunchRequest:
    """A point that a launcher runs to its end."""

    config: RunConfig
    paths: RunPaths
    """Its run folder, which is prepared."""
    on_poll: Callable[[], None]
    """Called a few times a second; what it raises ends the run."""
    entry: Entry = "bsweep.train.worker"

    @property
    def ranks(self) -> range:
        """The ranks of all processes: workers, then servers."""
        return range(self.config.num_workers + self.config.num_server_processes)

    @property
    def card(self) -> ProcessesConfig:
        """The card of a launcher that starts processes."""
        assert isinstance(self.config.launch, ProcessesConfig), self.config.launch
        return self.config.launch


class Launcher(Protocol):
    """Runs points; a card of `launch` `builds` one, without arguments."""

    def launch(self, request: LaunchRequest) -> Outcome:
        """Run a point and return how it ended."""


class HostLauncher(Launcher, Protocol):
    """A launcher that starts processes by commands, on other hosts too."""

    def commands(
        self, request: LaunchRequest, words: Sequence[str], lifeline: Path
    ) -> list[list[str]]:
        """Return what starts all processes of a point: one command, or one for each host.

        Args:
            request: The point.
            words: Each process runs `python -m` with these.
            lifeline: The file by which processes on other hosts go, see `bsweep.launch.lifeline`.
        """

    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return the ranks that failed, the first one first, and their exit codes, by what the
        commands printed.
        """

    def on_host(self, host: str, launch: ProcessesConfig, words: Sequence[str]) -> list[str]:
        """Return what runs words on another host, in the folder where this process is."""


def launcher_of(card: LaunchConfig) -> Launcher:
    """Return the launcher of a card: the same one for all points of this process."""
    launcher: Launcher = _launcher(card.builds)
    return launcher


def host_launcher_of(card: ProcessesConfig) -> HostLauncher:
    """Return the launcher of a card that starts processes."""
    launcher: HostLauncher = _launcher(card.builds)
    return launcher


@functools.cache  # for what `Inline` knows of this process: whether it may still train
def _launcher(builds: str) -> Any:
    return resolve(builds)()
