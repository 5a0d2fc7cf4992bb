"""The launcher that starts workers by the command horovodrun, on this machine or on other hosts
over ssh.

The `horovodrun` command is used rather than the function `horovod.run`. That function exports knobs
that Horovod's core then reads as 0.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence

from bsweep.config.launch import HorovodrunConfig, nodes_of
from bsweep.launch import horovodrun_command, processes, ssh
from bsweep.launch.launcher import LaunchRequest
from bsweep.launch.pool import Watched


class Horovodrun(ssh.OverSsh, processes.ProcessLauncher):
    """A launcher that runs one horovodrun command, which starts the workers on all hosts."""

    def commands(
        self, request: LaunchRequest, worker: Sequence[str], watched: Watched
    ) -> list[list[str]]:
        """Return the horovodrun command that starts the workers of a point, as a list with one
        command line.

        The option `--output-filename` is not used: with it, Horovod 0.28.1 computes log10(0) for a
        single worker and fails.
        """
        config, launch = request.config, request.config.launch
        assert isinstance(launch, HorovodrunConfig), launch
        # Horovod 0.28.1 starts a process on every slot of -H, whatever -np says.
        nodes = nodes_of(launch.named_hosts, config.num_workers) if launch.named_hosts else []
        options = [str(word) for option in _options(launch, nodes).items() for word in option]
        horovodrun = [
            sys.executable,
            horovodrun_command.__file__,  # a path: see `lifeline.words`
            shlex.join(ssh.options(launch)),
        ]
        if nodes:
            worker = watched(worker)
        return [[*horovodrun, "-np", str(config.num_workers), "--gloo", *options, *worker]]

    def failures(self, console: str) -> list[tuple[int, int]]:
        """Return the rank and the exit code of the worker that failed first, as the only pair of a
        list; an empty list if horovodrun's output names no worker.
        """
        first = r"The first process to do so was:\s*Process name: (\d+)\s*Exit code: (-?\d+)"
        match = re.search(first, console)
        return [(int(match[1]), int(match[2]))] if match else []


def _options(launch: HorovodrunConfig, nodes: Sequence[tuple[str, int]]) -> dict[str, object]:
    is_remote = any(not ssh.is_here(host) for host, _ in nodes)
    key = launch.ssh_identity_file and shlex.quote(str(ssh.identity(launch.ssh_identity_file)))
    options = {
        "-H": ",".join(f"{host}:{slots}" for host, slots in nodes) or None,
        "--ssh-port": launch.ssh_port,
        "--ssh-identity-file": key,  # quoted, since horovodrun puts it into a shell command
        # Without remote hosts, horovodrun needs the loopback interface.
        "--network-interfaces": launch.network_interface if is_remote else None,
        "--gloo-timeout-seconds": launch.start_timeout_seconds,
        "--start-timeout": launch.start_timeout_seconds,
        # First Horovod names the stalled ranks in its log. Then this launcher ends the run. The
        # shutdown time matters only if the launcher itself is lost.
        "--stall-check-warning-time-seconds": max(1, launch.stall_timeout_seconds // 2),
        "--stall-check-shutdown-time-seconds": 2 * launch.stall_timeout_seconds,
    }
    return {option: value for option, value in options.items() if value is not None}
