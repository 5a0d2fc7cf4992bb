"""The GPUs of this machine that a process may use, and an error that tells the user what to do if
torch cannot use all of them.

`python -m bsweep.core.gpus` prints the problem and fails, so that a set-up stops before it takes
minutes.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bsweep.core import torch_versions
from bsweep.core.words import counted

# `num_gpus` imports torch only where there is a driver.
if TYPE_CHECKING:
    import torch


@functools.cache
def num_gpus(device: str) -> int:
    """Return the number of GPUs that this process may use if the key `device` has the given value.

    Torch is imported only if `device` is not "cpu" and this machine seems to have an NVIDIA driver.
    In that case CUDA counts GPUs as `nvidia-smi` does from then on, unless `CUDA_DEVICE_ORDER` is
    set. By default CUDA counts the fastest GPU first, so unlike GPUs would have other numbers.

    Raises:
        ValueError: If there are GPUs but the installed torch cannot use all of them, or cannot be
            imported.
    """
    if device == "cpu" or (shutil.which("nvidia-smi") is None and not _DEVICE.exists()):
        return 0
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        import torch
    except (ImportError, OSError) as error:
        raise ValueError(torch_versions.broken(error)) from None

    # The driver's library counts GPUs even if they are too old for this torch.
    count = torch.cuda.device_count()
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return 0
    rows = _rows("name,driver_version")
    if torch.cuda.is_available():
        _refuse_too_old(_rows("name,compute_cap"))
    elif count or rows or _DEVICE.exists():
        names = f" ({', '.join(sorted({name for name, _ in rows}))})" if rows else ""
        raise ValueError(
            f"{platform.node()} has {counted(max(1, count, len(rows)), 'GPU')}{names}, but "
            f"{_reason(rows[0][1] if rows else 'unknown')} {_ON_THE_CPU}"
        )
    return count


def use(device: torch.device) -> None:
    """Make a GPU the current device of this thread; do nothing for another device.

    A new thread begins with the first GPU, on which some calls would take half a GiB for a context.
    """
    if device.type == "cuda":
        import torch

        torch.cuda.set_device(device)


@functools.cache
def stream_for(device: torch.device, work: str) -> torch.cuda.Stream:
    """Return the CUDA stream of a GPU for one kind of work, such as "capture": the same one for the
    life of the process.

    Libraries keep memory for each stream in which they have run, which would grow with the number
    of points that a process trains.
    """
    import torch

    return torch.cuda.Stream(device)


def renew_random(device: torch.device) -> None:
    """Give torch's random number generator of a GPU a new state, with torch's default seed.

    After a capture that broke off, the old state refuses to draw outside captures (torch 2.6).
    """
    import torch

    torch.cuda.default_generators[device.index].graphsafe_set_state(torch.Generator(device))


def driver_version() -> str | None:
    """Return the release of the loaded NVIDIA driver, such as 580.65.06; None if it is unknown."""
    with suppress(OSError):
        match = re.search(r"Module.*?\s(\d+\.[\d.]+)", _DRIVER.read_text())
        return match[1] if match else None
    return None


_DRIVER = Path("/proc/driver/nvidia/version")
_DEVICE = Path("/dev/nvidia0")
_OLDER_BUILD = (
    "torch's build for CUDA 12.6 (for drivers from 525 and GPUs from compute capability 5.0 on)"
)
_ON_THE_CPU = "To train on the CPU, set device=cpu, or hide the GPUs: CUDA_VISIBLE_DEVICES=''."


def _rows(fields: str) -> list[list[str]]:
    """Return each visible GPU's values of the given `nvidia-smi` fields; an empty list if
    `nvidia-smi` fails.
    """
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command += ["-i", visible]
    try:
        printed = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in printed.splitlines()]


def _reason(driver: str) -> str:
    """Return the reason why torch cannot use this machine's GPUs with the given release of the
    driver, such as one that is too old, and what the user can install or update.
    """
    import torch

    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} is built without CUDA: install a build with CUDA that "
            f"suits driver {driver}."
        )
    error = "torch names no reason"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as raised:
        error = str(raised).partition("\n")[0].rstrip(".")
    return (
        f"torch {torch.__version__} for CUDA {torch.version.cuda} cannot use them with driver "
        f"{driver} ({error}): update the driver, or install {_OLDER_BUILD}."
    )


def _refuse_too_old(capabilities: list[list[str]]) -> None:
    """Raise ValueError if torch is not built for a GPU, given the name and the compute capability
    of each.
    """
    import torch

    matches = (re.fullmatch(r"sm_(\d+)[a-z]?", name) for name in torch.cuda.get_arch_list())
    oldest = min((int(match[1]) for match in matches if match), default=0)
    too_old = {
        f"{name} ({capability})"
        for name, capability in capabilities
        if re.fullmatch(r"\d+\.\d", capability) and int(capability.replace(".", "")) < oldest
    }
    if too_old:
        raise ValueError(
            f"{platform.node()} has GPUs that are too old for torch {torch.__version__}, which "
            f"needs compute capability {oldest // 10}.{oldest % 10} or more: "
            f"{', '.join(sorted(too_old))}. Install {_OLDER_BUILD}. {_ON_THE_CPU}"
        )


if __name__ == "__main__":
    try:
        num_gpus("auto")
    except ValueError as problem:
        sys.exit(str(problem))
