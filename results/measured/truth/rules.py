"""What predictions from a small part of a measured grid are worth, beside other rules that choose a
cell of it.

    python results/measured/truth/rules.py results/measured/truth --target-accuracy 0.65

The folder is a study in which every cell was trained with the same seeds, and with the same rates
if there are several; see `measured_grid.grid_of`. Or it has the tables of two studies, `runs` and
`steps`; see `measured_grid.emulated`. Over this grid the search of `bsweep recommend` is played,
once with each seed first, and so are other rules. What they end with is held against all that was
measured, and what the search predicts against the runs with seeds that it did not see.

All rules pay for starts, timed steps and evaluations alike. Written there:

- `rules.csv`: a row for each play of a rule. `regret` is how much longer the chosen cell takes than
  the best, and `cost_share` what was spent until the rule stopped, as a share of the grid's cost.
  `settled_share` is what was spent until the choice was within 5 % of the best for good, infinite
  if it never was.
- `seconds.csv`: the time of every cell, which `recompute_published.py` computes anew.
- `predicted.png`
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context, ticker
from matplotlib.figure import Figure
from measured_grid import Measured, Played, Run, arguments, measured
from scipy import optimize, stats

from bsweep.analysis.conclusions.next_run import SHARE, median_step
from bsweep.analysis.prediction.critical_batch import records_until_target
from bsweep.analysis.prediction.forecast import Key, keys_of
from bsweep.analysis.prediction.objectives import CLOSE
from bsweep.config.target import Target
from bsweep.core.words import counted
from bsweep.plots import drawing
from bsweep.plots.curves import MARKERS, ramp

_PLAYS, _ZEUS_RUNS = 300, 60
_ZEUS_PATIENCE = 2.0  # times the least cost so far, after which Zeus breaks a run off

History = list[tuple[float, Key | None]]
"""Worker-seconds that were spent, and the cell that a rule would name then."""

Row = dict[str, object]

# Rules that see what the search saw: each maps it to seconds of every cell.


def throughput_alone(truth: Measured, search: Played) -> dict[Key, float]:
    """`Linear scaling is free`: any batch needs the examples that the first run needed. A step
    takes what was timed, or what was fitted in cells that were not timed.
    """
    run, _ = search.runs[0]
    examples = truth.runs[run].steps * run.cell[0]
    step = {of: search.probed.get(of) or median_step(search.step_time, of) for of in truth.cells}
    return {of: examples / of[0] * step[of] for of in truth.cells}


def goodput(truth: Measured, search: Played) -> dict[Key, float]:
    """Pollux (OSDI 2021): examples grow as batch + noise scale does, from those of the first run.

    The noise scale is that of all runs of the search, of averages that are clipped at zero.
    """
    assert search.seen is not None
    noise = (
        records_until_target(search.seen)[["variance", "gradient_square"]].sum().clip(lower=1e-12)
    )
    began, scale = search.runs[0][0].cell[0], float(noise["variance"] / noise["gradient_square"])
    alone = throughput_alone(truth, search)
    return {of: alone[of] * (of[0] + scale) / (began + scale) for of in truth.cells}


def nearest_measured(truth: Measured, search: Played) -> dict[Key, float]:
    """What the nearest cell took that was run, by doublings of batch and workers; of equals that
    cell is less.
    """
    known: dict[Key, list[float]] = {}
    for run, most in search.runs:
        if truth.runs[run].steps <= most:
            known.setdefault(run.cell, []).append(truth.run_seconds(run))
    found = {}
    for of in truth.cells:
        away = {one: math.dist(np.log2(one[:2]), np.log2(of[:2])) for one in known}
        nearest = min(away, key=lambda one: away[one])
        found[of] = float(np.mean(known[nearest])) * (1 + 1e-9 * away[nearest])
    return found


# Rules with runs of their own: each returns what it spent and would have named meanwhile, and
# after how many entries it stopped by itself.


def least_squares(truth: Measured, seed: int, num_runs: int) -> tuple[History, int]:
    """Time ten steps of every cell, train runs of evenly spread batches, each on the workers where
    it costs least, and take S_min + E_min / B by non-negative least squares times the timed steps.

    Of one run, half of the steps count as S_min. With several rates, the middle one is run.
    """
    rate = truth.rates[len(truth.rates) // 2]
    probes = {cell: Run(cell, seed, rate) for cell in truth.cells}
    spent = sum(map(truth.probe_worker_seconds, probes.values()))
    step = {cell: truth.runs[run].first_step_seconds for cell, run in probes.items()}
    batches = sorted({cell[0] for cell in truth.cells})
    known = {}
    for place in range(num_runs):
        batch = batches[int((place + 0.5) / num_runs * len(batches))]
        of_batch = [cell for cell in truth.cells if cell[0] == batch]
        run = probes[min(of_batch, key=lambda cell: step[cell] * cell[1])]
        spent += truth.worker_seconds(run)
        if truth.runs[run].steps > 0:
            known[batch] = truth.runs[run].steps
    if not known:
        return [(spent, None)], 1
    form = np.array([[1.0, 1 / batch] for batch in known])
    if len(known) == 1:
        (batch, needed), *_ = known.items()
        least, examples = needed / 2, needed / 2 * batch
    else:
        least, examples = optimize.nnls(form, np.array([*known.values()]))[0]
    seconds = {cell: (least + examples / cell[0]) * step[cell] for cell in truth.cells}
    return [(spent, min(seconds, key=lambda cell: seconds[cell]))], 1


def one_after_another(truth: Measured, runs: Sequence[Run], most: float) -> tuple[History, int]:
    """Train runs in this order and name the cell of the soonest; stop before the cost exceeds
    `most`.
    """
    best: tuple[float, Key | None] = math.inf, None
    spent, history, stopped = 0.0, History(), 0
    for run in runs:
        spent += truth.worker_seconds(run)
        seconds = truth.run_seconds(run)
        best = (seconds, run.cell) if seconds < best[0] else best
        history.append((spent, best[1]))
        stopped += spent <= most
    return history, max(1, stopped)


def halving(truth: Measured, rng: np.random.Generator) -> tuple[History, int]:
    """Successive halving (Jamieson and Talwalkar, 2016): all cells train for as long as the median
    cell takes to its first evaluation by the timed steps, the better half goes on for twice as
    long, and so on, until a cell reaches the target or one is left.

    Each rung costs a start of its own. Seeds are drawn at random.
    """
    left = [
        Run(cell, int(rng.choice(truth.seeds)), rate)
        for cell in truth.cells
        for rate in truth.rates
    ]
    spent = sum(map(truth.probe_worker_seconds, left))
    curves = {run: _curve(truth, run) for run in left}
    seconds = float(np.median([curve[0][0] for curve in curves.values()]))
    before, history = 0.0, History()
    while True:
        for run in left:
            taken, most = truth.runs[run], truth.trained_seconds(run)
            now = min(seconds, most) - min(before, most)
            evaluating = (taken.other_seconds - taken.start_seconds) * now / most
            spent += (now + evaluating + taken.start_seconds) * run.cell[1]
        there = {run: truth.run_seconds(run) for run in left}
        there = {run: needed for run, needed in there.items() if needed <= seconds}
        scores = {
            run: max((score for at, score in curves[run] if at <= seconds), default=-math.inf)
            for run in left
        }
        best = sorted(left, key=lambda run: (there.get(run, math.inf), -scores[run]))
        history.append((spent, best[0].cell))
        if there or len(left) == 1:
            return history, len(history)
        left, before, seconds = best[: (len(left) + 1) // 2], seconds, 2 * seconds


def _curve(truth: Measured, run: Run) -> list[tuple[float, float]]:
    """Seconds and score of each evaluation of a run; more is better."""
    own = truth.study.evaluations[truth.study.evaluations["run_id"] == truth.runs[run].run_id]
    seconds = own["num_steps"].astype(float) * truth.runs[run].step_seconds
    scores = truth.target.sign * own[truth.target.metric].astype(float)
    return [*zip(seconds.tolist(), scores.tolist(), strict=True)]


def zeus(truth: Measured, rng: np.random.Generator) -> tuple[History, int]:
    """Zeus (NSDI 2023) on the most workers, told so beforehand.

    From some batch it tries smaller ones, then larger ones, each until one fails or takes twice the
    least cost so far, twice over, where it stops; then it samples batches by Thompson's rule, costs
    being normal with flat priors. All runs are whole, or as long as its patience; seeds, and the
    batch that it starts with, are drawn at random. Its choice is the least mean.
    """
    workers, rate = max(cell[1] for cell in truth.cells), truth.rates[len(truth.rates) // 2]
    arms = sorted(cell for cell in truth.cells if cell[1] == workers)
    costs: dict[Key, list[float]] = {arm: [] for arm in arms}
    history = History()

    def run(arm: Key) -> bool:
        drawn = Run(arm, int(rng.choice(truth.seeds)), rate)
        seconds = truth.trained_seconds(drawn)
        patience = _ZEUS_PATIENCE * min((min(of) for of in costs.values() if of), default=math.inf)
        # NaN where it was not reached.
        is_good = truth.run_seconds(drawn) > 0 and seconds <= patience
        if is_good:
            costs[arm].append(seconds)
        share = min(1.0, patience / seconds)
        total = (history[-1][0] if history else 0.0) + share * truth.worker_seconds(drawn)
        known = {one: float(np.mean(of)) for one, of in costs.items() if of}
        history.append((total, min(known, key=lambda one: known[one]) if known else None))
        return is_good

    left, start = arms, int(rng.integers(len(arms)))
    for _ in range(2):
        kept = [left[start]] if run(left[start]) else []
        for side in (left[:start][::-1], left[start + 1 :]):
            kept += list(itertools.takewhile(run, side))
        left = sorted(kept) or [arm for arm in left if costs[arm]]
        if not left:
            return history, len(history)
        start = left.index(
            min((arm for arm in left if costs[arm]), key=lambda arm: float(np.mean(costs[arm])))
        )
    stopped = len(history)
    several = [np.std(of, ddof=1) for of in costs.values() if len(of) > 1]
    scatter = float(np.mean(several)) if several else 0.0
    while len(history) < _ZEUS_RUNS:
        drawn = {
            arm: rng.normal(np.mean(costs[arm]), scatter / math.sqrt(len(costs[arm])))
            for arm in left
        }
        run(min(drawn, key=lambda arm: drawn[arm]))
    return history, stopped


def row(
    truth: Measured, rule: str, history: Sequence[tuple[float, Key | None]], stopped: int
) -> Row:
    """A row of `rules.csv`, of what a rule named after each cost, and where it stopped."""
    cost, choice = history[stopped - 1]
    is_bad = [truth.regret(named) > CLOSE for _, named in history]
    settled = len(is_bad) - next((n for n, bad in enumerate(reversed(is_bad)) if bad), len(is_bad))
    at = history[settled][0] if settled < len(history) else math.inf
    batch, workers, *_ = choice or (math.nan,) * 2
    return {
        "rule": rule, "global_batch": batch, "num_workers": workers, "regret": truth.regret(choice),
        "cost_share": cost / truth.cost, "settled_share": at / truth.cost,
    }  # fmt: skip


def own_rules(truth: Measured) -> Iterator[Row]:
    """Rows of the rules with runs of their own."""
    rates = truth.rates
    for seed in truth.seeds:
        for number_of in (1, 2, 3):
            name = f"ten steps of every cell, {counted(number_of, 'run')}, least squares"
            yield row(truth, name, *least_squares(truth, seed, number_of)) | {"seeds": str(seed)}
        runs = [Run(cell, seed, rate) for cell in truth.cells for rate in rates]
        whole = one_after_another(truth, runs, math.inf)
        yield row(truth, "the grid with one seed", *whole) | {"seeds": str(seed)}
    rng, runs = np.random.default_rng(0), [*truth.runs]
    at_random: Mapping[str, Callable[[], tuple[History, int]]] = {
        "successive halving": lambda: halving(truth, rng),
        "random": lambda: one_after_another(
            truth, [runs[place] for place in rng.permutation(len(runs))], SHARE * truth.cost
        ),
        "Zeus on the most workers": lambda: zeus(truth, rng),
    }
    for rule, play in at_random.items():
        yield from (row(truth, rule, *play()) for _ in range(_PLAYS))
    yield row(truth, "largest batch, most workers", [(0.0, max(truth.cells))], 1)


def of_search(truth: Measured, seeds: tuple[int, ...]) -> tuple[pd.DataFrame, list[Row]]:
    """Play the search with this order of seeds. Return what it predicts of all cells, and rows for
    it and for the rules that see its runs.

    Predictions are held against the seeds of which the search ran nothing.
    """
    search = Played(truth, seeds)
    prediction = search.search()
    if prediction is None:
        nothing = row(truth, "bsweep recommend", [(search.spent, None)], 1)
        return pd.DataFrame(), [nothing | {"seeds": str(seeds[0])}]
    cells = prediction.cells
    told = _by_cell(cells, "seconds")
    others = sorted(set(seeds) - {run.seed for run, _ in search.runs})
    measured_seconds = truth.seconds_of(others) if others else dict.fromkeys(told, math.nan)
    rules = {
        "throughput alone": throughput_alone(truth, search),
        "nearest measured cell": nearest_measured(truth, search),
    }
    if len(truth.study.noise_scales):
        rules["goodput of Pollux"] = goodput(truth, search)
    rows = [row(truth, "bsweep recommend", search.history, len(search.history))]
    rows[0]["error"] = error(measured_seconds, told, truth.cells)
    for name, predicted in rules.items():
        choice = min(predicted, key=lambda cell: predicted[cell])
        own = {"error": error(measured_seconds, predicted, truth.cells)}
        rows.append(row(truth, name, [(search.spent, choice)], 1) | own)
    ran = {run.cell for run, _ in search.runs}
    batches = {cell[0] for cell in ran}
    rows[0] |= {
        "error_of_cells_run": error(measured_seconds, told, ran),
        "error_on_other_workers": error(
            measured_seconds, told, [c for c in told if c not in ran and c[0] in batches]
        ),
        "error_of_new_batches": error(
            measured_seconds, told, [cell for cell in told if cell[0] not in batches]
        ),
        "coverage": coverage(truth, cells, others),
        "num_runs": len(search.runs),
        "trainings": search.spent / truth.best_cost,
    }
    mark = {"seeds": "".join(map(str, seeds))}
    cells = cells.assign(measured_seconds=[truth.seconds[cell] for cell in told])
    return cells, [told | mark for told in rows]


def error(
    measured_seconds: Mapping[Key, float], predicted: Mapping[Key, float], of: Collection[Key]
) -> float:
    """The median over some cells of the error of their time, either way; NaN of none."""
    errors = [
        abs(predicted[cell] / measured_seconds[cell] - 1)
        for cell in of
        if measured_seconds[cell] < math.inf
    ]
    return float(np.median(errors)) if errors else math.nan


def coverage(truth: Measured, cells: pd.DataFrame, seeds: Collection[int]) -> float:
    """Return the share of the runs with these seeds that lie in their cell's 90 % interval, of
    those that reached the target with the rate with which the cell is soonest.
    """
    low, high = (_by_cell(cells, f"seconds_{end}") for end in ("low", "high"))
    inside = []
    for cell in low:
        by_rate = [
            [truth.run_seconds(Run(cell, seed, rate)) for seed in seeds] for rate in truth.rates
        ]
        best = min(by_rate, key=lambda runs: float(np.mean(np.nan_to_num(runs, nan=np.inf))))
        inside += [low[cell] <= seconds <= high[cell] for seconds in best if seconds > 0]
    return float(np.mean(inside)) if inside else math.nan


def ahead(truth: Measured) -> str:
    """By how much the best cell is ahead of the next, with its 95 % t-interval over equal seeds."""
    best, second = sorted(truth.cells, key=lambda cell: truth.seconds[cell])[:2]
    logs = [
        math.log(_soonest(truth, second, seed) / _soonest(truth, best, seed))
        for seed in truth.seeds
    ]
    mean = float(np.mean(logs))
    low, high = stats.t.interval(0.95, len(logs) - 1, mean, stats.sem(logs))
    share = truth.seconds[second] / truth.seconds[best] - 1
    return (
        f"batch {best[0]} on {best[1]} is {share:.0%} ahead of batch {second[0]} on {second[1]}; "
        f"by equal seeds {math.expm1(mean):.0%} ({math.expm1(low):.0%} to {math.expm1(high):.0%})"
    )


def _soonest(truth: Measured, cell: Key, seed: int) -> float:
    return float(np.nanmin([truth.run_seconds(Run(cell, seed, rate)) for rate in truth.rates]))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each rule: medians over its plays, and in how many the choice is within 5 % of the
    best, with the exact 95 % interval (Clopper and Pearson, 1934) of that share.
    """
    by_rule = table.assign(is_close=table["regret"] <= CLOSE).groupby("rule", sort=False)
    numbers = ["error", "coverage", "regret", "cost_share", "settled_share", "trainings"]
    medians = by_rule[[name for name in numbers if name in table]].median()
    counts = by_rule["is_close"].agg(["sum", "size"])
    intervals = [
        stats.binomtest(int(close), int(plays)).proportion_ci(0.95, "exact")
        for close, plays in counts.itertuples(index=False)
    ]
    return medians.assign(
        close=counts["sum"], plays=counts["size"],
        close_low=[one.low for one in intervals], close_high=[one.high for one in intervals],
    )  # fmt: skip


