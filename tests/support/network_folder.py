"""A folder as several hosts see it on a network file system without locks: `flock` fails, and what
a process knows of a file or a folder is up to some seconds old.

As with NFS, a process sees a file as it is once it opens the file, and sees at once what it has
changed itself. Unlike with NFS, this holds for each process, not for each host: it is a harder
test.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import functools
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.running import ROOT, imported_first

_CHANGES = ("open", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "utime")


def variables(folder: Path, seconds: float, more: str = "") -> dict[str, str]:
    """Variables of processes that see a folder so.

    Args:
        folder: The folder.
        seconds: For how long a process believes what it knows.
        more: Python code that the processes run first.
    """
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\n"
        "from tests.support import network_folder\n"
        f"network_folder.begin({str(folder)!r}, {seconds})\n{more}"
    )
    return imported_first(folder)


def begin(folder: str, seconds: float) -> None:
    """Have this process see a folder so from now on."""
    known: dict[tuple[str, str], tuple[float, Any]] = {}
    plain_flock = fcntl.flock

    def inside(path: Any) -> str:
        """The whole path, or an empty text for what lies elsewhere."""
        if isinstance(path, int):
            return ""
        whole = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (pathlib would come back here)
        return whole if whole.startswith(folder) else ""

    def flock(file: Any, operation: int) -> None:
        number = file if isinstance(file, int) else file.fileno()
        if inside(os.readlink(f"/proc/self/fd/{number}")):  # noqa: PTH115
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        plain_flock(file, operation)

    def recalled(name: str, plain: Callable[..., Any], path: Any, **more: Any) -> Any:
        whole = "" if more.get("dir_fd") is not None else inside(path)
        if not whole:
            return plain(path, **more)
        until, found = known.get((name, whole), (0.0, None))
        if time.monotonic() > until:
            try:
                found = plain(path, **more)
            except FileNotFoundError as error:
                found = error
            known[name, whole] = time.monotonic() + seconds, found
        if isinstance(found, OSError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def forgetting(plain: Callable[..., Any], *paths: Any, **more: Any) -> Any:
        if any(name.endswith("dir_fd") and more[name] is not None for name in more):
            known.clear()
        for whole in filter(None, (inside(path) for path in paths[:2] if _is_path(path))):
            for name in ("stat", "lstat"):
                known.pop((name, whole), None)
            known.pop(("listdir", os.path.dirname(whole)), None)  # noqa: PTH120
        return plain(*paths, **more)

    def opened(plain: Callable[..., Any], path: Any, *rest: Any, **more: Any) -> Any:
        """What is opened is seen as it is, unless it was known not to be there."""
        mode = str(more.get("mode", rest[0] if rest else "r"))
        whole = inside(path)
        until, found = known.get(("stat", whole), (0.0, None))
        is_new = any(letter in mode for letter in "wax")
        if isinstance(found, OSError) and time.monotonic() < until and not is_new:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if is_new and not isinstance(path, int):
            return forgetting(plain, path, *rest, **more)
        known.pop(("stat", whole), None)
        return plain(path, *rest, **more)

    class Listing:
        """The entries of a folder of which this process has known for long."""

        def __init__(self, path: Any = ".") -> None:
            names = set(os.listdir(path)) if inside(path) else None  # noqa: PTH208 (as above)
            with plain_scandir(path) as entries:
                self._entries = iter([e for e in entries if names is None or e.name in names])

        def __enter__(self) -> Listing:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        close = __exit__

        def __iter__(self) -> Listing:
            return self

        def __next__(self) -> os.DirEntry[Any]:
            return next(self._entries)

    plain_scandir = os.scandir
    changed: Any = os
    for name in ("stat", "lstat", "listdir"):
        setattr(changed, name, functools.partial(recalled, name, getattr(os, name)))
    for name in _CHANGES:
        setattr(changed, name, functools.partial(forgetting, getattr(os, name)))
    plain_open = builtins.open
    io.open = builtins.open = functools.partial(opened, plain_open)
    changed.scandir, fcntl.flock = Listing, flock


def _is_path(value: Any) -> bool:
    return isinstance(value, str | bytes | os.PathLike)
