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

from bsweep.config.card import load_object
from bsweep.core.ranks import inside_horovodrun
from bsweep.launch.checks import check_machine, check_slurm
from bsweep.launch.launcher import LaunchRequest, Outcome

__all__ = ["LaunchRequest", "Outcome", "check_machine", "check_slurm", "launch"]


def launch(request: LaunchRequest) -> Outcome:
    """Launch a point by the launcher that its configuration names, or by the processes of the
    horovodrun around this one; wait until its run ends, and return the outcome.
    """
    if inside_horovodrun():
        from bsweep.launch import warm  # imports Horovod and torch

        return warm.launch(request)
    outcome: Outcome = load_object(request.config.launch.builds)().launch(request)
    return outcome
