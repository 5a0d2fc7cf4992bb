"""Tab completion of commands, keys and groups, by Hydra's own plugins for bash, zsh and fish."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence

TAKE_OVERRIDES = ("run", "plan", "probe", "profile", "recommend", "doctor")


def complete(
    arguments: Sequence[str], commands: Sequence[str], hydra: Callable[[Sequence[str]], int]
) -> int:
    """Print the script that has a shell complete (`install=bash`), or what a line can go on with
    (`query=bash`).

    Args:
        arguments: What follows `bsweep -sc`.
        commands: Those of bsweep.
        hydra: Runs what Hydra makes of its arguments; its exit code.
    """
    if not any(argument.startswith("query=") for argument in arguments):
        return hydra(["-sc", *arguments])
    words = os.environ.get("COMP_LINE", "").split(" ")[1:]
    if len(words) < 2:
        print(
            "\n".join(
                command for command in commands if command.startswith(words[0] if words else "")
            )
        )
    elif words[0] in TAKE_OVERRIDES and not words[-1].startswith("-"):
        # Hydra parses what is typed so far, which may be a sweep, and knows none of bsweep's own
        # flags.
        typed = [word for word in words[1:-1] if word and not word.startswith("-")]
        os.environ["COMP_LINE"] = " ".join(["bsweep", "-m", *typed, words[-1]])
        print(_quietly(lambda: hydra(["-sc", *arguments])), end="")
    return 0  # a study is a file, which the shell itself completes


def _quietly(query: Callable[[], int]) -> str:
    """What a query prints; nothing if it fails, for there is no place to say why."""
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(Exception),
    ):
        return out.getvalue() if query() == 0 else ""
    return ""
