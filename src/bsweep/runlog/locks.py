"""Claims (locks), each of which only one process can hold, so that for example only one sweep runs
a point.

A claim is a file lock, which ends with its process. On a file system without locks it is a lease:
a file that the owner touches regularly.

The package filelock (version 4.2) would not replace this module: its file lock falls back to a
marker that may outlive a dead host, not to its lease.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from bsweep.core import terminal
from bsweep.core.regular_files import create_regular, open_regular
from bsweep.runlog.files import write_json
from bsweep.runlog.reading import Damaged, read_json
from bsweep.runlog.shared_clock import file_system_time

logger = terminal.logger(__name__)

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0
"""The seconds without a heartbeat after which a lease's owner seems dead.

A process that wants the lease watches it for two more heartbeats first. An owner on this host also
seems dead once its process has ended.
"""
_SETTLE_SECONDS = (
    1.0  # All processes that found a lease stale at the same time have written theirs by then.
)
_TRY_SECONDS, _MOST_TRIES = 0.05, 200

_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_SAID: set[Path] = set()


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Try to claim the file `path`; yield True if this process now holds the claim, else False.

    The claim ends with the context. If the process is killed, a file lock ends at once, and a lease
    on another host when its owner seems dead.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with create_regular(path) as lock:
        try:
            is_ours = _try_lock(lock)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _say_once(path.parent)
        else:
            yield is_ours
            return
    with _leased(path.with_name(f"{path.name}.lease")) as is_ours:
        yield is_ours


@contextmanager
def held(path: Path, otherwise: str) -> Iterator[None]:
    """Hold the claim of a file inside the `with` block; if another process holds the claim, try
    again for some seconds.

    A process that checks whether the file is claimed holds it for a moment.

    Args:
        path: The file.
        otherwise: The end of the message if another process still holds the claim.

    Raises:
        OSError: If another process still holds the claim.
    """
    for _ in range(_MOST_TRIES):
        with claimed(path) as is_ours:
            if is_ours:
                yield
                return
        time.sleep(_TRY_SECONDS)
    raise OSError(f"another process holds {path}: {otherwise}")


def is_claimed(path: Path) -> bool:
    """Return True if any process holds the claim of the file `path`; a lease whose owner seems dead
    does not count.

    This function leaves nothing on the disk, but for a moment nobody else can take the claim.
    """
    try:
        with open_regular(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        lease = path.with_name(f"{path.name}.lease")
        return error.errno in _NO_LOCKS and lease.exists() and not _is_stale(lease)
    return False


def _try_lock(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _say_once(folder: Path) -> None:
    if folder not in _SAID:
        _SAID.add(folder)
        logger.warning(
            f"bsweep: {folder}: this file system has no locks (flock), so processes claim points "
            "by lease files. When a process dies on another host, its points are free about "
            f"{STALE_SECONDS + 2 * HEARTBEAT_SECONDS:.0f} s later."
        )


@contextmanager
def _leased(path: Path) -> Iterator[bool]:
    lease = {
        "host": platform.node(),
        "pid": os.getpid(),
        "claimed_at": time.time(),
    }
    if not _take(path, lease):
        yield False
        return
    is_over = threading.Event()
    heart = threading.Thread(target=_beat, args=(path, lease, is_over), daemon=True)
    heart.start()
    try:
        yield True
    finally:
        is_over.set()
        heart.join()
        if _read_lease(path) == lease:
            path.unlink(missing_ok=True)


def _take(path: Path, lease: dict[str, object]) -> bool:
    own = path.with_name(f".{path.name}.{lease['host']}.{lease['pid']}")
    write_json(own, lease)
    try:
        os.link(own, path)  # A link appears whole or not at all, and only one process succeeds.
    except FileExistsError:
        if _read_lease(path) == lease:  # NFS may lose the answer, and then repeats the request
            return True
        if not _is_stale(path, beats_to_watch=2):
            return False
        own.replace(path)
        time.sleep(_SETTLE_SECONDS)
        return _read_lease(path) == lease
    else:
        return True
    finally:
        own.unlink(missing_ok=True)


def _is_stale(path: Path, beats_to_watch: int = 0) -> bool:
    """Return True if the process that holds a lease seems to have ended.

    An owner on this host is dead if its process has ended. Any owner seems dead after a long time
    without a heartbeat.

    Clocks can mislead: if a clock is set, all leases look old until their next heartbeat. If a
    host's clock differs from the file system's, its leases always look old. So watch an old lease
    for `beats_to_watch` heartbeats before you take it over.
    """
    lease = _read_lease(path) or {}
    if (
        lease.get("host") == platform.node()
        and isinstance(lease.get("pid"), int)
        and not psutil.pid_exists(lease["pid"])
    ):
        return True
    try:
        last_beat = _touched_at(path)
        if abs(file_system_time(path.parent) - last_beat) <= STALE_SECONDS:
            return False
        time.sleep(beats_to_watch * HEARTBEAT_SECONDS)
        return _touched_at(path) == last_beat
    except FileNotFoundError:  # The owner has released it since.
        return True


def _touched_at(path: Path) -> float:
    # On a file system of several hosts, a file's times may be out of date until it is opened.
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_mtime


def _read_lease(path: Path) -> dict[str, Any] | None:
    with suppress(Damaged):
        return read_json(path)
    return None


def _beat(path: Path, lease: dict[str, object], is_over: threading.Event) -> None:
    """Touch the lease file `path` regularly until `is_over` is set; end this process if another
    process has taken the lease over.

    That happens if this process was suspended or cut off from the file system. It ends at once,
    because whatever it wrote would damage what the other process writes.
    """
    while not is_over.wait(HEARTBEAT_SECONDS):
        if _read_lease(path) not in (None, lease):
            logger.error(
                f"bsweep: {path}: another process has taken over this lease, probably because this "
                "process was suspended or cut off for too long. This process ends now; the same "
                "command runs what is left."
            )
            os._exit(1)
        with suppress(OSError):
            os.utime(path)
