"""The help of `bsweep run` explains every key of every option."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from bsweep.cli import run_help
from bsweep.compose import hydra_grid, words
from bsweep.config.card import Card, Schema
from bsweep.config.measure import MeasureConfig
from bsweep.config.programs import FieldsConfig
from bsweep.config.run import GROUPS, RunConfig, cards_by_name
from bsweep.config.values import flatten

CARDS = [card for group in GROUPS for card in cards_by_name(group).values()]


@pytest.mark.parametrize("schema", [RunConfig, MeasureConfig, FieldsConfig, *CARDS])
def test_each_key_has_a_docstring(schema: type[Schema]) -> None:
    internal = schema.internal if issubclass(schema, Card) else ()
    keys = {field.name for field in fields(schema)} - {"name", "measure", *GROUPS, *internal}
    assert {key for key in keys if not run_help._meanings(schema)[key]} == set()


@pytest.mark.parametrize("card", CARDS)
def test_each_option_says_in_a_sentence_what_it_is_for(card: type[Card]) -> None:
    assert re.fullmatch(r"\w.{20,}\.", run_help._purpose(card))


def test_help_shows_every_key_of_what_was_typed_with_its_value_and_meaning() -> None:
    typed = words.read(["strategy=diloco", "epochs=7", "model=tiny_cnn"])
    text = run_help.text(typed)
    values, _, _ = hydra_grid.described(typed)
    names = {f"{group}.name" for group in GROUPS}
    assert set(re.findall(r"^  ([\w.]+)=", text, re.MULTILINE)) >= flatten(values).keys() - names
    assert "data.side=8 data.crop_padding=0" in " ".join(text.split()), "with which it learns"
    assert re.search(r"epochs=7 +passes over the training set", text)
    assert re.search(r"optimizer.lr=0.0004 +learning rate", text)  # that of diloco's own optimizer
    assert re.search(r"strategy=diloco +DiLoCo \(Douillard et al\.", text)
    assert "null: images" not in text
