"""Workers and parameter servers started by torchrun, on this machine or on several hosts over
ssh.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bsweep.config import RunConfig, TorchrunConfig
from bsweep.config.launch import nodes_of
from bsweep.launch import processes, ssh
from bsweep.launch.outcome import Outcome
from bsweep.launch.ssh import on_host
from bsweep.launch.team import Entry
from bsweep.runlog import RunPaths

__all__ = ["commands", "failures", "launch", "on_host"]


def launch(
    config: RunConfig,
    launch: TorchrunConfig,
    paths: RunPaths,
    on_poll: Callable[[], None],
    entry: Entry,
) -> Outcome:
    """See `bsweep.launch.launch`."""
    return processes.launch(
        config,
        paths,
        on_poll,
        entry,
        lambda words, lifeline: commands(config, launch, paths, words, lifeline),
        failures,
    )


def commands(
    config: RunConfig, launch: TorchrunConfig, paths: RunPaths, words: Sequence[str], lifeline: Path
) -> list[list[str]]:
    """A torchrun for each host, and one more where servers run beside its workers: a torchrun's
    ranks are in a row.
    """
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    # Workers' output goes to the run's folder; torchrun would leave an empty one of its own behind
    # each time.
    worker = [
        "--log-dir=/dev/null",
        "--no-python",
        *processes.worker_command(config, paths, "RANK", words),
    ]
    if not launch.named_hosts:
        num_processes = config.num_workers + config.num_server_processes
        return [[torchrun, "--standalone", f"--nproc-per-node={num_processes}", *worker]]
    nodes = nodes_of(launch.named_hosts, config.num_workers, config.num_server_processes)
    port = random.SystemRandom().randrange(
        20_000, 30_000
    )  # below the range that systems give to clients
    return [
        _on_host(
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


def _on_host(host: str, launch: TorchrunConfig, lifeline: Path, command: list[str]) -> list[str]:
    """The command itself on this host, else over ssh."""
    if ssh.is_here(host):
        return command
    return on_host(host, launch, processes.watched(launch, lifeline, command))


def failures(console: str) -> list[tuple[int, int]]:
    """Ranks that failed by the torchruns' words, their root causes first, and exit codes.

    torchrun's clock has whole seconds, and several hosts each name a first one of their own.
    """
    found = re.findall(
        r"rank\s*:\s*(\d+) \(local_rank.*?exitcode\s*:\s*(-?\d+)", console, re.DOTALL
    )
    causes = re.findall(
        r"Root Cause.*?rank\s*:\s*(\d+) \(local_rank.*?exitcode\s*:\s*(-?\d+)", console, re.DOTALL
    )
    return list(dict.fromkeys((int(rank), int(code)) for rank, code in [*causes, *found]))
