"""What predictions from a small part of a measured grid are worth, beside other rules that choose a cell of it.

    python scripts/truth.py results/measured/truth --target-accuracy 0.7

The folder has the tables of two studies: `runs`, of single workers, several seeds of each global batch; and `steps`, a
few steps of each cell in several rounds, a seed each, in epochs of which the first does not count. Steps to the target
go by the batch alone, so that a run on N workers is one of the first study whose steps take as long as those of N
workers. Over this grid the search of `bsweep recommend` is played, once for each order of the seeds, and what it ends
with is held against all that was measured. Written there: `rules.csv`, `leave_one_out.csv`, `predicted.png`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import ticker

from bsweep.analysis import load
from bsweep.analysis.prediction import Prediction, fit, leave_one_out, predict_from
from bsweep.analysis.prediction.critical_batch import from_noise_scale, records_until_target
from bsweep.analysis.prediction.next_run import SHARE, Grid, Key, Offer, first_run, median_step, next_run
from bsweep.analysis.prediction.objectives import CLOSE, parse_objective
from bsweep.analysis.prediction.selection import CELL, Observed, observed
from bsweep.analysis.prediction.step_time import Cell, StepTimeFit, Timing, fit_step_time
from bsweep.analysis.study import Study
from bsweep.analysis.targets import to_target
from bsweep.config import Target, target_of

_PROBED_STEPS = 10  # of the smallest and the largest batch on each number of workers, as `bsweep recommend` does
_DRAWS = 1500
_ZEUS_PLAYS, _ZEUS_RUNS = 300, 60
_ZEUS_PATIENCE = 2.0  # times the least cost so far, after which Zeus breaks a run off

Run = tuple[Key, int]
"""A cell and a seed."""


@dataclass(frozen=True)
class Measured:
    """A grid: `steps` to the target by batch and seed, NaN where it was not reached; `step_seconds` by cell and round.

    `trained_steps` are those of the recorded run: until it was sure that the target was reached, or all.
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
        """T(B, N): the geometric mean of steps over seeds, infinite if one did not get there, times a median step."""
        logs = {cell: np.log([self.steps[cell[0], seed] for seed in self.seeds]) for cell in self.cells}
        return {
            cell: float(np.exp(np.nan_to_num(of, nan=np.inf).mean())) * self.step(cell) for cell, of in logs.items()
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
    runs = study.runs[["run_id", "global_batch", "seed"]].join(to_target(study, target), on="run_id")
    runs["trained"] = runs["run_id"].map(study.evaluations.groupby("run_id")["num_steps"].max())
    known = runs[["global_batch", "seed", "steps_to_target", "trained"]].to_numpy(float).tolist()
    steps = {(int(batch), int(seed)): needed for batch, seed, needed, _ in known}
    trained = {(int(batch), int(seed)): float(most) for batch, seed, _, most in known}
    timed = load(folder / "steps")
    epochs = timed.epochs[timed.epochs["epoch"] > 1].groupby("run_id")[["train_seconds", "num_steps"]].sum()
    seconds = timed.runs["run_id"].map(epochs["train_seconds"] / epochs["num_steps"])
    rounds = timed.runs.assign(seconds=seconds).sort_values("seed")[["global_batch", "num_workers", "seconds"]]
    of_cell: dict[Key, list[float]] = {}
    for batch, workers, each in sorted(rounds.to_numpy(float).tolist(), key=lambda row: row[:2]):
        of_cell.setdefault((int(batch), int(workers), 1), []).append(each)
    return Measured(study, target, steps, trained, of_cell)


def _ended_at(study: Study, target: Target) -> Study:
    """The study as if its runs had ended at a lower target than theirs: at the evaluation that confirms it."""
    needed = study.evaluations["run_id"].map(to_target(study, target)["steps_to_target"])
    is_beyond = study.evaluations["num_steps"].astype(float) >= needed.astype(float)
    is_kept = is_beyond.groupby(study.evaluations["run_id"]).cumsum() <= 2
    return replace(study, evaluations=study.evaluations[is_kept])


@dataclass
class Played:
    """A search as `bsweep.search` makes it, whose runs are looked up: those of a cell in the order of `seeds`."""

    truth: Measured
    seeds: tuple[int, ...]
    runs: list[tuple[Run, float]] = field(default_factory=list)  # with the most steps that were paid for
    spent: float = 0.0

    def __post_init__(self) -> None:
        cells = self.truth.cells
        workers = sorted({cell[1] for cell in cells})
        ends = [end(cell for cell in cells if cell[1] == count) for count in workers for end in (min, max)]
        probed = {cell: self.truth.run_step((cell, self.seeds[0])) for cell in ends}
        self.timings = [Timing(_timed(cell), seconds) for cell, seconds in probed.items()]
        self.spent = sum(_PROBED_STEPS * seconds * cell[1] for cell, seconds in probed.items())
        examples = self.truth.num_train * float(self.truth.study.runs["planned_epochs"].max())
        self.grid = Grid(dict.fromkeys(cells, len(self.seeds)), {cell: examples / cell[0] for cell in cells}, {})

    def search(self) -> Prediction:
        while True:
            seen, step_time = self.seen, self.step_time
            prediction = self._predicted(seen) if seen and seen.runs["reached"].eq(True).any() else None
            left = SHARE * self.grid.worker_seconds(step_time, prediction) - self.spent
            of_workers = dict.fromkeys({cell[1] for cell in self.grid.cells}, left)
            offers = [Offer(cell, self.grid.most_steps[cell]) for cell in self.grid.cells if self._seeds_left(cell)]
            coming = (
                first_run(self.grid, offers, step_time, of_workers)
                if prediction is None
                else next_run(self.grid, offers, prediction, of_workers)
            )
            if coming.ends or coming.offer is None:
                if prediction is None:
                    sys.exit(f"no run reached {self.truth.target} within {SHARE:.0%} of the grid's cost")
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
        return fit_step_time([*(self.seen.timings() if self.seen else []), *self.timings], _DRAWS)

    def _predicted(self, seen: Observed) -> Prediction:
        fits = fit(seen, self.timings, _DRAWS, from_one_batch=True)
        return predict_from(seen, fits, parse_objective("fastest"), self.grid.cells, timings=tuple(self.timings))

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
            table[table["run_id"].eq(recorded) & table["num_steps"].astype(float).le(most_steps)].assign(run_id=run_id)
            for table in (truth.study.evaluations, truth.study.noise_scales)
        )
        evaluations.append(own.assign(train_seconds=own["num_steps"].astype(float) * truth.run_step(run)))
        noise_scales.append(noise)
    return replace(
        truth.study,
        runs=pd.concat(runs, ignore_index=True),
        evaluations=pd.concat(evaluations, ignore_index=True),
        noise_scales=pd.concat(noise_scales, ignore_index=True),
        epochs=truth.study.epochs.iloc[:0],
    )


