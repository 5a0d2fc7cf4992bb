"""Hydra's part of a command: the points of its grid, a user's folder of settings, and its flags."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bsweep.compose import hydra_grid, words
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError

POINT = ("local_batch=8", "strategy=single", "launch=inline")


def composed(*typed: str) -> list[RunConfig]:
    return hydra_grid.composed(words.read(typed))


def test_a_grid_is_in_the_order_of_its_keys_and_the_last_value_of_a_key_counts() -> None:
    given = ("seed=1", "epochs=2,3", "data=digits", "local_batch=16,8", "seed=range(5,7)")
    configs = composed(*POINT, *given)
    found = [(config.local_batch, config.seed, config.epochs) for config in configs]
    assert found == [*itertools.product((16, 8), (5, 6), (2, 3))]


def test_a_folder_of_settings_adds_experiments(tmp_path: Path) -> None:
    (tmp_path / "mine/experiment").mkdir(parents=True)
    (tmp_path / "mine/experiment/own.yaml").write_text(
        "# @package _global_\nepochs: 7\nhydra:\n  sweeper:\n"
        "    params: {model: tiny_cnn, seed: '3,4'}\n"
    )
    flags = ("--config-dir", str(tmp_path / "mine"))
    configs = composed(*flags, *POINT, "experiment=own")
    assert [(config.epochs, config.seed) for config in configs] == [(7, 3), (7, 4)]
    assert {config.model.name for config in configs} == {"tiny_cnn"}, "an axis of one value"
    with pytest.raises(ConfigError, match="no such folder"):
        composed("--config-dir", str(tmp_path / "none"), *POINT)
    with (tmp_path / "mine/experiment/own.yaml").open("a") as file:
        file.write("  callbacks: {mine: {_target_: x.Y}}\n")
    with pytest.raises(ConfigError, match=r"without Hydra's key hydra\.callbacks: leave it out"):
        composed(*flags, *POINT, "experiment=own")


@pytest.mark.parametrize("flag", ["--help", "--hydra-help", "--cfg=job", "--info", "-sc"])
def test_flags_that_only_show_run_nothing(flag: str) -> None:
    assert words.read([flag]).only_show
    assert not words.read(["-m", *POINT]).only_show
