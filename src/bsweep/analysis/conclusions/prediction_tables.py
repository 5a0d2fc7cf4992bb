"""The cells of a prediction, and its curves over the workers, as tables of text for terminals,
notebooks and reports.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from bsweep.analysis.study.columns import number_text
from bsweep.analysis.study.numbers import interval_text
from bsweep.core.words import joined


def as_texts(table: pd.DataFrame, headings: Mapping[str, str]) -> pd.DataFrame:
    """Return columns of a table of cells or curves as text, without costs that no row has.

    Args:
        table: The table, which has the column `seconds` with the ends of its interval.
        headings: The headings of the columns by name; `interval` is that of `seconds`.
    """
    ends = zip(table["seconds_low"], table["seconds_high"], strict=True)
    table = table.assign(interval=[interval_text(*pair) for pair in ends])
    texts = {
        heading: [
            number_text(name, value) if isinstance(value, float) else str(value)
            for value in table[name]
        ]
        for name, heading in headings.items()
        if name not in ("money", "joules") or table[name].notna().any()
    }
    return pd.DataFrame(texts)


def marks(table: pd.DataFrame, words: Mapping[str, str]) -> list[str]:
    """Return for each row of a table the words of those columns that are true."""
    rows = table[[*words]].to_dict("records")
    return [joined((text * bool(row[name]) for name, text in words.items()), "; ") for row in rows]


def runs_in_words(cells: pd.DataFrame, without_runs: str = "") -> list[str]:
    """Return for each cell how many of its runs reached the target, what its time rests on beside
    them, and why it cannot be trained.
    """
    bases = marks(cells, {"is_simulated": "simulated", "is_extrapolated": "extrapolated"})
    facts = zip(cells["num_reached"], cells["num_runs"], bases, cells["problem"], strict=True)
    return [
        joined((f"{reached} of {runs} reached" if runs else without_runs, basis, problem), "; ")
        for reached, runs, basis, problem in facts
    ]
