"""GPUs of this machine: how many a process may use, and what to do where torch can use none of
them.

`python -m bsweep.core.gpus` says so and fails, before a set-up takes its minutes.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bsweep.core.words import counted


@functools.cache
def num_gpus(device: str) -> int:
    """GPUs that this process may use where `device=` says so; torch is imported only where there is
    a driver.

    Raises:
        ValueError: there are some, and the installed torch can use none of them, or not all.
    """
    if device == "cpu" or (shutil.which("nvidia-smi") is None and not _DEVICE.exists()):
        return 0
    import torch

    # The driver's library counts them, also for a torch that they are too old for.
    count = torch.cuda.device_count()
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return 0
    listed = _listed("name,driver_version")
    if torch.cuda.is_available():
        _refuse_too_old(_listed("name,compute_cap"))
    elif count or listed or _DEVICE.exists():
        raise ValueError(
            f"{_counted(max(1, count, len(listed)), listed)}, but {_reason(listed)} {_ON_THE_CPU}"
        )
    return count


def driver_version() -> str | None:
    """The release of the loaded driver, such as 580.65.06."""
    try:
        found = re.search(r"Module.*?\s(\d+\.[\d.]+)", _DRIVER.read_text())
    except OSError:
        return None
    return found[1] if found else None


_DRIVER = Path("/proc/driver/nvidia/version")
_DEVICE = Path("/dev/nvidia0")
_OLDER_BUILD = (
    "torch's build for CUDA 12.6 (for drivers from 525 and GPUs from compute capability 5.0 on)"
)
_ON_THE_CPU = (
    "To train on the CPU all the same, set device=cpu, or hide them: CUDA_VISIBLE_DEVICES=''."
)
# By CUDA's major version; NVIDIA: CUDA Compatibility, minor version compatibility.
_OLDEST_DRIVERS = {
    12: 525,
    13: 580,
}


def _listed(fields: str) -> list[list[str]]:
    """What `nvidia-smi` says of each GPU that is not hidden; nothing where it does not know."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        found = subprocess.run(
            [*command, "-i", visible] if visible else command,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in found.stdout.splitlines()]


def _counted(count: int, listed: list[list[str]]) -> str:
    names = f" ({', '.join(sorted({gpu[0] for gpu in listed}))})" if listed else ""
    return f"{platform.node()} has {counted(count, 'GPU')}{names}"


def _reason(listed: list[list[str]]) -> str:
    """Why torch can use no GPU, and what to install."""
    import torch

    build, cuda = f"torch {torch.__version__}", torch.version.cuda
    driver = listed[0][1] if listed else "unknown"
    if cuda is None:
        return f"{build} is built without CUDA: install a build with it that suits driver {driver}."
    oldest = _OLDEST_DRIVERS.get(int(cuda.split(".")[0]))
    if oldest and re.match(r"\d", driver) and int(driver.split(".")[0]) < oldest:
        return (
            f"their driver {driver} is too old for {build}, which is built for CUDA {cuda} and "
            f"needs {oldest} or newer: update the driver, or install {_OLDER_BUILD}."
        )
    try:
        torch.cuda.init()
        said = "it names no reason"
    except (RuntimeError, AssertionError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
    return (
        f"{build} for CUDA {cuda} cannot use them with driver {driver} ({said}): repair or update "
        "the driver."
    )


def _refuse_too_old(listed: list[list[str]]) -> None:
    import torch

    built_for = [
        int(found[1])
        for sm in torch.cuda.get_arch_list()
        if (found := re.fullmatch(r"sm_(\d+)[a-z]?", sm))
    ]
    known = [(name, re.fullmatch(r"(\d+)\.(\d)", capability)) for name, capability in listed]
    too_old = {
        f"{name} ({found[0]})"
        for name, found in known
        if found and int(found[1] + found[2]) < min(built_for)
    }
    if too_old:
        oldest = min(built_for)
        raise ValueError(
            f"{platform.node()} has GPUs of compute capability below {oldest // 10}.{oldest % 10}, "
            f"with which torch {torch.__version__} begins: {', '.join(sorted(too_old))}. Install "
            f"{_OLDER_BUILD}. {_ON_THE_CPU}"
        )


if __name__ == "__main__":
    try:
        num_gpus("auto")
    except ValueError as problem:
        sys.exit(str(problem))
