"""Functions that call Hydra to compose the points of a command, and to start these points if the
user chose one of Hydra's launchers.

Hydra's own entry point runs a sweep through a sweeper plug-in, which calls the program back for
each point. Here bsweep stays in control: Hydra composes the points and returns them as values.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir

# Hydra has no public way to start its launchers without a sweeper of its own: a launcher asks for
# these callbacks.
from hydra._internal.callbacks import Callbacks
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from bsweep.compose import grid, overrides
from bsweep.config.parsing import conf_dir
from bsweep.config.run import GROUPS, RunConfig
from bsweep.config.values import ConfigError, flatten
from bsweep.core import terminal
from bsweep.core.regular_files import read_regular

logger = terminal.logger(__name__)

_CONFIG, _VERSION = "config", "1.3"


@dataclass(frozen=True)
class Grid:
    """The points of a command, with facts about what Hydra does when these points run. The values
    of the last key that has several values vary fastest.
    """

    configs: list[RunConfig]
    runs_elsewhere: bool
    """True if the user chose a `hydra/launcher` other than basic, to start the points in processes
    of its own.
    """
    surrounds_points: bool
    """True if Hydra sets variables, writes logs or runs callbacks around points of this grid."""

    _points: list[list[str]]  # the overrides of each point
    _master: DictConfig
    _loader: ConfigLoader

    def only(self, is_wanted: Callable[[RunConfig], bool]) -> Grid:
        """Return a copy of this grid with only those points for which `is_wanted` returns True."""
        indices = [index for index, config in enumerate(self.configs) if is_wanted(config)]
        return replace(
            self,
            configs=[self.configs[index] for index in indices],
            _points=[self._points[index] for index in indices],
        )

    def launch(self, indices: Sequence[int], run_point: Callable[[RunConfig], str]) -> list[str]:
        """Run points by the launcher of Hydra that `hydra/launcher` names, which composes each
        point again.

        Args:
            indices: The indices of the points in `configs`.
            run_point: Runs a point and returns its status. It must be picklable if the launcher
                runs points elsewhere.

        Returns:
            The status of each point.
        """
        name = self._master.hydra.runtime.choices["hydra/launcher"]
        callbacks = Callbacks(self._master)
        context = HydraContext(config_loader=self._loader, callbacks=callbacks)
        callbacks.on_multirun_start(config=self._master, config_name=_CONFIG)
        try:
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=context,
                task_function=lambda composed: run_point(grid.to_config(composed)),
                config=self._master,
            )
            jobs = launcher.launch([self._points[index] for index in indices], initial_job_idx=0)
        except Exception as error:  # such as an error of sbatch, or a cancelled job
            logger.error(f"bsweep: hydra/launcher={name} could not run the points: {_why(error)}")
            return ["failed"] * len(indices)
        finally:
            callbacks.on_multirun_end(config=self._master, config_name=_CONFIG)
        return [_status(job) for job in jobs]


_TRACE = re.compile(r"^Traceback .*^(\w[\w.]*: .*?)\s*^-----", re.MULTILINE | re.DOTALL)
_LOG = re.compile(r"^ *- (.*_log\.out)$", re.MULTILINE)
_NODE = re.compile(r"hostname=([^,)]+)")


def _why(error: Exception) -> str:
    """Return why a launcher could not run points: its error, or, if submitit quotes a traceback
    from a job, the node, the last line of the traceback and the job's log.
    """
    text = str(error)
    trace, log = _TRACE.search(text), _LOG.search(text)
    if not trace or not log:
        return text
    said, node = trace[1], None
    with suppress(OSError):
        node = _NODE.search(read_regular(Path(log[1])).decode(errors="replace"))
    remedy = ""
    if said.startswith("ModuleNotFoundError: "):
        remedy = (
            f" The Python {sys.executable} of that node lacks a package: install bsweep there, in "
            "the same versions as here."
        )
    return f"{f'node {node[1]}' if node else 'a node'}: {said}.{remedy} The job's log: {log[1]}"


def say_could_not_run(error: BaseException) -> None:
    """Log that a point could not be run, and why."""
    logger.error(f"bsweep: a point could not be run: {type(error).__name__}: {error}")


@contextmanager
def composed(arguments: Sequence[str]) -> Iterator[Grid]:
    """Compose the points of a typed command, and yield the grid of these points.

    Hydra's launchers work inside this context only.

    Args:
        arguments: Flags and overrides as `overrides.arranged` returns them.

    Yields:
        The points.

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
    with initialize_config_dir(str(conf_dir()), job_name="sweep", version_base=_VERSION):
        try:
            found = _compose(flags.config_name or _CONFIG, given)
        except Exception as error:
            if "HYDRA_FULL_ERROR" in os.environ:
                raise
            raise ConfigError(overrides.explain(error)) from error
        yield found


def _compose(name: str, given: list[str]) -> Grid:
    loader = GlobalHydra.instance().config_loader()
    master = loader.load_configuration(name, given, run_mode=RunMode.MULTIRUN)
    axes = [overrides.as_hydra_takes(axis) for axis in _axes(master)]
    arguments = [*axes, *master.hydra.overrides.task]
    overrides.refuse(arguments)
    parser = OverridesParser.create(config_loader=loader)
    parsed = parser.parse_overrides(arguments)
    points = _points(parsed)
    is_whole = not any(one.is_sweep_override() or one.value() == "???" for one in parsed)
    is_surrounded: list[bool] = []

    def compose_point(point: list[str]) -> DictConfig:
        # Without an axis or an open choice, what Hydra composed first is the point itself.
        composed = master if is_whole else loader.load_sweep_config(master, point)
        overrides.refuse_settings(composed)
        is_surrounded.append(bool(overrides.around_point(composed)))
        return composed

    configs = grid.configs(compose_point, points)
    is_elsewhere = master.hydra.runtime.choices["hydra/launcher"] != "basic"
    return Grid(configs, is_elsewhere, any(is_surrounded), points, master, loader)


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
        else:
            axes[key] = [f"{key}={override.get_value_element_as_str()}"]
    return [list(point) for point in itertools.product(*axes.values())]


def _status(job: JobReturn) -> str:
    if job.status == JobStatus.COMPLETED:
        return str(job.return_value)
    say_could_not_run(job._return_value)
    return "failed"


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
