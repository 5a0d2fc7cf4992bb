"""Who is at work in a study: which points are being run, and by which sweeps, on whichever host."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from bsweep.runlog import RunPaths, claimed, is_claimed

_POLL_SECONDS = 0.5
_STOP = ".stop"
_PREFLIGHT_SECONDS = 3600.0  # in which hosts have answered
_TRY_SECONDS, _MOST_TRIES = 0.05, 200
_NEW_SECONDS = 60.0  # in which a sweep that has come claims its name


def claim_of_run(folder: Path) -> Path:
    """What is claimed by whoever runs the point of a folder."""
    return folder.parent / ".locks" / folder.name


class Attendance:
    """This process in the studies that it sweeps: there to be seen, and to be asked to stop."""

    def __init__(self) -> None:
        self._claims: dict[Path, ExitStack] = {}
        self._has_left = threading.Event()

    def join(self, study_dir: Path) -> None:
        """Be known as a sweep of a study. Who asks it to stop has it interrupted, as by SIGTERM."""
        path = _sweeps(study_dir) / f"{platform.node()}.{os.getpid()}"
        if path in self._claims:
            return
        _forget_killed(study_dir)
        _request(path).unlink(missing_ok=True)  # to a killed one, whose process had the same id
        self._claims[path] = _own_claim(path)
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
                    with suppress(OSError):  # of a terminal that is gone, or a reader
                        print(
                            f"bsweep: asked to stop by `bsweep stop {path.parents[1]}`",
                            file=sys.stderr,
                            flush=True,
                        )
                    # SIGINT is ignored in the background of a shell's script.
                    os.kill(os.getpid(), signal.SIGTERM)
                    return


def _own_claim(path: Path) -> ExitStack:
    """A claim that nobody else wants; who looks whether it is held, holds it for a moment."""
    for _ in range(_MOST_TRIES):
        claim = ExitStack()
        if claim.enter_context(claimed(path)):
            return claim
        claim.close()
        time.sleep(_TRY_SECONDS)
    raise OSError(
        f"{path} is held by another process: is another sweep using this host's name and process "
        "id?"
    )


def sweeps(study_dir: Path) -> list[str]:
    """The sweeps that are at work in a study: host and process id of each."""
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
    """Remove what sweeps left that could not leave by themselves."""
    for path in _attending(study_dir):
        with suppress(FileNotFoundError):
            is_old = time.time() - path.stat().st_mtime > _NEW_SECONDS
            if is_old and not is_claimed(path):
                path.unlink()
                _request(path).unlink()
    if not sweeps(study_dir):
        for folder in study_dir.glob(".team.*"):
            shutil.rmtree(folder, ignore_errors=True)
    # Of who is not yet known as a sweep, or never will be.
    for folder in study_dir.glob(".preflight.*"):
        with suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _PREFLIGHT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
    for left in study_dir.glob(f"[!.]*/{RunPaths(study_dir).environment.name}"):  # may hold secrets
        if not is_claimed(claim_of_run(left.parent)):
            left.unlink(missing_ok=True)


def _sweeps(study_dir: Path) -> Path:
    return study_dir / ".sweeps"


def _request(path: Path) -> Path:
    return path.with_name(path.name + _STOP)
