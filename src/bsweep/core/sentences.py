"""English sentences that know the template and the values of which they are made, so that a page
can show them in another language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bsweep.core.words import counted

_FIELD = re.compile(r"\{(\w+)(?::([a-z -]+))?\}")


class Sentence(str):
    """An English text that knows how it was made.

    `made_of` is what a page needs to make it anew in another language: a `template` with its
    `values`, or `parts` with the text `between` them.
    """

    __slots__ = ("made_of",)
    made_of: Mapping[str, Any]


def said(template: str, **values: object) -> Sentence:
    """Return a template with its values filled in.

    Args:
        template: A text with fields such as `{target}`, and `{count:run}` for a number with its
            noun. The page's Korean texts have the translation of each template.
        values: The value of each field. Those that are sentences are translated, too.

    Returns:
        The English text.
    """
    return term(template, **values)


def term(template: str, **values: object) -> Sentence:
    """Return what `said` does, of a template that stands in a table, such as a column's heading.

    Args:
        template: A text with fields, as in `said`.
        values: The value of each field.

    Returns:
        The English text.
    """
    made = Sentence(_filled(template, values))
    texts = {
        name: value if isinstance(value, Sentence) else str(value) for name, value in values.items()
    }
    made.made_of = {"template": template, "values": texts}
    return made


def english(told: Any) -> str:
    """Return the English text of what a document has in place of a sentence: a text, or what a
    sentence is made of.
    """
    if isinstance(told, str):
        return told
    if "parts" in told:
        return str(told["between"]).join(map(english, told["parts"]))
    return _filled(
        told["template"], {name: english(value) for name, value in told["values"].items()}
    )


def _filled(template: str, values: Mapping[str, Any]) -> str:
    def shown(found: re.Match[str]) -> str:
        value = values[found[1]]
        return counted(value, found[2]) if found[2] else str(value)

    return _FIELD.sub(shown, template)


def joined(parts: Iterable[str], between: str = " ") -> Sentence:
    """Return texts one after the other, without the empty ones.

    Args:
        parts: The texts, some of which may be sentences.
        between: The text between two of them.

    Returns:
        The whole text.
    """
    told = [part for part in parts if part]
    made = Sentence(between.join(told))
    made.made_of = {"parts": told, "between": between}
    return made


def listed_said(items: Sequence[str], between: str = ", ", most: int = 3) -> Sentence:
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


def first_said(items: Sequence[str], between: str = ", ", most: int = 3) -> Sentence:
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
