"""The terminal in which a command was typed, which may be closed while it runs."""

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
"""Exit codes: nothing was started; a signal ended the command."""


def leave() -> None:
    """Have what is said from now on go nowhere, unless it goes to a file: a closed terminal refuses
    it.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)


is_interrupted = False
"""A signal came that ends the command. What was called may have dropped the exception: torch's
import does at times.
"""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """What signals do that end the command; SIGHUP says that the terminal is gone."""
    global is_interrupted
    is_interrupted = True
    if number == signal.SIGHUP:
        leave()
    signal.default_int_handler(number, frame)


def end_with_reader() -> None:
    """Have this process, which only prints, end as `cat` does once nobody reads what it prints."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Have an interrupt arrive anew that came in a destructor or a callback, where Python drops
    what is raised.

    It does so as SIGTERM, which is never ignored.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # A little later: in here it would be dropped too.
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(unraisable)
