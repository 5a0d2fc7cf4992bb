"""The handling of signals such as Ctrl-C while a point trains: its workers save a checkpoint if
they can, and exit.

Workers that do not exit in time are ended.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from bsweep.config.run import RunConfig
from bsweep.core import signals, terminal
from bsweep.runlog.checkpoint_files import is_saving, is_stop_requested, request_stop
from bsweep.runlog.files import RunPaths

_GRACE_SECONDS = 30.0  # the time for a step to end and a checkpoint to begin
_LONG_AGO = float("-inf")


class Stopping:
    """A context around the training of a point, in which a signal or the run's file `stop` stops
    the run.

    A first signal asks the workers to save a checkpoint and stop, and a second one ends the run at
    once. The first signal also ends the run at once if nothing could be saved: no worker has begun
    to train, or `checkpoint_every=null`. Code inside the context may drop the KeyboardInterrupt, as
    imports of torch and numpy sometimes do, or may fail because of it. The next poll or the end of
    the context therefore raises it again.

    Args:
        config: The point.
        paths: Its run folder.
        say: Shows a line to the user.
    """

    def __init__(self, config: RunConfig, paths: RunPaths, say: Callable[[str], None]) -> None:
        self._can_save = config.checkpoint_every is not None
        self._paths, self._say = paths, say
        self._asked_at: float | None = None
        self._saving_at = 0.0  # when workers were last seen saving, or when they were asked to
        self._polled_at = _LONG_AGO
        self._grace_seconds = _GRACE_SECONDS
        # The file time of worker 0's last sign of life, and when this process saw it by its clock.
        self._sign: tuple[float, float] | None = None
        self._handling = signals.handled(self._on_signal)
        self.has_signal = False
        """True once a signal, and not only the run's file `stop`, has asked the run to stop."""

    def __enter__(self) -> Stopping:
        if terminal.is_interrupted:
            raise KeyboardInterrupt
        self._handling.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._handling.__exit__(None, None, None)
        if self._asked_at == _LONG_AGO and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error

    def poll(self) -> None:
        """Raise KeyboardInterrupt if the run must end now. A launcher calls this again and again.

        The run must end now if a signal asked for that. It must also end if it was asked to stop,
        by a signal or by its stop file, and has not been saving for as long as a step may take plus
        30 s (without `checkpoint_every`, at once). How long a checkpoint takes is not limited.
        """
        now = time.monotonic()
        if self._asked_at == _LONG_AGO:
            raise KeyboardInterrupt
        if now - self._polled_at < 1:
            return
        self._polled_at = now
        self._look_at_steps(now)
        if self._asked_at is None and is_stop_requested(self._paths):
            self._asked_at = self._saving_at = now
        if self._asked_at is None:
            return
        if is_saving(self._paths):
            self._saving_at = now
        if now - self._saving_at > self._grace_seconds * self._can_save:
            raise KeyboardInterrupt

    def _look_at_steps(self, now: float) -> None:
        """Measure how long worker 0's steps take, and set how long a stop waits for the current
        step to end.
        """
        with suppress(OSError):  # no worker has begun
            shown_at = self._paths.heartbeat(0).stat().st_mtime
            # Measure by the monotonic clock. File times come from a clock that may be changed.
            if not self._sign or self._sign[0] != shown_at:
                step_seconds = now - self._sign[1] if self._sign else 0.0
                self._grace_seconds = max(self._grace_seconds, _GRACE_SECONDS + step_seconds)
                self._sign = shown_at, now

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Ask the workers of the run to save a checkpoint and stop. End the run at once instead if
        it was asked before, nothing can be saved, or the workers cannot be asked.
        """
        if number == signal.SIGHUP:
            terminal.leave()
        self.has_signal = True
        reason = ""
        if self._asked_at is None and self._can_save and self._paths.heartbeat(0).exists():
            self._asked_at = self._saving_at = time.monotonic()
            try:
                request_stop(self._paths)
            except OSError as error:
                reason = f", for the workers cannot be asked to save: {error}"
            else:
                self._say(
                    "stopping: the workers save a checkpoint; send the signal again to end them at "
                    "once"
                )
                return
        self._asked_at = _LONG_AGO
        self._say(f"ending at once{reason}")
        raise KeyboardInterrupt
