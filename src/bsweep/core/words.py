"""Counts, lists and durations in the form that sentences need."""

from __future__ import annotations

from collections.abc import Sequence


def plural(number: object) -> str:
    """Return the ending of a noun: none after 1, else `s`."""
    return "" if str(number) == "1" else "s"


def counted(number: object, noun: str) -> str:
    """Return `1 run` or `3 runs`; the number may be a text, such as `1 or 2`."""
    return f"{number} {noun}{plural(number)}"


def listed(items: Sequence[object], comma: str = ", ") -> str:
    """Return `a, b and c`; empty if there is none."""
    *first, last = map(str, items) if items else [""]
    return f"{comma.join(first)} and {last}" if first else last


def first_of(items: Sequence[str], most: int = 3, comma: str = ", ") -> str:
    """Return `a, b, c and 2 more`: the first items, and how many follow these `most`."""
    shown, more = comma.join(items[:most]), len(items) - most
    return f"{shown} and {more} more" if more > 0 else shown


def duration(seconds: float | None) -> str:
    """Return `2 h 5 min`, `3 min 20 s` or `12 s`; `-` if it is not known."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def decimal_hours(hours: float | None) -> str:
    """Return `1.25` or, of less than a tenth, two digits such as `0.0042`; `-` if not known."""
    return "-" if hours is None else f"{hours:.2f}" if hours >= 0.1 else f"{hours:.2g}"
