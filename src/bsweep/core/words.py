"""Functions that return counts, lists, durations, names and tables as texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

_NOT_TO_SHOW = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""Return a text in which unsafe characters are replaced by visible escapes, such as `\u001b`
    or `\xff`. These are the characters that could change a terminal or deceive a reader, and the
    bytes of file names that are not UTF-8.

    Line ends and tabs stay. The escape of a control character is also valid in JSON.
    """
    return _NOT_TO_SHOW.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    # Python decodes a byte that is not UTF-8, such as 0xff, to a surrogate, such as U+DCFF.
    return f"\\x{number - 0xDC00:02x}" if 0xDC80 <= number <= 0xDCFF else f"\\u{number:04x}"


def excerpt(text: str, source: object, most: int = 2_000) -> str:
    """Return a text with at most `most` characters of its first and last lines, and of a line that
    was overwritten, as by a progress bar, what a terminal shows in the end.

    Args:
        text: The text, such as an error that quotes others.
        source: Where the whole text can be read, for a note in place of what is left out.
        most: The number of characters.
    """
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    if len(text) <= most:
        return text
    note = f"\n... (of {len(text):,} characters; all are in {source})\n"
    half = max(1, (most - len(note)) // 2)
    return text[:half] + note + text[-half:]


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


def joined(parts: Iterable[str], between: str = " ") -> str:
    """Return texts one after the other, without the empty ones."""
    return between.join(filter(None, parts))


def minor(version: str) -> str:
    """Return the minor release of a version, such as `2.13` of `2.13.0+cpu`."""
    return ".".join(version.partition("+")[0].split(".")[:2])


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


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Return the rows of a table as lines with aligned columns. Those whose indices are in `left`
    are aligned on the left, and all others on the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return [line.rstrip() for line in lines]