# Rules to compare with: each maps what the search saw to seconds of every cell.


def throughput_alone(truth: Measured, search: Played) -> dict[Key, float]:
    """`Linear scaling is free`: any batch needs the examples that the first run needed."""
    (cell, seed), _ = search.runs[0]
    examples, step_time = truth.steps[cell[0], seed] * cell[0], search.step_time
    return {of: examples / of[0] * median_step(step_time, of) for of in truth.cells}


def goodput(truth: Measured, search: Played) -> dict[Key, float]:
    """Pollux (OSDI 2021): examples grow as batch + noise scale does, from those of the first run; NaN without noise.

    The noise scale is that of all runs of the search, of which one alone often cannot tell it.
    """
    assert search.seen is not None
    (cell, _), _ = search.runs[0]
    noise = from_noise_scale(records_until_target(search.seen))
    alone = throughput_alone(truth, search)
    return {of: alone[of] * (of[0] + noise.value) / (cell[0] + noise.value) for of in truth.cells}


def nearest_measured(truth: Measured, search: Played) -> dict[Key, float]:
    """What the nearest cell took that was run, by doublings of batch and workers."""
    known: dict[Key, list[float]] = {}
    for run, most in search.runs:
        if truth.steps[run[0][0], run[1]] <= most:
            known.setdefault(run[0], []).append(truth.run_seconds(run))
    return {
        of: float(np.mean(known[min(known, key=lambda one: math.dist(np.log2(one[:2]), np.log2(of[:2])))]))
        for of in truth.cells
    }


