"""Functions that call Hydra to compose the points of a command.

Hydra's own entry point runs a sweep through a sweeper plug-in, which calls the program back for
each point. Here bsweep stays in control: Hydra composes the points and returns them as values.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from bsweep.compose import grid, overrides
from bsweep.config.parsing import conf_dir
from bsweep.config.run import GROUPS, RunConfig
from bsweep.config.values import ConfigError, flatten

_CONFIG, _VERSION = "config", "1.3"


def composed(arguments: Sequence[str]) -> list[RunConfig]:
    """Return the points of a typed command. The values of the last key that has several values vary
    fastest.

    Args:
        arguments: Flags and overrides as `overrides.arranged` returns them.

    Raises:
        ConfigError: If any argument or point is wrong.
    """
    flags = overrides.parsed(arguments)
    given = list(flags.overrides)
    if flags.config_dir:
        folder = Path(flags.config_dir).resolve()
        if not folder.is_dir():
            raise ConfigError(
                f"--config-dir {flags.config_dir}: there is no such folder. Name a folder that "
                "exists."
            )
        given.append(f"hydra.searchpath=['file://{folder}']")
    with initialize_config_dir(str(conf_dir()), version_base=_VERSION):
        try:
            return _compose(flags.config_name or _CONFIG, given)
        except Exception as error:
            if "HYDRA_FULL_ERROR" in os.environ:
                raise
            raise ConfigError(overrides.explain(error)) from error


def _compose(name: str, given: list[str]) -> list[RunConfig]:
    loader = GlobalHydra.instance().config_loader()
    master = loader.load_configuration(name, given, run_mode=RunMode.MULTIRUN)
    overrides.refuse_hydras_own(master.hydra)
    axes = [overrides.as_hydra_takes(axis) for axis in _axes(master)]
    arguments = [*axes, *master.hydra.overrides.task]
    overrides.refuse(arguments)
    parser = OverridesParser.create(config_loader=loader)
    parsed = parser.parse_overrides(arguments)
    is_whole = not any(one.is_sweep_override() or one.value() == "???" for one in parsed)

    def compose_point(point: list[str]) -> DictConfig:
        # Without an axis or an open choice, what Hydra composed first is the point itself.
        return master if is_whole else loader.load_sweep_config(master, point)

    return grid.configs(compose_point, _points(parsed))


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


def _points(given: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of each point of a grid. The last override of a key counts."""
    axes: dict[str, list[str]] = {}
    for override in given:
        key = override.get_key_element()
        if override.is_sweep_override():
            axes[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not axes[key]:
                raise ConfigError(f"{override.input_line}: no value fits. Give one at least.")
        else:
            axes[key] = [f"{key}={override.get_value_element_as_str()}"]
    return [list(point) for point in itertools.product(*axes.values())]


def answer_flags(name: str, arguments: Sequence[str]) -> int:
    """Let Hydra print what its flags, such as --help or --cfg, ask for, and return the exit code.

    Args:
        name: The words that were typed before the arguments.
        arguments: Flags and overrides as `overrides.arranged` returns them.

    Returns:
        The exit code.
    """
    sys.argv = [name, *arguments]
    wants_traceback = "HYDRA_FULL_ERROR" in os.environ
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting with 1
    main = hydra.main(version_base=_VERSION, config_path=str(conf_dir()), config_name=_CONFIG)
    try:
        with _unchecked_help():
            main(lambda composed: None)()
    except Exception as error:
        if wants_traceback:
            raise
        raise ConfigError(overrides.explain(error)) from error
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


def described(
    arguments: Sequence[str],
) -> tuple[dict[str, Any], dict[str, str], dict[str, list[str]]]:
    """Return what a help text shows of a command line: the values that its overrides compose, and
    the options of the groups.

    Of an override with several values, the first one counts.

    Args:
        arguments: Flags and overrides as `overrides.arranged` returns them.

    Returns:
        The values by dotted key; the chosen option of each group; all options of each group.

    Raises:
        ConfigError: If an override cannot be read or names an unknown key or choice.
    """
    given = list(overrides.first_values(overrides.parsed(arguments).overrides).values())
    with initialize_config_dir(str(conf_dir()), version_base=_VERSION):
        try:
            composed = compose(_CONFIG, given, return_hydra_config=True)
        except HydraException as error:
            raise ConfigError(overrides.explain(error)) from error
        loader = GlobalHydra.instance().config_loader()
        options = {group: loader.get_group_options(group) for group in (*GROUPS, "experiment")}
    chosen = {group: str(composed.hydra.runtime.choices[group]) for group in GROUPS}
    values: Any = OmegaConf.to_container(grid.without_hydra(composed), resolve=True)
    return flatten(values), chosen, options


def first_point(arguments: Sequence[str]) -> DictConfig:
    """Return the first point of a grid, as Hydra composes it.

    Each axis of an experiment or the command line has its first value.

    Raises:
        HydraException: If an override cannot be read or names an unknown key or choice.
    """
    given = overrides.first_values(arguments)
    with initialize_config_dir(str(conf_dir()), version_base=_VERSION):
        master = compose(_CONFIG, list(given.values()), return_hydra_config=True)
        swept = [axis for axis in _axes(master) if axis.partition("=")[0] not in given]
        return compose(_CONFIG, [*overrides.first_values(swept).values(), *given.values()])
