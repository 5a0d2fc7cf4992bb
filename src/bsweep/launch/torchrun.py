"""The launcher that starts workers and servers by the command torchrun, on this machine or on other
hosts over ssh.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Sequence

from bsweep.config.launch import TorchrunConfig, nodes_of
from bsweep.core import network
from bsweep.launch import processes, ssh, torchrun_command
from bsweep.launch.launcher import LaunchRequest
from bsweep.launch.pool import Watched


class Torchrun(ssh.OverSsh, processes.ProcessLauncher):
    """A launcher that runs one or more torchrun commands on each host, which start the processes of
    that host.
    """

    def commands(
        self, request: LaunchRequest, worker: Sequence[str], watched: Watched
    ) -> list[list[str]]:
        """Return the torchrun commands that start the processes of a point, one for each series of
        consecutive ranks on the same host.

        If no hosts are named, one command starts all processes. A host where servers run beside
        workers may have several commands, for the ranks of one torchrun must be consecutive.
        """
        config, launch = request.config, request.config.launch
        assert isinstance(launch, TorchrunConfig), launch
        torchrun = [sys.executable, torchrun_command.__file__]  # a path: see `lifeline.words`
        # Workers' output goes to the run's folder. Without --log-dir, torchrun would leave an empty
        # folder behind each time.
        worker = ["--log-dir=/dev/null", "--no-python", *worker]
        if not launch.named_hosts:
            meet = _meeting("127.0.0.1:0", 0, network.loopback())
            return [[*torchrun, *meet, f"--nproc-per-node={len(request.ranks)}", *worker]]
        nodes = nodes_of(launch.named_hosts, config.num_workers, config.num_server_processes)
        endpoint = f"{_address(nodes[0][0], launch)}:{processes.meeting_port()}"
        commands = []
        for number, (host, num_local) in enumerate(nodes):
            meet = _meeting(endpoint, number, launch.network_interface)
            shape = [f"--nnodes={len(nodes)}", f"--nproc-per-node={num_local}"]
            command = [*torchrun, *meet, *shape, *worker]
            if not ssh.is_here(host):
                command = self.on_host(host, launch, watched(command))
            commands.append(command)
        return commands

    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return the ranks of the processes that failed, with their exit codes, according to
        torchrun's output.

        Root causes come first. There may be several: torchrun's times are whole seconds, and each
        host names its own first failure.
        """
        pattern = r"rank\s*:\s*(\d+) \(local_rank.*?exitcode\s*:\s*(-?\d+)"
        failures = re.findall(f"Root Cause.*?{pattern}", console, re.DOTALL)
        failures += re.findall(pattern, console, re.DOTALL)
        return list(dict.fromkeys((int(rank), int(code)) for rank, code in failures))


def _meeting(endpoint: str, number: int, interface: str | None) -> list[str]:
    """Return the options of torchrun that say where the hosts' agents meet.

    Args:
        endpoint: The host and port of the store.
        number: This agent's number; the first one keeps the store.
        interface: The network interface at which the store shall listen; None for all of them.
    """
    there = f",interface={interface}" if interface else ""
    return [
        f"--rdzv-backend={torchrun_command.BACKEND}",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-conf=rank={number}{there}",
    ]


def _address(host: str, launch: TorchrunConfig) -> str:
    """Return the address by which other hosts reach a host: the host's name or, for this machine,
    its address at the interface `launch.network_interface` if that is set. The name of localhost is
    that of this machine.
    """
    if ssh.is_here(host) and (address := network.interfaces().get(launch.network_interface or "")):
        return f"[{address}]"
    return socket.gethostname() if host in ("localhost", "127.0.0.1") else host
