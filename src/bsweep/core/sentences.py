"""Functions that make sentences of templates and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bsweep.core.words import counted

_FIELD = re.compile(r"\{(\w+)(?::([a-z -]+))?\}")


def said(template: str, **values: object) -> str:
    """Return a template with its values filled in.

    Args:
        template: A text with fields such as `{target}`, and `{count:run}` for a number with its
            noun.
        values: The value of each field.

    Returns:
        The text.
    """
    return term(template, **values)


def term(template: str, **values: object) -> str:
    """Return what `said` does, of a template that stands in a table, such as a column's heading.

    Args:
        template: A text with fields, as in `said`.
        values: The value of each field.

    Returns:
        The text.
    """
    return _filled(template, values)


def _filled(template: str, values: Mapping[str, Any]) -> str:
    def shown(found: re.Match[str]) -> str:
        value = values[found[1]]
        return counted(value, found[2]) if found[2] else str(value)

    return _FIELD.sub(shown, template)


def joined(parts: Iterable[str], between: str = " ") -> str:
    """Return texts one after the other, without the empty ones.

    Args:
        parts: The texts, some of which may be sentences.
        between: The text between two of them.

    Returns:
        The whole text.
    """
    return between.join(part for part in parts if part)


def listed_said(items: Sequence[str], between: str = ", ", most: int = 3) -> str:
    """Return the first items, such as `a, b and c`, or `a, b, c and 2 more`.

    Args:
        items: The texts.
        between: The text between two of them.
        most: How many of them are named.

    Returns:
        The list.
    """
    if len(items) > most or len(items) < 2:
        return first_said(items, between, most)
    return said("{items} and {last}", items=joined(items[:-1], between), last=items[-1])


def first_said(items: Sequence[str], between: str = ", ", most: int = 3) -> str:
    """Return the first items and the number of the others, such as `a, b, c and 2 more`.

    Args:
        items: The texts.
        between: The text between two of them.
        most: How many of them are named.

    Returns:
        The list.
    """
    shown, more = joined(items[:most], between), len(items) - most
    return said("{items} and {n} more", items=shown, n=more) if more > 0 else shown
