"""The entry point of `bsweep`, which finds and runs the command that was typed."""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import bsweep
from bsweep.cli.commands import COMMANDS, exit_code, parser_of, usage
from bsweep.core import signals, terminal
from bsweep.core.terminal import BAD_CONFIG, INTERRUPTED

logger = terminal.logger(__name__)

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
_COMPLETE = ("-sc", "--shell-completion")
_COMPLETION = ("bsweep.cli.completion:run", "")
_END_WITH_READER = ("compare", "predict", "report", "simulate")


def main() -> NoReturn:
    """Run the `bsweep` command that was typed.

    The process exits with 0, 1 (points did not complete, or the command found a problem), 2
    (invalid input) or 130 (interrupted).
    """
    signal.signal(signal.SIGTERM, terminal.interrupt)  # `bsweep stop` needs it, even if ignored
    # Others may be ignored: SIGINT by a shell's job in the background, SIGHUP by nohup.
    signals.handle(terminal.interrupt)
    sys.unraisablehook = terminal.interrupt_again
    terminal.set_up_logging()
    if sys.flags.optimize:
        logger.error("bsweep: it relies on assertions: unset PYTHONOPTIMIZE, or leave -O out.")
        sys.exit(BAD_CONFIG)
    arguments = sys.argv[1:]  # a command may replace sys.argv
    try:
        sys.exit(run(arguments))
    except KeyboardInterrupt:
        rest = _AFTER_INTERRUPT.get(arguments[0], "") if arguments else ""
        logger.warning(f"bsweep: interrupted{rest}")
        sys.exit(INTERRUPTED)


def run(words: Sequence[str]) -> int:
    """Run a command, and return its exit code.

    Each command imports only what it needs, so that --help does not take a second.

    Args:
        words: What was typed after `bsweep`.
    """
    command, *arguments = words or [""]
    if command in ("-h", "--help"):
        print(usage(), end="")
        return 0
    if command == "--version":
        print(f"bsweep {bsweep.__version__}")
        return 0
    if not command:
        logger.error(usage().rstrip("\n"))
        return BAD_CONFIG
    if command not in COMMANDS and command not in _COMPLETE:
        return exit_code(lambda: _refuse_unknown(command, arguments))
    if command in _END_WITH_READER:
        terminal.end_with_reader()
    if command in ("plan", "status"):
        gc.set_threshold(_MANY_OBJECTS)
    module, _, function = COMMANDS.get(command, _COMPLETION)[0].partition(":")
    return exit_code(lambda: getattr(importlib.import_module(module), function)(arguments))


def _refuse_unknown(command: str, arguments: Sequence[str]) -> NoReturn:
    from bsweep.config.values import did_you_mean, shortened

    near = did_you_mean(command, list(COMMANDS))
    if not near and ("=" in command or command.startswith("-")):
        near = f" To train, type `bsweep run {shortened(shlex.join([command, *arguments]))}`."
    raise ValueError(f"unknown command {command!r}.{near} `bsweep --help` lists the commands.")


def setup_horovod(arguments: Sequence[str]) -> NoReturn:
    """Install Horovod for this Python by replacing this process with scripts/build_horovod.sh."""
    from bsweep.config.parsing import conf_dir

    parser_of("setup-horovod").parse_args(arguments)
    script = conf_dir().with_name("scripts") / "build_horovod.sh"
    os.execvp("bash", ["bash", str(script), sys.executable])
