"""Hydra's grid sweeper, with every point checked before the first one starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobStatus
from omegaconf import DictConfig

if TYPE_CHECKING:
    from bsweep.config import RunConfig


class Sweeper(BasicSweeper):
    """Expands the grid as Hydra's own sweeper does, and hands its points to whatever
    `hydra/launcher` is chosen.
    """

    def sweep(self, arguments: list[str]) -> list[str]:
        """Run the grid that `hydra.sweeper.params` and the command line span; the status of every
        point.
        """
        from bsweep.compose import grid, overrides
        from bsweep.study import sweep  # Hydra imports all plugins at every start

        assert (
            self.config is not None and self.hydra_context is not None and self.launcher is not None
        )
        loader = self.hydra_context.config_loader
        master: DictConfig = self.config
        parser = OverridesParser.create(config_loader=loader)
        axes = [overrides.as_hydra_takes(axis) for axis in self._parse_config()]
        overrides.refuse([*axes, *arguments])
        (points,) = self.split_arguments(parser.parse_overrides([*axes, *arguments]), None)

        need_nothing_of_hydra: list[bool] = []

        def compose(point: list[str]) -> DictConfig:
            composed = loader.load_sweep_config(master, point)
            overrides.refuse_settings(composed)
            need_nothing_of_hydra.append(not overrides.around_point(composed))
            return composed

        configs = grid.configs(compose, points)
        runs_here = isinstance(self.launcher, BasicLauncher)

        def start(places: Sequence[int]) -> list[str]:
            if runs_here and all(
                need_nothing_of_hydra
            ):  # Hydra's own launcher would compose each point once more
                return [_status_here(sweep.run_one, configs[place]) for place in places]
            return self._start([points[place] for place in places])

        return sweep.run_points(configs, start, runs_here=runs_here)

    def _start(self, points: Sequence[Sequence[str]]) -> list[str]:
        assert self.launcher is not None and self.config is not None
        try:
            jobs = self.launcher.launch(points, initial_job_idx=0)
        except Exception as error:  # such as sbatch's, or of a job that was cancelled
            name = self.config.hydra.runtime.choices["hydra/launcher"]
            print(
                f"bsweep: hydra/launcher={name} could not run the points: {error}", file=sys.stderr
            )
            return ["failed"] * len(points)
        return [_status_of_job(job) for job in jobs]

    def _parse_config(self) -> list[str]:
        """The axes of an experiment; one that it inherits is not swept where it is null."""
        axes: Any = {} if self.params is None else self.params
        if not hasattr(axes, "items"):
            raise ValueError(
                f"hydra.sweeper.params={axes}: give keys with their values, as in {{seed: '0,1'}}."
            )
        return [f"{axis}={values}" for axis, values in axes.items() if values is not None]


def _status_here(run_one: Callable[[RunConfig], str], config: RunConfig) -> str:
    """The status of a point that is run in this process, without Hydra around it."""
    try:
        return run_one(config)
    except Exception as error:
        return _failed(error)


def _status_of_job(job: Any) -> str:
    return (
        str(job.return_value) if job.status == JobStatus.COMPLETED else _failed(job._return_value)
    )


def _failed(error: Exception) -> str:
    print(f"bsweep: a point could not be run: {error!r}", file=sys.stderr)
    return "failed"


__all__: Sequence[str] = ["Sweeper"]
