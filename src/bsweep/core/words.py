"""Functions that return counts, lists and durations as texts for sentences."""

from __future__ import annotations

from collections.abc import Sequence


def plural(number: object) -> str:
    """Return the ending of a noun that follows a number: an empty text after 1, else `s`."""
    return "" if str(number) == "1" else "s"


def counted(number: object, noun: str) -> str:
    """Return a number with its noun, such as `3 runs`; the number may be a text like `1 or 2`."""
    return f"{number} {noun}{plural(number)}"


def listed(items: Sequence[object], comma: str = ", ") -> str:
    """Return the items as a text such as `a, b and c`; empty if there are no items."""
    *first, last = map(str, items) if items else [""]
    return f"{comma.join(first)} and {last}" if first else last


def first_of(items: Sequence[str], most: int = 3, comma: str = ", ") -> str:
    """Return the first `most` items and the number of the others, such as `a, b, c and 2 more`."""
    shown, more = comma.join(items[:most]), len(items) - most
    return f"{shown} and {more} more" if more > 0 else shown


def duration(seconds: float | None) -> str:
    """Return seconds as a text: `2 h 5 min`, `3 min 20 s` or `12 s`; `-` for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def decimal_hours(hours: float | None) -> str:
    """Return hours as a text: with two decimals such as `1.25`, or below 0.1 with two significant
    digits such as `0.0042`; `-` for None.
    """
    return "-" if hours is None else f"{hours:.2f}" if hours >= 0.1 else f"{hours:.2g}"
