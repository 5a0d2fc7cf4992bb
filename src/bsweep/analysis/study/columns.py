"""Descriptions of the columns of a study's tables: name, type, heading, role, format and so on.

`columns.csv` has one line for each column of each table, in the order of the table's CSV. The type
`same` takes the description of the column of this name in an earlier table; the role is then
`promised`. A new field of an epoch's record needs one line there; the table, the CSV and its reader
then have it.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bsweep.analysis.study.numbers import number
from bsweep.core.words import plural


@dataclass(frozen=True)
class Column:
    """The description of one column of a study's tables.

    Args:
        name: The name in the CSV, which contains the unit if there is one.
        type: The type that its values are converted to, one of `_CASTS`; `any` leaves them as they
            are.
        role: `promised` columns are in the tables of every version. Columns of the roles `context`,
            `setting`, `minor` and `placement` are settings, which may tell cells apart; those of
            the role `other` are not. Cells that differ in a `context` column are no alternatives to
            each other. A `minor` or `placement` column does not tell cells apart if it changes only
            along with the batch size or the workers.
        presence: `rare` if a table has the column only where something was measured or set.
        source: Where the value of a run comes from: `start` (its start record), `meta` (its
            `meta.json`), or the name of a setting in the configuration. Empty: from elsewhere, such
            as from its summary.
        digits: The format of a number; empty: the format of `number`. A format that ends in `%`
            prints no percent sign, because the heading has it.
        heading: The heading in tables that people read; empty: the name in words.
        legend: The template of the text of a value in a legend, in which `s` is a plural's ending.
            Empty: heading and value.
    """

    name: str
    type: str = "any"
    role: str = "minor"
    presence: str = ""
    source: str = ""
    digits: str = ""
    heading: str = ""
    legend: str = ""


def _read() -> dict[str, tuple[Column, ...]]:
    """Return the columns of each table in `columns.csv`."""
    tables: dict[str, list[Column]] = defaultdict(list)
    known: dict[str, Column] = {}
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            table, name = row.pop("table"), row["name"]
            if row["type"] == "same":
                known[name] = replace(known[name], role="promised")
            else:
                known[name] = Column(**{**row, "role": row["role"] or "promised"})
            tables[table].append(known[name])
    return {table: tuple(listed) for table, listed in tables.items()}


TABLES = _read()  # the tables of a study
COMPUTED = TABLES.pop("computed")  # the columns that the analysis computes from those of `TABLES`
RUNS = TABLES["runs"]
_BY_NAME = {
    column.name: column for table in (COMPUTED, *reversed(TABLES.values())) for column in table
}
_ROLES = {column.name: column.role for column in RUNS}
_CASTS: dict[str, Callable[[pd.Series[Any]], pd.Series[Any]]] = {
    "text": lambda values: values.astype(object).where(values.notna(), "").astype(str),
    "text_or_null": lambda values: values,
    "count": lambda values: values.astype("int64"),
    "count_or_null": lambda values: pd.to_numeric(values).astype("Int64"),
    "number": lambda values: pd.to_numeric(values).astype(float),
    "flag": lambda values: values.astype(bool),
    "any": lambda values: values,
}


def names(table: Sequence[Column], *roles: str) -> list[str]:
    """Return the names of a table's columns that have one of the given roles, or of all its columns
    if no role is given.
    """
    return [column.name for column in table if not roles or column.role in roles]


def role(name: str) -> str:
    """Return the role of a column in the table of runs, such as `setting` or `other`. The role says
    whether the column is a setting that may tell cells apart.

    Most settings, such as `optimizer.momentum`, have no line in `columns.csv`; their role is
    `minor`.
    """
    return _ROLES.get(name, "minor")


def described(name: str) -> Column:
    """Return the description of the column with the given name; a column that is not described in
    `columns.csv` gets the role `minor`.
    """
    return _BY_NAME.get(name) or Column(name)


def as_table(rows: pd.DataFrame, table: Sequence[Column]) -> pd.DataFrame:
    """Return rows as a table whose described columns have the types that `table` says, and whose
    first columns are those that every such table has.

    Of these, columns that the rows lack are added with missing values. Counts have an integer type,
    a missing count is NA, another missing number is NaN, and a missing text is empty.
    """
    always = [column.name for column in table if column.presence != "rare"]
    typed = rows.reindex(columns=list(dict.fromkeys([*always, *rows.columns])))
    for column in table:
        if column.name in typed:
            typed[column.name] = _CASTS[column.type](typed[column.name])
    return typed


def heading(name: str) -> str:
    """Return the heading of a column in words, given the column's name, with the unit if the
    heading has one.
    """
    if name.endswith("_ratio"):
        return heading(name.removesuffix("_ratio")).removesuffix(" (s)")
    return described(name).heading or name.rpartition(".")[2].replace("_", " ")


def legend(name: str, text: str) -> str:
    """Return a setting in the words of a figure's legend, such as `4 workers`, given its column's
    name and its value as text.
    """
    template = described(name).legend
    return template.format(value=text, s=plural(text)) if template else f"{heading(name)} {text}"


_USERS_OWN = ("target", "root", "path", "tokenizer", "architecture", "options")


def spoken(name: str, text: str) -> str:
    """Return a setting's value as a text for readers, such as `batch by flops` for
    `batch_by_flops`. `name` is the setting's column.

    Blanks replace underscores. Names from users or from other libraries stay as they are: files,
    functions, folders and architectures.
    """
    if not set(name.split(".")).isdisjoint(_USERS_OWN):
        return text
    words = text.split(" ")
    return " ".join(word if re.search(r"[.:/]", word) else word.replace("_", " ") for word in words)


def number_text(name: str, value: float) -> str:
    """Return a number as text in the format of its column; `-` for NaN, which marks a number that
    was not measured.
    """
    digits = described(name).digits
    return number(value) if value != value or not digits else f"{value:{digits}}".removesuffix("%")
