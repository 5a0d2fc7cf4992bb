"""Values of options that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bsweep.config import values

MEASURED_NETWORK = "the links on which the study was measured, such as 1gbit,100us"
SPEEDS = "relative speeds of uneven workers, such as 1,1,0.5"


def add_networks(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which links and speeds the workers have that are simulated, and on
    which links others were measured.
    """
    parser.add_argument(
        "--network",
        action="append",
        help="links such as 25gbit,10us: simulate steps on more workers than were timed; may be "
        "repeated",
    )
    parser.add_argument("--measured-network", help=MEASURED_NETWORK)
    parser.add_argument("--speeds", help=f"{SPEEDS}, with --network")


def counts(text: str) -> list[int]:
    """Return the counts in a text such as `1,2,4` or `1..4096`, which has all doublings.

    Raises:
        ArgumentTypeError: If a part is no positive integer.
    """
    try:
        return values.counts("", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).strip()) from None


def pair(
    text: str, split: Callable[[str, str], tuple[str, str, str]] = str.partition
) -> tuple[str, str]:
    """Return the two parts of a text such as `strategy=horovod`; the second one may be empty.

    Args:
        text: The text.
        split: The function that divides it, such as `str.rpartition` at the last equals sign.

    Raises:
        ValueError: If there is no equals sign, or nothing before it.
    """
    first, equals, second = split(text, "=")
    if not first or not equals:
        raise ValueError(f"{text}: give two words with = between them, as in strategy=horovod.")
    return first, second
