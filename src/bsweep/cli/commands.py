"""The commands of bsweep, with their lines in `bsweep --help`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bsweep.core import terminal
from bsweep.core.terminal import BAD_CONFIG

logger = terminal.logger(__name__)

COMMANDS = {
    "run": ("bsweep.cli.run:run", "train one point, or each point of a grid: key=v1,v2"),
    "plan": ("bsweep.cli.plan:run", "show what `run` would train, and how long it takes"),
    "status": ("bsweep.cli.study_commands:status", "show how far a study is, also in training"),
    "watch": ("bsweep.cli.watch:run", "show a study in a browser, also in training"),
    "resume": ("bsweep.cli.study_commands:resume", "run the points of a study that are left"),
    "retry": ("bsweep.cli.study_commands:retry", "repeat points that did not complete"),
    "stop": ("bsweep.cli.study_commands:stop", "make a study's sweeps save, and end"),
    "probe": ("bsweep.cli.measure:probe", "measure each worker, or steps of a split model"),
    "profile": ("bsweep.cli.measure:profile", "time the parts of a step, name the bottleneck"),
    "predict": ("bsweep.cli.predict:run", "find the best batch and worker count from some cells"),
    "simulate": ("bsweep.cli.simulate:run", "simulate steps on more workers than measured"),
    "compare": ("bsweep.cli.compare:run", "show how studies differ, and what is faster"),
    "recommend": ("bsweep.advise.recommend:run", "as `predict`, training the cells that it needs"),
    "doctor": ("bsweep.cli.doctor:run", "show what to correct on this machine and hosts"),
    "report": ("bsweep.cli.report:run", "write figures, tables and one page of a study"),
    "import": ("bsweep.cli.import_runs:run", "make a study of another tool's runs"),
    "export": ("bsweep.trackers.export:main", "pass records to tensorboard, mlflow, wandb"),
    "setup-horovod": ("bsweep.cli.main:setup_horovod", "compile Horovod for the installed torch"),
}
"""The function that runs each command, and what the command does."""

_MORE = """\
`bsweep COMMAND --help` shows the arguments of a command; `bsweep run --help` shows all keys.
Tab completion: eval "$(bsweep -sc install=bash)" (bash; zsh with bashcompinit)
"""


def usage() -> str:
    """Return the text of `bsweep --help`."""
    parser = argparse.ArgumentParser(
        prog="bsweep",
        epilog=_MORE,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=20
        ),
    )
    parser.add_argument("--version", action="store_true", help="show bsweep's version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (_, about) in COMMANDS.items():
        commands.add_parser(name, help=about)
    return parser.format_help()


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return a parser of a command's arguments, which has none yet."""
    about = COMMANDS[command][1]
    return argparse.ArgumentParser(
        prog=f"bsweep {command}", description=f"{about[0].upper()}{about[1:]}."
    )


def exit_code(command: Callable[[], int]) -> int:
    """Run a command and return its exit code. Of an error that the user can mend, log the message
    and return the code of a command that has started nothing.
    """
    try:
        return command()
    except (ValueError, OSError) as error:
        logger.error(f"bsweep: {error}")
        return BAD_CONFIG
