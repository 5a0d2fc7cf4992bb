"""The command `bsweep compare`, which compares studies with a first one."""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bsweep.cli.commands import parser_of
from bsweep.core import terminal
from bsweep.core.terminal import BAD_CONFIG
from bsweep.core.words import counted, first_of

if TYPE_CHECKING:
    import pandas as pd

    from bsweep.analysis import Comparison

logger = terminal.logger(__name__)


def run(arguments: Sequence[str]) -> int:
    """Print what studies differ in, and which is faster and more accurate in their common cells;
    return the exit code.

    Returns:
        0; 1 if --fail-if-slower finds a slower cell; 2 if it cannot tell for a cell: because the
        hardware differs, the cell is missing, it has too few seeds for a test, or fewer of its runs
        reach the target.
    """
    parser = parser_of("compare")
    add = parser.add_argument
    add("studies", nargs="+", metavar="STUDY", help="the studies' folders, the reference first")
    add("--across-hardware", action="store_true", help="compare times of unequal hardware, too")
    certain = "exit with 1 if a cell is slower by more than this with certainty"
    add("--fail-if-slower", type=_share, metavar="5%", help=certain)
    add("--page", type=Path, metavar="FILE.html", help="write the comparison as a page")
    add("--json", action="store_true", help="print everything as JSON")
    add("--verbose", action="store_true", help="also print the tables")
    options = parser.parse_args(arguments)
    from bsweep.analysis import compare
    from bsweep.report import comparison as writer
    from bsweep.report.formats import as_text

    comparison = compare(*options.studies, across_hardware=options.across_hardware)
    for line in comparison.warnings:
        logger.warning(f"bsweep: {line}")
    if options.page:
        writer.write_page(comparison, options.page, shlex.join(["bsweep", "compare", *arguments]))
    if options.json:
        print(json.dumps(comparison.as_json(), indent=2, allow_nan=False))
    else:
        print("\n".join(comparison.brief()))
        print(f"Page: {options.page}" if options.page else "Tables: --verbose, --page FILE.html.")
        for table in writer.tables(comparison) if options.verbose else ():
            print("", as_text(table), sep="\n")
    return 0 if options.fail_if_slower is None else _judge(comparison, options.fail_if_slower)


def _share(text: str) -> float:
    """Return the share that a percentage such as `5%` names."""
    if not re.fullmatch(r"\d+(\.\d+)?%", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage. Give one such as 5%.")
    return float(text.removesuffix("%")) / 100


def _judge(comparison: Comparison, share: float) -> int:
    """Say which cells are slower by more than `share` with certainty, and return the exit code."""
    limit = f"{100 * share:g} %"
    slower = [
        f"{row.study}, {row.cell}: {row.measure} {row.ratio:.3f} times ({row.low:.3f} to "
        f"{row.high:.3f})"
        if row.ratio != math.inf
        else f"{row.study}, {row.cell}: the target is no longer reached"
        for row in comparison.slower(share).itertuples()
    ]
    if slower:
        logger.error(f"bsweep: slower by more than {limit}: {first_of(slower, comma='; ')}")
    untested = _untested(comparison)
    for reason, cells in untested.groupby("reason", sort=False):
        named = first_of([*(cells["study"] + ", " + cells["cell"])], comma="; ")
        logger.error(
            f"bsweep: --fail-if-slower {limit} cannot tell for {counted(len(cells), 'cell')} "
            f"({named}): {reason}."
        )
    return 1 if slower else BAD_CONFIG if len(untested) else 0


def _untested(comparison: Comparison) -> pd.DataFrame:
    """Return the cells whose times could not be tested, with the `reason` and its remedy."""
    import numpy as np
    import pandas as pd

    from bsweep.analysis.cell_tables.statistics import MIN_SEEDS_FOR_INTERVAL
    from bsweep.analysis.conclusions.comparing import RARER, TIMES

    steps, cells = (
        comparison.cells[comparison.cells["measure"] == time].reset_index(drop=True)
        for time in TIMES
    )
    is_timed = steps["compared"].notna() | cells["compared"].notna()
    is_tested = steps["low"].notna() | cells["low"].notna()
    is_rarer = cells["verdict"] == RARER
    few = f"a test takes times of {MIN_SEEDS_FOR_INTERVAL} seeds in each study. Run more seeds"
    untimed = "no times are known of both studies. Run these cells alone (launch.parallel=1)"
    reasons = {
        "fewer runs reach the target. Run more seeds": is_rarer,
        "": is_tested,
        few: is_timed,
        "the hardware differs. To compare the times, use --across-hardware": (
            cells["is_across_hardware"].astype(bool)
        ),
    }
    cells["reason"] = np.select([*reasons.values()], [*reasons], untimed)
    missing = comparison.missing.assign(reason="no run completed. Run the cells that are missing")
    columns = ["study", "cell", "reason"]
    return pd.concat([missing[columns], cells.loc[cells["reason"] != "", columns]])
