"""A search by `bsweep recommend` over a grid whose runs are looked up in a world instead of
trained.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

import bsweep
from bsweep.analysis.conclusions.next_run import (
    Grid,
    Next,
    Offer,
    first_run,
    next_probe,
    next_run,
    still_open,
)
from bsweep.analysis.conclusions.predicting import predict_from
from bsweep.analysis.conclusions.prediction_texts import Prediction
from bsweep.analysis.prediction.fitting import fit
from bsweep.analysis.prediction.forecast import Key, keys_of
from bsweep.analysis.prediction.objectives import parse_objective
from bsweep.analysis.prediction.seen_runs import Observed, observed
from bsweep.analysis.prediction.step_time import Cell, Timing, fit_step_time
from bsweep.config.target import target_of
from bsweep.runlog.records import Status
from tests.support.synthetic_targets import TARGET, Truth, write_target_run

DRAWS, SEEDS = 600, 3
BATCHES, WORKERS = (16, 32, 64, 128, 256, 512, 1024, 2048), (1, 2, 4)
_OVERTIME = 2.0  # times the upper end of a run's predicted time, after which it is interrupted


@dataclass
class Played:
    """A grid of a known world, of which runs are looked up instead of trained.

    The seconds of runs are `drift` times those of the steps that were timed before. `spent` is in
    worker-seconds. `begun` holds the interrupted runs by cell: seed, seconds and
    folder.
    """

    truth: Truth
    folder: Path
    seed: int
    objective: str = "fastest"
    drift: float = 1.0
    spent: float = 0.0
    used: dict[Key, int] = field(default_factory=dict)
    begun: dict[Key, tuple[int, float, Path]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cells = [(batch, workers, 1, "") for workers in WORKERS for batch in BATCHES]
        examples = [self.truth.steps(b) * b for b in BATCHES if self.truth.reaches(b)]
        self.examples = 2 * max(examples)  # the planned length of all runs
        self.grid = Grid(
            dict.fromkeys(cells, SEEDS), {cell: self.examples / cell[0] for cell in cells}, {}
        )
        rng = np.random.default_rng([self.seed, 3])
        costs: dict[Key, float] = {}
        self.timings: list[Timing] = []
        most = cache(lambda: self.grid.share(fit_step_time(self.timings, DRAWS), None))
        while (cell := next_probe(cells, costs, most)) is not None:
            batch, workers, *_ = cell
            seconds = self.step_seconds(cell) * self.truth.of_run(rng, workers) / self.drift
            costs[cell] = 10 * seconds * workers
            self.timings.append(Timing(Cell(batch / workers, workers), seconds))
        self.spent = self.probed = sum(costs.values())

    def step_seconds(self, cell: Key) -> float:
        batch, workers, passes, _ = cell
        return self.truth.step_seconds(batch / workers / passes, workers, passes)

    def search(self) -> Prediction | None:
        """As `bsweep.advise.search` does it, to the end of the budget; None if no run reached the
        target.
        """
        while True:
            prediction, coming, left = self.look()
            if coming.ends:
                return prediction
            assert coming.offer is not None
            self.run(coming.offer.cell, left, prediction)

    def look(self) -> tuple[Prediction | None, Next, float]:
        seen = self.seen()
        prediction = None
        if seen and seen.runs["reached"].eq(True).any():
            fits = fit(seen, DRAWS, searched=BATCHES)
            objective = parse_objective(self.objective)
            prediction = predict_from(seen, fits, objective, self.grid.cells)
            step_time = fits.step_time
        else:
            step_time = fit_step_time(seen.timings() if seen else self.timings, DRAWS)
        left = self.grid.share(step_time, prediction, self.probed) - self.spent
        of_workers = dict.fromkeys(WORKERS, left)
        offers = [
            Offer(cell, self.grid.most_steps[cell], self._done_steps(cell))
            for cell in self.grid.cells
            if self.used.get(cell, 0) < SEEDS or cell in self.begun
        ]
        if prediction is None:
            offers = still_open(offers, seen.runs) if seen else offers
            return None, first_run(self.grid, offers, step_time, of_workers), left
        return prediction, next_run(self.grid, offers, prediction, of_workers), left

    def _done_steps(self, cell: Key) -> float:
        return self.begun[cell][1] / self.step_seconds(cell) if cell in self.begun else 0.0

    def seen(self) -> Observed | None:
        if not self.folder.exists():
            return None
        seen = observed(bsweep.load(self.folder), target_of(accuracy=TARGET))
        return replace(seen, probed=tuple(self.timings))

    def run(self, cell: Key, left: float, prediction: Prediction | None = None) -> None:
        """Write a run of a cell: to its end, or until so many worker-seconds or twice the upper
        end of its predicted time have passed. It is interrupted then.
        """
        batch, workers, *_ = cell
        if cell in self.begun:
            number, done, folder = self.begun.pop(cell)
            shutil.rmtree(folder)
        else:
            number, done = self.used.get(cell, 0) + 1, 0.0
        self.used[cell] = number
        limit = left / workers
        if prediction is not None:
            upper = prediction.cells["seconds_high"].iloc[keys_of(prediction.cells).index(cell)]
            limit = min(limit, _OVERTIME * float(upper))
        within = (done + limit) / self.step_seconds(cell) * batch
        status: Status
        for most, status in ((self.examples, "completed"), (within, "interrupted")):
            folder = write_target_run(
                self.folder, self.truth, batch=batch, workers=workers, seed=number + 10 * self.seed,
                most_examples=most, status=status,
            )  # fmt: skip
            seen = self.seen()
            assert seen is not None
            took = seen.runs.set_index("run_id")["trained_seconds"][folder.name] - done
            if took <= limit or status == "interrupted":
                break
            shutil.rmtree(folder)
        if status == "interrupted":
            took = limit
            self.begun[cell] = number, done + limit, folder
        self.spent += took * workers
