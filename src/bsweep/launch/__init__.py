"""The launchers, which start the workers and servers of a point on one host or on several. Each
launcher has a module of its own.

The input is a point whose folder is prepared. The output is its `Outcome`: a status and, after a
failure, which process failed, on which host, and why. Before a launch, `check_machine` says whether
the point can run here, and `preflight` says whether the hosts are reachable and alike. During a
run, `stop` passes signals on to the workers. `lifeline` ensures that no process is left behind,
however a run ends.

This package must not know the study or how a step is computed. It knows only which module a worker
process runs, and the files by which it tells a team of processes what to do.
"""

from __future__ import annotations

from collections.abc import Callable

from bsweep.config.run import RunConfig
from bsweep.launch import preflight
from bsweep.launch.checks import check_hosts, check_machine
from bsweep.launch.launcher import Entry, LaunchRequest, launcher_of
from bsweep.launch.outcome import Outcome
from bsweep.launch.team import ProcessPool
from bsweep.runlog.files import RunPaths

__all__ = ["Outcome", "check_hosts", "check_machine", "launch"]


def launch(
    config: RunConfig,
    paths: RunPaths,
    on_poll: Callable[[], None],
    entry: Entry | None = None,
    pool: ProcessPool | None = None,
) -> Outcome:
    """Launch a point and wait until its run ends. Return the run's status and, after a failure, the
    cause of the failure.

    Args:
        config: The point.
        paths: Its run folder, which must be prepared.
        on_poll: Called a few times a second; an exception that it raises ends the run.
        entry: The module that each process runs; None: the one of the point's program.
        pool: The processes of the point's sweep; None to start fresh processes.
    """
    unready = preflight.problems([config]) if config.launch.named_hosts else []
    if unready:  # the hosts may have become unusable since an earlier attempt
        return Outcome("failed", "; ".join(unready), may_pass=True)
    request = LaunchRequest(config, paths, on_poll, entry or config.program.worker, pool)
    outcome = launcher_of(config.launch).launch(request)
    if config.launch.named_hosts and outcome.status in ("failed", "timeout"):
        preflight.forget(config)
    return outcome
