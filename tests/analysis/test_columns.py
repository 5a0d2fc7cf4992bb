"""What is said once of a column holds in every table: its name, its type, its heading, its
digits.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import bsweep
from bsweep.analysis.study import columns, run_rows
from bsweep.analysis.study.columns import Column
from bsweep.analysis.study.naming import words
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Epoch
from tests.support.synthetic_study import write_run


def test_every_field_of_an_epoch_is_a_column_of_its_type() -> None:
    types = {
        int: {"count", "count_or_null"}, float: {"number"},
        int | None: {"count_or_null"}, float | None: {"number"},
    }  # fmt: skip
    hints, told = (
        get_type_hints(Epoch),
        {column.name: column for column in columns.TABLES["epochs"]},
    )
    scalars = {field.name for field in fields(Epoch)} - set(run_rows.NO_COLUMNS)
    assert scalars | {"run_id"} == set(told), (
        "a field of runlog.Epoch needs its line in analysis/study/columns.csv"
    )
    assert all(told[name].type in types[hints[name]] for name in scalars)


def test_a_field_that_an_epoch_gains_costs_its_column_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gained = Column("gradient_norm", "number", "other", digits=".1f")
    monkeypatch.setitem(columns.TABLES, "epochs", (*columns.TABLES["epochs"], gained))
    write_run(tmp_path / "s", local_batch=8)
    metrics = RunPaths(write_run(tmp_path / "s", local_batch=16)).metrics
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:
        if line["type"] == "epoch":
            line["gradient_norm"] = {1: 2, 2: None, 3: 4}[line["epoch"]]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    raw = bsweep.load(tmp_path / "s")
    raw.runs.to_csv(tmp_path / "runs.csv", index=False)
    raw.epochs.to_csv(tmp_path / "epochs.csv", index=False)
    run = "b16_w1_horovod_s0"
    for study in (raw, bsweep.load(tmp_path)):
        found = study.epochs.set_index(["run_id", "epoch"])["gradient_norm"]
        assert found.dtype == float
        assert found.dropna().to_dict() == {(run, 1): 2.0, (run, 3): 4.0}


def test_no_column_is_said_twice_in_a_table() -> None:
    for table in (*columns.TABLES.values(), columns.COMPUTED):
        assert len(set(columns.names(table))) == len(table)


def test_headings_and_digits_are_those_of_the_column() -> None:
    assert columns.heading("train_seconds") == "time (s)"
    assert columns.heading("train_seconds_ratio") == "time"
    assert columns.heading("optimizer.warmup_epochs") == "warmup epochs"
    assert columns.number_text("train_seconds", 1234.5) == "1234"
    assert columns.number_text("learning_rate", 0.0123456) == "0.0123"
    assert columns.number_text("idle_share", 0.12345) == "12.3"
    assert columns.number_text("learning_rate", float("nan")) == "-"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("model.target", "m_tied.py:Net", "m_tied.py:Net"),
        ("model.options.my_head", "two_layers", "two_layers"),
        ("data.root", "my_photos", "my_photos"),
        ("variant", "local_sgd m_tied.py:Net", "local SGD m_tied.py:Net"),
        ("optimizer.lr_rule", "raise_it", "raise it"),
        ("seed", 3, "seed 3"),
        ("variant", "local_sgd sync_every 4", "local SGD, synchronised every 4"),
        ("variant", "allreduce native topk 0.01", "native all-reduce, top-k 0.01"),
        ("variant", "diloco steps_by_flops", "DiLoCo, steps by FLOP/s"),
        ("variant", "goodput every_steps 200", "batch by goodput, every 200 steps"),
        ("variant", "deepspeed stage 3", "DeepSpeed, ZeRO stage 3"),
        ("variant", "horovod every_steps 1", "Horovod, every 1 step"),
        ("variant", "own {x}, {n:worker}", "own {x}, {n:worker}"),
    ],
)
def test_values_have_names_in_words_and_names_that_users_gave_are_not_changed(
    name: str, value: object, text: str
) -> None:
    assert words(name, value).endswith(text)
