"""Hydra's part of a command: the points of its grid, a user's folder of settings, and its flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from bsweep.compose import hydra_grid, overrides
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
    with hydra_grid.composed(POINT):  # globs look for what there is
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
    with hydra_grid.composed((*flags, *POINT, "experiment=own")) as grid:
        assert [(config.epochs, config.seed) for config in grid.configs] == [(7, 3), (7, 4)]
    nowhere = hydra_grid.composed(("--config-dir", str(tmp_path / "none"), *POINT))
    with pytest.raises(ConfigError, match="no such folder"), nowhere:
        pass


def test_a_grid_says_what_hydra_does_beside_it() -> None:
    with hydra_grid.composed(POINT) as plain:
        assert not plain.runs_elsewhere
        assert not plain.surrounds_points
    with hydra_grid.composed((*POINT, "+hydra.job.env_set.NAMED=here")) as surrounded:
        assert surrounded.surrounds_points


@pytest.mark.parametrize("flag", ["--help", "--hydra-help", "--cfg=job", "--info", "-sc"])
def test_flags_that_only_show_run_nothing(flag: str) -> None:
    assert overrides.only_shows([flag])
    assert not overrides.only_shows(["-m", *POINT])
