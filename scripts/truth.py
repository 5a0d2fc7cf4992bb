"""What predictions from a small part of a measured grid are worth, beside other rules that choose a
cell of it.

    python scripts/truth.py results/measured/truth --target-accuracy 0.7

The folder has the tables of two studies: `runs`, of single workers, several seeds of each global
batch; and `steps`, a few steps of each cell in several rounds, a seed each, in epochs of which the
first does not count. Steps to the target go by the batch alone, so that a run on N workers is one
of the first study whose steps take as long as those of N workers. Over this grid the search of
`bsweep recommend` is played, once for each order of the seeds, and what it ends with is held
against all that was measured. Written there: `rules.csv`, `without_a_batch.csv`, `predicted.png`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context, ticker
from matplotlib.figure import Figure
from measured_grid import DRAWS, Measured, Played, arguments, measured, played

from bsweep.analysis.prediction import fit, predict_from
from bsweep.analysis.prediction.critical_batch import records_until_target
from bsweep.analysis.prediction.next_run import Key, median_step
from bsweep.analysis.prediction.objectives import CLOSE, parse_objective
from bsweep.analysis.prediction.selection import CELL, observed
from bsweep.analysis.prediction.step_time import StepTimeFit, fit_step_time
from bsweep.config.target import Target
from bsweep.core.words import counted
from bsweep.plots import drawing
from bsweep.plots.curves import MARKERS, ramp

_ZEUS_PLAYS, _ZEUS_RUNS = 300, 60
_ZEUS_PATIENCE = 2.0  # times the least cost so far, after which Zeus breaks a run off


# Rules to compare with: each maps what the search saw to seconds of every cell.


def throughput_alone(truth: Measured, search: Played, step_time: StepTimeFit) -> dict[Key, float]:
    """`Linear scaling is free`: any batch needs the examples that the first run needed."""
    (cell, seed), _ = search.runs[0]
    examples = truth.steps[cell[0], seed] * cell[0]
    return {of: examples / of[0] * median_step(step_time, of) for of in truth.cells}


def goodput(truth: Measured, search: Played) -> dict[Key, float]:
    """Pollux (OSDI 2021): examples grow as batch + noise scale does, from those of the first run.

    The noise scale is that of all runs of the search, of averages that are clipped at zero.
    """
    assert search.seen is not None
    (cell, _), _ = search.runs[0]
    noise = (
        records_until_target(search.seen)[["variance", "gradient_square"]].sum().clip(lower=1e-12)
    )
    scale = float(noise["variance"] / noise["gradient_square"])
    alone = throughput_alone(truth, search, search.step_time)
    return {of: alone[of] * (of[0] + scale) / (cell[0] + scale) for of in truth.cells}


def nearest_measured(truth: Measured, search: Played) -> dict[Key, float]:
    """What the nearest cell took that was run, by doublings of batch and workers; of equals that
    cell is less.
    """
    known: dict[Key, list[float]] = {}
    for run, most in search.runs:
        if truth.steps[run[0][0], run[1]] <= most:
            known.setdefault(run[0], []).append(truth.run_seconds(run))
    found = {}
    for of in truth.cells:
        away = {one: math.dist(np.log2(one[:2]), np.log2(of[:2])) for one in known}
        nearest = min(away, key=lambda one: away[one])
        found[of] = float(np.mean(known[nearest])) * (1 + 1e-9 * away[nearest])
    return found


def zeus(truth: Measured, rng: np.random.Generator) -> tuple[float, Key]:
    """Zeus (NSDI 2023) on the most workers: worker-seconds until its choice is within `CLOSE` of
    the best for good.

    From some batch it tries smaller ones, then larger ones, each until one fails or takes twice the
    least cost so far, twice over; then it samples batches by Thompson's rule, costs being normal
    with flat priors. All runs are whole, or as long as its patience; seeds, and the batch that it
    starts with, are drawn at random. Its choice is the least mean. Infinite where it has not
    settled after `_ZEUS_RUNS`.
    """
    workers = max(cell[1] for cell in truth.cells)
    arms = sorted(cell for cell in truth.cells if cell[1] == workers)
    costs: dict[Key, list[float]] = {arm: [] for arm in arms}
    spent: list[tuple[float, Key]] = []

    def run(arm: Key) -> bool:
        drawn = (arm, int(rng.choice(truth.seeds)))
        seconds = truth.trained_seconds(drawn)
        patience = _ZEUS_PATIENCE * min((min(of) for of in costs.values() if of), default=math.inf)
        # NaN where it was not reached.
        is_good = truth.run_seconds(drawn) > 0 and seconds <= patience
        if is_good:
            costs[arm].append(seconds)
        taken = min(seconds, patience)
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
        start = left.index(
            min((arm for arm in left if costs[arm]), key=lambda arm: float(np.mean(costs[arm])))
        )
    scatter = float(np.mean([np.std(of, ddof=1) for of in costs.values() if len(of) > 1]))
    while len(spent) < _ZEUS_RUNS:
        drawn = {
            arm: rng.normal(np.mean(costs[arm]), scatter / math.sqrt(len(costs[arm])))
            for arm in left
        }
        run(min(drawn, key=lambda arm: drawn[arm]))
    bad = [number for number, (_, choice) in enumerate(spent) if truth.regret(choice) > CLOSE]
    settled = bad[-1] + 1 if bad else 0
    return (spent[settled][0] if settled < len(spent) else math.inf), spent[-1][1]


def score(truth: Measured, predicted: Mapping[Key, float]) -> tuple[float, Key]:
    """The median over cells of the error of their time, either way, and the cell that is chosen."""
    errors = [
        abs(predicted[cell] / truth.seconds[cell] - 1)
        for cell in truth.cells
        if truth.seconds[cell] < math.inf
    ]
    return float(np.median(errors)), min(predicted, key=lambda cell: predicted[cell])


def of_search(
    truth: Measured, seeds: tuple[int, ...]
) -> tuple[pd.DataFrame, list[dict[str, object]]]:
    """What the search with this order of seeds predicts of all cells; rows for it and the rules
    that see its runs.
    """
    search = Played(truth, seeds)
    cells = search.search().cells
    told = _by_cell(cells, "seconds")
    probed = fit_step_time(search.timings, DRAWS)
    rules = {
        "bsweep recommend": told,
        "throughput alone, by probes": throughput_alone(truth, search, probed),
        "throughput alone": throughput_alone(truth, search, search.step_time),
        "goodput of Pollux": goodput(truth, search),
        "nearest measured cell": nearest_measured(truth, search),
    }
    rows: list[dict[str, object]] = []
    for name, predicted in rules.items():
        choice = min(predicted, key=lambda cell: predicted[cell])
        own = {"error": error(truth, predicted, truth.cells), "seeds": "".join(map(str, seeds))}
        rows.append(_row(name, truth, choice, search.spent / truth.cost) | own)
    was_run = {cell for (cell, _), _ in search.runs}
    others = set(seeds) - {seed for (_, seed), _ in search.runs}
    rows[0] |= {
        "error_elsewhere": error(
            truth, told, [cell for cell in truth.cells if cell not in was_run]
        ),
        "coverage": coverage(truth, cells, truth.seeds),
        "coverage_other_seeds": coverage(truth, cells, sorted(others)),
        "num_runs": len(search.runs),
    }
    return cells.assign(measured_seconds=[truth.seconds[cell] for cell in told]), rows


def error(truth: Measured, predicted: Mapping[Key, float], of: Sequence[Key]) -> float:
    """The median over some cells of the error of their time, either way."""
    errors = [
        abs(predicted[cell] / truth.seconds[cell] - 1)
        for cell in of
        if truth.seconds[cell] < math.inf
    ]
    return float(np.median(errors))


def coverage(truth: Measured, cells: pd.DataFrame, seeds: Sequence[int]) -> float:
    """The share of runs of these seeds, one a cell, that lie in their cell's 90 % interval."""
    low, high = (_by_cell(cells, f"seconds_{end}") for end in ("low", "high"))
    runs = [(cell, truth.run_seconds((cell, seed))) for cell in low for seed in seeds]
    return float(
        np.mean([low[cell] <= seconds <= high[cell] for cell, seconds in runs if seconds > 0])
    )


