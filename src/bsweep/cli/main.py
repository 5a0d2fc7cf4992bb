"""The commands: `bsweep run` and `plan` (Hydra's flags and overrides), `status` and what else
`USAGE` lists.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from bsweep import __version__
from bsweep.core import terminal

USAGE = """\
usage: bsweep run [--report] [-m] [key=value ...]   train one point, or with -m each of a grid
       bsweep plan [-m] [--json] [--probe] [...]    what `run` would train, and how long it takes
       bsweep status STUDY [--watch] [--json]       how far a study is, also while it trains
       bsweep resume STUDY                          run what is left of a study's commands
       bsweep retry STUDY [--status failed,...]     repeat points that did not complete
       bsweep stop STUDY                            have a study's sweeps save where they are
       bsweep probe [key=value ...]                 measure each worker, for allocation=...
       bsweep profile [key=value ...]               what steps consist of, and what holds them up
       bsweep predict STUDY --target-accuracy 0.9   the best batch size and worker count, from
                                                    some cells of a grid
       bsweep recommend key=v1,v2,... --target-accuracy 0.9 [--budget 30m]
                                                    the same, running what it needs itself
       bsweep replay STUDY --batching goodput       what a batching policy would have done
       bsweep doctor [--hosts H:2,...] [--json]     what to mend on this machine and its hosts
       bsweep report STUDY [--out DIR] [--mix] [--beside]
                                                    figures, tables and one HTML page of a study
       bsweep export STUDY --to TRACKER [--out X]   its records to tensorboard, mlflow or wandb
       bsweep setup-horovod                         compile Horovod for the installed torch
       bsweep run --help                            all keys, groups and flags
       eval "$(bsweep -sc install=bash)"            tab completion (bash; zsh with bashcompinit)
       bsweep --version
"""

BAD_CONFIG, INTERRUPTED = 2, 130
_MANY_OBJECTS = 1_000_000
"""After which Python looks for cycles, where all that is read stays until it is printed: else a
fifth of the time.
"""


def main() -> NoReturn:
    """The `bsweep` command; exits with 0, 1 (points failed), 2 (nothing was started) or 130
    (interrupted).
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A shell has its background jobs ignore SIGINT, and nohup has them ignore SIGHUP.
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, terminal.interrupt)
    sys.unraisablehook = interrupt_again
    try:
        sys.exit(_run(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]))
    except KeyboardInterrupt:
        print(
            "bsweep: interrupted; completed points are kept, and skipped when started again",
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)


