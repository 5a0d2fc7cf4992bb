"""Workers started by horovodrun, on this machine or on several hosts over ssh.

The `horovodrun` command is used rather than `horovod.run`, which exports knobs that its core reads
as 0.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bsweep.config import HorovodrunConfig, RunConfig
from bsweep.config.launch import nodes_of
from bsweep.launch import processes, ssh
from bsweep.launch.outcome import Outcome
from bsweep.launch.ssh import on_host
from bsweep.launch.team import Entry
from bsweep.runlog import RunPaths

__all__ = ["command", "failures", "launch", "on_host"]


def launch(
    config: RunConfig,
    launch: HorovodrunConfig,
    paths: RunPaths,
    on_poll: Callable[[], None],
    entry: Entry,
) -> Outcome:
    """See `bsweep.launch.launch`."""
    start = partial(command, config, launch, paths)
    return processes.launch(config, paths, on_poll, entry, lambda *of: [start(*of)], failures)


def command(
    config: RunConfig,
    launch: HorovodrunConfig,
    paths: RunPaths,
    words: Sequence[str],
    lifeline: Path,
) -> list[str]:
    """The horovodrun command line of a point, whose processes run these words.

    Its `--output-filename` is not used: it fails for a lone worker, of which 0.28.1 takes log10(0).
    """
    # Horovod 0.28.1 starts a process on every slot of -H, whatever -np says.
    nodes = nodes_of(launch.named_hosts, config.num_workers) if launch.named_hosts else []
    is_remote = any(not ssh.is_here(host) for host, _ in nodes)
    key = (
        shlex.quote(str(ssh.identity(launch.ssh_identity_file)))
        if launch.ssh_identity_file
        else None
    )
    options = {
        "-H": ",".join(f"{host}:{slots}" for host, slots in nodes) or None,
        "--ssh-port": launch.ssh_port,
        "--ssh-identity-file": key,  # which it writes into a line for a shell
        "--network-interfaces": launch.network_interface
        if is_remote
        else None,  # else it wants the loopback
        "--gloo-timeout-seconds": launch.start_timeout_seconds,
        "--start-timeout": launch.start_timeout_seconds,
        # Horovod names the stalled ranks in its log first; then this launcher acts; the last is for
        # a lost launcher.
        "--stall-check-warning-time-seconds": max(1, launch.stall_timeout_seconds // 2),
        "--stall-check-shutdown-time-seconds": 2 * launch.stall_timeout_seconds,
    }
    given = [
        str(word)
        for option, value in options.items()
        if value is not None
        for word in (option, value)
    ]
    horovodrun = [str(Path(sys.executable).with_name("horovodrun"))]
    worker = processes.worker_command(config, paths, "HOROVOD_RANK", words)
    if nodes:
        horovodrun = [
            sys.executable,
            "-m",
            "bsweep.launch.horovodrun_command",
            shlex.join(ssh.options(launch)),
        ]
        worker = processes.watched(launch, lifeline, worker)
    return [
        *horovodrun,
        "-np",
        str(config.num_workers),
        "--gloo",
        *given,
        *worker,
    ]


def failures(console: str) -> list[tuple[int, int]]:
    """The rank that failed first by horovodrun's word, and its exit code."""
    found = re.search(
        r"The first process to do so was:\s*Process name: (\d+)\s*Exit code: (-?\d+)", console
    )
    return [(int(found[1]), int(found[2]))] if found else []
