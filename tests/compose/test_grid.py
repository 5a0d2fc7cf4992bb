"""A grid's points are those that Hydra composes one by one, and it composes few of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from bsweep.compose import grid, words
from bsweep.compose.hydra_grid import initialized
from bsweep.config.parsing import conf_dir
from bsweep.config.values import ConfigError

TINY_CNN = "model=tiny_cnn"
GRIDS = {
    "batches, rates, seeds": (
        [TINY_CNN],
        ["local_batch=8", "local_batch=16"],
        ["optimizer.lr=0.5", "optimizer.lr=1"],
        ["seed=0", "seed=7"],
    ),
    "whole numbers, written in all ways": (
        [TINY_CNN],
        ["local_batch=8", "local_batch=+16", "local_batch=1_0", "local_batch=008"],
        ["seed=0", "seed=7", "seed=999999999999999999", "seed=9223372036854775807"],
        ["optimizer.lr=1", "optimizer.lr=2"],
    ),
    "groups and their keys": (
        ["local_batch=8"],
        ["strategy=horovod", "strategy=ddp", "strategy=diloco"],
        ["optimizer=sgd", "optimizer=adamw"],
        ["optimizer.lr=1e-2", "optimizer.lr=1"],
        ["data.crop_padding=1", "data.crop_padding=2"],
    ),
    "lists, nothing, quotes, truths": (
        ["num_workers=2"],
        ["study='x1'", "study=x2"],
        ["allocation.local_batches=[3,5]", "allocation.local_batches=null"],
        ["local_batch=4", "++local_batch=6"],
        ["average_batchnorm=false", "average_batchnorm=true"],
        ["channels_last=auto", "channels_last=false"],
    ),
    "keys that decide a default of another key": (
        ["local_batch=8"],
        ["data.side=8", "data.side=32"],
        ["seed=0", "seed=1"],
    ),
    "one key that follows another": (
        ["local_batch=8", "local_batch=16"],
        ["epochs=${local_batch}", "epochs=3", "model.width=${local_batch}"],
        [TINY_CNN],
    ),
    "given twice, and what shapes the configuration": (
        ["optimizer.lr=1", "optimizer.lr=2"],
        ["local_batch=4", "local_batch=2"],
        ["local_batch=8"],
        ["~seed", "data=synthetic"],
        ["seed=1", "+seed=3", "epochs=2"],
    ),
}


@pytest.fixture(autouse=True)
def _hydra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(conf_dir().parent)
    with initialized():
        yield


def composed(overrides: list[str]) -> DictConfig:
    return compose("config", overrides)


def settings(point: Iterable[str]) -> list[words.Setting]:
    loader = GlobalHydra.instance().config_loader()
    return [setting for (setting,) in words.settings_of(list(point), loader).values()]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", GRIDS)
def test_points_are_as_hydra_composes_each(name: str) -> None:
    possible = []
    # What Hydra itself refuses, such as a key that is deleted and given, is no point.
    for point in itertools.product(*GRIDS[name]):
        try:
            possible.append((point, grid.to_config(composed(list(point)))))
        except (ConfigError, HydraException):
            continue
    assert len(possible) >= 4
    found = grid.configs(composed, [settings(point) for point, _ in possible])
    assert found == [config for _, config in possible]
    assert [config.run_id for config in found] == [config.run_id for _, config in possible]


@pytest.mark.full
def test_what_is_wrong_is_said_of_every_value_once() -> None:
    points = [
        [f"local_batch={b}", f"seed={s}", "model=resnet18"]
        for b in ("8", "-4", "oops", "1")
        for s in ("0", "-1")
    ]
    with pytest.raises(ConfigError) as raised:
        grid.configs(composed, map(settings, points))
    every = set()
    for point in points:
        try:
            grid.to_config(composed(point))
        except ConfigError as error:
            every |= set(error.problems)
    assert set(raised.value.problems) == every
    assert len(raised.value.problems) == len(every) == 4
