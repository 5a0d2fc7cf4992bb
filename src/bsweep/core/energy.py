"""A meter for the energy that computing devices use, in joules. GPUs report it through NVML, CPUs
through RAPL. There is no value where the hardware reports none.

A GPU counts its energy since its driver was loaded (`nvmlDeviceGetTotalEnergyConsumption`, in
millijoules, from the Volta generation on). Intel and AMD CPUs count the energy of each package in
microjoules. That counter starts again at zero after a largest value. Linux shows it under
`/sys/class/powercap`, on most systems only to root. A package's counter includes all processes of
the machine, even those of other runs.
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
"""A mapping from the name of each energy counter to the joules that the counter shows."""


class EnergyMeter:
    """A meter for the energy that one worker reports: the energy of its GPU or, on CPUs, the energy
    of all CPUs of its host. On CPUs only the first worker of each host reports energy.

    Args:
        device: The device on which the worker computes.
        counts_host: True if the worker is the first one of its host.
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
        """Return the joules used since this meter was created, without those used inside `with`
        blocks of the method `paused`. Return NaN if the hardware does not report them or a counter
        cannot be read, and 0 for a worker that counts nothing.
        """
        return self._all_joules() - self._left_out

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the energy that is used inside the `with` block out of the result of the method
        `joules`. The caller must wait for the GPU's work before the block and at its end.
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
            joules if joules >= 0 else joules + self._ranges.get(name, float("nan"))
            for name, joules in used.items()
        )


def _joules_of(packages: list[Path], name: str) -> Reading | None:
    """Return a mapping from each CPU package (socket) to the joules that its file `name`, such as
    `energy_uj`, shows. Return None if there is no package, or a file cannot be read.
    """
    try:
        joules = {package.name: int((package / name).read_text()) / 1e6 for package in packages}
    except (OSError, ValueError):
        return None
    return joules or None


def _gpu_counter(device: torch.device) -> Callable[[], Reading | None]:
    """Return a function that reads a GPU's energy counter, in joules, or returns None if it cannot.
    The GPU is found by its UUID, because its number depends on which GPUs are visible.
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
