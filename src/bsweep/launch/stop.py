"""Signals while a point trains: its workers save where they are and leave, and are ended if they do
not.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from bsweep.config import RunConfig
from bsweep.core import terminal
from bsweep.runlog import RunPaths, is_saving, is_stop_requested, request_stop

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = signal.SIGUSR2
"""With which SLURM tells submitit, which queues the job again, that its time is over: but first the
workers save.
"""
_GRACE_SECONDS = 30.0  # for a step to end, and a checkpoint to begin
_LONG_AGO = float("-inf")


class Stopping:
    """While it is entered, the first of these signals asks the run to stop, and the second ends it
    at once.

    The first one does so too where nothing could be saved: no worker has begun to train, or
    `checkpoint_every=null`. What is called may drop the KeyboardInterrupt, as imports of torch and
    numpy do at times, or fail by it: it is raised anew by the next poll, or where the block ends.
    Signals come to the main thread alone: those for a point that another thread runs are passed on
    by `Signals`.
    """

    def __init__(self, config: RunConfig, paths: RunPaths, say: Callable[[str], None]) -> None:
        self._can_save = config.checkpoint_every is not None
        self._paths, self._say = paths, say
        self._asked_at: float | None = None
        self._saving_at = 0.0  # the workers, or since when they should
        self._polled_at = float("-inf")
        self._grace_seconds = _GRACE_SECONDS
        self._shown_at: float | None = None  # when the first worker last did something, by its file
        self._seen_at = 0.0  # and when that was seen
        self._passes_on = False
        self._handlers: dict[int, Any] = {}
        self.has_signal = False
        """A signal came, whatever else asked the run to stop."""

    def __enter__(self) -> Stopping:
        if terminal.is_interrupted:
            raise KeyboardInterrupt
        if threading.current_thread() is threading.main_thread():  # signals come to no other
            self._handlers = {
                number: signal.getsignal(number) for number in (*_SIGNALS, _PASSED_ON)
            }
            for number, handler in self._handlers.items():
                if callable(handler):  # not where it is ignored
                    signal.signal(number, self._on_signal)
        else:
            _elsewhere.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self in _elsewhere:
            _elsewhere.remove(self)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._passes_on:
            signal.raise_signal(_PASSED_ON)
        if self._asked_at == _LONG_AGO and kind is not KeyboardInterrupt:
            raise KeyboardInterrupt from error

    def polled_with(self, poll: Callable[[], None]) -> Callable[[], None]:
        """Return what is to be called a few times a second.

        It raises KeyboardInterrupt once the run was asked to stop long ago, by a signal or by its
        file, and saves nothing. A checkpoint that is never finished is for the launcher to give up.
        """

        def both() -> None:
            poll()
            self._poll()

        return both

    def _poll(self) -> None:
        now = time.monotonic()
        if self._asked_at == _LONG_AGO:
            raise KeyboardInterrupt
        if now - self._polled_at < 1:
            return
        self._polled_at = now
        self._look_at_steps()
        if self._asked_at is None and is_stop_requested(self._paths):
            self._asked_at = self._saving_at = now
        if self._asked_at is None:
            return
        if is_saving(self._paths):
            self._saving_at = now
        if now - self._saving_at > self._grace_seconds * self._can_save:
            raise KeyboardInterrupt

    def _look_at_steps(self) -> None:
        """Have the time for a step be that of the longest one so far, if that is longer."""
        with suppress(OSError):  # no worker has begun
            shown_at, now = self._paths.alive(0).stat().st_mtime, time.monotonic()
            if shown_at != self._shown_at:  # times of files are of a clock that may be set
                if self._shown_at is not None:
                    self._grace_seconds = max(
                        self._grace_seconds, _GRACE_SECONDS + now - self._seen_at
                    )
                self._shown_at, self._seen_at = shown_at, now

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            terminal.leave()
        self._passes_on = self._passes_on or number == _PASSED_ON
        if not self.ask():
            raise KeyboardInterrupt

    @property
    def is_asked(self) -> bool:
        return self._asked_at is not None

    def ask(self) -> bool:
        """Ask the run to stop, for a signal; False if that is no time to ask, but it is to end at
        once.
        """
        self.has_signal = True
        if self._asked_at is not None or not self._can_save or not self._paths.alive(0).exists():
            self._asked_at = _LONG_AGO
            self._say("ending at once")
            return False
        self._asked_at = self._saving_at = time.monotonic()
        request_stop(self._paths)
        self._say("stopping: the workers save where they are; again, to end them at once")
        return True


# Of the process, as signals are: its main thread gets them for points that other threads run.
_elsewhere: list[Stopping] = []
_all_are_to_stop = threading.Event()


def seconds_before_retry(number: int) -> int:
    """Return how long to wait before the first try again, the second, ...: ten outlast a host that
    reboots.
    """
    return 60 if number > 6 else 1 << (number - 1)


def pause(seconds: float) -> None:
    """Wait while nothing of a point runs; KeyboardInterrupt where it is to stop, in whichever
    thread.
    """
    if _all_are_to_stop.wait(seconds):
        raise KeyboardInterrupt


class Signals:
    """While it is entered, signals are for all points that other threads run; none comes unless in
    the main thread.
    """

    def __init__(self) -> None:
        self.have_come = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        # Not in that of a notebook's executor, say.
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in self._handlers.items():
            if callable(handler):
                signal.signal(number, self._pass_on)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        _all_are_to_stop.clear()

    def look_after(self) -> None:
        """To be called a few times a second: a point may have been about to begin when the others
        were asked.
        """
        if self.have_come:
            for stopping in _elsewhere.copy():
                if not stopping.is_asked:
                    stopping.ask()

    def ask_all(self) -> None:
        """Ask all points to stop, as the next signal would."""
        self.have_come = True
        _all_are_to_stop.set()
        for stopping in _elsewhere.copy():
            stopping.ask()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            terminal.leave()
        self.ask_all()


def leave_it_to_first_worker() -> None:
    """Have this process take the first signal as one that another has got too, which decides what
    is to be done.
    """

    def ignore_once(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.default_int_handler)

    for each in _SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, ignore_once)
