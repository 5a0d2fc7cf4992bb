"""The command `bsweep watch`, which shows a study in a browser while its points train."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bsweep.cli.commands import parser_of
from bsweep.cli.report import BESIDE, MIX
from bsweep.core import terminal
from bsweep.core.extras import refuse_missing

logger = terminal.logger(__name__)

_PORT = 8877


def run(arguments: Sequence[str]) -> int:
    """Serve the pages of a study until Ctrl-C, and return the exit code.

    Raises:
        ValueError: If the packages of the extra `watch` are missing, the folder holds no study, or
            the address or port cannot be had.
    """
    parser = parser_of("watch")
    add = parser.add_argument
    add("study", type=Path, metavar="STUDY", help="the study's folder")
    add("--port", type=int, default=_PORT, help=f"0 takes a free one (default: {_PORT})")
    listen = "the address to listen at (default: 127.0.0.1, which only this machine reaches)"
    add("--host", default="127.0.0.1", help=listen)
    add("--mix", action="store_true", help=MIX)
    add("--beside", action="store_true", help=BESIDE)
    options = parser.parse_args(arguments)
    refuse_missing("bsweep watch", ("starlette", "uvicorn"), "watch")
    from bsweep.serve.server import serve

    where = (options.study, options.host, options.port)
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the watching, not the sweep
        serve(*where, _announce, mix=options.mix, beside=options.beside)
    return 0


def _announce(addresses: Sequence[str], is_open: bool) -> None:
    if is_open:
        logger.warning(
            "bsweep: other machines reach this server (--host). Whoever knows an address with its "
            "token can read the studies, and the network can read it on the way: nothing is "
            "encrypted. Safer: leave out --host, and forward the port by ssh -L."
        )
    print(*addresses, "Ctrl-C ends this server, not the sweep.", sep="\n", flush=True)
