"""The report's tables of predictions (the time of each cell, larger clusters) and of the best
learning rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from bsweep import analysis, plots
from bsweep.analysis import Study
from bsweep.analysis.cell_tables import tuning
from bsweep.analysis.cell_tables.keys import RATES
from bsweep.analysis.study import naming
from bsweep.analysis.study.columns import heading, spoken
from bsweep.analysis.study.numbers import number, setting_text, spread
from bsweep.report.formats import Table

_CELLS = (
    "Every cell of the grid: predicted time to {}, with the 90 % prediction interval of one more "
    "run. Bottleneck: the largest part of the time. On the front: the probability that no cell "
    "takes less time for at most as many worker-seconds. Best: the probability that no cell is "
    "faster."
)
_LARGER = (
    "Larger clusters: predicted time and worker-hours to {} on each number of workers at its best "
    "global batch, with the 90 % prediction interval of one more run. Cells that are not simulated "
    "are on the study's own links. Knee: from there on, more workers bring less than half of the "
    "speed that they cost."
)
_PARTS = {  # in words, each part of a predicted time
    "fixed": "fixed cost",
    "computing": "computing",
    "large_batch": "large batch",
    "exchange": "exchange",
    "bubble": "bubble",
    "waiting": "waiting",
}
_RATES = (
    "The best learning rate of each cell that ran with several rates, by {}: the rate with which "
    "the smallest share of seeds diverges or misses the target; ties go to the rate with the best "
    "mean. Cells without a score at any rate are left out. If the best rate is the lowest or the "
    "highest of the runs, a better rate may lie beyond it."
)


def recommended(study: Study) -> Iterator[Table]:
    """Yield the tables of a study's predicted cells, of larger clusters, and of the best learning
    rates; each only if the study has numbers for it.
    """
    if len(cells := analysis.surface(study)):
        simulated = study.larger.networks[0] if study.larger and cells["is_simulated"].any() else ""
        caption = _CELLS.format(plots.targets_in_words(cells))
        caption += f" Simulated: steps as on {simulated}, not measured." if simulated else ""
        yield Table(caption, _table(cells, _cell), "predicted")
    if len(curves := analysis.larger_clusters(study)):
        caption = _LARGER.format(plots.targets_in_words(curves))
        yield Table(caption, _table(curves, _of_curve), "larger-clusters")
    if len(rows := tuning.rates(study)):
        yield _rates(study, rows[rows["num_rates"] > 1])


def _rates(study: Study, table: pd.DataFrame) -> Table:
    """Return the table of the best learning rate of each cell in `table` that has a score at one of
    its rates.
    """
    apart = [name for name in analysis.levels(table) if name not in RATES]
    shown = [
        name
        for name in apart
        if table.index.get_level_values(name).nunique() > 1 or name == "local_batch"
    ]
    name = naming.heading(study.runs, table["metric"].iloc[0])
    rows = []
    for key, of in table.groupby(level=apart):
        if (best := of[of["is_best"]]).empty:
            continue
        one, where = best.iloc[0], dict(zip(apart, key, strict=True))
        rates = ", ".join(f"{rate:.3g}" for rate in sorted(of["learning_rate"].unique()))
        scores = (
            spread(*row)
            for row in of[["score", "score_ci95", "score_points"]].itertuples(index=False)
        )
        rows.append({
            **{heading(level): spoken(level, setting_text(where[level])) for level in shown},
            "seeds": str(one["n"]),
            "best learning rate": f"{one['learning_rate']:.3g}",
            name: spread(one["score"], one["score_ci95"], one["score_points"]),
            "rates that were run": rates,
            "the best is the last": one["at_edge"] or "no",
            f"{name} at each": "; ".join(scores),
        })  # fmt: skip
    return Table(_RATES.format(tuning.best_by(study)), pd.DataFrame(rows), "rates")


def _table(rows: pd.DataFrame, row: Any) -> pd.DataFrame:
    shown = pd.DataFrame(
        [row({str(name): value for name, value in one.items()}) for one in rows.to_dict("records")]
    )
    if (rows["where"] != "").any():
        shown.insert(0, "part", rows["where"].to_numpy())
    return shown


def _cell(cell: dict[str, Any]) -> dict[str, str]:
    runs = (
        f"{cell['num_reached']} of {cell['num_runs']} reached"
        if cell["num_runs"]
        else "not measured"
    )
    notes = ["simulated"] * bool(cell["is_simulated"])
    notes += ["extrapolated"] * bool(cell["is_extrapolated"]) + [cell["problem"]] * bool(
        cell["problem"]
    )
    return {
        "global batch": str(cell["global_batch"]),
        "workers": str(cell["num_workers"]),
        "time (s)": number(cell["seconds"]),
        "90 % interval (s)": f"{number(cell['seconds_low'])} to {number(cell['seconds_high'])}",
        "worker-seconds": number(cell["worker_seconds"]),
        "steps": f"{cell['steps']:.0f}",
        "step (s)": number(cell["step_seconds"]),
        "bottleneck": f"{_PARTS[cell['bottleneck']]}, {100 * cell['bottleneck_share']:.0f} %",
        "on the front": f"{cell['probability_on_front']:.2f}",
        "best": f"{cell['probability_best']:.2f}",
        "runs": "; ".join([runs, *notes]),
    }


def _of_curve(cell: dict[str, Any]) -> dict[str, str]:
    notes = ["simulated" if cell["is_simulated"] else "not simulated"]
    notes += ["knee"] * cell["is_knee"]
    notes += ["above the critical batch size"] * cell["is_above_critical"]
    money = {} if pd.isna(cell["money"]) else {"money": number(cell["money"])}
    return {
        "network": cell["network"],
        "workers": str(cell["num_workers"]),
        "global batch": str(cell["global_batch"]),
        "time (s)": number(cell["seconds"]),
        "90 % interval of time (s)": f"{number(cell['seconds_low'])} to "
        f"{number(cell['seconds_high'])}",
        "worker-hours": number(cell["worker_hours"]),
        **money,
        "notes": "; ".join(notes),
    }
