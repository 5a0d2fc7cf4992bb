"""How long the launcher waits for a point's processes: decided by a clock and facts, without any
process.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bsweep.launch.waiting import Waiting, cause_of_stall
from tests.support.running import TINY, compose

LAUNCHED_AT = 1000.0  # the file time of the records when the point was launched


def waiting(*overrides: str) -> Waiting:
    config = compose("local_batch=8", "num_workers=2", "model=tiny_cnn", *TINY, *overrides)
    return Waiting(config, LAUNCHED_AT, 0.0)


def seen(
    seconds: float,
    codes: Sequence[int | None] = (None,),
    signs: Sequence[float] = (0.0, 0.0),
) -> tuple[float, Sequence[int | None], float]:
    """A look after `seconds`; `signs` are the file times of the ranks' last signs of life."""
    return seconds, codes, LAUNCHED_AT + sum(signs)


def watched(wait: Waiting, first: float, last: float, signs: Sequence[float] = (0.0, 0.0)) -> bool:
    """Whether the wait is over when the launcher has looked from `first` to `last`."""
    seconds = first
    while seconds < last:
        assert not wait.is_over(*seen(seconds, signs=signs))
        seconds += 4
    return wait.is_over(*seen(last, signs=signs))


def seconds_until_over(wait: Waiting, first: float, codes: Sequence[int | None]) -> float:
    """The seconds after `first` at which the wait is over, by steps of a quarter of a second."""
    seconds = first
    while not wait.is_over(*seen(seconds, codes)):
        seconds += 0.25
        assert seconds < 1000
    return seconds - first


def test_workers_that_never_begin_are_a_timeout_of_the_start() -> None:
    wait = waiting("strategy=ddp", "launch.start_timeout_seconds=60")
    assert not watched(wait, 0, 60)
    assert wait.is_over(*seen(60.1))
    assert wait.timeout
    assert "launch.start_timeout_seconds=60" in wait.timeout


def test_time_in_which_the_launcher_was_stopped_itself_is_no_silence() -> None:
    wait = waiting("strategy=ddp", "launch.stall_timeout_seconds=40")
    assert not watched(wait, 50, 60, (1049.0, 1048.0))
    assert not wait.is_over(*seen(1000, signs=(1049.0, 1048.0))), "the workers were stopped, too"
    assert not watched(wait, 1001, 1025, (1049.0, 1048.0)), "10 + 5 + 25 s"
    assert wait.is_over(*seen(1025.1, signs=(1049.0, 1048.0)))
    assert wait.has_stalled
    assert wait.timeout == "no sign of life for launch.stall_timeout_seconds=40"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("5 waits", "3 waits"), ("9 waits", "3 waits"), "rank 1 stopped, while the other"),
        (("5 waits", ""), ("9 waits", ""), "rank 1 stopped, while the other"),
        (("5 works", "7 waits"), ("9 works", "8 waits"), "the other processes wait for rank 0"),
        (("5 waits", "7 waits"), ("9 waits", "8 waits"), "the first to fall silent was rank 1"),
        (("5 works", "7 works"), ("9 works", "8 works"), "the first to fall silent was rank 1"),
        (("", ""), ("", ""), "the first to fall silent was rank 1"),
    ],
)
def test_a_stall_is_blamed_on_what_stopped_and_not_on_what_waits_for_it(
    before: Sequence[str], after: Sequence[str], said: str
) -> None:
    config = compose("local_batch=8", "num_workers=2", "strategy=ddp", *TINY)
    first, second = (dict(enumerate(signs)) for signs in (before, after))
    cause = cause_of_stall(config, first, second, {0: 1049.0, 1: 1048.0})
    assert cause.startswith(said)


def test_a_sign_of_life_counts_even_after_a_clock_was_set_back() -> None:
    wait = waiting("strategy=ddp", "launch.stall_timeout_seconds=40")
    assert not watched(wait, 50, 53, (1050.0, 1050.0))
    assert not watched(wait, 54, 89, (1050.0, 500.0))
    limits = ("launch.stall_timeout_seconds=40", "launch.start_timeout_seconds=40")
    wait = waiting("strategy=ddp", *limits)
    assert not watched(wait, 0, 40)
    assert not watched(wait, 41, 80, (2000.0, 0.0))
    assert not watched(wait, 81, 120, (1500.0, 0.0))
    assert not watched(wait, 121, 160, (-600.0, 0.0)), "before the launch"
    assert not watched(wait, 161, 200, (-599.0, 0.0))


@pytest.mark.parametrize(("stall", "grace"), [(600, 10), (30, 5)])
def test_the_others_have_a_grace_period_after_the_first_failure(stall: int, grace: float) -> None:
    wait = waiting("strategy=ddp", f"launch.stall_timeout_seconds={stall}")
    assert seconds_until_over(wait, 5, [1, None]) == grace + 0.25
    assert not wait.timeout


def test_after_a_lost_connection_ssh_has_time_to_give_up_further_hosts() -> None:
    hosts = ("launch.hosts='localhost:1,h2:1'", "launch.stall_timeout_seconds=120")
    wait = waiting("strategy=ddp", *hosts)
    assert seconds_until_over(wait, 5, [None, 255]) == 15 + 1 + 0.25
