"""The terminal in which a command was typed, which may be closed while the command runs."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import NoReturn

BAD_CONFIG, INTERRUPTED = 2, 130
"""Exit codes: for a wrong configuration, with which nothing was started, and after a signal."""


def leave() -> None:
    """Redirect the standard streams to nowhere, except those that are files. Writing to a closed
    terminal would fail.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)


is_interrupted = False
"""True once a signal has come that ends the command. The exception itself may be lost: importing
torch drops it at times.
"""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal that ends the command. SIGHUP means that the terminal is gone."""
    global is_interrupted
    is_interrupted = True
    if number == signal.SIGHUP:
        leave()
    signal.default_int_handler(number, frame)


def end_with_reader() -> None:
    """Make this process end quietly, as `cat` does, when nobody reads its output any more. Only a
    process that just prints may call this function.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that came in a destructor or a callback, where Python drops exceptions.

    The interrupt is sent again as SIGTERM, which is never ignored.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # Python would drop an exception in here too, so the signal comes a little later.
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(unraisable)
