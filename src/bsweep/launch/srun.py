"""The launcher `srun`, which starts workers and servers as tasks of a SLURM job step in the sweep's
own allocation.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Sequence

from bsweep.config.launch import ProcessesConfig, hosts_of_ranks, nodes_of
from bsweep.launch import environment, processes
from bsweep.launch.launcher import LaunchRequest
from bsweep.launch.pool import Watched

# The step shares the job with the sweep itself. SLURM must not divide a node's memory and cores
# among the tasks, which share them by themselves.
_SRUN = ("srun", "--overlap", "--overcommit", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=1")


class Srun(processes.ProcessLauncher):
    """A launcher that runs one srun command, which starts a SLURM task for each rank."""

    def commands(
        self, request: LaunchRequest, worker: Sequence[str], watched: Watched
    ) -> list[list[str]]:
        """Return the srun command that starts the processes of a point, as a list with one command
        line.

        The job step has a task for each rank, in the order of the ranks, on the host of that rank.
        """
        config, launch = request.config, request.card
        assert launch.named_hosts, "a point outside an allocation is refused"
        shape = config.num_workers, config.num_server_processes
        ranks = hosts_of_ranks(launch.named_hosts, *shape)
        # As with torchrun, servers that run beside workers have local ranks that start at 0 again.
        local_ranks = [
            f"{local_rank}/{number}"
            for _, number in nodes_of(launch.named_hosts, *shape)
            for local_rank in range(number)
        ]
        port = processes.meeting_port()
        # SLURM sends SIGTERM to all processes of a job. Workers ignore it, since the sweep gets it
        # too and has them save a checkpoint.
        worker = ["sh", "-c", "trap '' TERM; exec \"$@\"", "sh", *worker]
        script = (
            f'set -- {" ".join(local_ranks)}; shift "$SLURM_PROCID"; '
            f'export RANK="$SLURM_PROCID" WORLD_SIZE={len(ranks)} LOCAL_RANK="${{1%/*}}" '
            f'LOCAL_WORLD_SIZE="${{1#*/}}" '
            f"MASTER_ADDR={ranks[0]} MASTER_PORT={port}; exec "
            f"{shlex.join(watched(worker))}"
        )
        return [[*_step(ranks), "sh", "-c", script]]

    def on_host(self, host: str, launch: ProcessesConfig, words: Sequence[str]) -> list[str]:
        """Return the srun command that runs a given command on a host, in this process's working
        folder.
        """
        shown = environment.in_the_open(os.environ, launch)
        variables = [f"{name}={value}" for name, value in shown.items()]
        # Leave out the variables of the surrounding step or script, which srun would obey, too.
        return ["env", "-i", *variables, *_step([host]), *words]

    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return the ranks of the processes that failed, with their exit codes, in the order in
        which srun printed them.
        """
        pattern = r"^srun: error: \S+: tasks? ([\d,-]+): (\w[^(\n]*)"
        codes: dict[int, int] = {}
        for tasks, end in re.findall(pattern, console, re.MULTILINE):
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", tasks):
                for rank in range(int(first), int(last or first) + 1):
                    codes.setdefault(rank, _code(end.strip()))
        return list(codes.items())


def _step(ranks: Sequence[str]) -> list[str]:
    """Return the first words of an srun command that starts one task for each rank, on the host of
    that rank.

    Args:
        ranks: The host of each rank; a host may come several times.
    """
    nodes, tasks = f"--nodes={len(set(ranks))}", f"--ntasks={len(ranks)}"
    return [*_SRUN, nodes, tasks, "--distribution=arbitrary", f"--nodelist={','.join(ranks)}"]


def _code(end: str) -> int:
    """Return the exit code of a task, given srun's words about its end, such as `Exited with exit
    code 3` or `Killed`.

    After a signal it is the signal's number with a minus sign. For unknown words it is 1.
    """
    if match := re.search(r"exit code (\d+)", end):
        return int(match[1])
    if end == "Out Of Memory":
        return -signal.SIGKILL
    return next((-number for number in signal.Signals if signal.strsignal(number) == end), 1)
