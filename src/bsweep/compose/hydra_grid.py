"""Functions that call Hydra to compose the points of a command.

Hydra's own entry point runs a sweep through a sweeper plug-in, which calls the program back for
each point. Here bsweep stays in control: Hydra composes the points and returns them as values.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from bsweep.compose import card_source, grid
from bsweep.compose.grid import Compose
from bsweep.compose.words import (
    MOST_POINTS,
    Setting,
    Words,
    as_hydra_takes,
    explain,
    refuse_hydras_own,
    settings_of,
)
from bsweep.config.parsing import conf_dir, parse
from bsweep.config.run import GROUPS, RunConfig
from bsweep.config.values import ConfigError
from bsweep.core import terminal

logger = terminal.logger(__name__)

_VERSION = "1.3"


def composed(words: Words) -> list[RunConfig]:
    """Return the points of a typed command. The values of the last key that has several values vary
    fastest.

    Raises:
        ConfigError: If any argument or point is wrong.
    """
    with _opened(words) as (axes, compose_point):
        return grid.configs(compose_point, itertools.product(*axes))


def first_point(words: Words, local_batch: int | None = None) -> RunConfig:
    """Return the first point of a grid, without what its allocation chooses. Each axis of an
    experiment or the command line has its first value, and a log record names it.

    Args:
        words: The arguments of the command.
        local_batch: The local batch of a point that gives no batch.

    Raises:
        ConfigError: If any argument is wrong, or the point.
    """
    with _opened(words) as (axes, compose_point):
        for axis in axes:
            if len(axis) > 1:
                logger.info(f"taking {axis[0].text}, the first of {len(axis)} values")
        values = grid.values_of(compose_point([axis[0].text for axis in axes]))
    if values["local_batch"] is None and values["global_batch"] is None:
        values["local_batch"] = local_batch
    return parse(values).with_fingerprints()


def described(words: Words) -> tuple[dict[str, Any], dict[str, str], dict[str, list[str]]]:
    """Return what a help text shows of a command line: the values that its overrides compose, and
    the options of the groups.

    Of an override with several values, the first one counts.

    Returns:
        The values by key, with a dictionary for each group; the chosen option of each group; all
        options of each group.

    Raises:
        ConfigError: If an override cannot be read or names an unknown key or choice.
    """
    with _opened(words) as (axes, compose_point):
        point = compose_point([axis[0].text for axis in axes])
        loader = GlobalHydra.instance().config_loader()
        options = {group: loader.get_group_options(group) for group in (*GROUPS, "experiment")}
    chosen = {group: str(point.hydra.runtime.choices[group]) for group in GROUPS}
    values: Any = OmegaConf.to_container(grid.without_hydra(point), resolve=True)
    return values, chosen, options


@contextmanager
def initialized() -> Iterator[None]:
    """Let Hydra compose bsweep's configurations within the `with` block."""
    card_source.register()
    with initialize_config_dir(str(conf_dir()), version_base=_VERSION):
        yield


@contextmanager
def _opened(words: Words) -> Iterator[tuple[list[list[Setting]], Compose]]:
    """Give the values of each axis of a command, and the function with which Hydra composes one
    point of it. An error of Hydra within the `with` block becomes a ConfigError.
    """
    with initialized():
        try:
            loader = GlobalHydra.instance().config_loader()
            typed = settings_of(words.overrides, loader)
            given = [*words.overrides, *_search_path(words.flags.config_dir)]
            master = loader.load_configuration(
                words.flags.config_name or card_source.CONFIG, given, run_mode=RunMode.MULTIRUN
            )
            refuse_hydras_own(master.hydra)
            axes = settings_of([as_hydra_takes(axis) for axis in _axes(master)], loader)
            grid_axes = [*(axes | typed).values()]
            _refuse_large(grid_axes)
            is_open = any(axis[0].is_swept or axis[0].value == "???" for axis in typed.values())

            def compose_point(point: list[str]) -> DictConfig:
                # Without an axis or an open choice, what Hydra composed first is the point itself.
                return loader.load_sweep_config(master, point) if axes or is_open else master

            yield grid_axes, compose_point
        except Exception as error:
            if "HYDRA_FULL_ERROR" in os.environ:
                raise
            raise ConfigError(explain(error)) from error


def _search_path(config_dir: str | None) -> list[str]:
    """Return the override with which Hydra also looks for files in a folder of the user's."""
    if config_dir is None:
        return []
    folder = Path(config_dir).resolve()
    if not folder.is_dir():
        raise ConfigError(
            f"--config-dir {config_dir}: there is no such folder. Name a folder that exists."
        )
    return [f"hydra.searchpath=['file://{folder}']"]


def _axes(master: DictConfig) -> list[str]:
    """Return the keys over which an experiment file sweeps, as overrides KEY=VALUES.

    A key whose values are null is left out, so that an experiment can undo an axis it inherits.
    """
    axes: Any = master.hydra.sweeper.params or {}
    if not isinstance(axes, Mapping | DictConfig):
        raise ValueError(
            f"hydra.sweeper.params={axes}: give keys with their values, as in {{seed: '0,1'}}."
        )
    return [f"{axis}={values}" for axis, values in axes.items() if values is not None]


def _refuse_large(axes: Sequence[Sequence[Setting]]) -> None:
    if (number := math.prod(map(len, axes))) > MOST_POINTS:
        raise ConfigError(
            f"the sweep has {number:,} points or more, and bsweep takes {MOST_POINTS:,} at most. "
            "Sweep over fewer values."
        )


def answer_flags(name: str, words: Words) -> int:
    """Let Hydra print what its flags, such as --help or --cfg, ask for, and return the exit code.

    Args:
        name: The words that were typed before the arguments.
        words: The arguments of the command.

    Returns:
        The exit code.
    """
    card_source.register()
    sys.argv = [name, *words.arranged]
    wants_traceback = "HYDRA_FULL_ERROR" in os.environ
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting with 1
    main = hydra.main(
        version_base=_VERSION, config_path=str(conf_dir()), config_name=card_source.CONFIG
    )
    try:
        with _unchecked_help():
            main(lambda composed: None)()
    except Exception as error:
        if wants_traceback:
            raise
        raise ConfigError(explain(error)) from error
    finally:
        if not wants_traceback:
            del os.environ["HYDRA_FULL_ERROR"]
    return 0


@contextmanager
def _unchecked_help() -> Iterator[None]:
    """Keep argparse from checking help texts, which Python does since 3.14.

    One of Hydra 1.3's help texts is an object instead of a text, and would fail that check.
    """
    argparse.ArgumentParser._check_help = lambda parser, action: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del argparse.ArgumentParser._check_help  # type: ignore[attr-defined]
