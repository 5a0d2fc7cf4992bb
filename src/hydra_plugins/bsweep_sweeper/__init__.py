"""Hydra's grid sweeper, with every point checked before the first one starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobStatus


class Sweeper(BasicSweeper):
    """Expands the grid as Hydra's own sweeper does, and hands its points to whatever `hydra/launcher` is chosen."""

    def sweep(self, arguments: list[str]) -> list[str]:
        """Run the grid that `hydra.sweeper.params` and the command line span; the status of every point."""
        from bsweep import sweep  # Hydra imports all plugins at every start

        assert self.config is not None and self.hydra_context is not None and self.launcher is not None
        loader = self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides([*map(sweep.as_hydra_takes, self._parse_config()), *arguments])
        (points,) = self.split_arguments(overrides, None)
        composed = [loader.load_sweep_config(self.config, list(point)) for point in points]
        chosen = sweep.plan(composed)
        returned = self.launcher.launch([points[index] for index in chosen], initial_job_idx=0)
        statuses = [_status(job) for job in returned]
        sweep.STATUSES.extend(statuses)
        return statuses

    def _parse_config(self) -> list[str]:
        """The axes of an experiment; one that it inherits is not swept where it is null."""
        return [f"{axis}={values}" for axis, values in self.params.items() if values is not None]


def _status(job: Any) -> str:
    if job.status == JobStatus.COMPLETED:
        return str(job.return_value)
    print(f"bsweep: a point could not be run: {job._return_value!r}", file=sys.stderr)
    return "failed"


__all__: Sequence[str] = ["Sweeper"]
