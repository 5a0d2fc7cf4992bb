"""The command `bsweep report`, which writes a study's figures, tables and page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bsweep.cli.commands import parser_of
from bsweep.cli.options import add_networks, counts
from bsweep.config.values import numbers
from bsweep.core import terminal

logger = terminal.logger(__name__)

MIX = "mix runs of different hardware, versions or precision"
BESIDE = "also use times of runs beside other runs (launch.parallel)"


def run(arguments: Sequence[str]) -> int:
    """Write the figures, tables and page of a study, print the path of the page, and return the
    exit code.
    """
    parser = parser_of("report")
    add = parser.add_argument
    add("study", type=Path, help="the study's folder, such as results/quickstart")
    add("--out", type=Path, help="folder for the report (default: STUDY/report)")
    add("--mix", action="store_true", help=MIX)
    add("--beside", action="store_true", help=BESIDE)
    add("--columns", default="", help="headings to keep in LaTeX, such as 'local batch,time (s)'")
    add_networks(parser)
    add("--workers", type=counts, help="worker counts to simulate (default: 1,2,4,...,64)")
    add("--price-per-worker-hour", type=float, help="price of a worker's hour, with --network")
    add("--style", help="for a paper: neurips, icml, ieee or thesis")
    options = vars(parser.parse_args(arguments))
    from bsweep import report as writer
    from bsweep.core.whole_files import explained

    study, out = options.pop("study"), options.pop("out")
    options["columns"] = [text.strip() for text in options["columns"].split(",") if text.strip()]
    options["network"] = options["network"] or ()
    try:
        options["speeds"] = numbers("--speeds", options["speeds"])
        print(writer.write(study, out, **options, say=_say, tell=logger.info))
    except (ValueError, OSError) as error:
        message = explained(error, out or study / "report", "give --out DIR")
        raise ValueError(message) from error
    return 0


def _say(line: str) -> None:
    logger.warning(f"bsweep: {line}")
