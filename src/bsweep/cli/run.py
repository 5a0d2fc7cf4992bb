"""The command `bsweep run`, which composes and checks the points of the command line and trains
them.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from bsweep.cli import report, run_help
from bsweep.cli.commands import refused
from bsweep.compose import hydra_grid, words
from bsweep.config import slurm
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core import terminal
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.terminal import BAD_CONFIG
from bsweep.core.whole_files import is_full
from bsweep.core.words import first_of
from bsweep.study.commands import Command
from bsweep.study.sweep import Sweep

logger = terminal.logger(__name__)


def run(arguments: Sequence[str]) -> int:
    """Train the points that the command line describes, and return the exit code."""
    return led(lambda: _train(arguments)[0])


def led(lead: Callable[[], int]) -> int:
    """Call a function in one process only, even if horovodrun started several processes, and return
    its exit code.

    Inside horovodrun, rank 0 runs it and the other processes train together with rank 0.
    """
    if not inside_horovodrun():
        problem = slurm.started_often(os.environ)
        return refused(ConfigError(problem)) if problem else lead()
    from bsweep.launch import warm  # imports Horovod and torch

    return warm.run(lead)


def run_again(study_dir: Path, kept: Sequence[Command], run_ids: Set[str], repeats: bool) -> int:
    """Run recorded commands of a study again, but train only the points with the given ids; return
    the exit code.

    A command is run in the working folder where it was typed. Others may have changed the commands:
    a command must lead to points that the study has recorded for it before any code of the user's
    that it names is imported. From Python 3.11 on, the processes that this one starts look for no
    modules in the working folder.

    Args:
        study_dir: The study's folder.
        kept: The study's commands.
        run_ids: The ids of the points to train.
        repeats: True sets earlier results of these points aside and trains them anew.
    """
    missing, unready, study_dir = set(run_ids), set[str](), study_dir.resolve()
    # For the processes that this one starts, from Python 3.11 on:
    os.environ["PYTHONSAFEPATH"] = "1"
    code = 0
    for command in kept:
        recorded = {point.run_id for point in command.points}
        if missing.isdisjoint(recorded):
            continue
        os.chdir(command.folder)
        logger.info(f"bsweep run {shlex.join(command.arguments)}")
        sweep_again = _Again(study_dir, recorded, frozenset(missing), repeats)
        ended, taken = _train(command.arguments, sweep_again)
        code, missing = max(code, ended), missing - taken
        if ended == BAD_CONFIG:  # an error has said why
            unready |= recorded
    if lost := missing - unready:
        logger.warning(
            f"bsweep: the study's recorded commands no longer give {len(lost)} of its points "
            f"({first_of(sorted(lost))}): the folder was moved, or defaults, code or the commands "
            "were changed. Type the commands of these points again"
        )
    return max(code, 1) if missing else code


@dataclass(frozen=True)
class _Again:
    """Makes the sweep of a recorded command that is run again: of those points that the study has
    recorded for it, it trains the missing ones.

    If `repeats` is True, earlier results of these points are set aside.
    """

    study_dir: Path
    recorded: Set[str]
    missing: Set[str]
    repeats: bool

    def __call__(self, configs: Sequence[RunConfig]) -> Sweep:
        here = [config for config in configs if config.study_dir.resolve() == self.study_dir]
        recorded = [config for config in here if config.run_id in self.recorded]
        return Sweep(recorded, None, lambda config: config.run_id in self.missing, self.repeats)


def _train(arguments: Sequence[str], again: _Again | None = None) -> tuple[int, Set[str]]:
    """Train the points of a command line; return the exit code and the run ids of these points.

    Args:
        arguments: The words of the command line.
        again: Makes the sweep, if a recorded command is run again.
    """
    try:
        typed = words.read([argument for argument in arguments if argument != "--report"])
        if not again and typed.flags.help:
            print(run_help.text(typed), end="")
            return 0, set()
        if not again and typed.only_show:
            return hydra_grid.answer_flags("bsweep run", typed), set()
        sys.argv = ["bsweep run", *typed.arranged]  # the runs' records hold this command
        configs = hydra_grid.composed(typed)
        sweep = again(configs) if again else Sweep(configs, arguments)
        statuses = sweep.run()
    except (ConfigError, OSError) as error:
        if isinstance(error, OSError) and not is_full(error):
            raise
        return refused(error), set()
    code = 0 if all(status == "completed" for status in statuses) else 1
    return max(code, _tell(sweep, "--report" in arguments)), sweep.run_ids


def _tell(sweep: Sweep, wants_report: bool) -> int:
    """Print the workers' idle times if a study compares allocations, write reports if the user
    wants them, and return the exit code.
    """
    code = 0
    for study_dir, configs in sorted(sweep.studies.items()):
        if len({config.allocation.name for config in configs}) > 1:
            _print_idle_seconds(study_dir)
        if wants_report:
            try:
                report.run([str(study_dir)])
            except ValueError as error:
                code = min(refused(error), 1)  # 2: nothing was started
    return code


def _print_idle_seconds(folder: Path) -> None:
    """Print a table of the seconds for which workers waited for slower ones in the runs of a study,
    to compare allocations.
    """
    from bsweep import analysis
    from bsweep.report import idle_text

    try:
        table = idle_text(analysis.load(folder))
    except (OSError, ValueError) as error:
        logger.warning(f"bsweep: no table of idle seconds: {error}")
        return
    if table:
        print(table)
