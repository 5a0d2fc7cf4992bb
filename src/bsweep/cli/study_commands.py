"""The commands `bsweep status`, `stop`, `resume` and `retry`, which act on a whole study."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bsweep.cli.commands import parser_of
from bsweep.config.values import did_you_mean
from bsweep.core import terminal
from bsweep.core.ranks import horovodrun_size
from bsweep.core.terminal import end_with_reader
from bsweep.core.words import counted, first_of
from bsweep.study import claims, history, overview, states
from bsweep.study.history import Command
from bsweep.study.watching import Watched

logger = terminal.logger(__name__)

_WATCH_SECONDS = 2.0
_STOP_POLL_SECONDS = 0.2


def status(arguments: Sequence[str]) -> int:
    parser = _parser("status")
    parser.add_argument("--watch", action="store_true", help="update as long as a sweep is at work")
    each = "print everything as JSON; with --watch one line for each update"
    parser.add_argument("--json", action="store_true", help=each)
    options = parser.parse_args(arguments)
    end_with_reader()
    said, watched = "", Watched(options.study)
    while True:
        rows, source, sweeps = watched.rows(), watched.estimated_by, watched.sweeps
        if options.json:
            indent = None if options.watch else 1
            text = overview.as_json(rows, source, indent, study=str(options.study), sweeps=sweeps)
        else:
            text = overview.status_text(options.study, rows, source, sweeps)
        if text != said:
            if options.watch and sys.stdout.isatty():
                from rich import get_console  # imported here because it is slow

                get_console().clear()
            print(text, flush=True)
        said = text
        if not options.watch or not (sweeps or any(row.state.status == "running" for row in rows)):
            return 0
        try:
            time.sleep(_WATCH_SECONDS)
        except KeyboardInterrupt:  # Ctrl-C ends the watching, not the sweep
            return 0
        watched.look()
        if watched.problem:
            raise ValueError(watched.problem)


def stop(arguments: Sequence[str]) -> int:
    """Ask all sweeps of a study to stop, wait until they have stopped, and return the exit code.

    Raises:
        ValueError: If there is no such study, or no sweep of it is running.
    """
    study_dir = _parser("stop").parse_args(arguments).study
    Watched(study_dir)  # raises ValueError if this is not a study
    asked = claims.sweeps(study_dir)
    if not asked:
        raise ValueError(f"{study_dir}: no sweep is at work, so there is nothing to stop.")
    for sweep in asked:
        claims.ask_to_stop(study_dir, sweep)
    logger.info(
        f"asked {counted(len(asked), 'sweep')} to stop; waiting until they have saved and ended"
    )
    while set(asked) & set(claims.sweeps(study_dir)):
        time.sleep(_STOP_POLL_SECONDS)
    watched = Watched(study_dir)
    rows, source = watched.rows(), watched.estimated_by
    print(overview.status_text(study_dir, rows, source, watched.sweeps))
    return 0


def resume(arguments: Sequence[str]) -> int:
    """Run a study's recorded commands again for the points that have no result yet; return the exit
    code.
    """
    return _train_again(_parser("resume").parse_args(arguments).study)


def retry(arguments: Sequence[str]) -> int:
    """Repeat the points of a study that have one of the given statuses, such as failed, and return
    the exit code.
    """
    parser = _parser("retry")
    default = ",".join(states.FAILURES)
    parser.add_argument(
        "--status", default=default, help=f"states of the points to repeat (default: {default})"
    )
    options = parser.parse_args(arguments)
    wanted = options.status.split(",")
    known = (*states.FAILURES, "interrupted", "damaged", "completed")
    for status in wanted:
        if status not in known:
            near = did_you_mean(status, known)
            raise ValueError(f"--status {status}: unknown.{near} Known: {', '.join(known)}.")
    return _train_again(options.study, wanted)


def _train_again(study_dir: Path, wanted: Sequence[str] | None = None) -> int:
    """Run a study's recorded commands again, and return the exit code. Train only the points
    without a result or, if statuses are wanted, repeat the points that have one of these.
    """
    from bsweep.cli import run  # imports Hydra

    def lead() -> int:
        rows = Watched(study_dir).rows()
        run_ids = {
            row.run_id
            for row in rows
            if not row.state.is_imported
            and (row.is_left if wanted is None else row.state.status in wanted)
        }
        here = states.counted(row.state.status for row in rows)
        if not run_ids and wanted is None:
            print(f"{study_dir}: nothing is left to do: {here}")
            return 0
        if not run_ids:
            raise ValueError(
                f"{study_dir}: nothing to retry: no point of a command has the state "
                f"{' or '.join(wanted or ())} ({here})."
            )
        runnable, unreachable = _leading(study_dir, run_ids)
        repeats = wanted is not None
        code = run.run_again(study_dir, runnable, run_ids - unreachable, repeats=repeats)
        return max(code, 1) if unreachable else code

    return run.in_one_process(lead)


def _leading(study_dir: Path, run_ids: set[str]) -> tuple[list[Command], set[str]]:
    """Return the study's recorded commands that lead to points with the given ids and that this
    process can run again, and the ids of the points to which only commands of other places lead.

    The process must run as that of a command did: outside horovodrun, or inside one with as many
    processes. Warn of points to which no such command leads.

    Raises:
        ValueError: If this process can run no such command, or the folder where one was typed no
            longer exists.
    """
    commands = history.read_commands(study_dir)
    leading = [command for command in commands if run_ids & _run_ids_of([command])]
    # Branches, the latest first, begin before the runs that they continue: these remove their
    # checkpoints when they end.
    branches = [command for command in leading if "resume_from=" in " ".join(command.arguments)]
    sources = [command for command in leading if command not in branches]
    leading = [*reversed(branches), *sources]
    unknown = run_ids - _run_ids_of(leading)
    if unknown:
        problem = (
            f"the study has no recorded command for {len(unknown)} of its runs "
            f"({first_of(sorted(unknown))}): type the commands of these runs again"
        )
        if not leading:
            raise ValueError(problem)
        logger.warning(f"bsweep: {problem}")
    runnable = [command for command in leading if command.num_processes == horovodrun_size()]
    unreachable = run_ids - unknown - _run_ids_of(runnable)
    for command in leading:
        title = f"{study_dir}: the recorded command `bsweep run {shlex.join(command.arguments)}`"
        if unreachable & _run_ids_of([command]):
            number = command.num_processes
            place = f"inside horovodrun -np {number}" if number else "outside horovodrun"
            problem = f"{title} was started {place}: start this command {place}, too."
            if not runnable:
                raise ValueError(problem)
            logger.warning(f"bsweep: {problem}")
        if command in runnable and not command.folder.is_dir():
            raise ValueError(
                f"{title} was started in {command.folder}, which no longer exists: type it again "
                "in the folder where the files of the study are now."
            )
    return runnable, unreachable


def _run_ids_of(commands: Sequence[Command]) -> set[str]:
    return {point.run_id for command in commands for point in command.points}


def _parser(command: str) -> argparse.ArgumentParser:
    parser = parser_of(command)
    parser.add_argument("study", type=Path, help="the study's folder, such as results/quickstart")
    return parser
