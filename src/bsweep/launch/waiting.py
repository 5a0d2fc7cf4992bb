"""The rule that decides how long a launcher waits for the processes of a point.

It depends only on a clock and on facts that the launcher passes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.launch import ssh
from bsweep.runlog import heartbeat

_GRACE_SECONDS = 10  # the time for processes on other hosts to notice a failed one
APART_SECONDS = 5
"""The seconds within which a launcher that runs looks at its processes again."""


class Waiting:
    """The wait of a launcher until the processes of a point end.

    The method `is_over` decides at each look at the processes whether the wait ends.

    Args:
        config: The point.
        launched_at: The file time of the records at the launch, before this launch's workers have
            written any.
        seconds: The time of the launch, by the monotonic clock.
    """

    def __init__(self, config: RunConfig, launched_at: float, seconds: float) -> None:
        assert isinstance(config.launch, ProcessesConfig), config.launch
        self._card = config.launch
        self._launched_at = self._last_sign = launched_at
        self._last_sign_at = self._looked_at = seconds
        self._failed_at: float | None = None
        self.timeout = ""
        """A message on what took too long, if a time-out has ended the wait; otherwise empty."""
        self.has_stalled = False
        """True if that time-out was for processes that had begun to train."""

    def is_over(self, seconds: float, codes: Sequence[int | None], sign: float) -> bool:
        """Return True if the launcher is to stop waiting for the processes of the point.

        Call this method while a command runs. The wait is over if the grace period after a failure
        has passed, or after a time-out.

        Args:
            seconds: The time at which the launcher looked at the processes, by the monotonic clock.
            codes: The exit code of each of the launcher's commands, such as torchrun; None for a
                command that still runs.
            sign: The sum of the times of the files by which workers show that they live. Any other
                sum is a sign of life, for the clock of the files may have been set back.
        """
        # The launcher was stopped meanwhile, perhaps with its machine: no silence of the workers.
        self._last_sign_at += max(0.0, seconds - self._looked_at - APART_SECONDS)
        self._looked_at = seconds
        if self._failed_at is None and any(codes):
            self._failed_at = seconds
        if self._failed_at is not None:
            grace = _seconds_after_failure(self._card, codes)
            return seconds - self._failed_at > grace
        if sign != self._last_sign:
            self._last_sign, self._last_sign_at = sign, seconds
        has_begun = self._last_sign != self._launched_at
        event, key = (
            ("no sign of life for", "stall_timeout_seconds")
            if has_begun
            else ("the workers were not ready after", "start_timeout_seconds")
        )
        limit = getattr(self._card, key)
        if seconds - self._last_sign_at <= limit:
            return False
        self.timeout, self.has_stalled = f"{event} launch.{key}={limit}", has_begun
        return True


def cause_of_stall(
    config: RunConfig,
    before: Mapping[int, str],
    after: Mapping[int, str],
    signs_of_life: Mapping[int, float],
) -> str:
    """Return a message that names the processes that seem to hold up a stalled point, found from
    each process's sign at two moments. The signs are those of `bsweep.runlog.heartbeat`.

    Args:
        config: The point.
        before: The sign of each process, by rank.
        after: Their signs a few seconds later.
        signs_of_life: The time at which each worker last showed that it lives. If the signs do not
            tell processes apart, the message names the worker whose time is the earliest.
    """
    alive = {rank for rank in after if before[rank] != after[rank]}
    frozen = after.keys() - alive
    works = {rank for rank in alive if after[rank].endswith(heartbeat.WORKS)}

    def names(ranks: Set[int]) -> str:
        return " and ".join(config.process_name(rank) for rank in sorted(ranks))

    if alive and frozen:
        return f"{names(frozen)} stopped, while the other processes still run"
    if works and alive - works:
        return f"the other processes wait for {names(works)}"
    earliest = min(signs_of_life.items(), key=lambda sign: sign[1])[0]
    return f"the first to fall silent was {names({earliest})}"


def _seconds_after_failure(launch: ProcessesConfig, codes: Sequence[int | None]) -> float:
    """Return how many seconds a launcher waits for its other commands to end after one of them has
    failed.

    If ssh lost a host, the time is long enough for ssh to give up further hosts lost with it.
    """
    grace = min(_GRACE_SECONDS, launch.stall_timeout_seconds / 6)
    return max(grace, ssh.interval_seconds(launch) + 1) if ssh.EXIT_CODE in codes else grace
