"""The report's tables of predictions (the time of each cell, larger clusters) and of the best
learning rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from bsweep import analysis, plots
from bsweep.analysis import Study
from bsweep.analysis.cell_tables import tuning
from bsweep.analysis.cell_tables.keys import RATES
from bsweep.analysis.simulation.rows import LITTLE_GAIN
from bsweep.analysis.study import naming
from bsweep.analysis.study.columns import heading, spoken
from bsweep.analysis.study.numbers import interval_text, number, setting_text, spread
from bsweep.core.words import joined
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
    f"are on the study's own links. Knee: from there on, {LITTLE_GAIN}."
)
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
        yield Table(caption, _table(curves, _curve), "larger-clusters")
    if len(rows := tuning.rates(study)):
        yield _rates(study, rows[rows["num_rates"] > 1])


def _rates(study: Study, table: pd.DataFrame) -> Table:
    """Return the table of the best learning rate of each cell in `table` that has a score at one of
    its rates.
    """
    apart = [name for name in analysis.levels(table) if name not in RATES]
    levels = [name for name in apart if name in analysis.varying(table) or name == "local_batch"]
    score = naming.heading(study.runs, table["metric"].iloc[0])
    rows = []
    for key, rates in table.groupby(level=apart):
        if (best := rates[rates["is_best"]]).empty:
            continue
        cell, settings = best.iloc[0], dict(zip(apart, key, strict=True))
        columns, tried = rates[["score", "score_ci95", "score_points"]], {*rates["learning_rate"]}
        scores = [spread(*row) for row in columns.itertuples(index=False)]
        rows.append({
            **{heading(level): spoken(level, setting_text(settings[level])) for level in levels},
            "seeds": str(cell["n"]),
            "best learning rate": f"{cell['learning_rate']:.3g}",
            score: spread(cell["score"], cell["score_ci95"], cell["score_points"]),
            "rates that were run": ", ".join(f"{rate:.3g}" for rate in sorted(tried)),
            "the best is the last": cell["at_edge"] or "no",
            f"{score} at each": "; ".join(scores),
        })  # fmt: skip
    return Table(_RATES.format(tuning.best_by(study)), pd.DataFrame(rows), "rates")


def _table(rows: pd.DataFrame, text_of: Callable[[dict[str, Any]], dict[str, str]]) -> pd.DataFrame:
    cells: list[dict[Any, Any]] = rows.to_dict("records")
    texts = pd.DataFrame(map(text_of, cells))
    if (rows["where"] != "").any():
        texts.insert(0, "part", rows["where"].to_numpy())
    return texts


def _cell(cell: dict[str, Any]) -> dict[str, str]:
    reached = f"{cell['num_reached']} of {cell['num_runs']} reached"
    bottleneck = {"fixed": "fixed cost"}.get(
        cell["bottleneck"], cell["bottleneck"].replace("_", " ")
    )
    notes = [
        reached if cell["num_runs"] else "not measured",
        "simulated" * bool(cell["is_simulated"]),
        "extrapolated" * bool(cell["is_extrapolated"]),
        cell["problem"],
    ]
    return {
        "global batch": str(cell["global_batch"]),
        "workers": str(cell["num_workers"]),
        "time (s)": number(cell["seconds"]),
        "90 % interval (s)": interval_text(cell["seconds_low"], cell["seconds_high"]),
        "worker-seconds": number(cell["worker_seconds"]),
        "steps": f"{cell['steps']:.0f}",
        "step (s)": number(cell["step_seconds"]),
        "bottleneck": f"{bottleneck}, {100 * cell['bottleneck_share']:.0f} %",
        "on the front": f"{cell['probability_on_front']:.2f}",
        "best": f"{cell['probability_best']:.2f}",
        "runs": joined(notes, "; "),
    }


def _curve(cell: dict[str, Any]) -> dict[str, str]:
    notes = [
        "simulated" if cell["is_simulated"] else "not simulated",
        "knee" * bool(cell["is_knee"]),
        "above the critical batch size" * bool(cell["is_above_critical"]),
    ]
    money = {} if pd.isna(cell["money"]) else {"money": number(cell["money"])}
    return {
        "network": cell["network"],
        "workers": str(cell["num_workers"]),
        "global batch": str(cell["global_batch"]),
        "time (s)": number(cell["seconds"]),
        "90 % interval of time (s)": interval_text(cell["seconds_low"], cell["seconds_high"]),
        "worker-hours": number(cell["worker_hours"]),
        **money,
        "notes": joined(notes, "; "),
    }
