"""The report's tables of predictions (the time of each cell, larger clusters) and of the best
learning rates.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from bsweep import analysis, plots
from bsweep.analysis import Study
from bsweep.analysis.cell_tables import tuning
from bsweep.analysis.cell_tables.keys import RATES
from bsweep.analysis.conclusions.prediction_texts import SECONDS_ENDS, runs_in_words
from bsweep.analysis.prediction.critical_batch import LEVEL
from bsweep.analysis.simulation.rows import LITTLE_GAIN
from bsweep.analysis.study import naming
from bsweep.analysis.study.columns import heading, spoken
from bsweep.analysis.study.numbers import setting_text
from bsweep.analysis.study.text_tables import as_texts, marks
from bsweep.report.formats import Table, spreads

_CELLS = (
    f"Every cell of the grid: predicted time to {{}}, with the {LEVEL} prediction interval of one "
    "more run. Bottleneck: the largest part of the time. On the front: the probability that no "
    "cell takes less time for at most as many worker-seconds. Best: the probability that no cell "
    "is faster."
)
_LARGER = (
    "Larger clusters: predicted time and worker-hours to {} on each number of workers at its best "
    f"global batch, with the {LEVEL} prediction interval of one more run. Cells that are not "
    f"simulated are on the study's own links. Knee: from there on, {LITTLE_GAIN}."
)
_CELL_HEADINGS = {
    "global_batch": "global batch", "num_workers": "workers", "seconds": "time (s)",
    "interval": f"{LEVEL} interval (s)", "worker_seconds": "worker-seconds", "steps": "steps",
    "step_seconds": "step (s)", "bottleneck": "bottleneck",
    "probability_on_front": "on the front", "probability_best": "best", "runs": "runs",
}  # fmt: skip
_CURVE_HEADINGS = {
    "network": "network", "num_workers": "workers", "global_batch": "global batch",
    "seconds": "time (s)", "interval": f"{LEVEL} interval of time (s)",
    "worker_hours": "worker-hours", "money": "money", "notes": "notes",
}  # fmt: skip
_CURVE_MARKS = {
    "is_simulated": "simulated", "is_own": "not simulated", "is_knee": "knee",
    "is_above_critical": "above the critical batch size",
}  # fmt: skip
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
        yield Table(caption, _predicted(cells), "predicted")
    if len(curves := analysis.larger_clusters(study)):
        caption = _LARGER.format(plots.targets_in_words(curves))
        yield Table(caption, _larger(curves), "larger-clusters")
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
        tried, scores = {*rates["learning_rate"]}, spreads(rates, "score")
        rows.append({
            **{heading(level): spoken(level, setting_text(settings[level])) for level in levels},
            "seeds": str(cell["n"]),
            "best learning rate": f"{cell['learning_rate']:.3g}",
            score: spreads(best, "score")[0],
            "rates that were run": ", ".join(f"{rate:.3g}" for rate in sorted(tried)),
            "the best is the last": cell["at_edge"] or "no",
            f"{score} at each": "; ".join(scores),
        })  # fmt: skip
    return Table(_RATES.format(tuning.best_by(study)), pd.DataFrame(rows), "rates")


def _predicted(cells: pd.DataFrame) -> pd.DataFrame:
    bottlenecks = cells["bottleneck"].replace("fixed", "fixed cost").str.replace("_", " ")
    shares = zip(bottlenecks, cells["bottleneck_share"], strict=True)
    cells = cells.assign(
        bottleneck=[f"{part}, {100 * share:.0f} %" for part, share in shares],
        runs=runs_in_words(cells, "not measured"),
    )
    return as_texts(cells, _part(cells) | _CELL_HEADINGS, SECONDS_ENDS)


def _larger(curves: pd.DataFrame) -> pd.DataFrame:
    notes = marks(curves.assign(is_own=~curves["is_simulated"]), _CURVE_MARKS)
    return as_texts(curves.assign(notes=notes), _part(curves) | _CURVE_HEADINGS, SECONDS_ENDS)


def _part(table: pd.DataFrame) -> dict[str, str]:
    """Return the heading of the part of the study, if a row names one."""
    return {"where": "part"} if (table["where"] != "").any() else {}