def _by_cell(cells: pd.DataFrame, column: str) -> dict[Key, float]:
    return dict(zip(keys_of(cells), cells[column].astype(float), strict=True))


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
    print(
        ahead(truth),
        f"one training of the best cell is {truth.best_cost / truth.cost:.2%} of the grid's cost",
        sep="\n", end="\n\n",
    )  # fmt: skip
    cells_of = pd.DataFrame(
        [(*cell[:2], truth.seconds[cell]) for cell in truth.cells],
        columns=["global_batch", "num_workers", "seconds"],
    )
    cells_of = cells_of.assign(metric=target.metric, target=target.value)
    cells_of.to_csv(folder / "seconds.csv", index=False, float_format="%.6g")
    rows = []
    for first in range(len(truth.seeds)):
        cells, rules = of_search(truth, (*truth.seeds[first:], *truth.seeds[:first]))
        rows += rules
        if not first and len(cells):
            draw(cells, folder / "predicted.png")
    table = pd.DataFrame([*rows, *own_rules(truth)])
    table.to_csv(folder / "rules.csv", index=False, float_format="%.6g")
    print(summary(table).round(3).to_string())


def _grid(truth: Measured) -> pd.DataFrame:
    """Seconds to the target, batches down and workers across."""
    return pd.Series({cell[:2]: truth.seconds[cell] for cell in truth.cells}).unstack()


if __name__ == "__main__":
    main(*arguments(__doc__))
