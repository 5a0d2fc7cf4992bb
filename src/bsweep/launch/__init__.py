"""Processes on hosts: one RunConfig becomes N workers, one file for each launcher.

A point whose folder is prepared comes in. Its `Outcome` goes out: a status, and where it failed
which process, on which host, and why. Before that, `check` says whether the point can run here,
`preflight` whether the hosts are there and alike; meanwhile signals are passed on (`stop`), and
whatever ends leaves no process behind (`lifeline`).

It must not know the study, nor how a step is computed: it knows which module a worker process runs,
and the files by which to lead a team of them.
"""

from __future__ import annotations

from collections.abc import Callable

from bsweep.config import RunConfig
from bsweep.launch import preflight
from bsweep.launch.checks import check, check_hosts
from bsweep.launch.launcher import Entry, LaunchRequest, launcher_of
from bsweep.launch.outcome import Outcome
from bsweep.runlog import RunPaths

__all__ = ["Outcome", "check", "check_hosts", "launch"]


def launch(
    config: RunConfig,
    paths: RunPaths,
    on_poll: Callable[[], None],
    entry: Entry = "bsweep.train.worker",
) -> Outcome:
    """Run a point whose folder is prepared, to its end; `on_poll` is called a few times a
    second.
    """
    unready = preflight.problems([config]) if config.launch.named_hosts else []
    if unready:  # since an earlier try failed on them
        return Outcome("failed", "; ".join(unready), may_pass=True)
    outcome = launcher_of(config.launch).launch(LaunchRequest(config, paths, on_poll, entry))
    if config.launch.named_hosts and outcome.status in ("failed", "timeout"):
        preflight.forget(config)
    return outcome
