"""The clock of a file system, which shows all hosts that share it the same time, however wrong
their own clocks are.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path


def file_system_time(folder: Path) -> float:
    """Return the Unix time in seconds by the clock of a folder's file system.

    If nothing can be written to the folder, return the time by this host's clock.
    """
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".now.") as file:
        return os.fstat(file.fileno()).st_mtime
    return time.time()
