"""Tab completion: this module completes commands, and Hydra's plugins for bash, zsh and fish
complete keys and groups.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence

from bsweep.cli.commands import COMMANDS
from bsweep.compose import hydra_grid, words

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
    first, *others = os.environ.get("COMP_LINE", "").split(" ")[1:] or [""]
    if not others:
        print("\n".join(sorted(command for command in COMMANDS if command.startswith(first))))
    elif first in TAKE_OVERRIDES and not others[-1].startswith("-"):
        # Hydra parses the words typed so far. They may form a sweep (-m), and bsweep's own flags
        # are unknown to Hydra.
        typed = [word for word in others[:-1] if word and not word.startswith("-")]
        os.environ["COMP_LINE"] = " ".join(["bsweep", "-m", *typed, others[-1]])
        out, nowhere = io.StringIO(), io.StringIO()
        with contextlib.suppress(Exception):  # after a failure no message could be shown
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(nowhere):
                _ask_hydra(arguments)
            print(out.getvalue(), end="")
    return 0  # the other commands take a study's folder, which the shell itself completes


def _ask_hydra(arguments: Sequence[str]) -> int:
    return hydra_grid.answer_flags("bsweep", words.read(["-sc", *arguments]))
