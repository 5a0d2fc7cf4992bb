"""Lock files that show which sweeps, on any host, are at work in a study, and which points they
run.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bsweep.core import terminal
from bsweep.runlog.files import RunPaths
from bsweep.runlog.locks import claimed, held, is_claimed
from bsweep.runlog.shared_clock import file_system_time

logger = terminal.logger(__name__)

_POLL_SECONDS = 0.5
_STOP = ".stop"
_PREFLIGHT_SECONDS = 3600.0  # after which no host answers any more
_NEW_SECONDS = 60.0  # within which a new sweep claims its name


def claim_of_run(folder: Path) -> Path:
    """Return the path of the file that a sweep locks before it changes the folder of a run."""
    return folder.parent / ".locks" / folder.name


def is_run_claimed(folder: Path) -> bool:
    """Return True if a sweep runs the point of a run folder, or a worker that a killed sweep has
    left behind.
    """
    return is_claimed(claim_of_run(folder)) or has_workers(folder)


def has_workers(folder: Path) -> bool:
    """Return True if a worker or a parameter server of the run in `folder` still works."""
    return any(map(is_claimed, RunPaths(folder).worker_claims))


@contextmanager
def run_claimed(folder: Path) -> Iterator[bool]:
    """Yield True if this process alone may change the folder of a run; False if another process
    runs the point.
    """
    with claimed(claim_of_run(folder)) as is_ours:
        yield is_ours and not has_workers(folder)


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
        claim = ExitStack()
        claim.enter_context(
            held(path, "check whether another sweep has the same host name and process id")
        )
        self._claims[path] = claim
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


def sweeps(study_dir: Path) -> list[str]:
    """Return the sweeps at work in a study, each as "HOST.PROCESS_ID"."""
    with suppress(OSError):
        return [path.name for path in _attending(study_dir) if is_claimed(path)]
    return []


def ask_to_stop(study_dir: Path, sweep: str) -> None:
    _request(_sweeps(study_dir) / sweep).touch()


def _attending(study_dir: Path) -> list[Path]:
    return sorted(path for path in _sweeps(study_dir).glob("[!.]*") if path.suffix != _STOP)


def _forget_killed(study_dir: Path) -> None:
    """Remove files that killed sweeps have left behind in a study's folder, such as the files by
    which they registered.
    """
    for path in _attending(study_dir):
        with suppress(FileNotFoundError):
            is_old = file_system_time(path.parent) - path.stat().st_mtime > _NEW_SECONDS
            if is_old and not is_claimed(path):
                path.unlink()
                _request(path).unlink()
    if not sweeps(study_dir):
        for folder in study_dir.glob(".team.*"):
            shutil.rmtree(folder, ignore_errors=True)
    # Preflight folders belong to processes that have not registered as a sweep, or never will.
    for folder in study_dir.glob(".preflight.*"):
        with suppress(FileNotFoundError):
            if file_system_time(study_dir) - folder.stat().st_mtime > _PREFLIGHT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
    for left in study_dir.glob(f"[!.]*/{RunPaths(study_dir).environment.name}"):  # may hold secrets
        if not is_run_claimed(left.parent):
            left.unlink(missing_ok=True)


def _sweeps(study_dir: Path) -> Path:
    return study_dir / ".sweeps"


def _request(path: Path) -> Path:
    return path.with_name(path.name + _STOP)
