"""The result of a simulation as people, notebooks and programs see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.numbers import number, plain
from bsweep.analysis.prediction.critical_batch import INTERVAL
from bsweep.analysis.prediction.networks import knee
from bsweep.analysis.simulation.constants import NUM_DRAWS, Constants
from bsweep.analysis.simulation.network import Array
from bsweep.analysis.simulation.spread import P95
from bsweep.analysis.simulation.strategies import Case, Outcome
from bsweep.analysis.simulation.words import Way
from bsweep.core.words import counted

SIMULATED, MEASURED = "simulated", "measured"
MILLION = 1_000_000


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
        told = {"cells": self.cells.to_dict("records"), "notes": list(self.notes)}
        found: dict[str, Any] = plain(told)
        return found

    def _shown(self) -> pd.DataFrame:
        rows = []
        for cell in self.cells.to_dict("records"):
            low, high = cell["step_seconds_low"], cell["step_seconds_high"]
            row = {
                "network": cell["network"],
                "workers": cell["num_workers"],
                "strategy": cell["strategy"],
                "batch": cell["global_batch"],
                "step (s)": number(cell["step_seconds"]),
                "90 % interval": "" if low != low else f"{number(low)} to {number(high)}",
                "exchange": _percent(cell["exchange_share"]),
                "waiting": _percent(cell["waiting_share"]),
                "speed-up": number(cell["speed_up"]),
                "efficiency": _percent(cell["efficiency"]),
                "money": number(cell["money"]),
                "": cell["kind"],
            }
            rows.append(row)
        table = pd.DataFrame(rows)
        unknown = ["money"] * bool((table["money"] == "-").all())
        one_network = ["network"] * (self.cells["network"].nunique() == 1)
        return table.drop(columns=[*unknown, *one_network])


def _percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.0f} %"


def row_of(case: Case, found: Outcome) -> dict[str, Any]:
    """Return a row of `Simulation.cells` without what compares it with other rows.

    Args:
        case: What was simulated.
        found: Its steps.
    """
    number_of = len(found.step_seconds)
    blocks = np.array_split(found.step_seconds / found.steps_each, min(NUM_DRAWS, number_of))
    means = _of_draws(blocks)
    low, high = _widened(means, case.doubt)
    whole = float(found.step_seconds.sum())
    exposed = 1 - float(found.slowest_seconds.sum()) / whole
    waiting = float((found.slowest_seconds - found.mean_seconds).sum()) / whole
    groups = case.way.card.data_parallel_size(case.num_workers)
    batch = case.passes * case.local_batch * groups
    seconds = float(np.median(means))
    return {
        "kind": SIMULATED,
        "strategy": case.way.name,
        "num_workers": case.num_workers,
        "local_batch": case.local_batch,
        "global_batch": round(batch),
        "step_seconds": seconds,
        "step_seconds_low": low,
        "step_seconds_high": high,
        "exchange_share": max(0.0, exposed),
        "waiting_share": max(0.0, waiting),
        "examples_per_second": batch * found.examples_factor / seconds,
    }


def _widened(seconds: Array, spread_of_logs: float) -> tuple[float, float]:
    """Return the ends of the 90 % interval of draws that may all be wrong by one factor, too."""
    low, middle, high = np.log(np.quantile(seconds, [INTERVAL[0], 0.5, INTERVAL[1]]))
    more = P95 * spread_of_logs
    ends = middle - np.hypot(middle - low, more), middle + np.hypot(high - middle, more)
    return float(np.exp(ends[0])), float(np.exp(ends[1]))


def _of_draws(blocks: list[Array]) -> Array:
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
    constants: Constants, ways: Sequence[Way], batches: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Yield a row of `Simulation.cells` for the runs of a study of each way, number of workers and
    local batch that were simulated, too.
    """
    steps = constants.measured
    if steps.empty:
        return
    for way in ways:
        timed = way.of(steps[steps["step_seconds"].notna()])
        own = batches[batches["strategy"] == way.name]
        for (workers, local), of in timed.groupby(["num_workers", "local_batch"]):
            if ((own["num_workers"] == workers) & (own["local_batch"] == local)).any():
                yield {
                    "strategy": way.name, "num_workers": workers, "local_batch": local,
                    **_measured(of),
                }  # fmt: skip


def _measured(of: pd.DataFrame) -> dict[str, Any]:
    """Return what runs of one way, number of workers and local batch took."""
    seconds = of["step_seconds"].astype(float)
    middle, batch = float(seconds.median()), float(of["global_batch"].iloc[0])
    low, high = (np.nan, np.nan) if len(seconds) < 3 else seconds.quantile(list(INTERVAL))
    return {
        "network": "measured",
        "kind": MEASURED,
        "global_batch": round(batch),
        "step_seconds": middle,
        "step_seconds_low": float(low),
        "step_seconds_high": float(high),
        "exchange_share": float((of["exposed_exchange_seconds_of_step"] / seconds).mean()),
        "waiting_share": float((of["wait_seconds_of_step"] / seconds).mean()),
        "examples_per_second": batch / middle,
    }


def lone_rates(case: Case, found: Outcome) -> dict[str, float]:
    """Return the examples that one worker alone trains on in a second, by `Simulation.cells.kind`:
    as the study measured it with such a local batch, if it did, and as simulated.
    """
    simulated = float(row_of(case, found)["examples_per_second"])
    steps = case.constants.measured
    if not steps.empty:
        is_own = (steps["num_workers"] == 1) & (steps["local_batch"] == case.local_batch)
        steps = steps[is_own & steps["step_seconds"].notna()]
    measured = [*steps["global_batch"] / steps["step_seconds"]] if len(steps) else [simulated]
    return {SIMULATED: simulated, MEASURED: float(np.median(measured))}


def compared(
    rows: list[dict[str, Any]], alone: Mapping[str, float], price: float | None
) -> pd.DataFrame:
    """Return rows as a table, with what compares each with one worker.

    Args:
        rows: The rows.
        alone: The examples that one worker alone trains on in a second, for each kind of row.
        price: The price of one worker for an hour; None if it is not known.
    """
    table = pd.DataFrame(rows)
    table["speed_up"] = table["examples_per_second"] / table["kind"].map(alone)
    for end, other in (("low", "high"), ("high", "low")):
        ratio = table["step_seconds"] / table[f"step_seconds_{other}"]
        table[f"speed_up_{end}"] = table["speed_up"] * ratio
    table["efficiency"] = table["speed_up"] / table["num_workers"]
    table["hours"] = MILLION / table["examples_per_second"] / 3600
    table["money"] = table["hours"] * table["num_workers"] * (np.nan if price is None else price)
    order = ["network", "strategy", "num_workers", "kind"]
    return table.sort_values(order, ignore_index=True, kind="stable")


def knees(cells: pd.DataFrame) -> list[str]:
    """Return sentences that say from how many workers on more of them train little faster.

    Args:
        cells: The table `Simulation.cells`.
    """
    found = []
    own = cells[cells["kind"] == SIMULATED]
    several = own["network"].nunique() > 1
    for (network, strategy), of in own.groupby(["network", "strategy"], sort=False):
        at = knee(of["num_workers"], of["examples_per_second"])
        if at is not None:
            where = f" with {network}" if several else ""
            found.append(
                f"Knee of {strategy}{where}: from {counted(at, 'worker')} on, more workers bring "
                "less than half of the speed that they cost."
            )
    return found