def end_with_reader() -> None:
    """Have this process, which only prints, end as `cat` does once nobody reads what it prints."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Have an interrupt arrive anew that came in a destructor or a callback, where Python drops
    what is raised.

    It does so as SIGTERM, which is never ignored.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # A little later: in here it would be dropped too.
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _run(command: str, arguments: Sequence[str]) -> int:
    """The exit code of a command, each of which imports what it needs: nobody waits a second for
    --help.
    """
    if command in _READERS:
        end_with_reader()
        return _READERS[command](arguments)
    if command in ("plan", "status"):
        gc.set_threshold(_MANY_OBJECTS)
    if command == "run":
        from bsweep.study import sweep

        return sweep.run(arguments)
    if command == "plan":
        from bsweep.cli import plan

        return plan.run(arguments)
    if command in ("status", "resume", "retry", "stop"):
        from bsweep.cli import study_commands

        return study_commands.run(command, arguments)
    if command in ("-sc", "--shell-completion"):
        from bsweep.cli import completion
        from bsweep.study import sweep

        return completion.complete(
            arguments, sorted(set(re.findall(r"bsweep ([a-z][\w-]*)", USAGE))), sweep.shell
        )
    if command in ("probe", "profile") and not {"-h", "--help"} & set(arguments):
        from bsweep.study import sweep

        return sweep.probe(arguments) if command == "probe" else sweep.profile(arguments)
    if command == "recommend":
        from bsweep.advise import recommend

        return recommend.run(arguments)
    if command == "doctor":
        return doctor(arguments)
    if command == "export":
        from bsweep.trackers import export

        return export.main(arguments)
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

    parser = argparse.ArgumentParser(
        prog="bsweep report", description="Write a study's figures, tables and page."
    )
    parser.add_argument("study", type=Path, help="the study's folder, such as results/quickstart")
    parser.add_argument("--out", type=Path, help="where to write it (default: STUDY/report)")
    parser.add_argument(
        "--mix", action="store_true", help="also runs of different hardware, versions or precision"
    )
    parser.add_argument(
        "--beside", action="store_true", help="also times of runs beside others (launch.parallel)"
    )
    options = parser.parse_args(arguments)
    from bsweep import report as writer
    from bsweep.config.whole import is_full, no_space

    try:
        print(
            writer.write(
                options.study, options.out, mix=options.mix, beside=options.beside, say=_say
            )
        )
    except (ValueError, OSError) as error:
        is_no_space = isinstance(error, OSError) and is_full(error)
        _say(
            no_space(options.out or options.study / "report", "give --out DIR")
            if is_no_space
            else str(error)
        )
        return BAD_CONFIG
    return 0


def _say(line: str) -> None:
    print(f"bsweep: {line}", file=sys.stderr)


def predict(arguments: Sequence[str]) -> int:
    """Print which cell of a study's grid gets to a target first, or cheapest; the exit code."""
    import argparse
    import json

    say = "Predict time to a target for every batch size and worker count, and recommend one."
    parser = argparse.ArgumentParser(prog="bsweep predict", description=say)
    add = parser.add_argument
    add("study", help="the study's folder, such as results/quickstart")
    add("--target-accuracy", type=float, help="test accuracy to reach, such as 0.9")
    add("--target-loss", type=float, help="test loss to reach instead")
    add(
        "--objective",
        default="fastest",
        help="fastest | cheapest | joules | deadline=2h | 'workers<=4', joined by commas",
    )
    add(
        "--batches",
        type=counts,
        help="global batch sizes of the grid, such as 32,64,128 (default: those of the runs)",
    )
    add(
        "--workers",
        type=counts,
        help="worker counts of the grid, such as 1,2,4 (default: those of the runs)",
    )
    add("--price-per-worker-hour", type=float, help="for the cost in money")
    add(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="choose among runs; may be repeated",
    )
    add("--probe", help="a probe.json whose steps and exchange count too")
    add("--json", action="store_true", help="all of it for programs")
    options = vars(parser.parse_args(arguments))
    as_json, study = options.pop("json"), options.pop("study")
    from bsweep.analysis import predict as predicted

    try:
        where = dict(_column_and_value(text) for text in options.pop("where"))
        prediction = predicted(study, **options, where=where)
        print(
            json.dumps(prediction.as_json(), indent=2, allow_nan=False) if as_json else prediction
        )
    except (ValueError, OSError) as error:
        _say(str(error))
        return BAD_CONFIG
    return 0


def _column_and_value(text: str) -> tuple[str, str]:
    column, found, value = text.partition("=")
    if not found:
        raise ValueError(
            f"--where {text}: give a column and its value, as in --where strategy=horovod."
        )
    return column, value


def replay(arguments: Sequence[str]) -> int:
    """Print what a batching policy would have done in a study's runs; the exit code."""
    from bsweep.advise import replay

    try:
        return replay.main(arguments)
    except (ValueError, OSError) as error:
        _say(str(error))
        return BAD_CONFIG


def counts(text: str) -> list[int]:
    """`8,16,32` as numbers; ValueError, which argparse turns into a message, for others."""
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise ValueError(text)
    return counts


def doctor(arguments: Sequence[str]) -> int:
    """Print what this machine and its hosts are, and what to mend; the exit code."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="bsweep doctor", description="What machines are, and what to mend on them."
    )
    parser.add_argument(
        "--hosts", metavar="HOSTS", help="as launch.hosts: h1:4,h2:4, h[1-2]:4 or @FILE"
    )
    parser.add_argument("--json", action="store_true", help="all that was found, for programs")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as for bsweep run, of a point to look at"
    )
    options = parser.parse_intermixed_args(arguments)
    from bsweep.cli import doctor
    from bsweep.study import sweep

    hosts = [f"launch.hosts='{options.hosts}'"] if options.hosts else []
    config = sweep.one_point([*options.overrides, *hosts])
    if isinstance(config, int):
        return config
    return doctor.run(config, as_json=options.json)


_READERS = {"predict": predict, "replay": replay, "report": report}  # commands that read a study


def setup_horovod() -> NoReturn:
    """Install Horovod for this Python: scripts/build_horovod.sh takes the place of this process."""
    from bsweep.config import conf_dir

    script = conf_dir().with_name("scripts") / "build_horovod.sh"
    os.execvp("bash", ["bash", str(script), sys.executable])
