"""Tab completion: this module completes commands, and Hydra's plugins for bash, zsh and fish
complete keys and groups.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Sequence

from bsweep.cli.main import USAGE
from bsweep.compose import hydra_grid, overrides
from bsweep.config.values import ConfigError
from bsweep.core import terminal
from bsweep.core.terminal import BAD_CONFIG

logger = terminal.logger(__name__)

TAKE_OVERRIDES = ("run", "plan", "probe", "profile", "recommend", "doctor")


def run(arguments: Sequence[str]) -> int:
    """Print the script that sets up tab completion in a shell, or the completions of a typed line;
    return the exit code.

    Args:
        arguments: The words after `bsweep -sc`: `install=bash` prints the script, and `query=bash`
            prints completions.
    """
    if not any(argument.startswith("query=") for argument in arguments):
        return _ask_hydra(arguments)
    commands = sorted(set(re.findall(r"bsweep ([a-z][\w-]*)", USAGE)))
    words = os.environ.get("COMP_LINE", "").split(" ")[1:]
    if len(words) < 2:
        print(
            "\n".join(
                command for command in commands if command.startswith(words[0] if words else "")
            )
        )
    elif words[0] in TAKE_OVERRIDES and not words[-1].startswith("-"):
        # Hydra parses the words typed so far. They may form a sweep (-m), and bsweep's own flags
        # are unknown to Hydra.
        typed = [word for word in words[1:-1] if word and not word.startswith("-")]
        os.environ["COMP_LINE"] = " ".join(["bsweep", "-m", *typed, words[-1]])
        print(_quietly(lambda: _ask_hydra(arguments)), end="")
    return 0  # the other commands take a study's folder, which the shell itself completes


def _ask_hydra(arguments: Sequence[str]) -> int:
    try:
        return hydra_grid.answer_flags("bsweep", overrides.arranged(["-sc", *arguments]))
    except ConfigError as error:
        logger.error(f"bsweep: {overrides.explain(error)}")
        return BAD_CONFIG


def _quietly(query: Callable[[], int]) -> str:
    """Return the text that a completion query prints; return an empty text if the query fails.

    After a failure no message could be shown.
    """
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(Exception),
    ):
        return out.getvalue() if query() == 0 else ""
    return ""
