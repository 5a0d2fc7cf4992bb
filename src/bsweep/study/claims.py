"""The claims by which sweeps, on any host, show in which studies they are at work and which points
they run.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def registered(study_dir: Path) -> Iterator[None]:
    """Register this process inside the `with` block as a sweep that is at work in a study.

    Others can see it there, and a request to stop the sweep sends SIGTERM to this process.

    Raises:
        OSError: If nothing can be written there, or another sweep has this name.
    """
    _forget_killed(study_dir)
    claim = study_dir / ".sweeps" / f"{platform.node()}.{os.getpid()}"
    request, has_ended = _request(claim), threading.Event()
    request.unlink(missing_ok=True)  # left by a killed sweep with the same process id
    with held(claim, "check whether another sweep has the same host name and process id"):
        threading.Thread(target=_listen, args=(request, has_ended), daemon=True).start()
        try:
            yield
        finally:
            has_ended.set()
            for path in (claim, request):
                path.unlink(missing_ok=True)


def _listen(request: Path, has_ended: threading.Event) -> None:
    while not has_ended.wait(_POLL_SECONDS):
        if request.exists():
            logger.info(f"bsweep: asked to stop by `bsweep stop {request.parents[1]}`")
            request.unlink(missing_ok=True)  # the next one ends the workers at once
            # SIGINT is ignored in the background of a shell's script.
            os.kill(os.getpid(), signal.SIGTERM)


def sweeps(study_dir: Path) -> list[str]:
    """Return the sweeps at work in a study, each as "HOST.PROCESS_ID"."""
    with suppress(OSError):
        return [path.name for path in _registrations(study_dir) if is_claimed(path)]
    return []


def ask_to_stop(study_dir: Path, sweep: str) -> None:
    _request(study_dir / ".sweeps" / sweep).touch()


def _registrations(study_dir: Path) -> list[Path]:
    paths = (study_dir / ".sweeps").glob("[!.]*")
    return sorted(path for path in paths if path.suffix != _STOP)


def _forget_killed(study_dir: Path) -> None:
    """Remove files that killed sweeps have left behind in a study's folder, such as the files by
    which they registered.
    """
    for path in _registrations(study_dir):
        with suppress(FileNotFoundError):
            if _age(path) > _NEW_SECONDS and not is_claimed(path):
                path.unlink()
                _request(path).unlink()
    if not sweeps(study_dir):
        for folder in study_dir.glob(".team.*"):
            shutil.rmtree(folder, ignore_errors=True)
    # Preflight folders belong to processes that have not registered as a sweep, or never will.
    for folder in study_dir.glob(".preflight.*"):
        with suppress(FileNotFoundError):
            if _age(folder) > _PREFLIGHT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
    for path in study_dir.glob(f"[!.]*/{RunPaths(study_dir).environment.name}"):  # may hold secrets
        if not is_run_claimed(path.parent):
            path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Return the seconds since a file or folder was changed, by the clock of its file system."""
    return file_system_time(path.parent) - path.stat().st_mtime


def _request(registration: Path) -> Path:
    return registration.with_name(registration.name + _STOP)
