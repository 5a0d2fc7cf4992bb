"""The launcher that starts workers and servers by the command torchrun, on this machine or on
several hosts over ssh.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bsweep.config.launch import TorchrunConfig, nodes_of
from bsweep.launch import processes, ssh
from bsweep.launch.launcher import LaunchRequest


class Torchrun(ssh.OverSsh, processes.ProcessLauncher):
    """A launcher that runs a torchrun command on each host, which starts the processes of that
    host.
    """

    def commands(
        self, request: LaunchRequest, words: Sequence[str], lifeline: Path
    ) -> list[list[str]]:
        """Return the torchrun commands that start the processes of a point, one for each host.

        A host where servers run beside workers has a second command, for the ranks of one torchrun
        must be consecutive.
        """
        config, launch = request.config, request.config.launch
        assert isinstance(launch, TorchrunConfig), launch
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        # Workers' output goes to the run's folder. Without --log-dir, torchrun would leave an empty
        # folder behind each time.
        worker = [
            "--log-dir=/dev/null",
            "--no-python",
            *processes.worker_command(request, "RANK", words),
        ]
        if not launch.named_hosts:
            return [[torchrun, "--standalone", f"--nproc-per-node={len(request.ranks)}", *worker]]
        nodes = nodes_of(launch.named_hosts, config.num_workers, config.num_server_processes)
        port = processes.meeting_port()
        return [
            self._here_or_there(
                host,
                launch,
                lifeline,
                [
                    torchrun,
                    f"--nnodes={len(nodes)}",
                    f"--node-rank={number}",
                    f"--nproc-per-node={num_local}",
                    f"--master-addr={ssh.as_others_say(nodes[0][0])}",
                    f"--master-port={port}",
                    *worker,
                ],
            )
            for number, (host, num_local) in enumerate(nodes)
        ]

    def _here_or_there(
        self, host: str, launch: TorchrunConfig, lifeline: Path, command: list[str]
    ) -> list[str]:
        """Return a command unchanged if its host is this machine; otherwise return an ssh command
        that runs it on its host.
        """
        if ssh.is_here(host):
            return command
        return self.on_host(host, launch, processes.watched(launch, lifeline, command))

    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return the ranks of the processes that failed, with their exit codes, according to
        torchrun's output.

        Root causes come first. There may be several: torchrun's times are whole seconds, and each
        host names its own first failure.
        """
        pattern = r"rank\s*:\s*(\d+) \(local_rank.*?exitcode\s*:\s*(-?\d+)"
        found = re.findall(pattern, console, re.DOTALL)
        causes = re.findall(f"Root Cause.*?{pattern}", console, re.DOTALL)
        return list(dict.fromkeys((int(rank), int(code)) for rank, code in [*causes, *found]))