def zeus(truth: Measured, rng: np.random.Generator) -> tuple[float, Key]:
    """Zeus (NSDI 2023) on the most workers: worker-seconds until its choice is within `CLOSE` of the best for good.

    From some batch it tries smaller ones, then larger ones, each until one fails or takes twice the least cost so far,
    twice over; then it samples batches by Thompson's rule, costs being normal with flat priors. All runs are whole, or
    as long as its patience; seeds, and the batch that it starts with, are drawn at random. Its choice is the least
    mean. Infinite where it has not settled after `_ZEUS_RUNS`.
    """
    workers = max(cell[1] for cell in truth.cells)
    arms = sorted(cell for cell in truth.cells if cell[1] == workers)
    costs: dict[Key, list[float]] = {arm: [] for arm in arms}
    spent: list[tuple[float, Key]] = []

    def run(arm: Key) -> bool:
        seconds = truth.run_seconds((arm, int(rng.choice(truth.seeds))))
        patience = _ZEUS_PATIENCE * min((min(of) for of in costs.values() if of), default=math.inf)
        is_good = seconds <= patience  # no, where it was not reached
        if is_good:
            costs[arm].append(seconds)
        taken = (
            min(seconds, patience) if seconds > 0 else max(truth.trained_seconds((arm, seed)) for seed in truth.seeds)
        )
        total = (spent[-1][0] if spent else 0.0) + taken * workers
        known = {one: float(np.mean(of)) for one, of in costs.items() if of}
        spent.append((total, min(known, key=lambda one: known[one]) if known else arm))
        return is_good

    left, start = arms, int(rng.integers(len(arms)))
    for _ in range(2):
        kept = [left[start]] if run(left[start]) else []
        for side in (left[:start][::-1], left[start + 1 :]):
            kept += list(itertools.takewhile(run, side))
        left = sorted(kept) or left
        start = left.index(min((arm for arm in left if costs[arm]), key=lambda arm: float(np.mean(costs[arm]))))
    scatter = float(np.mean([np.std(of, ddof=1) for of in costs.values() if len(of) > 1]))
    while len(spent) < _ZEUS_RUNS:
        drawn = {arm: rng.normal(np.mean(costs[arm]), scatter / math.sqrt(len(costs[arm]))) for arm in left}
        run(min(drawn, key=lambda arm: drawn[arm]))
    bad = [number for number, (_, choice) in enumerate(spent) if truth.regret(choice) > CLOSE]
    settled = bad[-1] + 1 if bad else 0
    return (spent[settled][0] if settled < len(spent) else math.inf), spent[-1][1]


def score(truth: Measured, predicted: Mapping[Key, float]) -> tuple[float, Key]:
    """The median over cells of the error of their time, either way, and the cell that is chosen."""
    errors = [abs(predicted[cell] / truth.seconds[cell] - 1) for cell in truth.cells if truth.seconds[cell] < math.inf]
    return float(np.median(errors)), min(predicted, key=lambda cell: predicted[cell])


def of_search(truth: Measured, seeds: tuple[int, ...]) -> tuple[pd.DataFrame, list[dict[str, object]]]:
    """What the search with this order of seeds predicts of all cells; rows for it and the rules that see its runs."""
    search = Played(truth, seeds)
    prediction = search.search()
    cells = prediction.cells.set_index(CELL)
    cells["measured_seconds"] = pd.Series(truth.seconds)
    rules = {
        "bsweep recommend": _by_cell(prediction, "seconds"),
        "throughput alone": throughput_alone(truth, search),
        "goodput of Pollux": goodput(truth, search),
        "nearest measured cell": nearest_measured(truth, search),
    }
    cost = search.spent / truth.cost
    rows: list[dict[str, object]] = []
    for name, predicted in rules.items():
        told = {"seeds": "".join(map(str, seeds)), "cost_share": cost}
        if not np.isnan([*predicted.values()]).any():
            error, choice = score(truth, predicted)
            told |= _row(name, truth, choice, cost) | {"error": error}
        rows.append({"rule": name, **told})
    runs = [(cell, truth.run_seconds((cell, seed))) for cell in truth.cells for seed in truth.seeds]
    low, high = (_by_cell(prediction, f"seconds_{end}") for end in ("low", "high"))
    inside = [low[cell] <= seconds <= high[cell] for cell, seconds in runs if seconds > 0]
    rows[0] |= {"coverage": float(np.mean(inside)), "num_runs": len(search.runs)}
    return cells, rows


