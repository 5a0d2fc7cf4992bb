"""Claims (file locks), each of which only one process can hold, so that for example only one sweep
runs a point.

The package filelock (version 4.2) would not replace this module: on a file system without locks, it
falls back to a marker that may outlive a dead host.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from bsweep.runlog.files import RunPaths

_TRY_SECONDS, _MOST_TRIES = 0.05, 200
_CHECK_SECONDS, _MOST_CHECKS = 0.001, 50
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Try to claim the file `path`; yield True if this process now holds the claim, else False.

    The claim ends with the context, or at once if the process is killed.

    Raises:
        OSError: If the file cannot be opened, or its file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        for _ in range(_MOST_CHECKS):
            is_ours = _try_lock(lock)
            if is_ours or is_claimed(path):
                break
            time.sleep(_CHECK_SECONDS)  # a process that only checks the claim leaves it at once
        yield is_ours


def _try_lock(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise OSError(
            f"{Path(lock.name).parent}: this file system has no locks (flock), by which bsweep "
            "keeps processes apart. Give a folder on another file system",
        ) from None
    return True


@contextmanager
def held(path: Path, otherwise: str) -> Iterator[None]:
    """Hold the claim of a file inside the `with` block; if another process holds the claim, try
    again for some seconds.

    Args:
        path: The file.
        otherwise: The end of the message if another process still holds the claim.

    Raises:
        OSError: If another process still holds the claim, or as in `claimed`.
    """
    for _ in range(_MOST_TRIES):
        with claimed(path) as is_ours:
            if is_ours:
                yield
                return
        time.sleep(_TRY_SECONDS)
    raise OSError(f"another process holds {path}: {otherwise}")


def worker_claimed(paths: RunPaths, rank: int) -> AbstractContextManager[None]:
    """Return a context that holds the claim of the process `rank` of a run, in which the process
    may write to the run's folder.

    Raises:
        OSError: As in `held`.
    """
    left = "an earlier process of this run still works; start the same sweep again later"
    return held(paths.worker_claim(rank), left)


def is_claimed(path: Path) -> bool:
    """Return True if any process holds the claim of the file `path`.

    This function leaves nothing on the disk. It holds a shared lock for a moment, for which
    `claimed` waits.
    """
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
