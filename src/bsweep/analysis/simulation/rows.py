"""The table of a simulation: its simulated and measured rows, what compares them with one worker,
and how people, notebooks and programs see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.statistics import MIN_SEEDS_FOR_INTERVAL
from bsweep.analysis.prediction.critical_batch import INTERVAL, LEVEL, P95
from bsweep.analysis.simulation.cases import Case
from bsweep.analysis.simulation.choices import Choice, choice_of
from bsweep.analysis.simulation.constants import NUM_DRAWS, Constants
from bsweep.analysis.simulation.network import FREE, Array, Network
from bsweep.analysis.simulation.strategies import outcome
from bsweep.analysis.study.numbers import plain
from bsweep.analysis.study.text_tables import as_texts
from bsweep.core.words import counted

SIMULATED, MEASURED = "simulated", "measured"
MILLION = 1_000_000
KNEE = 0.5
"""The share of the ideal gain in speed below which more workers are not worth much."""
LITTLE_GAIN = "more workers bring less than half of the speed that they cost"
"""The words for the share `KNEE` in sentences."""


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """The result of `bsweep.simulate`: the seconds of a step for each strategy and worker count.

    `cells` has a row for each, with these columns:

    - `kind`: `simulated`, or `measured` for cells of the study itself.
    - `network`, `strategy`, `num_workers`, `local_batch` and `global_batch`.
    - `step_seconds` with the ends of its 90 % interval, `_low` and `_high`: the seconds of an
      optimizer step of a worker, with its share of the exchange.
    - `exchange_share` and `waiting_share`: the parts of a step in which a worker waits for the
      exchange, and for slower workers.
    - `examples_per_second`, `speed_up` and `efficiency`, against one worker; `efficiency` is the
      speed-up for each worker, and `speed_up` has ends of its 90 % interval, too.
    - `hours` and `money`: to train on a million examples; NaN without a price.

    `notes` say what the numbers rest on.
    """

    cells: pd.DataFrame
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        table = self._shown().to_string(index=False)
        return "\n".join([table, "", *self.notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{note}</p>" for note in self.notes)
        return f"{self._shown().to_html(index=False)}{notes}"

    def as_json(self) -> dict[str, Any]:
        """Return all of it in plain values, with None for what is not known.

        Returns:
            Mappings, lists, numbers and texts that JSON can hold.
        """
        return {"cells": plain(self.cells.to_dict("records")), "notes": list(self.notes)}

    def _shown(self) -> pd.DataFrame:
        shares = ["exchange_share", "waiting_share", "efficiency"]
        cells = self.cells.assign(**{name: self.cells[name].map(_percent) for name in shares})
        table = as_texts(cells, _HEADINGS, ("step_seconds_low", "step_seconds_high"))
        return table.drop(columns=["network"] * (cells["network"].nunique() == 1))


_HEADINGS = {
    "network": "network", "num_workers": "workers", "strategy": "strategy",
    "global_batch": "batch", "step_seconds": "step (s)", "interval": f"{LEVEL} interval",
    "exchange_share": "exchange", "waiting_share": "waiting", "speed_up": "speed-up",
    "efficiency": "efficiency", "money": "money", "kind": "",
}  # fmt: skip


def _percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.0f} %"


def row_of(case: Case) -> dict[str, Any]:
    """Simulate a case, and return its row of `Simulation.cells` without what compares it with other
    rows.

    Raises:
        ValueError: If it cannot be simulated. The message names no option of a command.
    """
    steps = outcome(case.choice.strategy, case)
    means = _draw_means(np.array_split(steps.step_seconds / steps.steps_each, NUM_DRAWS))
    low, high = _widened(means, case.log_error)
    whole, slowest = float(steps.step_seconds.sum()), steps.slowest_seconds
    local_batch = float(case.batches.mean())
    global_batch = case.passes * local_batch * case.num_groups
    middle = float(np.median(means))
    return {
        "kind": SIMULATED,
        "strategy": case.choice.name,
        "num_workers": case.num_workers,
        "local_batch": local_batch,
        "global_batch": round(global_batch),
        "step_seconds": middle,
        "step_seconds_low": low,
        "step_seconds_high": high,
        "exchange_share": max(0.0, 1 - float(slowest.sum()) / whole),
        "waiting_share": max(0.0, float((slowest - steps.mean_seconds).sum()) / whole),
        "examples_per_second": global_batch * steps.examples_factor / middle,
    }


def _widened(seconds: Array, spread_of_logs: float) -> tuple[float, float]:
    """Return the ends of the 90 % interval of draws that may all be wrong by one factor, too."""
    low, middle, high = np.log(np.quantile(seconds, [INTERVAL[0], 0.5, INTERVAL[1]]))
    below, above = np.hypot([middle - low, high - middle], P95 * spread_of_logs)
    return float(np.exp(middle - below)), float(np.exp(middle + above))


def _draw_means(blocks: Sequence[Array]) -> Array:
    """Return the mean of each block of steps, one for each draw of the constants, without what
    single steps add to the differences between blocks.
    """
    means = np.array([block.mean() for block in blocks])
    within = [block.var(ddof=1) / len(block) for block in blocks if len(block) > 1]
    noise = float(np.mean(within)) if within else 0.0
    whole = float(means.var(ddof=1)) if len(means) > 1 else 0.0
    kept = np.sqrt(max(0.0, 1 - noise / whole)) if whole > 0 else 0.0
    return np.asarray(means.mean() + (means - means.mean()) * kept)


def measured_rows(
    constants: Constants, choices: Sequence[Choice], simulated: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield a row of `Simulation.cells` for the runs of a study of each strategy, number of workers
    and local batch that were simulated, too. Its seconds are the median over the runs, as those of
    a simulated row are the median over draws.
    """
    keys = {(row["strategy"], row["num_workers"], row["local_batch"]) for row in simulated}
    for choice in choices:
        timed = choice.runs_of(constants.measured.dropna(subset="step_seconds"))
        for (workers, batch), runs in timed.groupby(["num_workers", "local_batch"]):
            if (choice.name, workers, batch) in keys:
                seconds = runs["step_seconds"].astype(float)
                middle, global_batch = float(seconds.median()), float(runs["global_batch"].iloc[0])
                has_interval = len(runs) >= MIN_SEEDS_FOR_INTERVAL
                ends = seconds.quantile(list(INTERVAL)) if has_interval else (np.nan, np.nan)
                exposed = runs["exposed_exchange_seconds_of_step"] / seconds
                yield {
                    "network": "measured",
                    "kind": MEASURED,
                    "strategy": choice.name,
                    "num_workers": workers,
                    "local_batch": batch,
                    "global_batch": round(global_batch),
                    "step_seconds": middle,
                    **dict(zip(("step_seconds_low", "step_seconds_high"), ends, strict=True)),
                    "exchange_share": float(exposed.mean()),
                    "waiting_share": float((runs["wait_seconds_of_step"] / seconds).mean()),
                    "examples_per_second": global_batch / middle,
                }


