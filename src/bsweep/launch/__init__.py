"""Where a point becomes running processes, on this machine or on hosts.

Comes in: a RunConfig whose run folder is prepared. Goes out: an `Outcome`. Each launcher is a file
of its own; `launcher` is the seam between them and the rest, and `lifeline` says how processes know
that the others are there. It knows nothing of studies: who runs which point, and when, is decided
above.
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