def _by_cell(prediction: Prediction, column: str) -> dict[Key, float]:
    rows = prediction.cells[[*CELL, column]].to_numpy(float)
    return {(int(batch), int(workers), int(passes)): value for batch, workers, passes, value in rows.tolist()}


def _row(rule: str, truth: Measured, choice: Key, cost: float) -> dict[str, object]:
    chosen = {"global_batch": choice[0], "num_workers": choice[1], "regret": truth.regret(choice)}
    return {"rule": rule, **chosen, "cost_share": cost}


def draw(cells: pd.DataFrame, path: Path) -> None:
    """Predicted against measured seconds of each cell, with the 90 % interval of one further run."""
    figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
    for workers, marker in zip(sorted(set(cells["num_workers"].tolist())), "os^", strict=False):
        of = cells[cells["num_workers"] == workers]
        spread = np.abs(of[["seconds_low", "seconds_high"]].to_numpy(float).T - of["seconds"].to_numpy(float))
        label = f"{workers} worker{'s' * (workers > 1)}"
        axes.errorbar(of["measured_seconds"], of["seconds"], spread, fmt=marker, capsize=2, markersize=5, label=label)
    ends = [cells["measured_seconds"].min() / 1.2, cells["measured_seconds"].max() * 1.2]
    axes.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="measured time to target (s)", ylabel="predicted time to target (s)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:,.0f}")
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.legend(frameon=False)
    figure.savefig(path, dpi=200)


def main(folder: Path, target: Target) -> None:
    truth = measured(folder, target)
    print(_grid(truth).round().to_string(), "\n")
    rng, rows = np.random.default_rng(0), []
    for seeds in itertools.permutations(truth.seeds):
        cells, of_rules = of_search(truth, seeds)
        rows += of_rules
        if seeds == tuple(truth.seeds):
            draw(cells.reset_index(), folder / "predicted.png")
    rows.append(_row("largest batch, most workers", truth, max(truth.cells), 0.0))
    for cost, choice in (zeus(truth, rng) for _ in range(_ZEUS_PLAYS)):
        rows.append(_row("Zeus, until it stays within 5 %", truth, choice, cost / truth.cost))
    table = pd.DataFrame(rows)
    table.to_csv(folder / "rules.csv", index=False, float_format="%.6g")
    by_rule = table.assign(is_close=table["regret"].le(CLOSE)).groupby("rule", sort=False)
    medians = by_rule[["error", "regret", "cost_share", "coverage"]].median()
    print(medians.join(by_rule["is_close"].mean()).round(3).to_string(), "\n")
    left_out = leave_one_out(observed(played(truth, _every_run(truth)), target))
    left_out.to_csv(folder / "leave_one_out.csv", index=False, float_format="%.6g")
    error, inside = left_out["error"].abs().median(), left_out["is_inside"].mean()
    print(f"each cell from all others: median error {error:.1%}, {inside:.0%} inside the interval")


def _every_run(truth: Measured) -> list[tuple[Run, float]]:
    return [((cell, seed), math.inf) for cell in truth.cells for seed in truth.seeds]


def _grid(truth: Measured) -> pd.DataFrame:
    """Seconds to the target, batches down and workers across."""
    return pd.Series({cell[:2]: truth.seconds[cell] for cell in truth.cells}).unstack()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target-accuracy", type=float, required=True)
    given = parser.parse_args()
    main(given.folder, target_of(accuracy=given.target_accuracy))
