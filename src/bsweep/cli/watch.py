"""The command `bsweep watch`, which shows studies in a browser while their points train."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bsweep.core import terminal
from bsweep.core.extras import refuse_missing

logger = terminal.logger(__name__)

_PORT = 8877


def run(arguments: Sequence[str]) -> int:
    """Serve the pages of studies until Ctrl-C, and return the exit code.

    Raises:
        ValueError: If the packages of the extra `watch` are missing, a folder holds no study, or
            the address or port cannot be had.
    """
    parser = argparse.ArgumentParser(
        prog="bsweep watch",
        description="Show studies in a browser, updated while their points train.",
    )
    parser.add_argument(
        "studies", nargs="+", type=Path, metavar="STUDY", help="the studies' folders"
    )
    parser.add_argument(
        "--port", type=int, default=_PORT, help=f"0 takes a free one (default: {_PORT})"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen at (default: 127.0.0.1, which only this machine reaches)",
    )
    options = parser.parse_args(arguments)
    refuse_missing("bsweep watch", ("starlette", "uvicorn"), "watch")
    from bsweep.serve.server import is_loopback, serve

    if not is_loopback(options.host):
        logger.warning(
            f"bsweep: --host {options.host}: other machines reach this server. Whoever knows the "
            "address with its token can read the studies, and the network can read it on the way: "
            "nothing is encrypted. Safer: leave out --host, and forward the port by ssh -L."
        )
    try:
        serve(options.studies, options.host, options.port, _announce)
    except KeyboardInterrupt:  # Ctrl-C ends the watching, not the sweep
        return 0
    return 0


def _announce(address: str) -> None:
    print(f"{address}\nCtrl-C ends this server, not the sweep.", flush=True)
