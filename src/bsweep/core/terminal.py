"""Functions for the terminal in which the user typed a command, and which the user may close while
the command runs.

Other functions show the command's log records on standard error.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import stat
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from bsweep.core.words import escaped

if TYPE_CHECKING:
    from rich.console import Console

    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # Python 3.10 cannot subscript it.

BAD_CONFIG, INTERRUPTED = 2, 130
"""The exit codes of a command that started nothing because its configuration is wrong, and of one
that a signal ended.
"""


def leave() -> None:
    """Redirect each standard stream that is a terminal or another character device to /dev/null.
    Writing to a closed terminal would fail.
    """
    for stream in range(3):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                _silence(stream)


def _silence(stream: int) -> None:
    """Redirect a stream, given its descriptor, to /dev/null. Python keeps what it could not write
    to a pipe that nobody reads, and would fail to write it at the end of the process, too.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, stream)
    os.close(nowhere)


is_interrupted = False
"""True once this process has received a signal that ends the command. The exception itself may be
lost: importing torch drops it at times.
"""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal that ends the command: record that it came, and raise KeyboardInterrupt.
    SIGHUP means that the terminal is gone.
    """
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
    """Repeat a KeyboardInterrupt that Python has dropped because it was raised in a destructor or a
    callback.

    The interrupt is sent again as SIGTERM, which is never ignored.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # Python would drop an exception in here too, so the signal comes a little later.
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(unraisable)


_PACKAGE = "bsweep"
"""The name of bsweep's logger, and of the handler that a command attaches to this logger."""


class Logger(_Adapter):
    """A logger that stays enabled when another library configures logging.

    `logging.config` disables all loggers that exist, unless it is told not to. Hydra and Alembic
    use it, and a user's own code may do so. A program that imports bsweep may set the level of the
    logger "bsweep".
    """

    def isEnabledFor(self, level: int) -> bool:
        self.logger.disabled = False
        return super().isEnabledFor(level)


def logger(name: str) -> Logger:
    """Return the logger of the module with this `__name__`."""
    return Logger(logging.getLogger(name), {})


def set_up_logging() -> None:
    """Show bsweep's log records of the level INFO and above on standard error.

    Only the process of a command calls this; a library leaves logging to the program that uses it.
    A repeated call changes nothing.
    """
    package = logging.getLogger(_PACKAGE)
    package.handlers = [handler for handler in package.handlers if handler.get_name() != _PACKAGE]
    package.addHandler(_StandardError())
    package.setLevel(logging.INFO)
    package.propagate = False  # or a handler of the root logger would repeat each record


@functools.cache
def console() -> Console:
    """Return rich's console for standard error, on which displays of progress appear and, on a
    terminal, log records.

    The console looks up `sys.stderr` at each write. It falls silent, instead of ending the process,
    if nobody reads its output any more.
    """
    # Imported here because worker processes import this module, too.
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            _silence(self.file.fileno())

    return Quiet(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


class _StandardError(logging.Handler):
    """A logging handler that writes each message to standard error, without a time or a level, and
    with unsafe characters escaped: a message may quote names of files and what a program says.

    On a terminal, the message goes above the display of progress, if there is one. In a file or a
    pipe, rich would replace tabs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_name(_PACKAGE)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = escaped(self.format(record))
            # The stream of a display of progress is never a terminal before rich 15.
            if getattr(sys.stderr, "rich_proxied_file", sys.stderr).isatty():
                from rich.text import Text

                console().print(Text(message))
            else:
                print(message, file=sys.stderr, flush=True)
        except BrokenPipeError:
            _silence(sys.stderr.fileno())
        except Exception:
            self.handleError(record)
