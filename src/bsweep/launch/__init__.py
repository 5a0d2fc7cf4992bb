"""The launchers, which run the workers and servers of a point on one host or on several. Each
launcher has a module of its own.

The input is a point whose folder is prepared. The output is its `Outcome`: a status and, after a
failure, what is known of the cause. Before a launch, `check_machine` says whether the point can run
here. If hosts are named, `hosts_check` says whether they are reachable and alike. During a run, a
signal becomes a request that the workers stop (`stop`). `lifeline` ends processes on other hosts
whose launcher is lost.

This package must not know how a study is run or how a step is computed. Of the code that trains it
knows the modules that worker processes run, and the files by which a team is told what to do.
"""

from __future__ import annotations

from collections.abc import Callable

from bsweep.config.run import RunConfig
from bsweep.launch.checks import check_hosts, check_machine
from bsweep.launch.launcher import Entry, LaunchRequest, Outcome, launcher_of
from bsweep.launch.pool import ProcessPool
from bsweep.runlog.files import RunPaths

__all__ = ["Outcome", "check_hosts", "check_machine", "launch"]


def launch(
    config: RunConfig,
    paths: RunPaths,
    on_poll: Callable[[], None],
    entry: Entry | None = None,
    pool: ProcessPool | None = None,
) -> Outcome:
    """Launch a point, wait until its run ends, and return the outcome.

    Args:
        config: The point.
        paths: Its run folder, which must be prepared.
        on_poll: Called again and again while the point runs, a few times a second or after each
            step; an exception that it raises ends the run.
        entry: The module that says what the point's processes do; None: that of its program.
        pool: The pool of processes that the sweep keeps between points; None to start fresh ones.
    """
    request = LaunchRequest(config, paths, on_poll, entry or config.program.worker, pool)
    outcome: Outcome = launcher_of(config.launch.builds).launch(request)
    return outcome
