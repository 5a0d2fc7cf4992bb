"""Counts, lists and durations read as people write them."""

from __future__ import annotations

import numpy as np
import pytest

from bsweep.core.words import counted, decimal_hours, duration, escaped, first_of, listed, plural


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 runs"), (np.int64(1), "1 run"), ("1", "1 run"), ("1 or 2", "1 or 2 runs")],
)
def test_a_noun_after_a_number_has_its_ending(number: object, text: str) -> None:
    assert counted(number, "run") == text
    assert text.endswith(f"run{plural(number)}")


def test_a_list_ends_with_and() -> None:
    texts = ["", "a", "8 and 16", "a, b and c"]
    assert [listed(items) for items in ([], ["a"], [8, 16], "abc")] == texts
    assert listed(["64, plain", "32", "16"], comma="; ") == "64, plain; 32 and 16"


def test_of_many_the_first_are_named() -> None:
    assert first_of("abc") == "a, b, c"
    assert first_of("abcde") == "a, b, c and 2 more"
    assert first_of(["a", "b", "c"], most=2, comma="; ") == "a; b and 1 more"
    assert first_of([]) == ""


def test_durations_have_two_units_at_the_most() -> None:
    seconds = (None, 0.4, 59.4, 59.6, 3599, 3600, 93_784)
    texts = ["-", "0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "26 h 3 min"]
    assert [duration(value) for value in seconds] == texts


def test_hours_keep_two_digits() -> None:
    texts = ["-", "12.25", "0.10", "0.0042"]
    assert [decimal_hours(value) for value in (None, 12.25, 0.1, 0.0042)] == texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é … \n\t", "plain é … \n\t"),
        ("\x00\x1b[31m\r\x7f\x9b", r"\u0000\u001b[31m\u000d\u007f\u009b"),
        ("\u202etxt.exe\u2066", r"\u202etxt.exe\u2066"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), r"caf\xe9"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_could_change_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
