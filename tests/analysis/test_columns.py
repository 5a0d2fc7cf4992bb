"""What is said once of a column holds in every table: its name and its type."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest

from bsweep.analysis.study import columns, run_rows
from bsweep.analysis.study.naming import words
from bsweep.runlog.records import Epoch


def test_every_field_of_an_epoch_is_a_column_of_its_type() -> None:
    types = {
        int: {"count", "count_or_null"}, float: {"number"},
        int | None: {"count_or_null"}, float | None: {"number"},
    }  # fmt: skip
    hints = get_type_hints(Epoch)
    told = {column.name: column for column in columns.TABLES["epochs"]}
    scalars = {field.name for field in fields(Epoch)} - set(run_rows.NO_COLUMNS)
    assert scalars | {"run_id"} == set(told), (
        "a field of runlog.Epoch needs its line in analysis/study/columns.csv"
    )
    assert all(told[name].type in types[hints[name]] for name in scalars)


def test_no_column_is_said_twice_in_a_table() -> None:
    for table in (*columns.TABLES.values(), columns.COMPUTED):
        assert len(set(columns.names(table))) == len(table)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("model.target", "m_tied.py:Net", "m_tied.py:Net"),
        ("model.options.my_head", "two_layers", "two_layers"),
        ("variant", "local_sgd m_tied.py:Net", "local SGD m_tied.py:Net"),
        ("optimizer.lr_rule", "raise_it", "raise it"),
        ("seed", 3, "seed 3"),
        ("variant", "allreduce native topk 0.01", "native all-reduce, top-k 0.01"),
        ("variant", "goodput every_steps 200", "batch by goodput, every 200 steps"),
        ("variant", "horovod every_steps 1", "Horovod, every 1 step"),
        ("variant", "own {x}, {n:worker}", "own {x}, {n:worker}"),
    ],
)
def test_values_have_names_in_words_and_names_that_users_gave_are_not_changed(
    name: str, value: object, text: str
) -> None:
    assert words(name, value).endswith(text)
