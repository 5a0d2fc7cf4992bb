"""What computing devices have used in joules: GPUs by NVML, CPUs by RAPL; nothing where the
hardware does not say.

A GPU counts its own energy since its driver was loaded (`nvmlDeviceGetTotalEnergyConsumption`,
millijoules, from the Volta generation on). Intel and AMD CPUs count that of each package in
microjoules up to a largest value, after which they begin anew; Linux shows it under
`/sys/class/powercap`, to root alone on most systems. Of a package all processes of the machine are
counted, whichever run they belong to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_POWERCAP = Path("/sys/class/powercap")
_NVML = "libnvidia-ml.so.1"

Reading = dict[str, float]
"""Joules by counter."""


class Meter:
    """The energy that this worker answers for: its GPU's, or on CPUs its host's, which the first
    worker there counts.

    Args:
        device: what it computes on.
        counts_host: whether it is the first worker of its host.
    """

    def __init__(self, device: torch.device, *, counts_host: bool) -> None:
        self._ranges: Reading = {}
        self._read: Callable[[], Reading | None] = dict
        if device.type == "cuda":
            self._read = _gpu_counter(device)
        elif counts_host:
            packages = sorted(
                path for path in _POWERCAP.glob("intel-rapl:*") if path.name.count(":") == 1
            )
            self._ranges = _joules_of(packages, "max_energy_range_uj") or {}
            self._read = lambda: _joules_of(packages, "energy_uj")
        self._begun = self._read()
        self._left_out = 0.0

    def joules(self) -> float:
        """Since this meter was made, but for pauses; NaN where the hardware does not say it, 0 for
        a worker that answers for none.
        """
        return self._all_joules() - self._left_out

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is used within does not count; whoever calls it has a GPU's work done before, and at
        the end.
        """
        before = self._all_joules()
        yield
        self._left_out += self._all_joules() - before

    def _all_joules(self) -> float:
        begun, now = self._begun, self._read()
        if begun is None or now is None or begun.keys() != now.keys():
            return float("nan")
        used = {name: now[name] - begun[name] for name in now}
        return sum(
            each if each >= 0 else each + self._ranges.get(name, float("nan"))
            for name, each in used.items()
        )


def _joules_of(packages: list[Path], name: str) -> Reading | None:
    """What each package says in a file of its own; None where there is none, or it must not be
    read.
    """
    try:
        found = {package.name: int((package / name).read_text()) / 1e6 for package in packages}
    except (OSError, ValueError):
        return None
    return found or None


def _gpu_counter(device: torch.device) -> Callable[[], Reading | None]:
    """What reads a GPU's counter: that of its UUID, whatever number it has among those that are
    visible.
    """
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    handle = ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL(_NVML)
        is_found = nvml.nvmlInit_v2() == 0 and (
            nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0
        )
    except (OSError, AttributeError):
        is_found = False

    def read() -> Reading | None:
        millijoules = ctypes.c_ulonglong()
        if (
            not is_found
            or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)) != 0
        ):
            return None
        return {uuid: millijoules.value / 1e3}

    return read
