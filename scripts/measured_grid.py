"""A grid of batches and worker counts that was measured, and searches that are played over it; see
`truth.py`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from bsweep.analysis import load
from bsweep.analysis.loaded import Study
from bsweep.analysis.prediction import Prediction, fit, predict_from
from bsweep.analysis.prediction.next_run import (
    PROBED_FIRST,
    PROBED_SHARE,
    Grid,
    Key,
    Offer,
    first_run,
    next_probe,
    next_run,
)
from bsweep.analysis.prediction.objectives import parse_objective
from bsweep.analysis.prediction.selection import Observed, observed
from bsweep.analysis.prediction.step_time import Cell, StepTimeFit, Timing, fit_step_time
from bsweep.analysis.targets import to_target
from bsweep.config.target import Target, target_of

DRAWS = 1500  # of the fits

_PROBED_STEPS = 10  # of each cell that is timed before the first run

Run = tuple[Key, int]
"""A cell and a seed."""


@dataclass(frozen=True)
class Measured:
    """A grid: `steps` to the target by batch and seed, NaN where it was not reached; `step_seconds`
    by cell and round.

    `trained_steps` are those of the recorded run: until it was sure that the target was reached, or
    all.
    """

    study: Study
    target: Target
    steps: Mapping[tuple[int, int], float]
    trained_steps: Mapping[tuple[int, int], float]
    step_seconds: Mapping[Key, Sequence[float]]

    @property
    def cells(self) -> list[Key]:
        return list(self.step_seconds)

    @property
    def num_train(self) -> int:
        return int(self.study.runs["num_train"].max())

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.steps})

    def step(self, cell: Key) -> float:
        return float(np.median(self.step_seconds[cell]))

    def run_step(self, run: Run) -> float:
        """Seconds of a step of one run: each seed has a round of its own."""
        rounds = self.step_seconds[run[0]]
        return rounds[self.seeds.index(run[1]) % len(rounds)]

    def run_seconds(self, run: Run) -> float:
        return self.steps[run[0][0], run[1]] * self.run_step(run)

    def trained_seconds(self, run: Run) -> float:
        return self.trained_steps[run[0][0], run[1]] * self.run_step(run)

    def worker_seconds(self, run: Run) -> float:
        return self.trained_seconds(run) * run[0][1]

    @cached_property
    def seconds(self) -> dict[Key, float]:
        """T(B, N): the geometric mean of steps over seeds, infinite if one did not get there, times
        a median step.
        """
        logs = {
            cell: np.log([self.steps[cell[0], seed] for seed in self.seeds]) for cell in self.cells
        }
        return {
            cell: float(np.exp(np.nan_to_num(of, nan=np.inf).mean())) * self.step(cell)
            for cell, of in logs.items()
        }

    def regret(self, cell: Key) -> float:
        """How much longer a cell takes than the best."""
        return self.seconds[cell] / min(self.seconds.values()) - 1

    @cached_property
    def cost(self) -> float:
        """Worker-seconds of the whole grid, all seeds."""
        return sum(self.worker_seconds((cell, seed)) for cell in self.cells for seed in self.seeds)


def measured(folder: Path, target: Target) -> Measured:
    study = _ended_at(load(folder / "runs"), target)
    runs = study.runs[["run_id", "global_batch", "seed"]].join(
        to_target(study, target), on="run_id"
    )
    runs["trained"] = runs["run_id"].map(study.evaluations.groupby("run_id")["num_steps"].max())
    known = runs[["global_batch", "seed", "steps_to_target", "trained"]].to_numpy(float).tolist()
    steps = {(int(batch), int(seed)): needed for batch, seed, needed, _ in known}
    trained = {(int(batch), int(seed)): float(most) for batch, seed, _, most in known}
    timed = load(folder / "steps")
    epochs = (
        timed.epochs[timed.epochs["epoch"] > 1]
        .groupby("run_id")[["train_seconds", "num_steps"]]
        .sum()
    )
    seconds = timed.runs["run_id"].map(epochs["train_seconds"] / epochs["num_steps"])
    rounds = timed.runs.assign(seconds=seconds).sort_values("seed")[
        ["global_batch", "num_workers", "seconds"]
    ]
    of_cell: dict[Key, list[float]] = {}
    for batch, workers, each in sorted(rounds.to_numpy(float).tolist(), key=lambda row: row[:2]):
        of_cell.setdefault((int(batch), int(workers), 1), []).append(each)
    return Measured(study, target, steps, trained, of_cell)


def _ended_at(study: Study, target: Target) -> Study:
    """The study as if its runs had ended at a lower target than theirs: at the evaluation that
    confirms it.
    """
    needed = study.evaluations["run_id"].map(to_target(study, target)["steps_to_target"])
    is_beyond = study.evaluations["num_steps"].astype(float) >= needed.astype(float)
    is_kept = is_beyond.groupby(study.evaluations["run_id"]).cumsum() <= 2
    return replace(study, evaluations=study.evaluations[is_kept])


@dataclass
class Played:
    """A search as `bsweep.advise.search` makes it, whose runs are looked up: those of a cell in the
    order of `seeds`.

    A probe has the seconds that a step has in the round of the first seed. Starts and evaluations
    cost nothing, and a run that is broken off for the budget is not gone on with.
    """

    truth: Measured
    seeds: tuple[int, ...]
    # With the most steps that were paid for.
    runs: list[tuple[Run, float]] = field(default_factory=list)
    spent: float = 0.0

    def __post_init__(self) -> None:
        cells = self.truth.cells
        examples = self.truth.num_train * float(self.truth.study.runs["planned_epochs"].max())
        self.grid = Grid(
            dict.fromkeys(cells, len(self.seeds)), {cell: examples / cell[0] for cell in cells}, {}
        )
        probed: dict[Key, float] = {}
        most, num_first = math.inf, PROBED_FIRST * len({cell[1] for cell in cells})
        self.timings: list[Timing] = []
        while (cell := next_probe(cells, probed)) is not None:
            seconds = self.truth.run_step((cell, self.seeds[0]))
            if len(probed) == num_first:
                most = PROBED_SHARE * self.grid.share(fit_step_time(self.timings, DRAWS), None)
            if self.spent + _PROBED_STEPS * seconds * cell[1] > most:
                break
            probed[cell] = seconds
            self.timings.append(Timing(_timed(cell), seconds))
            self.spent += _PROBED_STEPS * seconds * cell[1]
        self.probed = self.spent

    def search(self) -> Prediction:
        while True:
            seen, step_time = self.seen, self.step_time
            prediction = (
                self._predicted(seen) if seen and seen.runs["reached"].eq(True).any() else None
            )
            left = self.grid.share(step_time, prediction, self.probed) - self.spent
            of_workers = dict.fromkeys({cell[1] for cell in self.grid.cells}, left)
            offers = [
                Offer(cell, self.grid.most_steps[cell])
                for cell in self.grid.cells
                if self._seeds_left(cell)
            ]
            coming = (
                first_run(self.grid, offers, step_time, of_workers)
                if prediction is None
                else next_run(self.grid, offers, prediction, of_workers)
            )
            if coming.ends or coming.offer is None:
                if prediction is None:
                    sys.exit(f"no run reached {self.truth.target} within the budget")
                return prediction
            cell = coming.offer.cell
            run = (cell, self._seeds_left(cell)[0])
            self.runs.append((run, left / cell[1] / self.truth.run_step(run)))
            self.spent += min(self.truth.worker_seconds(run), left)

    @property
    def seen(self) -> Observed | None:
        return observed(played(self.truth, self.runs), self.truth.target) if self.runs else None

    @property
    def step_time(self) -> StepTimeFit:
        return fit_step_time([*(self.seen.timings() if self.seen else []), *self.timings], DRAWS)

    def _predicted(self, seen: Observed) -> Prediction:
        fits = fit(seen, self.timings, DRAWS, searched=[cell[0] for cell in self.grid.cells])
        return predict_from(
            seen, fits, parse_objective("fastest"), self.grid.cells, timings=tuple(self.timings)
        )

    def _seeds_left(self, cell: Key) -> list[int]:
        used = {run for run, _ in self.runs}
        return [seed for seed in self.seeds if (cell, seed) not in used]


def _timed(cell: Key) -> Cell:
    batch, workers, passes = cell
    return Cell(batch / workers / passes, workers, passes)


def played(truth: Measured, of: Sequence[tuple[Run, float]]) -> Study:
    """The study that these runs would have left, each with the steps that are given at the most."""
    runs, evaluations, noise_scales = [], [], []
    for run, most_steps in of:
        (batch, workers, _), seed = run
        known = truth.study.runs
        row = known[known["global_batch"].eq(batch) & known["seed"].eq(seed)]
        recorded, run_id = str(row["run_id"].iloc[0]), f"{row['run_id'].iloc[0]}-on-{workers}"
        runs.append(row.assign(run_id=run_id, num_workers=workers, local_batch=batch // workers))
        own, noise = (
            table[
                table["run_id"].eq(recorded) & table["num_steps"].astype(float).le(most_steps)
            ].assign(run_id=run_id)
            for table in (truth.study.evaluations, truth.study.noise_scales)
        )
        evaluations.append(
            own.assign(train_seconds=own["num_steps"].astype(float) * truth.run_step(run))
        )
        noise_scales.append(noise)
    return replace(
        truth.study,
        runs=pd.concat(runs, ignore_index=True),
        evaluations=pd.concat(evaluations, ignore_index=True),
        noise_scales=pd.concat(noise_scales, ignore_index=True),
        epochs=truth.study.epochs.iloc[:0],
    )


def arguments(doc: str | None) -> tuple[Path, Target]:
    """What a script over a grid is given: the grid's folder, and the target."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target-accuracy", type=float, required=True)
    given = parser.parse_args()
    return given.folder, target_of(accuracy=given.target_accuracy)
