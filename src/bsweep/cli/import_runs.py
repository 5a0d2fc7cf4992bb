"""The command `bsweep import`, which makes a study of runs in a table that another tool wrote."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bsweep.cli.commands import parser_of
from bsweep.cli.options import pair


def run(arguments: Sequence[str]) -> int:
    """Make a study of runs that exist already, and return the exit code."""
    parser = parser_of("import")
    add = parser.add_argument
    add("source", help="a file of CSV (.csv) or of lines of JSON (.jsonl)")
    add("--study", required=True, help="the study's name, such as mine, or its folder")
    pairs: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    column = "the key of a column, such as batch=local_batch or width=options.width"
    add("--map", metavar="COLUMN=KEY", help=column, **pairs)
    value = "a value of all runs, such as num_train=50000"
    add("--set", metavar="KEY=VALUE", help=value, **pairs)
    options = parser.parse_args(arguments)
    from bsweep.external import imported

    names = {key: column for column, key in (pair(text, str.rpartition) for text in options.map)}
    constants = dict(map(pair, options.set))
    study = options.study if "/" in options.study else f"results/{options.study}"
    for line in imported.make_study(options.source, Path(study), names, constants):
        print(line)
    print(f"bsweep report {shlex.quote(study)}")
    return 0
