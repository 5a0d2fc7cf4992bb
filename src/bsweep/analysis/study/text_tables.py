"""Tables of numbers as tables of text under headings, for terminals, notebooks and reports."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from bsweep.analysis.study.columns import number_text
from bsweep.analysis.study.numbers import interval_text
from bsweep.core.words import joined


def as_texts(
    table: pd.DataFrame, headings: Mapping[str, str], interval: tuple[str, str]
) -> pd.DataFrame:
    """Return columns of a table with floats as text, without costs that no row has.

    Args:
        table: The table.
        headings: The headings of the columns by name.
        interval: The columns with the ends of the interval that the heading `interval` is for.
    """
    ends = (table[name] for name in interval)
    table = table.assign(interval=list(map(interval_text, *ends)))
    texts = {
        heading: [
            number_text(name, value) if isinstance(value, float) else value for value in table[name]
        ]
        for name, heading in headings.items()
        if name not in ("money", "joules") or table[name].notna().any()
    }
    return pd.DataFrame(texts)


def marks(table: pd.DataFrame, words: Mapping[str, str]) -> list[str]:
    """Return for each row of a table the words of those columns that are true."""
    rows = table[[*words]].to_dict("records")
    return [joined((text * bool(row[name]) for name, text in words.items()), "; ") for row in rows]
