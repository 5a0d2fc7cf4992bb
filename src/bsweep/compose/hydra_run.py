"""Hydra, started on bsweep's configuration, and composing no more often than it takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from omegaconf import DictConfig

from bsweep.compose import overrides
from bsweep.config import conf_dir

_CONFIG, _VERSION = "config", "1.3"
_SWEEP = {"-m", "--multirun"}  # which is what the configuration says, too


def start(name: str, arguments: Sequence[str], job: Callable[[DictConfig], object]) -> None:
    """Have Hydra's sweeper run what `arguments` give, or show what its flags ask for.

    Args:
        name: What was typed before them.
        arguments: Flags and overrides as Hydra takes them, see `overrides.arranged`.
        job: What runs a point.
    """
    sys.argv = [name, *arguments]
    typed = [argument for argument in arguments if argument not in _SWEEP]
    if any(argument.startswith("-") for argument in typed):
        import hydra

        hydra.main(version_base=_VERSION, config_path=str(conf_dir()), config_name=_CONFIG)(job)()
    else:
        _sweep(typed, job)


def _sweep(typed: Sequence[str], job: Callable[[DictConfig], object]) -> None:
    """As `hydra.main`, which composes all once more first, for whether the configuration says that
    it is a sweep.
    """
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_automatic_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    version.setbase(_VERSION)
    search_path = create_automatic_config_search_path(None, None, str(conf_dir()))
    hydra = Hydra.create_main_hydra2("sweep", search_path)
    try:
        hydra.multirun(_CONFIG, job, list(typed))
    finally:
        GlobalHydra.instance().clear()


def first_point(arguments: Sequence[str]) -> DictConfig:
    """What Hydra composes, with the first value of each axis that an experiment or the command line
    sweeps.

    Raises:
        HydraException: an override is none, or names what there is not.
    """
    from hydra import compose, initialize_config_dir

    given = overrides.first_values(arguments)
    with initialize_config_dir(str(conf_dir()), version_base=_VERSION):
        axes = (
            compose(_CONFIG, list(given.values()), return_hydra_config=True).hydra.sweeper.params
            or {}
        )
        swept = [
            f"{axis}={values}"
            for axis, values in axes.items()
            if values is not None and axis not in given
        ]
        return compose(_CONFIG, [*overrides.first_values(swept).values(), *given.values()])
