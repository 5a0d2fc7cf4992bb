"""Counts, lists and durations read as people write them."""

from __future__ import annotations

import numpy as np
import pytest

from bsweep.core.words import counted, decimal_hours, duration, escaped, excerpt, first_of, listed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (counted(np.int64(1), "run"), "1 run"),
        (counted("1 or 2", "run"), "1 or 2 runs"),
        (listed(["64, plain", "32", "16"], comma="; "), "64, plain; 32 and 16"),
        (first_of("abcde"), "a, b, c and 2 more"),
        (first_of(["a", "b", "c"], most=2, comma="; "), "a; b and 1 more"),
        (duration(59.6), "1 min 0 s"),
        (duration(3600), "1 h 0 min"),
        (decimal_hours(0.0042), "0.0042"),
    ],
)
def test_numbers_and_lists_are_as_people_write_them(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é … \n\t", "plain é … \n\t"),
        ("\x00\x1b[31m\r\x7f\x9b", r"\u0000\u001b[31m\u000d\u007f\u009b"),
        ("\u202etxt.exe\u2066", r"\u202etxt.exe\u2066"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), r"caf\xe9"),
    ],
)
def test_what_could_change_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_long_text_keeps_its_ends_and_names_its_source() -> None:
    assert excerpt("short\nlines", "log") == "short\nlines"
    bar = "".join(f"\r{number}/9000 #####" for number in range(9000))
    assert excerpt(f"begins\n{bar}\nends\r\n", "log") == "begins\n8999/9000 #####\nends\n"
    text = excerpt("begins " + "x" * 800_000 + " ends", "logs/rank.0")
    assert text.startswith("begins x")
    assert text.endswith("x ends")
    assert "logs/rank.0" in text
    assert len(text) <= 2_000