def without_a_batch(truth: Measured) -> pd.DataFrame:
    """Every cell as predicted from all runs of the other batches; one batch alone is left out at a
    time.
    """
    tables = []
    for batch in sorted({cell[0] for cell in truth.cells}):
        known = [
            ((cell, seed), math.inf)
            for cell in truth.cells
            for seed in truth.seeds
            if cell[0] != batch
        ]
        seen = observed(played(truth, known), truth.target)
        of = [cell for cell in truth.cells if cell[0] == batch]
        cells = predict_from(seen, fit(seen, (), DRAWS), parse_objective("fastest"), of).cells
        told = cells.assign(
            measured_seconds=[truth.seconds[cell] for cell in _by_cell(cells, "seconds")]
        )
        tables.append(told.assign(coverage=coverage(truth, cells, truth.seeds)))
    return pd.concat(tables)[
        [*CELL, "measured_seconds", "seconds", "seconds_low", "seconds_high", "coverage"]
    ]


def _by_cell(cells: pd.DataFrame, column: str) -> dict[Key, float]:
    rows = cells[[*CELL, column]].to_numpy(float)
    return {
        (int(batch), int(workers), int(passes)): value
        for batch, workers, passes, value in rows.tolist()
    }


def _row(rule: str, truth: Measured, choice: Key, cost: float) -> dict[str, object]:
    chosen = {"global_batch": choice[0], "num_workers": choice[1], "regret": truth.regret(choice)}
    return {"rule": rule, **chosen, "cost_share": cost}


