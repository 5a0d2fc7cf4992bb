"""The commands: `bsweep run` (Hydra's flags and overrides), `probe`, `profile`, `report` and `setup-horovod`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from bsweep import __version__

USAGE = """\
usage: bsweep run [--report] [-m] [key=value ...]   train one point, or with -m every point of a grid
       bsweep probe [key=value ...]                 measure each worker of a point, for allocation=...
       bsweep profile [key=value ...]               what a point's steps consist of, a trace, and what holds them up
       bsweep report STUDY [--out DIR]              figures, tables and one HTML page of a study
       bsweep setup-horovod                         compile Horovod for the installed torch, and install it
       bsweep run --help                            all keys, groups and flags
       bsweep --version
"""

BAD_CONFIG, INTERRUPTED = 2, 130


def main() -> NoReturn:
    """The `bsweep` command; exits with 0, 1 (points failed), 2 (nothing was started) or 130 (interrupted)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the workers in order, as Ctrl-C does
    sys.unraisablehook = interrupt_again
    try:
        sys.exit(_run(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]))
    except KeyboardInterrupt:
        print("bsweep: interrupted; completed points are kept, and skipped when started again", file=sys.stderr)
        sys.exit(INTERRUPTED)


def interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Have an interrupt arrive anew that came while a destructor ran, where Python drops what is raised."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # A little later: in here it would be dropped too.
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _run(command: str, arguments: Sequence[str]) -> int:
    """The exit code of a command, each of which imports what it needs: nobody waits a second for --help."""
    if command == "report":
        return report(arguments)
    if command == "run":
        from bsweep import sweep

        return sweep.run(arguments)
    if command in ("probe", "profile") and not {"-h", "--help"} & set(arguments):
        from bsweep import sweep

        return sweep.probe(arguments) if command == "probe" else sweep.profile(arguments)
    if command == "setup-horovod" and not arguments:
        setup_horovod()
    if command == "--version":
        print(f"bsweep {__version__}")
        return 0
    wants_help = command in ("-h", "--help")
    print(USAGE, end="", file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else BAD_CONFIG


def report(arguments: Sequence[str]) -> int:
    """Write the report of a study and print its path; the exit code."""
    import argparse
    from pathlib import Path

    parser = argparse.ArgumentParser(prog="bsweep report", description="Write a study's figures, tables and page.")
    parser.add_argument("study", type=Path, help="the study's folder, such as results/quickstart")
    parser.add_argument("--out", type=Path, help="where to write it (default: STUDY/report)")
    options = parser.parse_args(arguments)
    from bsweep import report as writer

    try:
        print(writer.write(options.study, options.out))
    except (ValueError, OSError) as error:
        print(f"bsweep: {error}", file=sys.stderr)
        return BAD_CONFIG
    return 0


def setup_horovod() -> NoReturn:
    """Install Horovod for this Python: scripts/build_horovod.sh takes the place of this process."""
    from bsweep.config import conf_dir

    script = conf_dir().with_name("scripts") / "build_horovod.sh"
    os.execvp("bash", ["bash", str(script), sys.executable])
