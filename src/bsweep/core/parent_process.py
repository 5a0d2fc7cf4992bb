"""Functions that end a process together with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def end_with_parent() -> None:
    """Make Linux send this process SIGTERM when its parent process ends, so that this process does
    not run on alone. Do nothing on other systems.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        _LIBC.prctl(pr_set_pdeathsig, signal.SIGTERM)


def end_with_launcher() -> None:
    """Exit if the process that started this one has already ended; otherwise make Linux end this
    process together with it.

    Raises:
        SystemExit: If the parent is not the process that the variable `LAUNCHER` names.
    """
    end_with_parent()
    if os.environ.get(LAUNCHER, parent := str(os.getppid())) != parent:
        raise SystemExit("bsweep: this process exits because the process that started it has ended")


LAUNCHER = "BSWEEP_LAUNCHER"
"""The environment variable with the id of the process that started a worker."""

_LIBC = ctypes.CDLL(None)  # loaded early: between fork and exec nothing may take a lock