def compared(
    table: pd.DataFrame, constants: Constants, lone_batch: float, price: float | None
) -> pd.DataFrame:
    """Return a table of rows with columns that compare each with one worker: a measured row with
    the study's measured worker, if it has one, and any other row with a simulated worker.

    Args:
        table: The rows.
        constants: The constants.
        lone_batch: The local batch of the one worker, which has the speed 1.
        price: The price of one worker for an hour; None if it is not known.
    """
    even_constants, alone = replace(constants, speeds=(1.0,)), choice_of("single", pd.DataFrame())
    lone_row = row_of(Case(even_constants, Network(FREE), alone, 1, lone_batch, divides=False))
    simulated, steps = float(lone_row["examples_per_second"]), constants.measured
    alike = steps[(steps["num_workers"] == 1) & (steps["local_batch"] == lone_batch)]
    measured = [*(alike["global_batch"] / alike["step_seconds"]).dropna()] or [simulated]
    lone_rates = {SIMULATED: simulated, MEASURED: float(np.median(measured))}
    table["speed_up"] = table["examples_per_second"] / table["kind"].map(lone_rates)
    for end, other in (("low", "high"), ("high", "low")):
        ratio = table["step_seconds"] / table[f"step_seconds_{other}"]
        table[f"speed_up_{end}"] = table["speed_up"] * ratio
    table["efficiency"] = table["speed_up"] / table["num_workers"]
    table["hours"] = MILLION / table["examples_per_second"] / 3600
    table["money"] = table["hours"] * table["num_workers"] * (np.nan if price is None else price)
    order = ["network", "strategy", "num_workers", "kind"]
    return table.sort_values(order, ignore_index=True, kind="stable")


def knee(workers: pd.Series[int], speeds: pd.Series[float]) -> int | None:
    """Return the number of workers from which on each further step to more of them brings less than
    the share `KNEE` of the speed that it costs; None if the last step brings more.

    The next number of workers is at most twice as large: a larger step tells little of where more
    workers begin to bring less.

    Args:
        workers: The numbers of workers, ascending.
        speeds: The speed with each.
    """
    gains, wanted = speeds.pct_change(), KNEE * workers.pct_change()
    few = (gains < wanted).iloc[1:]
    if few.empty or not few.iloc[-1]:
        return None
    is_near = (workers.shift(-1) <= 2 * workers).iloc[:-1]
    at_knee = workers.iloc[:-1][lasting(few).to_numpy() & is_near.to_numpy()]
    return int(at_knee.iloc[0]) if len(at_knee) else None


def lasting(condition: pd.Series[bool]) -> pd.Series[bool]:
    """Return True where a condition holds from there on, to the end."""
    return condition[::-1].cummin()[::-1]


def knees(cells: pd.DataFrame) -> Iterator[str]:
    """Yield sentences that say from how many workers on more of them train little faster.

    Args:
        cells: The table `Simulation.cells`.
    """
    simulated = cells[cells["kind"] == SIMULATED]
    several = simulated["network"].nunique() > 1
    for (network, strategy), curve in simulated.groupby(["network", "strategy"], sort=False):
        workers = knee(curve["num_workers"], curve["examples_per_second"])
        if workers is not None:
            where = f" with {network}" if several else ""
            yield (
                f"Knee of {strategy}{where}: from {counted(workers, 'worker')} on, {LITTLE_GAIN}."
            )
