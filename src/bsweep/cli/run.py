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
from bsweep.compose import hydra_grid, overrides
from bsweep.config import slurm
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core import terminal
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.terminal import BAD_CONFIG
from bsweep.core.whole_files import is_full
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
        if problem := slurm.started_often(os.environ):
            logger.error(f"bsweep: {problem}")
            return BAD_CONFIG
        return lead()
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
    missing, refused, study_dir = set(run_ids), set[str](), study_dir.resolve()
    os.environ["PYTHONSAFEPATH"] = (
        "1"  # for the processes that this one starts, from Python 3.11 on
    )
    code = 0
    for command in kept:
        if missing.isdisjoint(point.run_id for point in command.points):
            continue
        os.chdir(command.folder)
        logger.info(f"bsweep run {shlex.join(command.arguments)}")
        ended, taken = _train(command.arguments, _Again(command, study_dir, missing, repeats))
        code, missing = max(code, ended), missing - taken
        if ended == BAD_CONFIG:  # an error has said why
            refused |= {point.run_id for point in command.points}
    if lost := missing - refused:
        some = ", ".join(sorted(lost)[:3])
        logger.warning(
            f"bsweep: the study's recorded commands no longer give {len(lost)} of its points "
            f"({some}): the folder was moved, or defaults, code or the commands were changed. Type "
            "the commands of these points again"
        )
    return max(code, 1) if missing else code


@dataclass(frozen=True)
class _Again:
    """A recorded command that is run again, for those of its points whose ids are in `missing`.

    If `repeats` is True, earlier results of these points are set aside.
    """

    command: Command
    study_dir: Path
    missing: Set[str]
    repeats: bool

    def is_recorded(self, config: RunConfig) -> bool:
        ids = {point.run_id for point in self.command.points}
        return config.run_id in ids and config.study_dir.resolve() == self.study_dir

    def is_missing(self, config: RunConfig) -> bool:
        return config.run_id in self.missing


def _train(arguments: Sequence[str], again: _Again | None = None) -> tuple[int, Set[str]]:
    """Train the points of a command line; return the exit code and the run ids of these points.

    Args:
        arguments: The words of the command line.
        again: The recorded command that has these arguments, if it is run again.
    """
    typed = [argument for argument in arguments if argument != "--report"]
    try:
        given = overrides.arranged(typed)
        if not again and overrides.parsed(given).help:
            print(run_help.text(given), end="")
            return 0, set()
        if not again and overrides.only_shows(given):
            return hydra_grid.answer_flags("bsweep run", given), set()
        sys.argv = ["bsweep run", *given]  # the runs' records hold this command
        with _sweep(hydra_grid.composed(given), arguments, again) as sweep:
            statuses = sweep.run()
    except (ConfigError, OSError) as error:
        if isinstance(error, OSError) and not is_full(error):
            raise
        logger.error(f"bsweep: {overrides.explain(error)}")
        return BAD_CONFIG, set()
    code = 0 if all(status == "completed" for status in statuses) else 1
    return max(code, _tell(sweep, "--report" in arguments)), sweep.run_ids


def _sweep(configs: Sequence[RunConfig], arguments: Sequence[str], again: _Again | None) -> Sweep:
    """Return the `Sweep` object that trains the points of a typed or recorded command.

    Raises:
        ConfigError: If a point cannot run here.
    """
    if not again:
        return Sweep(configs, arguments)
    recorded = [config for config in configs if again.is_recorded(config)]
    return Sweep(recorded, None, again.is_missing, again.repeats)


def _tell(sweep: Sweep, wants_report: bool) -> int:
    """Print the workers' idle times if a study compares allocations, write reports if the user
    wants them, and return the exit code.
    """
    code = 0
    for study_dir, configs in sorted(sweep.studies.items()):
        if len({config.allocation.name for config in configs}) > 1:
            _print_idle_seconds(study_dir)
        if wants_report:
            code = max(code, min(report.run([str(study_dir)]), 1))  # 2: nothing was started
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
