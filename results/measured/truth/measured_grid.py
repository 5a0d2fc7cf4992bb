"""A grid of batches and worker counts that was measured, and searches that are played over it; see
`rules.py`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd

from bsweep.analysis import load
from bsweep.analysis.conclusions.next_run import (
    Grid,
    Offer,
    first_run,
    next_probe,
    next_run,
    still_open,
    with_rates,
)
from bsweep.analysis.conclusions.predicting import predict_from
from bsweep.analysis.conclusions.prediction_texts import Prediction
from bsweep.analysis.prediction.fitting import fit
from bsweep.analysis.prediction.forecast import Key
from bsweep.analysis.prediction.objectives import parse_objective
from bsweep.analysis.prediction.seen_runs import Observed, observed
from bsweep.analysis.prediction.step_time import Cell, StepTimeFit, Timing, fit_step_time
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.targets import to_target
from bsweep.config.target import Target, target_of

DRAWS = 1500  # of the fits
PROBED_STEPS = 10  # of each cell that is timed
_TIMED = ["num_steps", "train_seconds"]


class Run(NamedTuple):
    """One run of a grid; `rate` is its `optimizer.lr`."""

    cell: Key
    seed: int
    rate: float


class Taken(NamedTuple):
    """What a run took.

    `steps` are those to the target, NaN if it was not reached, and `trained_steps` those until the
    run was sure that it was reached, or all. A step takes `step_seconds` in the mean over the run,
    and `first_step_seconds` until the first evaluation. `other_seconds` are those of starting
    (`start_seconds`) and of evaluations.
    """

    run_id: str
    steps: float
    trained_steps: float
    step_seconds: float
    first_step_seconds: float
    start_seconds: float
    other_seconds: float


@dataclass(frozen=True)
class Measured:
    """A grid of which every cell was trained with every seed and rate, and what each run took."""

    study: Study
    target: Target
    runs: Mapping[Run, Taken]

    @cached_property
    def cells(self) -> list[Key]:
        return sorted({run.cell for run in self.runs}, key=lambda cell: (cell[1], cell[0]))

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @cached_property
    def rates(self) -> list[float]:
        return sorted({run.rate for run in self.runs})

    @property
    def num_train(self) -> int:
        return int(self.study.runs["num_train"].max())

    @property
    def planned_examples(self) -> float:
        return self.num_train * float(self.study.runs["planned_epochs"].max())

    def step(self, cell: Key, seeds: Collection[int] = ()) -> float:
        """The median over runs of the seconds of a step, of these seeds or of all."""
        return median(
            taken.step_seconds
            for run, taken in self.runs.items()
            if run.cell == cell and run.seed in (seeds or self.seeds)
        )

    def run_seconds(self, run: Run) -> float:
        """Seconds of training steps to the target; NaN if it was not reached."""
        return self.runs[run].steps * self.runs[run].step_seconds

    def trained_seconds(self, run: Run) -> float:
        return self.runs[run].trained_steps * self.runs[run].step_seconds

    def worker_seconds(self, run: Run) -> float:
        """What a run costs, its start and evaluations included."""
        return (self.trained_seconds(run) + self.runs[run].other_seconds) * run.cell[1]

    def probe_worker_seconds(self, run: Run) -> float:
        """What timing a few steps of a run costs, its start included."""
        taken = self.runs[run]
        return (taken.start_seconds + PROBED_STEPS * taken.first_step_seconds) * run.cell[1]

    def seconds_of(self, seeds: Collection[int]) -> dict[Key, float]:
        """T(B, N): the geometric mean of steps over seeds, infinite if one did not get there, times
        a median step; of the best rate.
        """

        def steps(cell: Key, rate: float) -> float:
            logs = np.log([self.runs[Run(cell, seed, rate)].steps for seed in seeds])
            return float(np.exp(np.nan_to_num(logs, nan=np.inf).mean()))

        return {
            cell: min(steps(cell, rate) for rate in self.rates) * self.step(cell, seeds)
            for cell in self.cells
        }

    @cached_property
    def seconds(self) -> dict[Key, float]:
        return self.seconds_of(self.seeds)

    def regret(self, cell: Key | None) -> float:
        """How much longer a cell takes than the best, as a fraction; infinite for no cell."""
        return math.inf if cell is None else self.seconds[cell] / min(self.seconds.values()) - 1

    @cached_property
    def cost(self) -> float:
        """Worker-seconds of the whole grid, with all seeds and rates."""
        return sum(map(self.worker_seconds, self.runs))

    @cached_property
    def best_cost(self) -> float:
        """Worker-seconds of one training of the best cell, the mean over its runs that got there at
        the best rate.
        """
        best = min(self.seconds, key=lambda cell: self.seconds[cell])
        by_rate = [
            [Run(best, seed, rate) for seed in self.seeds]
            for rate in self.rates
            if all(self.runs[Run(best, seed, rate)].steps > 0 for seed in self.seeds)
        ]
        return min(float(np.mean([*map(self.worker_seconds, of)])) for of in by_rate)


def measured(folder: Path, target: Target) -> Measured:
    """Read a grid: a study in which every cell was trained, or, with two folders `runs` and
    `steps`, single workers' runs and the steps of each cell.
    """
    study = emulated(folder) if (folder / "steps").is_dir() else load(folder)
    return grid_of(_ended_at(study, target), target)


def grid_of(study: Study, target: Target) -> Measured:
    """The grid of a study; `sys.exit` if a run of it is missing."""
    names = ["steps_to_target", "reached"]
    own = study.runs.drop(columns=names, errors="ignore")
    own = own.join(to_target(study, target)[names], on="run_id").set_index("run_id")
    evaluations = study.evaluations.astype({"num_steps": float}).groupby("run_id")
    first, last = (
        {str(run_id): (float(steps), float(seconds)) for run_id, steps, seconds in of.itertuples()}
        for of in (evaluations[_TIMED].first(), evaluations[_TIMED].last())
    )
    found = {}
    for row in own.reset_index().to_dict("records"):
        run_id = str(row["run_id"])
        # A run that diverged before its first evaluation has none.
        whole = float(row["num_steps"]), float(row["train_seconds"])
        trained, seconds = last.get(run_id, whole)
        of_first = first.get(run_id, whole)
        passes = int(row["accumulation_steps"]) if row["accumulation_steps"] > 0 else 1
        cell = (int(row["global_batch"]), int(row["num_workers"]), passes, "")
        run = Run(cell, int(row["seed"]), float(np.nan_to_num(float(row["lr"]))))
        start = float(np.nan_to_num(float(row["start_seconds"])))
        others = float(row["wall_seconds"]) - float(row["train_seconds"])
        # A run that is read as if it had ended at an easier target had fewer evaluations.
        share = seconds / max(seconds, whole[1])
        evaluating = max(0.0, np.nan_to_num(others) - start) * share
        found[run] = Taken(
            run_id, float(row["steps_to_target"]), trained, seconds / trained,
            of_first[1] / of_first[0], start, start + evaluating,
        )  # fmt: skip
    grid = Measured(study, target, found)
    missing = [
        run
        for cell in grid.cells
        for seed in grid.seeds
        for rate in grid.rates
        if (run := Run(cell, seed, rate)) not in found
    ]
    if missing:
        sys.exit(
            f"{study.folder}: every cell needs a run of every seed and rate, but these are missing "
            f"(batch, workers, passes; seed; rate): {missing[:8]}"
        )
    return grid


def emulated(folder: Path) -> Study:
    """A study of all cells from two: `runs` of single workers, and `steps` of each cell in rounds.

    Steps to the target go by the batch alone, so that a run on N workers is one of `runs` whose
    steps take as long as those of N workers. A round of the first epoch of `steps` does not count.
    Each seed of `runs` has a round of its own. A start takes what it took in the median with as
    many workers.
    """
    recorded, timed = load(folder / "runs"), load(folder / "steps")
    later = timed.epochs[timed.epochs["epoch"] > 1].groupby("run_id")
    sums = later[["train_seconds", "num_steps"]].sum()
    each = timed.runs["run_id"].map(sums["train_seconds"] / sums["num_steps"]).astype(float)
    rounds = timed.runs.assign(each=each).sort_values("seed")
    starts = timed.runs.groupby("num_workers")["start_seconds"].median()
    seeds = sorted(recorded.runs["seed"].unique())
    cells = rounds[["global_batch", "num_workers"]].drop_duplicates()
    tables: dict[str, list[pd.DataFrame]] = {"runs": [], "evaluations": [], "noise_scales": []}
    for batch, workers in cells.to_numpy(int).tolist():
        of = rounds[rounds["global_batch"].eq(batch) & rounds["num_workers"].eq(workers)]
        runs = recorded.runs[recorded.runs["global_batch"] == batch]
        places = runs["seed"].map(seeds.index) % len(of)
        step = pd.Series(of["each"].to_numpy()[places], runs["run_id"])
        new_id = {str(run_id): f"{run_id}-on-{workers}" for run_id in runs["run_id"]}
        for name in ("evaluations", "noise_scales"):
            table = getattr(recorded, name)
            own = table[table["run_id"].isin(new_id)]
            if name == "evaluations":
                seconds = own["run_id"].map(step) * own["num_steps"].astype(float)
                own = own.assign(train_seconds=seconds)
            tables[name].append(own.assign(run_id=own["run_id"].map(new_id)))
        train = runs["run_id"].map(step) * runs["num_steps"].astype(float)
        evaluating = runs["wall_seconds"] - runs["train_seconds"] - runs["start_seconds"]
        starting = float(starts[workers])
        changed = runs.assign(
            run_id=runs["run_id"].map(new_id), num_workers=workers, train_seconds=train,
            local_batch=runs["global_batch"] // workers, start_seconds=starting,
            wall_seconds=train + evaluating + starting,
        )  # fmt: skip
        tables["runs"].append(changed)
    runs, evaluations, noise_scales = (
        pd.concat(parts, ignore_index=True) for parts in tables.values()
    )
    return replace(recorded, runs=runs, evaluations=evaluations, noise_scales=noise_scales)


def _ended_at(study: Study, target: Target) -> Study:
    """The study as if its runs had ended at an easier target than theirs: at the evaluation that
    confirms it. It has no epochs, which may end later.
    """
    needed = study.evaluations["run_id"].map(to_target(study, target)["steps_to_target"])
    is_beyond = study.evaluations["num_steps"].astype(float) >= needed.astype(float)
    is_kept = is_beyond.groupby(study.evaluations["run_id"]).cumsum() <= 2
    return replace(study, evaluations=study.evaluations[is_kept], epochs=study.epochs.iloc[:0])


def played(truth: Measured, of: Sequence[tuple[Run, float]]) -> Study:
    """The study that these runs would have left, each with the steps that are given at the most."""
    most = {truth.runs[run].run_id: steps for run, steps in of}
    cut = {truth.runs[run].run_id for run, steps in of if steps < truth.runs[run].trained_steps}
    study = truth.study
    runs, evaluations, noise_scales = (
        table[table["run_id"].isin(most)]
        for table in (study.runs, study.evaluations, study.noise_scales)
    )
    status = runs["status"].mask(runs["run_id"].isin(cut), "interrupted")
    evaluations, noise_scales = (
        table[table["num_steps"].astype(float) <= table["run_id"].map(most).astype(float)]
        for table in (evaluations, noise_scales)
    )
    return replace(
        study,
        runs=runs.assign(status=status),
        evaluations=evaluations,
        noise_scales=noise_scales,
    )


@dataclass
class Played:
    """A search as `bsweep.advise.search` makes it, whose runs are looked up: those of a cell in the
    order of `seeds`.

    A probe has the seconds that the steps of the first seed's run have until its first evaluation.
    A run that is broken off for the budget is not gone on with.

    Attributes:
        runs: The runs so far, with the most steps that were paid for.
        spent: Worker-seconds, with starts, probes and evaluations.
        history: What was spent when a cell was recommended, and the cell.
    """

    truth: Measured
    seeds: tuple[int, ...]
    runs: list[tuple[Run, float]] = field(default_factory=list)
    spent: float = 0.0
    history: list[tuple[float, Key]] = field(default_factory=list)

    def __post_init__(self) -> None:
        truth, cells = self.truth, self.truth.cells
        examples, num_points = truth.planned_examples, len(self.seeds) * len(truth.rates)
        most_steps = {cell: examples / cell[0] for cell in cells}
        self.grid = Grid(dict.fromkeys(cells, num_points), most_steps, {})
        self.probed: dict[Key, float] = {}  # seconds of a step
        costs: dict[Key, float] = {}
        most = cache(lambda: self.grid.share(fit_step_time(self.timings, DRAWS), None))
        while (cell := next_probe(cells, costs, most)) is not None:
            run = Run(cell, self.seeds[0], truth.rates[0])
            self.probed[cell] = truth.runs[run].first_step_seconds
            costs[cell] = truth.probe_worker_seconds(run)
        self.spent = self.probing = sum(costs.values())
        others: dict[int, list[float]] = {}
        for cell, cost in costs.items():  # as a search takes them, from its probes
            others.setdefault(cell[1], []).append(cost / cell[1])
        self.grid = replace(self.grid, other_seconds={n: median(of) for n, of in others.items()})

    @property
    def timings(self) -> list[Timing]:
        return [
            Timing(Cell(batch / workers / passes, workers, passes), seconds)
            for (batch, workers, passes, _), seconds in self.probed.items()
        ]

    def search(self) -> Prediction | None:
        """The last prediction; None if no run reached the target within the budget."""
        while True:
            seen = self.seen
            is_reached = seen is not None and seen.runs["reached"].eq(True).any()
            prediction = self._predicted(seen) if seen is not None and is_reached else None
            step_time = prediction.fitted.step_time if prediction else self.step_time
            if prediction is not None:
                best = prediction.recommended
                numbers = int(best["global_batch"]), int(best["num_workers"]), int(best["passes"])
                self.history.append((self.spent, (*numbers, "")))
            left = self.grid.share(step_time, prediction, self.probing) - self.spent
            of_workers = dict.fromkeys({cell[1] for cell in self.grid.cells}, left)
            offers = self._offers(seen)
            if prediction is None:
                offers = still_open(offers, seen.runs) if seen is not None else offers
                coming = first_run(self.grid, offers, step_time, of_workers)
            else:
                coming = next_run(self.grid, offers, prediction, of_workers)
            if coming.ends or coming.offer is None:
                return prediction
            cell, rate = coming.offer.cell, coming.offer.rate
            run = Run(cell, self._seeds_left(cell, rate)[0], rate)
            taken = self.truth.runs[run]
            paid = (left / cell[1] - taken.other_seconds) / taken.step_seconds
            self.runs.append((run, paid))
            self.spent += min(self.truth.worker_seconds(run), left)

    @property
    def seen(self) -> Observed | None:
        if not self.runs:
            return None
        seen = observed(played(self.truth, self.runs), self.truth.target)
        return replace(seen, probed=tuple(self.timings))

    @property
    def step_time(self) -> StepTimeFit:
        return fit_step_time(self.seen.timings() if self.seen else self.timings, DRAWS)

    def _predicted(self, seen: Observed) -> Prediction:
        fits = fit(seen, DRAWS, searched=[cell[0] for cell in self.grid.cells])
        return predict_from(seen, fits, parse_objective("fastest"), self.grid.cells)

    def _offers(self, seen: Observed | None) -> list[Offer]:
        offers = [
            Offer(cell, self.grid.most_steps[cell], rate=rate)
            for cell in self.grid.cells
            for rate in self.truth.rates
            if self._seeds_left(cell, rate)
        ]
        return with_rates(offers, self.truth.rates, seen)

    def _seeds_left(self, cell: Key, rate: float) -> list[int]:
        used = {run for run, _ in self.runs}
        return [seed for seed in self.seeds if Run(cell, seed, rate) not in used]


def arguments(doc: str | None) -> tuple[Path, Target]:
    """What a script over a grid is given: the grid's folder, and the target."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target-accuracy", type=float)
    parser.add_argument("--target-loss", type=float)
    given = parser.parse_args()
    try:
        return given.folder, target_of(given.target_accuracy, given.target_loss)
    except ValueError as error:
        parser.error(str(error))
