"""What tests compose quickly is what Hydra composes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hydra import compose as hydra_compose
from omegaconf import OmegaConf

from bsweep.compose.hydra_grid import initialized
from bsweep.config.parsing import parse
from tests.support.running import TINY, compose


def by_hydra(*overrides: str) -> object:
    """Return the configuration that Hydra alone composes."""
    with initialized():
        composed = hydra_compose("config", list(overrides))
    return parse(dict(OmegaConf.to_container(composed, resolve=True)))  # type: ignore[arg-type]


def outcome(function: Callable[..., object], *overrides: str) -> object:
    """Return what a function composes, or the type and text of its error."""
    try:
        return function("local_batch=8", *overrides)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    "overrides",
    [
        (*TINY, "seed=2", "local_batch=4"),  # the last one of a key counts
        ("allocation.local_steps=[4,2]", "num_workers=2", "strategy=diloco"),
        ("model=own", "model.target=a.py:b", "+model.options.width=3"),
        ("strategy.nope=4",),
        ("seed=1,2",),
        ("~data.side",),
    ],
    ids=" ".join,
)
def test_tests_compose_what_hydra_composes(overrides: tuple[str, ...]) -> None:
    assert outcome(compose, *overrides) == outcome(by_hydra, *overrides)
