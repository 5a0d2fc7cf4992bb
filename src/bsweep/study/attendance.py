"""Lock files that show which sweeps, on any host, are at work in a study, and which points they
run.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bsweep.core import terminal
from bsweep.runlog.files import RunPaths
from bsweep.runlog.locks import claimed, is_claimed

logger = terminal.logger(__name__)

_POLL_SECONDS = 0.5
_STOP = ".stop"
_PREFLIGHT_SECONDS = 3600.0  # after which no host answers any more
_TRY_SECONDS, _MOST_TRIES = 0.05, 200
_NEW_SECONDS = 60.0  # within which a new sweep claims its name


def claim_of_run(folder: Path) -> Path:
    """Return the path of the file that a process locks before it touches the folder of a run."""
    return folder.parent / ".locks" / folder.name


def is_run_claimed(folder: Path) -> bool:
    """Return True if a process runs the point of a folder, even if somebody has removed the
    study's folder of locks since.
    """
    return is_claimed(claim_of_run(folder)) or is_claimed(RunPaths(folder).claim)


@contextmanager
def run_claimed(folder: Path) -> Iterator[bool]:
    """Yield True if this process alone may touch the folder of a run; False if another process
    runs the point.
    """
    with claimed(claim_of_run(folder)) as is_ours:
        yield is_ours and not is_claimed(RunPaths(folder).claim)


def folder_locked(folder: Path) -> ExitStack:
    """Lock a run's folder itself, until the returned context ends.

    Raises:
        OSError: If another process holds the lock, which it got because somebody removed the
            study's folder of locks.
    """
    return _own_claim(RunPaths(folder).claim, "another sweep runs this point")


class Attendance:
    """The registration of this process as a sweep in each study whose points it runs.

    Others can see that it works there, and can ask it to stop.
    """

    def __init__(self) -> None:
        self._claims: dict[Path, ExitStack] = {}
        self._has_left = threading.Event()

    def join(self, study_dir: Path) -> None:
        """Register this process as a sweep that is at work in a study.

        From then on, a request to stop the sweep sends SIGTERM to this process.
        """
        path = _sweeps(study_dir) / f"{platform.node()}.{os.getpid()}"
        if path in self._claims:
            return
        _forget_killed(study_dir)
        _request(path).unlink(missing_ok=True)  # left by a killed sweep with the same process id
        self._claims[path] = _own_claim(
            path, "check whether another sweep has the same host name and process id"
        )
        if len(self._claims) == 1:
            self._has_left.clear()
            threading.Thread(target=self._listen, daemon=True).start()

    def leave(self) -> None:
        self._has_left.set()
        while self._claims:
            path, claim = self._claims.popitem()
            claim.close()
            for left in (path, _request(path)):
                left.unlink(missing_ok=True)

    def _listen(self) -> None:
        while not self._has_left.wait(_POLL_SECONDS):
            for path in list(self._claims):
                if _request(path).exists():
                    logger.info(f"bsweep: asked to stop by `bsweep stop {path.parents[1]}`")
                    # SIGINT is ignored in the background of a shell's script.
                    os.kill(os.getpid(), signal.SIGTERM)
                    return


def _own_claim(path: Path, otherwise: str) -> ExitStack:
    """Claim a lock file that no other process should want, and return the claim. Try again for some
    seconds while another process holds the file.

    A process that checks whether the file is held holds it for a moment.

    Args:
        path: The lock file.
        otherwise: The end of the message if another process still holds the file.

    Raises:
        OSError: If another process still holds the file.
    """
    for _ in range(_MOST_TRIES):
        claim = ExitStack()
        if claim.enter_context(claimed(path)):
            return claim
        claim.close()
        time.sleep(_TRY_SECONDS)
    raise OSError(f"another process holds the lock on {path}: {otherwise}")


def sweeps(study_dir: Path) -> list[str]:
    """Return the sweeps at work in a study, each as "HOST.PROCESS_ID"."""
    with suppress(OSError):
        return [path.name for path in _attending(study_dir) if is_claimed(path)]
    return []


def ask_to_stop(study_dir: Path, sweep: str) -> None:
    _request(_sweeps(study_dir) / sweep).touch()


def _attending(study_dir: Path) -> list[Path]:
    return sorted(
        path for path in _sweeps(study_dir).glob("[!.]*") if path.suffix not in (_STOP, ".lease")
    )


def _forget_killed(study_dir: Path) -> None:
    """Remove the files that killed sweeps have left behind in a study's folder."""
    for path in _attending(study_dir):
        with suppress(FileNotFoundError):
            is_old = time.time() - path.stat().st_mtime > _NEW_SECONDS
            if is_old and not is_claimed(path):
                path.unlink()
                _request(path).unlink()
    if not sweeps(study_dir):
        for folder in study_dir.glob(".team.*"):
            shutil.rmtree(folder, ignore_errors=True)
    # Preflight folders belong to processes that have not registered as a sweep, or never will.
    for folder in study_dir.glob(".preflight.*"):
        with suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _PREFLIGHT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
    for left in study_dir.glob(f"[!.]*/{RunPaths(study_dir).environment.name}"):  # may hold secrets
        if not is_run_claimed(left.parent):
            left.unlink(missing_ok=True)


def _sweeps(study_dir: Path) -> Path:
    return study_dir / ".sweeps"


def _request(path: Path) -> Path:
    return path.with_name(path.name + _STOP)