def draw(cells: pd.DataFrame, path: Path) -> None:
    """Predicted against measured seconds of each cell, with the 90 % interval of one further
    run.
    """
    counts = sorted(set(cells["num_workers"].tolist()))
    ends = [cells["measured_seconds"].min() / 1.2, cells["measured_seconds"].max() * 1.2]
    with rc_context(drawing.STYLE):
        figure = Figure(figsize=(drawing.width(), 4.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(ends, ends, color=drawing.GRAY, linewidth=1, zorder=0)
        for workers, color, marker in zip(
            counts, ramp("num_workers", len(counts)), MARKERS, strict=False
        ):
            of = cells[cells["num_workers"] == workers]
            low, seconds, high = (of[name] for name in ("seconds_low", "seconds", "seconds_high"))
            label = counted(workers, "worker")
            spread = [seconds - low, high - seconds]
            axes.errorbar(
                of["measured_seconds"], seconds, spread, fmt=marker, color=color, label=label
            )
        axes.set(xscale="log", yscale="log")
        axes.set_xlabel("Measured time to the target (s)")
        axes.set_ylabel("Predicted time to the target (s)")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:,.0f}")
            axis.set_minor_formatter(ticker.NullFormatter())
        axes.legend()
        drawing.save(figure, path)


def main(folder: Path, target: Target) -> None:
    truth = measured(folder, target)
    print(_grid(truth).round().to_string(), "\n")
    rng, rows = np.random.default_rng(0), []
    for seeds in itertools.permutations(truth.seeds):
        cells, of_rules = of_search(truth, seeds)
        rows += of_rules
        if seeds == tuple(truth.seeds):
            draw(cells, folder / "predicted.png")
    rows.append(_row("largest batch, most workers", truth, max(truth.cells), 0.0))
    for cost, choice in (zeus(truth, rng) for _ in range(_ZEUS_PLAYS)):
        rows.append(_row("Zeus, until it stays within 5 %", truth, choice, cost / truth.cost))
    table = pd.DataFrame(rows)
    table.to_csv(folder / "rules.csv", index=False, float_format="%.6g")
    by_rule = table.assign(is_close=table["regret"].le(CLOSE)).groupby("rule", sort=False)
    numbers = [
        "error",
        "error_elsewhere",
        "regret",
        "cost_share",
        "coverage",
        "coverage_other_seeds",
    ]
    print(by_rule[numbers].median().join(by_rule["is_close"].mean()).round(3).to_string(), "\n")
    left_out = without_a_batch(truth)
    left_out.to_csv(folder / "without_a_batch.csv", index=False, float_format="%.6g")
    errors = (left_out["seconds"] / left_out["measured_seconds"] - 1).abs()
    inside = left_out["coverage"].mean()
    print(
        f"each batch from all others: median error {errors.median():.1%}, {inside:.0%} of runs "
        "inside their intervals"
    )


def _grid(truth: Measured) -> pd.DataFrame:
    """Seconds to the target, batches down and workers across."""
    return pd.Series({cell[:2]: truth.seconds[cell] for cell in truth.cells}).unstack()


if __name__ == "__main__":
    main(*arguments(__doc__))
