"""The command `bsweep import`, which makes a study of runs in a table that another tool wrote."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from bsweep.core import terminal
from bsweep.core.terminal import BAD_CONFIG

logger = terminal.logger(__name__)


def run(arguments: Sequence[str]) -> int:
    """Make a study of runs that exist already, and return the exit code."""
    from bsweep.compose import hydra_grid, overrides
    from bsweep.external import imported

    options = _parser().parse_args(arguments)
    try:
        names = {key: column for column, key in map(_pair, options.map)}
        constants = dict(map(_pair, options.set))
        study = options.study if "/" in options.study else f"results/{options.study}"
        (base,) = hydra_grid.composed(overrides.arranged(imported.BASE))
        for line in imported.make_study(options.source, Path(study), names, constants, base):
            print(line)
    except (ValueError, OSError) as error:
        for line in str(error).splitlines():
            logger.error(f"bsweep: {line}")
        return BAD_CONFIG
    print(f"bsweep report {shlex.quote(study)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bsweep import", description="Make a study of runs in a table that another tool wrote."
    )
    add = parser.add_argument
    add("source", help="a file of CSV (.csv) or of lines of JSON (.jsonl)")
    add("--study", required=True, help="the study's name, such as mine, or its folder")
    add(
        "--map",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN=KEY",
        help="the key of a column, such as batch=local_batch or width=options.width",
    )
    add(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="a value of all runs, such as num_train=50000",
    )
    return parser


def _pair(text: str) -> tuple[str, str]:
    first, found, second = text.rpartition("=")
    if not found or not first or not second:
        raise ValueError(f"{text}: give two names with = between them, as in batch=local_batch.")
    return first, second
