"""Hydra's part of a command: the points of its grid, a user's folder of settings, and its flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from bsweep.compose import hydra_grid, overrides
from bsweep.config.parsing import conf_dir
from bsweep.config.values import ConfigError

POINT = ("local_batch=8", "strategy=single", "launch=inline")


@pytest.mark.parametrize(
    "given",
    [
        ["seed=0,1", "local_batch=8,16,32"],
        ["seed=range(3)", "data=digits", "optimizer.milestones=[1,2]"],
        ["seed=1", "seed=2,3", "+new='a b',c"],
        ["~batching", "study=glob(*)"],
        [],
    ],
)
def test_a_grid_has_the_points_of_hydras_own_sweeper_in_its_order(given: list[str]) -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):  # globs look into it
        loader = GlobalHydra.instance().config_loader()
        parser = OverridesParser.create(config_loader=loader)
        (expected,) = BasicSweeper.split_arguments(parser.parse_overrides(given), None)
        assert hydra_grid._points(parser.parse_overrides(given)) == expected


def test_a_folder_of_settings_adds_experiments(tmp_path: Path) -> None:
    (tmp_path / "mine/experiment").mkdir(parents=True)
    (tmp_path / "mine/experiment/own.yaml").write_text(
        "# @package _global_\nepochs: 7\nhydra:\n  sweeper:\n    params: {seed: '3,4'}\n"
    )
    flags = ("--config-dir", str(tmp_path / "mine"))
    configs = hydra_grid.composed((*flags, *POINT, "experiment=own"))
    assert [(config.epochs, config.seed) for config in configs] == [(7, 3), (7, 4)]
    with pytest.raises(ConfigError, match="no such folder"):
        hydra_grid.composed(("--config-dir", str(tmp_path / "none"), *POINT))
    with (tmp_path / "mine/experiment/own.yaml").open("a") as file:
        file.write("  callbacks: {mine: {_target_: x.Y}}\n")
    with pytest.raises(ConfigError, match=r"without Hydra's key hydra\.callbacks: leave it out"):
        hydra_grid.composed((*flags, *POINT, "experiment=own"))


@pytest.mark.parametrize("flag", ["--help", "--hydra-help", "--cfg=job", "--info", "-sc"])
def test_flags_that_only_show_run_nothing(flag: str) -> None:
    assert overrides.only_shows([flag])
    assert not overrides.only_shows(["-m", *POINT])
