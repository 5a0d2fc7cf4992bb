"""A sweep: it checks all points of one command together, and then runs the chosen ones.

Each point passes three stages: `bsweep.compose` makes it, `Sweep` checks and starts it, and
`bsweep.study.attempts` turns it into a run. The sweep hands to `attempts` the function
that launches a point.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from types import TracebackType

from bsweep import launch
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core import terminal
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.whole_files import explained, is_full
from bsweep.launch import team
from bsweep.study import attempts, attendance, checks, commands, parallel
from bsweep.study.progress import Progress
from bsweep.trackers import live

logger = terminal.logger(__name__)

_WAIT_SECONDS = 0.5  # for a point that another process runs


class Sweep:
    """A sweep over the chosen points of a command: it checks all points when it is created, and
    runs the chosen ones later.

    A sweep is entered by `with`, whose end stops the processes that the sweep started.

    Args:
        configs: All points of the command.
        typed: The command's arguments, which its studies keep; None if they have kept them already.
        is_wanted: Tells whether a point is to be run; all are by default.
        repeats: If True, earlier runs of the points are moved to `.previous` first.

    Raises:
        ConfigError: If a check of a point, of its study or of its hosts fails. The error lists all
            problems that this kind of check found, and nothing was started.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        typed: Sequence[str] | None,
        is_wanted: Callable[[RunConfig], bool] = lambda config: True,
        repeats: bool = False,
    ) -> None:
        self._configs, self._typed, self._repeats = configs, typed, repeats
        doubts = checks.check_all(configs)
        self._doubts = {_key(config): of for config, of in zip(configs, doubts, strict=True)}
        for study_dir in {config.study_dir for config in configs}:
            checks.refuse_newer(study_dir)
        chosen: dict[tuple[Path, str], int] = {}
        for index, config in enumerate(configs):  # a point that is given twice is run once
            if is_wanted(config):
                chosen.setdefault(_key(config), index)
        self._indices = list(chosen.values())
        self.run_ids: Set[str] = {run_id for _, run_id in chosen}
        self.studies: dict[Path, list[RunConfig]] = {study_dir: [] for study_dir, _ in chosen}
        """The points of the command in each study folder, for studies in which at least one point
        is to be run.
        """
        for config in configs:
            if config.study_dir in self.studies:
                self.studies[config.study_dir].append(config)
        if unready := checks.unready_hosts(configs[index] for index in self._indices):
            raise ConfigError(*unready)
        self._progress = Progress(len(self._indices))
        self._attendance = attendance.Attendance()
        self._pool = team.ProcessPool()

    def __enter__(self) -> Sweep:
        try:
            for study_dir, configs in self.studies.items():
                self._join(study_dir, configs)
            if self._repeats:
                for index in self._indices:
                    attempts.set_aside(self._configs[index])
        except BaseException:
            self._attendance.leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.end()
        live.end()
        self._attendance.leave()

    def run(self) -> list[str]:
        """Run the chosen points, and return the status of each."""
        configs = self._configs
        left = {
            index: configs[index]
            for index in self._indices
            if not attempts.result_of(configs[index])
        }
        if reason := parallel.why_not([*left.values()]):
            self._progress.say(reason)
        if parallel.is_possible([*left.values()]):  # each point has its own processes
            indices, run_points = self._indices, self._run_at_once
        else:
            indices = team.by_processes({index: configs[index] for index in self._indices})
            self._pool.expect(configs[index] for index in indices if index in left)
            run_points = self._run_in_turn
        statuses = dict(zip(indices, run_points(indices) if indices else [], strict=True))
        while others := [index for index, status in statuses.items() if status == "running"]:
            free = [index for index in others if not attempts.is_running(configs[index])]
            for index in free:
                # This sweep runs a point that was interrupted; any other end is the point's own.
                ended = attempts.ended_elsewhere(configs[index], self._progress)
                statuses[index] = ended or run_points([index])[0]
            time.sleep(0 if free else _WAIT_SECONDS)
        return list(statuses.values())

    def _join(self, study_dir: Path, points: Sequence[RunConfig]) -> None:
        """Register this sweep and its command in a study's folder; raise ConfigError if the sweep
        cannot write there.
        """
        try:
            study_dir.mkdir(parents=True, exist_ok=True)
            if self._typed is not None:
                commands.keep(study_dir, self._typed, points)
            self._attendance.join(study_dir)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            why = explained(error, study_dir, "name another results_dir")
            raise ConfigError(
                f"results_dir={points[0].results_dir} study={points[0].study}: {why}."
            ) from None

    def _run_at_once(self, indices: Sequence[int]) -> list[str]:
        configs = [self._configs[index] for index in indices]
        return parallel.run_at_once(configs, self._progress, self._run_with)

    def _run_in_turn(self, indices: Sequence[int]) -> list[str]:
        return [self._run_or_fail(self._configs[index]) for index in indices]

    def _run_or_fail(self, config: RunConfig) -> str:
        try:
            return self._run_with_launcher(config)
        except Exception as error:  # must not end the other points
            what = f"{type(error).__name__}: {error}"
            logger.error(f"bsweep: a point could not be run: {what}")
            return "failed"

    def _run_with_launcher(self, config: RunConfig) -> str:
        if not inside_horovodrun():
            launch_point = functools.partial(launch.launch, pool=self._pool)
            return self._run_with(config, self._progress, launch_point)
        from bsweep.launch import warm  # imports Horovod and torch

        return self._run_with(config, self._progress, warm.launch)

    def _run_with(
        self, config: RunConfig, progress: Progress, launch_point: attempts.Launch
    ) -> str:
        return _run_checked(config, self._doubts[_key(config)], progress, launch_point)


def _run_checked(
    config: RunConfig, doubts: list[str], progress: Progress, launch_point: attempts.Launch
) -> str:
    """Run a point that has passed its checks, unless its hosts are not ready now, and return its
    status.
    """
    if unready := checks.unready_hosts([config]):  # an earlier point may have failed on them
        progress.skip(config, f"not tried: {'; '.join(unready)}")
        return "unready"
    try:
        return attempts.run_point(config, doubts, progress, launch_point)
    except OSError as error:  # from the run's own files: errors of its workers are on record
        if not is_full(error):
            raise
        progress.give_up(config, str(error.strerror))
        return "interrupted"  # a run without a summary reads as interrupted, too


def _key(config: RunConfig) -> tuple[Path, str]:
    return config.study_dir, config.run_id
