"""Workers and parameter servers as tasks of a step in the SLURM allocation where the sweep runs."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

from bsweep.config import ProcessesConfig
from bsweep.config.launch import hosts_of_ranks, nodes_of
from bsweep.launch import environment, processes
from bsweep.launch.launcher import LaunchRequest

# The step shares the job with the sweep itself, and its tasks share memory and cores of their nodes
# by themselves.
_SRUN = ("srun", "--overlap", "--overcommit", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=1")


class Srun(processes.ProcessLauncher):
    """One srun command, a step with a task for each rank."""

    def commands(
        self, request: LaunchRequest, words: Sequence[str], lifeline: Path
    ) -> list[list[str]]:
        """Return the step of a point: a task for each rank in their order, on the host of its
        slot.
        """
        config, launch = request.config, request.card
        assert launch.named_hosts, "a point outside an allocation is refused"
        shape = config.num_workers, config.num_server_processes
        ranks = hosts_of_ranks(launch.named_hosts, *shape)
        # As with torchrun, servers that run beside workers count their local ranks by themselves.
        seats = [
            f"{seat}/{number}"
            for _, number in nodes_of(launch.named_hosts, *shape)
            for seat in range(number)
        ]
        port = processes.meeting_port()
        # SLURM sends SIGTERM to all processes of a job: workers leave it to the sweep, which has
        # them save where they are.
        worker = [
            "sh",
            "-c",
            "trap '' TERM; exec \"$@\"",
            "sh",
            *processes.worker_command(request, "RANK", words),
        ]
        script = (
            f'set -- {" ".join(seats)}; shift "$SLURM_PROCID"; '
            f'export RANK="$SLURM_PROCID" WORLD_SIZE={len(ranks)} LOCAL_RANK="${{1%/*}}" '
            f'LOCAL_WORLD_SIZE="${{1#*/}}" '
            f"MASTER_ADDR={ranks[0]} MASTER_PORT={port}; exec "
            f"{shlex.join(processes.watched(launch, lifeline, worker))}"
        )
        return [[*_step(ranks), "sh", "-c", script]]

    def on_host(self, host: str, launch: ProcessesConfig, words: Sequence[str]) -> list[str]:
        """Return what runs words on a host, in the folder where this process is."""
        shown = environment.in_the_open(os.environ, launch)
        # Without the variables of the step or script around it, by which srun would go, too.
        return [
            "env",
            "-i",
            *(f"{name}={value}" for name, value in shown.items()),
            *_step([host]),
            *words,
        ]

    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return ranks that failed by srun's word, the first one first, and their exit codes."""
        pattern = r"^srun: error: \S+: tasks? ([\d,-]+): (\w[^(\n]*)"
        found = re.findall(pattern, console, re.MULTILINE)
        codes: dict[int, int] = {}
        for tasks, said in found:
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", tasks):
                for rank in range(int(first), int(last or first) + 1):
                    codes.setdefault(rank, _code(said.strip()))
        return list(codes.items())


def _step(ranks: Sequence[str]) -> list[str]:
    """Return what runs a task for each rank on its host, which may come several times."""
    nodes = f"--nodes={len(set(ranks))}"
    return [
        *_SRUN,
        nodes,
        f"--ntasks={len(ranks)}",
        "--distribution=arbitrary",
        f"--nodelist={','.join(ranks)}",
    ]


def _code(said: str) -> int:
    """An exit code of `Exited with exit code 3`, or of the name of a signal."""
    code = re.search(r"exit code (\d+)", said)
    if code:
        return int(code[1])
    if said == "Out Of Memory":
        return -signal.SIGKILL
    return next((-number for number in signal.Signals if signal.strsignal(number) == said), 1)
