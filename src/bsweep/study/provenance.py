"""The provenance of a run: its code, its machine and the command that started it."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from bsweep.core.ranks import horovodrun_size
from bsweep.launch.machine_facts import machine


def provenance(command: str) -> dict[str, Any]:
    """Return facts about the origin of a run, such as the versions of its code, the machine of its
    sweep, and the command that started it.

    The facts help to explain why two runs differ that should have agreed.

    Args:
        command: The command without a horovodrun around it.
    """
    size = horovodrun_size()
    prefix = f"horovodrun -np {size} " if size else ""
    return {"command": f"{prefix}{command}", **machine_and_code()}


@functools.cache  # asking git and the driver takes longer than a short point's first steps
def machine_and_code() -> dict[str, Any]:
    """Return the facts that are the same for all commands that this process runs."""
    return {
        "host": platform.node(),
        "cpu": _cpu_model(),
        **machine(_PACKAGES),
        "gpus": _output(
            "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
        ),
        "platform": platform.platform(),
        **_commit(),
    }


_PACKAGES = (
    "bsweep", "torch", "torchvision", "horovod", "hydra-core", "timm", "tokenizers", "numpy"
)  # fmt: skip


def _commit() -> dict[str, Any]:
    """Return the git commit of bsweep's checkout, and whether files were changed since; None for
    both without a checkout.
    """
    git = ("git", "-C", str(Path(__file__).parent))
    commit = _output(*git, "rev-parse", "HEAD")
    if not commit or not _output(*git, "ls-files", Path(__file__).name):
        return {"commit": None, "dirty": None}
    changed = _output(*git, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit[0], "dirty": bool(changed)}


def _output(*command: str) -> list[str]:
    """Return the lines that a command prints; none if the command is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return result.stdout.splitlines()


def _cpu_model() -> str:
    try:
        model = re.search(r"^model name\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return platform.processor()
    return model[1].strip() if model else platform.machine()
