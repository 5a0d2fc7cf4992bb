"""The search for the best cell of a grid, which trains points of the grid one after another.

The command is in `bsweep.advise.recommend`. The search times a few steps of some cells. Until a run
reaches the target, it trains points that were begun before, and then points of a batch in the
middle. From then on it trains the point that is expected to improve the recommendation most for its
worker-seconds. It ends when the choice is sure, the budget is spent, no run is expected to help, or
no point is left.

The runs are an ordinary study. The timed steps, and the list of runs made for the search, are in
the study's `recommend.json`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Literal

import pandas as pd

from bsweep.analysis import load
from bsweep.analysis.conclusions.next_run import (
    FEWEST_RUNS,
    SHARE,
    Grid,
    Next,
    Offer,
    first_run,
    has_known_steps,
    is_proven,
    next_probe,
    next_run,
    still_open,
    with_rates,
)
from bsweep.analysis.conclusions.predicting import predict_from
from bsweep.analysis.conclusions.prediction_texts import Prediction, cell_name, row_name
from bsweep.analysis.prediction.fitting import fit
from bsweep.analysis.prediction.forecast import Key, keys_of
from bsweep.analysis.prediction.objectives import CLOSE, Objective
from bsweep.analysis.prediction.seen_runs import Observed, observed
from bsweep.analysis.prediction.step_time import StepTimeFit, Timing, fit_step_time
from bsweep.analysis.prediction.ways import Way, split_or_none, way_of
from bsweep.analysis.study.numbers import number
from bsweep.config.data import ProgramDataConfig
from bsweep.config.run import RunConfig
from bsweep.config.target import Target
from bsweep.config.values import Count, Name, Processes, shortened, show
from bsweep.core import terminal
from bsweep.core.words import duration
from bsweep.launch import Outcome
from bsweep.runlog.checkpoint_files import checkpoints, is_stop_requested, request_stop
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.records import adapter
from bsweep.runlog.values import Amount
from bsweep.study import history, side_runs, states
from bsweep.study.progress import Progress
from bsweep.study.run_point import StopRequested, run_point

logger = terminal.logger(__name__)

RATE = "optimizer.lr"
AXES = ("local_batch", "global_batch", "num_workers", "accumulation_steps", RATE, "seed")

_DRAWS = 1500  # for the fits that only choose the next run
# The search stops a run, and chooses the next one anew, after this multiple of the upper end of
# the run's predicted time.
_OVERTIME = 2.0
_CAN_RUN = ("new", "interrupted")  # statuses of points that can be run
LIMIT = (
    f"{100 * SHARE:g} % of the predicted cost of the grid or {FEWEST_RUNS} typical runs, "
    "whichever is more"
)
"""The limit of a search without a given budget, in words."""


@dataclass(frozen=True)
class _Probe:
    """The measured seconds of a step in one cell, or the error with which the cell ran out of
    memory (`problem`).

    `num_parameters` are those of the model, and `sent_bytes` what a worker sent in a step.
    """

    kind: str
    cell: tuple[Count, Processes, Count]  # global batch, workers, accumulation steps
    step_seconds: Amount
    wall_seconds: Amount
    problem: str = ""
    num_parameters: Count | None = None
    sent_bytes: Amount = 0.0

    def __post_init__(self) -> None:
        if not self.problem and not self.step_seconds:
            raise ValueError("step_seconds must be more than 0 if problem is empty")


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """The content of `recommend.json`; `runs` are the ids of the runs made for the search, and
    `num_train` is the number of training examples, once a run has told it.
    """

    schema: Literal[1] = 1
    probes: tuple[_Probe, ...] = ()
    runs: tuple[Name, ...] = ()
    num_train: Count | None = None


def _read_kept(path: Path) -> _Kept:
    """Return the probes and runs that earlier searches recorded in `recommend.json`; no probes and
    no runs if there is no such file.

    Raises:
        ValueError: If the file cannot be read, or does not have this format.
    """
    if not path.exists():
        return _Kept()
    try:
        kept: _Kept = adapter(_Kept).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is no file of searches by this version of bsweep ({shortened(str(error))}): "
            "remove it. The next search then times steps again, and does not know what earlier "
            "searches spent of the budget."
        ) from None
    return kept


@dataclass
class Search:
    """A search for the best cell of a grid: the grid's points, the target to reach, the objective
    and the budget.

    The results of runs are not kept here: they are read from the study each time.

    Attributes:
        cells: The points of the grid by cell: global batch, workers, accumulation steps, and the
            name of the way of sharing the model.
        warnings: Warnings about the points, by run folder.
        command: The command as typed, which each run records.
        overrides: The command's overrides, from which the commands of single points are made.
        target: The accuracy or loss that runs are to reach.
        objective: What the best cell minimizes, and its limits.
        budget: Wall seconds for the whole search; None for a share of the grid's predicted cost.
        price: Price of a worker-hour in money, or None.
    """

    cells: dict[Key, list[RunConfig]]
    warnings: dict[Path, list[str]]
    command: str
    overrides: list[str]
    target: Target
    objective: Objective
    budget: float | None
    price: float | None

    def __post_init__(self) -> None:
        firsts: dict[str, RunConfig] = {}
        for (_, _, _, way), points in self.cells.items():
            firsts.setdefault(way, points[0])
        self.study_dir = next(iter(firsts.values())).study_dir
        self.strategies = {way: config.strategy for way, config in firsts.items()}
        self.way_names = {
            config.run_id: cell[3] for cell, points in self.cells.items() for config in points
        }
        self.kinds = {way: history.planned(config).kind for way, config in firsts.items()}
        ways = {kind: way for way, kind in self.kinds.items()}
        # With those of cells that are left out later: their runs count, too.
        self.points = [config for points in self.cells.values() for config in points]
        kept = _read_kept(self._path)
        self.probes = {
            (*probe.cell, ways[probe.kind]): probe for probe in kept.probes if probe.kind in ways
        }
        self.others = [probe for probe in kept.probes if probe.kind not in ways]
        self.allowance = 0.0  # in worker-seconds, a part of the grid's predicted cost
        self.run_ids = [*kept.runs]
        self.num_train = kept.num_train if self.probes else None
        if self.num_train is not None:
            self._learn_num_train(self.num_train)

    @property
    def what_is_minimized(self) -> str:
        """The words for what the objective minimizes: `time to target` for seconds, and `cost to
        target` for any other measure.
        """
        return "time to target" if self.objective.minimize == "seconds" else "cost to target"

    @property
    def _path(self) -> Path:
        return self.study_dir / "recommend.json"

    @cached_property
    def planned(self) -> dict[str, history.Planned]:
        return {config.run_id: history.planned(config) for config in self.points}

    @property
    def rates(self) -> list[float]:
        """The learning rates of the grid, in order; empty for a program with a rate of its own."""
        rates = {_rate(config) for points in self.cells.values() for config in points}
        return sorted(rate for rate in rates if not math.isnan(rate))

    def lead(self) -> Next:
        """Time a few steps of some cells, then train one point after another until the search ends.

        Returns:
            The reason why the search ended, with the run that would come next, if one is left.

        Raises:
            ValueError: If no cell fits into memory, steps cannot be timed, or a run fails.
            StopRequested: If somebody asked a run to stop.
        """
        self._probe()
        while self.cells:
            seen = self.observed()
            prediction = self._best_known(seen)
            if prediction is not None and has_known_steps(prediction):
                say(f"now: {_in_short(prediction)}")
            coming, left = self._next(seen, prediction)
            if coming.ends or coming.offer is None:
                return coming
            self._run(coming, coming.offer, prediction, left)
        errors = (probe.problem for probe in self.probes.values() if probe.problem)
        raise ValueError(
            "no cell of the grid fits into memory: add smaller batches to the grid. The first "
            f"error: {next(errors)}"
        )

    def _best_known(self, seen: Observed | None) -> Prediction | None:
        """Return the prediction of the best cell from the runs so far; None before any run has
        reached the target.

        If the objective has a deadline and allows no cell, the prediction is for the fastest cell
        instead.
        """
        try:
            return self.prediction(seen, _DRAWS, self.objective)
        except ValueError:
            if self.objective.deadline_seconds is None:
                raise
            fastest = replace(self.objective, deadline_seconds=None, minimize="seconds")
            return self.prediction(seen, _DRAWS, fastest)

    def _probe(self) -> None:
        """Time a few steps of two cells for each number of workers, and of further cells as long
        as they cost little of what the search may spend; `next_probe` says which.

        Cells that an earlier search has timed are not timed again. A cell that turns out not to fit
        into memory is left out, and the next one is timed. Once a run was made, no further cells
        are timed.
        """
        for cell in self.probes:
            self._leave_out_what_does_not_fit(cell)

        @cache
        def most() -> float:
            if self.run_ids:
                return 0.0
            if self.budget is not None:
                return self.budget
            return self.grid().share(fit_step_time(self._timings(self.ways()), _DRAWS), None)

        has_budget = self.budget is not None
        while (coming := next_probe(self.cells, self._probe_costs(has_budget), most)) is not None:
            self._time_steps(coming)

    def _probe_costs(self, is_wall: bool) -> dict[Key, float]:
        """Return what timing the steps of each cell has cost: wall seconds if `is_wall` is true,
        otherwise worker-seconds.
        """
        return {
            cell: probe.wall_seconds * (1 if is_wall else cell[1])
            for cell, probe in self.probes.items()
        }

    def _time_steps(self, cell: Key) -> None:
        spent = self.spent(is_wall=True)
        if self.budget is not None and spent >= self.budget:
            raise ValueError(
                f"a budget of {duration(self.budget)} is too short to time the steps of the grid's "
                f"smallest and largest batches: the search has spent {duration(spent)} so far. "
                f"Give --budget {math.ceil(10 * spent)}s or more."
            )
        say(f"timing a few steps of {cell_name(cell)}")
        began = time.monotonic()
        timings = side_runs.try_out(self.cells[cell][0], logger.info)  # or why there are none
        took = time.monotonic() - began
        if not isinstance(timings, Outcome):
            self.probes[cell] = _Probe(
                self.kinds[cell[3]], cell[:3], timings.step_seconds, took,
                num_parameters=timings.num_parameters, sent_bytes=timings.sent_bytes,
            )  # fmt: skip
            self._learn_num_train(timings.num_train)
        elif timings.status == "out_of_memory":
            self._does_not_fit(cell, took, f"{timings.status}: {timings.message}")
        else:
            raise ValueError(f"{cell_name(cell)}: {timings.status}: {timings.message}")
        self._keep()

    def _does_not_fit(self, cell: Key, seconds: float, problem: str) -> None:
        say(
            f"{cell_name(cell)}: {problem.splitlines()[0]}; this cell and cells with as many "
            "workers and equal or larger passes are left out"
        )
        if cell in self.probes:  # its steps were timed before
            seconds += self.probes[cell].wall_seconds
        self.probes[cell] = _Probe(self.kinds[cell[3]], cell[:3], 0.0, seconds, problem)
        self._leave_out_what_does_not_fit(cell)

    def _leave_out_what_does_not_fit(self, cell: Key) -> None:
        batch, workers, passes, way = cell
        if self.probes[cell].problem:
            self.cells = {
                key: points
                for key, points in self.cells.items()
                if (key[1], key[3]) != (workers, way) or key[0] / key[2] < batch / passes
            }

    def _learn_num_train(self, num_train: int) -> None:
        """Set the number of training examples in the points, if only the user's own program knew
        it.
        """
        self.num_train = num_train

        def with_num_train(config: RunConfig) -> RunConfig:
            if isinstance(config.data, ProgramDataConfig) and config.data.num_train is None:
                return replace(config, data=replace(config.data, num_train=num_train))
            return config

        self.points = [*map(with_num_train, self.points)]
        self.cells = {key: [*map(with_num_train, configs)] for key, configs in self.cells.items()}
        vars(self).pop("planned", None)  # it has the number of examples

    def _keep(self) -> None:
        probes = (*self.others, *self.probes.values())
        kept = _Kept(probes=probes, runs=tuple(self.run_ids), num_train=self.num_train)
        write_json(self._path, asdict(kept))

    @property
    def _timed(self) -> dict[Key, _Probe]:
        """The probes of cells that fit into memory."""
        return {cell: probe for cell, probe in self.probes.items() if not probe.problem}

    def _timings(self, ways: Mapping[str, Way]) -> list[Timing]:
        return [
            Timing(ways[cell[3]].cell(*cell[:3]), probe.step_seconds)
            for cell, probe in self._timed.items()
        ]

    def ways(self, seen: Observed | None = None) -> dict[str, Way]:
        """Return the ways of the grid by their names, as far as runs or timed steps tell them."""
        rows = [
            (*cell, probe.num_parameters, probe.sent_bytes)
            for cell, probe in self._timed.items()
            if probe.num_parameters is not None
        ]
        columns = [
            "global_batch", "num_workers", "accumulation_steps", "way", "num_parameters",
            "sent_bytes",
        ]  # fmt: skip
        steps = pd.DataFrame(rows, columns=columns)
        ways = {
            way: way_of(way, split_or_none(card), steps[steps["way"] == way])
            for way, card in self.strategies.items()
        }
        return ways | (dict(seen.ways) if seen else {})

    def observed(self) -> Observed | None:
        """Return the measurements of the runs of this grid, such as their steps to the target, with
        all ways of the grid; None if there are no such runs yet.
        """
        folders = (self.study_dir / run_id for run_id in self.planned)
        begun = [folder.name for folder in folders if RunPaths(folder).metrics.exists()]
        if not begun:
            return None
        study = load(self.study_dir, mix=True)
        runs = study.runs[study.runs["run_id"].isin(begun)]
        if runs.empty:
            return None
        seen = observed(replace(study, runs=runs), self.target, ways=self.way_names)
        ways = self.ways(seen)
        return replace(seen, ways=ways, probed=tuple(self._timings(ways)))

    def prediction(
        self, seen: Observed | None, num_draws: int, objective: Objective
    ) -> Prediction | None:
        """Return the predicted time and cost of reaching the target for the cells of the grid; None
        before any run has reached the target.

        Args:
            seen: The runs so far, see `observed`.
            num_draws: The number of draws of the fit.
            objective: The objective by which the best cell is chosen.

        Raises:
            ValueError: If the objective allows no cell, or no run recorded what it minimizes.
        """
        if seen is None or not seen.runs["reached"].eq(True).any():
            return None
        fits = fit(seen, num_draws, searched=[cell[0] for cell in self.cells])
        return predict_from(seen, fits, objective, sorted(self.cells), self.price)

    def _next(
        self, seen: Observed | None, prediction: Prediction | None
    ) -> tuple[Next, dict[int, float]]:
        """Return the run that comes next, and the worker-seconds left for it; see `_left`."""
        grid = self.grid(seen)
        offers = [
            Offer(cell, grid.most_steps[cell], done, rate)
            for cell, configs in self.cells.items()
            for rate in sorted(set(map(_rate, configs)))
            for _, done in self._points(cell, rate)[:1]
        ]
        offers = with_rates(offers, self.rates, seen)
        if prediction is not None:
            left = self._left(grid, prediction.fitted.step_time, prediction)
            return next_run(grid, offers, prediction, left), left
        timings = seen.timings() if seen else self._timings(grid.ways)
        step_time = fit_step_time(timings, _DRAWS)
        left = self._left(grid, step_time, prediction)
        if self.budget is None and not self.run_ids:
            say(
                f"no --budget: at most {number(self.allowance)} worker-seconds, which are {LIMIT}; "
                "a run that reaches the target will tell more exactly"
            )
        offers = still_open(offers, seen.runs) if seen is not None else offers
        return first_run(grid, offers, step_time, left), left

    def grid(self, seen: Observed | None = None) -> Grid:
        points = {cell: len(configs) for cell, configs in self.cells.items()}
        first = {cell: self.planned[configs[0].run_id] for cell, configs in self.cells.items()}
        most = {cell: _most_steps(point) for cell, point in first.items()}
        # Nearly all of this time goes to the start and to evaluations.
        others: dict[int, list[float]] = {}
        for cell, probe in self._timed.items():
            others.setdefault(cell[1], []).append(probe.wall_seconds)
        beside = {workers: median(seconds) for workers, seconds in others.items()}
        return Grid(points, most, beside, self.ways(seen))

    def _left(
        self, grid: Grid, step_time: StepTimeFit, prediction: Prediction | None
    ) -> dict[int, float]:
        """Return the worker-seconds of the budget that are left for the next run, by the number of
        workers of that run.

        A given budget is wall time, so a run on more workers may take more worker-seconds. Without
        a given budget, the budget is `Grid.share`.
        """
        workers = {cell[1] for cell in self.cells}
        if self.budget is not None:
            return {count: (self.budget - self.spent(is_wall=True)) * count for count in workers}
        timed = sum(self._probe_costs(is_wall=False).values())
        self.allowance = grid.share(step_time, prediction, timed)
        return dict.fromkeys(workers, self.allowance - self.spent(is_wall=False))

    def spent(self, *, is_wall: bool) -> float:
        """Return the time that this search and earlier ones have spent on runs of the grid and on
        timing steps: wall seconds if `is_wall` is true, otherwise worker-seconds.
        """
        spent = sum(self._probe_costs(is_wall).values())
        for run_id in set(self.run_ids) & self.planned.keys():
            state = states.state_of_run(self.study_dir / run_id)
            # A killed run has no wall time: its seconds of training count.
            seconds = state.wall_seconds or state.train_seconds or 0.0
            spent += seconds * (1 if is_wall else self.planned[run_id].num_workers)
        return spent

    def _points(self, cell: Key, rate: float) -> list[tuple[RunConfig, float]]:
        """Return the new and interrupted points of a cell with a learning rate, each with the
        number of steps before its latest checkpoint; the point with the most steps comes first.
        """
        points = []
        for config in self.cells[cell]:
            paths, is_of_rate = RunPaths(config.folder), math.isnan(rate) or _rate(config) == rate
            if is_of_rate and states.state_of_run(paths.folder).status in _CAN_RUN:
                facts = next((checkpoint.facts for checkpoint in checkpoints(paths)), None)
                points.append((config, float(facts["num_steps"]) if facts else 0.0))
        return sorted(points, key=lambda point: -point[1])

    def _run(
        self, coming: Next, offer: Offer, prediction: Prediction | None, left: Mapping[int, float]
    ) -> None:
        """Train one point of the chosen cell, and ask its run to stop if it still trains after a
        time limit.

        The limit is the rest of the budget, `left`. With a prediction it is at most twice the upper
        end of the predicted time, plus the time that runs take besides their steps.
        """
        cell, rate = offer.cell, offer.rate
        points = self._points(cell, rate)
        if not points:  # another process has taken the point meanwhile
            return
        config, done = points[0]
        seconds = left[cell[1]] / cell[1]
        if prediction is not None:
            most = prediction.cells["seconds_high"].iloc[keys_of(prediction.cells).index(cell)]
            others = self.grid().other_seconds.get(cell[1], 0.0)
            seconds = min(seconds, _OVERTIME * float(most) + others)
        goes_on = f" (it resumes after step {done:.0f})" if done else ""
        rate_text = f", {RATE}={rate:g}" if len(self.rates) > 1 else ""
        run = f"{cell_name(cell)}{rate_text}, seed {config.seed}{goes_on}"
        say(f"next: {run}: {self._reason(coming, offer, prediction)}; {self.budget_text()}")
        history.record(self.study_dir, _typed(self.overrides, config), [config])
        if config.run_id not in self.run_ids:
            self.run_ids.append(config.run_id)
            self._keep()
        status = _train(config, self.command, self.warnings[config.folder], max(1.0, seconds))
        message = states.state_of_run(config.folder).message
        if status == "out_of_memory":
            self._does_not_fit(cell, 0.0, message or status)
            self._keep()
        if status == "unready":
            raise ValueError(f"{config.run_id}: correct its hosts, then type the command again.")
        if status in ("failed", "timeout"):
            raise ValueError(
                f"{config.run_id}: {status}: {message.splitlines()[0]}; correct the cause, then "
                f"run `bsweep retry {self.study_dir}`."
            )

    def _reason(self, coming: Next, offer: Offer, prediction: Prediction | None) -> str:
        """Return why the search makes its next run, and how long the run takes."""
        batch, workers, *_ = offer.cell
        takes = duration(coming.worker_seconds / workers)
        if prediction is None:
            return f"no run has reached the target yet; this run takes at most {takes}"
        is_of_best = batch == prediction.recommended["global_batch"]
        reasons = {
            "the steps of two batch sizes must be known": not has_known_steps(prediction),
            "no run of so large a batch has reached the target yet": not is_proven(
                prediction, batch
            ),
            "the rates beside the best one of the recommended batch must be tried": (
                offer.is_trial and is_of_best
            ),
        }
        for reason, applies in reasons.items():
            if applies:
                return f"{reason}; this run takes about {takes}"
        share = f"{100 * coming.gain:.1f} % of the {self.what_is_minimized}"
        return f"about {takes}, expected to save {share}"

    def budget_text(self) -> str:
        if self.budget is not None:
            return f"{duration(self.spent(is_wall=True))} of {duration(self.budget)} spent"
        spent = self.spent(is_wall=False)
        return f"{number(spent)} of {number(self.allowance)} worker-seconds, {LIMIT}, spent"


def _rate(config: RunConfig) -> float:
    rate = config.optimizer.lr
    return math.nan if rate is None else rate


def _in_short(prediction: Prediction) -> str:
    close, probability = f"{100 * CLOSE:.0f} %", prediction.recommended["probability_close"]
    cell = f"{row_name(prediction.recommended)}, {prediction.amount}"
    return f"{cell}, within {close} of the best with probability {probability:.2f}"


def _most_steps(point: history.Planned) -> float:
    assert point.num_examples is not None, "the first probe tells the number of examples"
    return point.num_examples / point.examples_per_step


def _typed(overrides: Sequence[str], config: RunConfig) -> list[str]:
    """Return the arguments with which the command `bsweep run` trains the given point of
    the grid.
    """
    typed = {text: text.lstrip("+").partition("=")[0] for text in overrides}
    others = [text for text, key in typed.items() if key not in AXES and not _of_way(key)]
    settings = {key: attrgetter(key)(config) for key in AXES}
    for key in filter(_of_way, typed.values()):  # another strategy may have no such key
        name = "strategy.name" if key == "strategy" else key
        if hasattr(config.strategy, name.partition(".")[2]):
            settings[key] = attrgetter(name)(config)
    return [*others, *(f"{key}={show(value)}" for key, value in settings.items())]


def _of_way(key: str) -> bool:
    return key.partition(".")[0] == "strategy"


def _train(config: RunConfig, command: str, warnings: list[str], seconds: float) -> str:
    """Run a point, ask its run to stop if it still trains after the given seconds, and return the
    status of the run.

    Raises:
        StopRequested: If somebody else asked the run to stop.
    """
    paths, began, asked = RunPaths(config.folder), time.monotonic(), False

    def stop_in_time() -> None:
        nonlocal asked
        if not asked and time.monotonic() - began > seconds and not is_stop_requested(paths):
            asked = True
            request_stop(paths)

    try:
        return run_point(config, command, warnings, Progress(1), on_poll=stop_in_time)
    except StopRequested as stop:
        if not asked or stop.by_signal:
            raise
        # The run may have ended by itself meanwhile.
        status = states.state_of_run(config.folder).status
        if status == "interrupted":
            say("the run stops here, at a checkpoint from which it can resume")
        return status


def say(line: str) -> None:
    logger.info(f"bsweep: {line}")
