"""The command `bsweep report`, which writes a study's figures, tables and page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bsweep.cli.values import add_networks, counts
from bsweep.config.values import numbers
from bsweep.core import terminal
from bsweep.core.terminal import BAD_CONFIG

logger = terminal.logger(__name__)

MIX = "mix runs of different hardware, versions or precision"
BESIDE = "also use times of runs beside other runs (launch.parallel)"


def run(arguments: Sequence[str]) -> int:
    """Write the figures, tables and page of a study, print the path of the page, and return the
    exit code.
    """
    options = _parser().parse_args(arguments)
    from bsweep import report as writer
    from bsweep.core.whole_files import explained

    try:
        print(
            writer.write(
                options.study,
                options.out,
                mix=options.mix,
                beside=options.beside,
                say=_say,
                columns=[name.strip() for name in options.columns.split(",") if name.strip()],
                style=options.style,
                network=options.network or (),
                workers=options.workers,
                price_per_worker_hour=options.price_per_worker_hour,
                measured_network=options.measured_network,
                speeds=numbers("--speeds", options.speeds),
                tell=_tell,
            )
        )
    except (ValueError, OSError) as error:
        folder = options.out or options.study / "report"
        logger.error(f"bsweep: {explained(error, folder, 'give --out DIR')}")
        return BAD_CONFIG
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bsweep report", description="Write a study's figures, tables and page."
    )
    parser.add_argument("study", type=Path, help="the study's folder, such as results/quickstart")
    parser.add_argument("--out", type=Path, help="folder for the report (default: STUDY/report)")
    parser.add_argument("--mix", action="store_true", help=MIX)
    parser.add_argument("--beside", action="store_true", help=BESIDE)
    parser.add_argument(
        "--columns",
        default="",
        help="headings of columns to keep in LaTeX: 'local batch,time (s)' (default: all)",
    )
    add_networks(parser)
    parser.add_argument(
        "--workers",
        type=counts,
        help="numbers of workers to simulate, such as 1..64 (default: all doublings up to 64)",
    )
    parser.add_argument(
        "--price-per-worker-hour", type=float, help="price of a worker's hour, with --network"
    )
    parser.add_argument("--style", help="for a paper: neurips, icml, ieee or thesis")
    return parser


def _tell(line: str) -> None:
    logger.info(line)


def _say(line: str) -> None:
    logger.warning(f"bsweep: {line}")
