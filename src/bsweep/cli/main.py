"""The entry point of `bsweep`, which finds and runs the command that was typed.

`USAGE` lists the commands. `bsweep run` and `bsweep plan` take Hydra's flags and overrides.
"""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from bsweep import __version__
from bsweep.core import signals, terminal
from bsweep.core.terminal import BAD_CONFIG, INTERRUPTED

logger = terminal.logger(__name__)

USAGE = """\
usage: bsweep run [--report] [key=value ...]        train one point, or all points of a grid if
                                                    a key has several values, as in seed=0,1
       bsweep plan [--json] [--probe] [...]         show what `run` would train, and how long it
                                                    takes
       bsweep status STUDY [--watch] [--json]       show how far a study is, also in training
       bsweep watch STUDY [--port 8877]             show a study in a browser, also in training
       bsweep resume STUDY                          run the points of a study that are left
       bsweep retry STUDY [--status failed,...]     repeat points that did not complete
       bsweep stop STUDY                            make a study's sweeps save, and end
       bsweep probe [key=value ...]                 measure each worker, for allocation=...,
                                                    or steps and memory of a split model
       bsweep profile [key=value ...]               time the parts of a step, name the bottleneck
       bsweep predict STUDY --target-accuracy 0.9   find the best batch size and worker count
                                                    from some cells of a grid
       bsweep simulate STUDY --workers 1..4096 --network 25gbit,10us
                                                    simulate steps on more workers than measured
       bsweep compare STUDY_A STUDY_B ... [--page FILE.html] [--fail-if-slower 5%]
                                                    show what differs, and what is faster
       bsweep recommend key=v1,v2,... --target-accuracy 0.9 [--budget 30m]
                                                    the same, training the cells that it needs
       bsweep doctor [--hosts H:2,...] [--json]     show what to correct on this machine and hosts
       bsweep report STUDY [--out DIR] [--mix] [--beside] [--style icml]
                                                    write figures, tables and one page of a study
       bsweep import FILE --study NAME [--map COLUMN=KEY ...]
                                                    make a study of runs of another tool, from CSV
                                                    or lines of JSON
       bsweep export STUDY --to TRACKER [--out X]   pass its records to tensorboard, mlflow, wandb
       bsweep setup-horovod                         compile Horovod for the installed torch
       bsweep run --help                            keys, groups and flags
       eval "$(bsweep -sc install=bash)"            tab completion (bash; zsh with bashcompinit)
       bsweep --version
"""

_MANY_OBJECTS = 1_000_000
"""The number of new objects after which Python looks for reference cycles in the commands `plan`
and `status`. They keep all they read until they print it, and the search would take a fifth of
their time.
"""

_THE_SAME = "; the same command trains the points that have no result yet"
_AFTER_INTERRUPT = {
    "run": _THE_SAME,
    "resume": _THE_SAME,
    "retry": "; `bsweep resume` trains the points that have no result yet",
    "recommend": "; the same command resumes",
}


def main() -> NoReturn:
    """Run the `bsweep` command that was typed.

    The process exits with 0, 1 (points did not complete, or the command found a problem), 2
    (invalid input) or 130 (interrupted).
    """
    for number in signals.STOPPING:
        # Leave ignored signals ignored: shells make background jobs ignore SIGINT, and nohup makes
        # them ignore SIGHUP.
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, terminal.interrupt)
    sys.unraisablehook = terminal.interrupt_again
    terminal.set_up_logging()
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if sys.flags.optimize and command not in (*_ERRORS_FOR_THE_USER, "report", "export"):
        logger.error(
            "bsweep: Hydra's parser relies on assertions, which python -O leaves out: unset "
            "PYTHONOPTIMIZE, or leave -O out."
        )
        sys.exit(BAD_CONFIG)
    try:
        sys.exit(_run(command, sys.argv[2:]))
    except KeyboardInterrupt:
        logger.warning(f"bsweep: interrupted{_AFTER_INTERRUPT.get(command, '')}")
        sys.exit(INTERRUPTED)


_COMMANDS = {
    "run": "bsweep.cli.run:run",
    "plan": "bsweep.cli.plan:run",
    "status": "bsweep.cli.study_commands:status",
    "watch": "bsweep.cli.watch:run",
    "resume": "bsweep.cli.study_commands:resume",
    "retry": "bsweep.cli.study_commands:retry",
    "stop": "bsweep.cli.study_commands:stop",
    "probe": "bsweep.cli.measure:probe",
    "profile": "bsweep.cli.measure:profile",
    "predict": "bsweep.cli.predict:run",
    "simulate": "bsweep.cli.simulate:run",
    "compare": "bsweep.cli.compare:run",
    "recommend": "bsweep.advise.recommend:run",
    "doctor": "bsweep.cli.doctor:run",
    "report": "bsweep.cli.report:run",
    "import": "bsweep.cli.import_runs:run",
    "export": "bsweep.trackers.export:main",
    "-sc": "bsweep.cli.completion:run",
    "--shell-completion": "bsweep.cli.completion:run",
}
_END_WITH_READER = ("compare", "predict", "report", "simulate")
# The user can mend every error that these commands raise. `report` prints its own.
_ERRORS_FOR_THE_USER = ("compare", "status", "stop", "predict", "simulate", "watch")


def _run(command: str, arguments: Sequence[str]) -> int:
    """Run the `bsweep` command of the given name, and return its exit code.

    Each command imports only what it needs, so that --help does not take a second.
    """
    if command in _END_WITH_READER:
        terminal.end_with_reader()
    if command in ("plan", "status"):
        gc.set_threshold(_MANY_OBJECTS)
    measures_nothing = command in ("probe", "profile") and {"-h", "--help"} & set(arguments)
    if command in _COMMANDS and not measures_nothing:
        module, _, function = _COMMANDS[command].partition(":")
        try:
            code: int = getattr(importlib.import_module(module), function)(arguments)
        except (ValueError, OSError) as error:
            if command not in _ERRORS_FOR_THE_USER:
                raise
            logger.error(f"bsweep: {error}")
            return BAD_CONFIG
        return code
    if command == "setup-horovod" and not arguments:
        setup_horovod()
    if command == "--version":
        print(f"bsweep {__version__}")
        return 0
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if not command or measures_nothing:
        logger.error(USAGE.rstrip("\n"))
        return BAD_CONFIG
    from bsweep.config.values import did_you_mean, shortened

    near = did_you_mean(command, _names())
    typed = shlex.join([command, *arguments])
    if not near and ("=" in command or command.startswith("-")):
        near = f" To train, type `bsweep run {shortened(typed)}`."
    logger.error(f"bsweep: unknown command {command!r}.{near} `bsweep --help` lists the commands.")
    return BAD_CONFIG


def _names() -> list[str]:
    """Return the names of all commands."""
    return [*(name for name in _COMMANDS if name.isalpha()), "setup-horovod"]


def setup_horovod() -> NoReturn:
    """Install Horovod for this Python by replacing this process with scripts/build_horovod.sh."""
    from bsweep.config.parsing import conf_dir

    script = conf_dir().with_name("scripts") / "build_horovod.sh"
    os.execvp("bash", ["bash", str(script), sys.executable])
