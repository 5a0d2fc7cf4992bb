"""The decision how long to wait for the processes of a point, from a clock and facts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.launch import ssh

_GRACE_SECONDS = 10  # the time for processes on other hosts to notice a failed one


@dataclass(frozen=True)
class Seen:
    """The facts that the launcher saw at one look at the processes of a point."""

    seconds: float
    """The time of the look, in seconds of a clock that nobody sets."""
    codes: Sequence[int | None]
    """The exit code of each command; None for a command that runs."""
    signs_of_life: Mapping[int, float]
    """The file time of each rank's last sign of life; 0 before the first sign."""
    recorded_at: float
    """The file time of the run's last record."""
    has_recorded_end: Callable[[], bool]
    """Return True if the workers recorded how the run ended; this reads all records."""


class Waiting:
    """The wait for the processes of a point; `is_over` decides at each look whether it ends.

    Args:
        config: The point.
        launched_at: The file time of the records at the launch, when no worker has written any.
        seconds: The time of the launch, by the clock of `Seen.seconds`.
    """

    def __init__(self, config: RunConfig, launched_at: float, seconds: float) -> None:
        assert isinstance(config.launch, ProcessesConfig), config.launch
        self._config, self._card = config, config.launch
        self._launched_at = self._last_sign = launched_at
        self._last_sign_at = seconds
        self._failed_at: float | None = None
        self.timeout: str | None = None
        """A message on what took too long, once the wait is over because of that."""

    def is_over(self, seen: Seen) -> bool:
        """Return True if the launcher must not wait any longer.

        Call this method while a command runs. The wait is over if the grace period after a failure
        has passed, if the workers that still run were given up by the others, or after a time-out.
        """
        if self._failed_at is None and self._has_failed(seen):
            self._failed_at = seen.seconds
        if self._failed_at is not None:
            grace = _seconds_after_failure(self._card, seen.codes)
            return seen.seconds - self._failed_at > grace
        sign = max(seen.recorded_at, *seen.signs_of_life.values())
        if sign != self._last_sign:
            self._last_sign, self._last_sign_at = sign, seen.seconds
        silent_seconds = seen.seconds - self._last_sign_at
        is_long = silent_seconds > _seconds_after_end(self._config)
        if self._outlives_workers and is_long and seen.has_recorded_end():
            return True
        self.timeout = self._timeout(silent_seconds, seen)
        return self.timeout is not None

    @property
    def _has_begun(self) -> bool:
        return self._last_sign != self._launched_at

    @property
    def _outlives_workers(self) -> bool:
        return self._config.strategy.can.outlives_workers

    def _has_failed(self, seen: Seen) -> bool:
        """Return True if a command failed that the others cannot do without."""
        if not any(seen.codes):
            return False
        # The first command hosts the store through which workers meet, so they cannot outlive it.
        if not (self._outlives_workers and self._has_begun) or seen.codes[0]:
            return True
        return seen.has_recorded_end()  # the other commands wait for the lost host

    def _timeout(self, silent_seconds: float, seen: Seen) -> str | None:
        launch = self._card
        if not self._has_begun and silent_seconds > launch.start_timeout_seconds:
            return (
                "the workers were not ready after "
                f"launch.start_timeout_seconds={launch.start_timeout_seconds}"
            )
        if self._has_begun and silent_seconds > launch.stall_timeout_seconds:
            signs = seen.signs_of_life
            first = self._config.process_name(min(signs, key=lambda rank: signs[rank]))
            limit = f"launch.stall_timeout_seconds={launch.stall_timeout_seconds}"
            return f"no sign of life for {limit}; the first to fall silent was {first}"
        return None


def _seconds_after_failure(launch: ProcessesConfig, codes: Sequence[int | None]) -> float:
    """Return how many seconds the other commands have to end after the first one failed.

    If ssh lost a host, the time is long enough for ssh to give up further hosts lost with it.
    """
    grace = min(_GRACE_SECONDS, launch.stall_timeout_seconds / 6)
    return max(grace, ssh.interval_seconds(launch) + 1) if ssh.EXIT_CODE in codes else grace


def _seconds_after_end(config: RunConfig) -> float:
    """Return how many seconds the remaining processes have to end after the run has ended.

    This is at most the time that workers wait for a sign of life of each other.
    """
    return min(_GRACE_SECONDS, config.strategy.patience_seconds)
