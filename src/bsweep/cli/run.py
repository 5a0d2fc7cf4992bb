"""The command `bsweep run`, which composes and checks the points of the command line and trains
them.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from bsweep.cli import report, run_help
from bsweep.cli.commands import exit_code
from bsweep.compose import hydra_grid, words
from bsweep.config import slurm
from bsweep.config.values import ConfigError
from bsweep.core import terminal
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.terminal import BAD_CONFIG
from bsweep.core.words import first_of
from bsweep.study.history import Command
from bsweep.study.sweep import Sweep

logger = terminal.logger(__name__)

_SWITCHES = ("--report",)


def run(arguments: Sequence[str]) -> int:
    """Train the points that the command line describes, and return the exit code."""
    return in_one_process(functools.partial(_lead, arguments))


def _lead(arguments: Sequence[str]) -> int:
    """Read the words, compose and check their points, and train them; or print what a flag such as
    --help asks for. Return the exit code.
    """
    typed = words.read(arguments, _SWITCHES)
    if typed.flags.help:
        print(run_help.text(typed), end="")
        return 0
    if typed.only_show:
        return hydra_grid.answer_flags("bsweep run", typed)
    return _train(Sweep(hydra_grid.composed(typed), arguments), typed.flags.report)


def in_one_process(lead: Callable[[], int]) -> int:
    """Call a function in one process only, even if horovodrun started several processes, and return
    its exit code.

    Inside horovodrun, rank 0 runs it and the other processes train together with rank 0.
    """
    if inside_horovodrun():
        from bsweep.launch import warm  # imports Horovod and torch

        return warm.run(functools.partial(exit_code, lead))
    if problem := slurm.started_often(os.environ):
        raise ConfigError(problem)
    return lead()


def run_again(study_dir: Path, history: Sequence[Command], run_ids: Set[str], repeats: bool) -> int:
    """Run recorded commands of a study again, but train only the points with the given ids; return
    the exit code.

    A command is run in the working folder where it was typed. Others may have changed the commands:
    a command must lead to points that the study has recorded for it before any code of the user's
    that it names is imported. From Python 3.11 on, the processes that this one starts look for no
    modules in the working folder.

    Args:
        study_dir: The study's folder.
        history: The study's commands.
        run_ids: The ids of the points to train.
        repeats: True sets earlier results of these points aside and trains them anew.

    Returns:
        The exit code. If commands are wrong by now, each is named, and the others have been run.
    """
    missing, study_dir, code = set(run_ids), study_dir.resolve(), 0
    refused = set[str]()  # the points of commands that are wrong by now
    # For the processes that this one starts, from Python 3.11 on:
    os.environ["PYTHONSAFEPATH"] = "1"
    for command in history:
        recorded = {point.run_id for point in command.points}
        if missing.isdisjoint(recorded):
            continue
        os.chdir(command.folder)
        logger.info(f"bsweep run {shlex.join(command.arguments)}")
        try:
            typed = words.read(command.arguments, _SWITCHES)
            points = [
                config
                for config in hydra_grid.composed(typed)
                if config.study_dir.resolve() == study_dir and config.run_id in recorded
            ]
            sweep = Sweep(points, command.arguments, missing, repeats)
            missing -= {config.run_id for config in points}
            code = max(code, _train(sweep, typed.flags.report))
        except (ValueError, OSError) as error:
            logger.error(f"bsweep: {error}")
            code = BAD_CONFIG
            refused |= recorded
    if missing := missing - refused:
        logger.warning(
            f"bsweep: the study's recorded commands no longer give {len(missing)} of its points "
            f"({first_of(sorted(missing))}): the folder was moved, or defaults, code or the "
            "commands were changed. Type the commands of these points again"
        )
    return max(code, 1) if missing else code


def _train(sweep: Sweep, wants_report: bool) -> int:
    """Train the points of a sweep, and return the exit code. Print the workers' idle times if a
    study compares allocations, and write reports if the user wants them.
    """
    try:
        statuses = sweep.run()
    except ConfigError:
        raise
    except ValueError as error:  # not to be taken for what the user can mend
        raise RuntimeError("a sweep failed") from error
    code = 0 if all(status == "completed" for status in statuses) else 1
    for study_dir, configs in sorted(sweep.studies.items()):
        if len({config.allocation.name for config in configs}) > 1:
            _print_idle_seconds(study_dir)
        if wants_report:
            write = functools.partial(report.run, [str(study_dir)])
            code = max(code, min(exit_code(write), 1))  # 2: nothing was started
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
