"""A sweep: it checks all points of one command together, and then runs the chosen ones.

Each point passes three stages: `bsweep.compose` makes it, `Sweep` checks and starts it, and
`bsweep.study.run_point` launches it and records its run.
"""

from __future__ import annotations

import shlex
import time
import traceback
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from pathlib import Path

from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core import terminal
from bsweep.core.whole_files import explained, is_full
from bsweep.launch import hosts_check, resources
from bsweep.launch.pool import ProcessPool
from bsweep.runlog.reading import Damaged, Newer
from bsweep.study import checks, claims, history, parallel, states
from bsweep.study.progress import Progress
from bsweep.study.run_point import run_point, set_aside, why_skipped
from bsweep.study.states import result_of
from bsweep.trackers import live

logger = terminal.logger(__name__)

_WAIT_SECONDS = 0.5  # for a point that another process runs


class Sweep:
    """A sweep over the chosen points of a command: it checks all points when it is created, and
    runs the chosen ones later.

    Args:
        configs: All points of the command.
        arguments: The command's arguments as typed.
        wanted: The ids of the points to run, if the command is one that their studies have
            recorded; None for all, of a command that the studies are to record.
        repeats: If True, earlier runs of the points are moved to `.previous` first.

    Raises:
        ConfigError: If a check of a point, of its study or of its hosts fails. The error lists all
            problems that this kind of check found, and nothing was started.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        arguments: Sequence[str],
        wanted: Set[str] | None = None,
        repeats: bool = False,
    ) -> None:
        self._arguments, self._is_new, self._repeats = arguments, wanted is None, repeats
        self._command = f"bsweep run {shlex.join(arguments)}"
        repeated = wanted if repeats and wanted else ()
        self._warnings = checks.check_all(configs, repeated)
        # By their folders: a point that is given twice is run once.
        self._points = {
            config.folder: config for config in configs if wanted is None or config.run_id in wanted
        }
        self.studies: dict[Path, list[RunConfig]] = {folder.parent: [] for folder in self._points}
        """The points of the command in each study folder, for studies in which at least one point
        is to be run.
        """
        for config in configs:
            if config.study_dir in self.studies:
                self.studies[config.study_dir].append(config)
        self._results: dict[Path, str] = {}
        for folder, config in self._points.items():
            if (result := result_of(config)) and not repeats:
                self._results[folder] = result
        self._left = [c for folder, c in self._points.items() if folder not in self._results]
        if unready := hosts_check.problems(self._left):
            raise ConfigError(*unready)
        self._progress = Progress(len(self._points))
        self._pool = ProcessPool()

    def run(self) -> list[str]:
        """Run the chosen points, and return the status of each.

        Raises:
            ConfigError: If the sweep cannot write to the folder of a study.
        """
        with ExitStack() as stack:
            for study_dir, configs in self.studies.items():
                self._register(study_dir, configs, stack)
            stack.callback(live.end)
            stack.callback(self._pool.end)
            for config in self._points.values() if self._repeats else ():
                set_aside(config)
            for folder, result in self._results.items():
                config = self._points[folder]
                self._progress.skip(config, why_skipped(config, result))
            statuses = dict(self._results)
            why_in_turn = resources.why_in_turn(self._left)
            if why_in_turn is None:
                folders = [config.folder for config in self._left]
                statuses |= zip(folders, self._run_at_once(), strict=True)
            else:
                if why_in_turn:
                    self._progress.say(why_in_turn)
                for config in self._pool.ordered(self._left):  # those of one team together
                    statuses[config.folder] = self._run(config)
            while others := [folder for folder, end in statuses.items() if end == "running"]:
                time.sleep(_WAIT_SECONDS)
                for folder in others:
                    statuses[folder] = self._run_after_others(self._points[folder])
        return [statuses[folder] for folder in self._points]

    def _register(self, study_dir: Path, points: Sequence[RunConfig], stack: ExitStack) -> None:
        """Register this sweep and its command in a study's folder until `stack` is closed; raise
        ConfigError if the sweep cannot write there.
        """
        try:
            study_dir.mkdir(parents=True, exist_ok=True)
            if self._is_new:
                history.record(study_dir, self._arguments, points)
            stack.enter_context(claims.registered(study_dir))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            why = explained(error, study_dir, "name another results_dir")
            raise ConfigError(
                f"results_dir={points[0].results_dir} study={points[0].study}: {why}."
            ) from None

    def _run_at_once(self) -> list[str]:
        """Run the points without a result, several at the same time, and return their statuses."""
        num_done = self._progress.num_done

        def run_beside(index: int, on_poll: Callable[[], None]) -> str:
            self._progress.be_beside(num_done + index)
            return self._run(self._left[index], on_poll)

        return parallel.run_at_once(self._left, run_beside)

    def _run_after_others(self, config: RunConfig) -> str:
        """Return the status of a point that another process ran; run the point if it has ended
        unfinished, and return "running" if it has not ended.
        """
        if claims.is_run_claimed(config.folder):
            return "running"
        status = states.state_of_run(config.folder).status
        if status not in (*states.RESULTS, *states.FAILURES):
            return self._run(config)
        self._progress.skip(config, f"{status}, because another process has run it")
        return status

    def _run(self, config: RunConfig, on_poll: Callable[[], None] = lambda: None) -> str:
        """Run a point and return its status, also if it cannot be run: `interrupted` if a disk is
        full, else `failed`.
        """
        try:
            warnings = self._warnings[config.folder]
            return run_point(config, self._command, warnings, self._progress, self._pool, on_poll)
        except Exception as error:  # must not end the other points
            # A full disk of the run's own files: errors of its workers are on record.
            if isinstance(error, OSError) and is_full(error):
                self._progress.give_up(config, str(error.strerror))
                return "interrupted"  # a run without a summary reads as interrupted, too
            if not isinstance(error, ConfigError | OSError | Newer | Damaged):
                traceback.print_exception(error)
            logger.error(f"bsweep: a point could not be run: {type(error).__name__}: {error}")
            return "failed"
