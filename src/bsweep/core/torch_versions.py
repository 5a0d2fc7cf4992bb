"""The versions of torch and torchvision that are installed, and what is wrong with them.

This process does not import torch here, because that takes seconds and fails where torch is broken.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

OLDEST = (2, 6)
"""The oldest minor release of torch with which bsweep was seen to train."""

TESTED = {"2.6.0": "0.21.0", "2.8.0": "0.23.0", "2.13.0": "0.28.0", "2.15.0": "0.29.2"}
"""The torchvision that bsweep was tested with, for each tested torch."""


def version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def are_tested() -> bool:
    """Return True if the installed torch and torchvision were tested together."""
    return bool(_public("torchvision")) and TESTED.get(_public("torch")) == _public("torchvision")


def refuse_torch() -> None:
    """Raise ValueError if torch is not installed, or if it is too old for bsweep."""
    installed, oldest = version("torch"), ".".join(map(str, OLDEST))
    if installed is None:
        raise ValueError("torch is not installed: pip install torch torchvision")
    number = re.match(r"(\d+)\.(\d+)", installed)
    if number and (int(number[1]), int(number[2])) < OLDEST:
        raise ValueError(
            f"torch {installed} is too old, bsweep needs {oldest} or newer: pip install --upgrade "
            "torch torchvision"
        )


def problems() -> list[str]:
    """Return what keeps the installed torch and torchvision from working, each with the command
    that may mend it. This takes the seconds of an import.
    """
    try:
        refuse_torch()
    except ValueError as error:
        return [str(error)]
    torch, torchvision, needed = _public("torch"), _public("torchvision"), _torch_of_torchvision()
    mend = f"pip install torch=={torch} torchvision"
    messages = []
    if not torchvision:
        messages.append(f"torchvision is not installed: {mend}")
    elif needed not in ("", torch):
        messages.append(f"torchvision {torchvision} is for torch {needed}, not {torch}: {mend}")
    words = [sys.executable, "-c", "import torch"]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode:
        messages.append(broken((run.stderr.strip().splitlines() or ["it crashes"])[-1]))
    return messages


def _torch_of_torchvision() -> str:
    """Return the torch that the installed torchvision requires; empty if it names no version."""
    requirements = (version("torchvision") and metadata.requires("torchvision")) or ()
    match = re.search(r"\btorch\s*\(?==([\w.]+)", " ".join(requirements))
    return match[1] if match else ""


def broken(reason: object) -> str:
    """Return a message on a torch that cannot be imported, with the command that may mend it.

    Args:
        reason: The error of the import.
    """
    torch = _public("torch")
    return (
        f"torch {torch} cannot be imported ({reason}): install it with all of its libraries: pip "
        f"install --force-reinstall torch=={torch} torchvision"
    )


def _public(package: str) -> str:
    """Return the version of an installed package without its build; empty if it is missing."""
    return (version(package) or "").partition("+")[0]
