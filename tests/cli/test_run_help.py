"""The help of `bsweep run` explains every key of every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from bsweep.cli import run_help
from bsweep.compose import hydra_grid, words
from bsweep.config.parsing import conf_dir
from bsweep.config.run import GROUPS
from bsweep.config.values import ConfigError, flatten


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


OPTIONS = [path for group in GROUPS for path in sorted((conf_dir() / group).glob("*.yaml"))]


@pytest.mark.parametrize(
    "path",
    [conf_dir() / "config.yaml", *OPTIONS],
    ids=_name,
)
def test_each_key_of_a_file_has_a_comment(path: Path) -> None:
    settings = yaml.safe_load(path.read_text())
    keys = flatten({key: settings[key] for key in settings.keys() - {"defaults", "hydra", "name"}})
    assert keys.keys() - dict(run_help._comments(path, "")).keys() - {"data.name"} == set()


@pytest.mark.parametrize("path", OPTIONS, ids=_name)
def test_each_option_says_in_a_sentence_what_it_is_for(path: Path) -> None:
    assert re.fullmatch(r"\w.{20,}(\.|/docs/timm)", run_help._purpose(path))


def test_help_shows_every_key_of_the_chosen_options() -> None:
    given = ["strategy=diloco", "epochs=7"]
    text = run_help.text(words.read(given))
    point, _, _ = hydra_grid.described(words.read(given))
    names = {f"{group}.name" for group in GROUPS}
    assert set(re.findall(r"^  ([\w.]+)=", text, re.MULTILINE)) >= point.keys() - names


def test_help_shows_the_values_and_meanings_of_what_was_typed() -> None:
    text = run_help.text(words.read(["strategy=diloco", "epochs=7", "model=tiny_cnn"]))
    assert "data.side=8 data.crop_padding=0" in " ".join(text.split()), "with which it learns"
    assert re.search(r"epochs=7 +passes over the training set", text)
    assert re.search(r"optimizer.lr=0.0004 +learning rate", text)  # that of diloco's own optimizer
    assert re.search(r"strategy=diloco +DiLoCo \(Douillard et al\.", text)
    assert "null: images" not in text


def test_help_names_an_unknown_option() -> None:
    with pytest.raises(ConfigError, match="ringo"):
        run_help.text(words.read(["strategy=ringo"]))
