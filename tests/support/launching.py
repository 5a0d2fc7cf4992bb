"""A launcher whose commands a test gives."""

from __future__ import annotations

from collections.abc import Sequence

from bsweep.config.launch import ProcessesConfig
from bsweep.launch import processes
from bsweep.launch.launcher import LaunchRequest
from bsweep.launch.pool import Watched


class Scripted(processes.ProcessLauncher):
    """Starts these commands for every point; no rank fails by their word, and no host answers."""

    def __init__(self, *commands: list[str]) -> None:
        self._commands = list(commands)

    def commands(
        self, request: LaunchRequest, worker: Sequence[str], watched: Watched
    ) -> list[list[str]]:
        return self._commands

    def failures(self, console: str) -> list[tuple[int, int]]:
        return []

    def on_host(self, host: str, launch: ProcessesConfig, words: Sequence[str]) -> list[str]:
        return ["false"]
