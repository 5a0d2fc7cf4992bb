"""The tables that the page shows of a study of models split over workers: those of the figures of
`bsweep.plots.splitting`, cell by cell.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables import split_models as tables
from bsweep.analysis.cell_tables.keys import cell_keys, keyed
from bsweep.analysis.study.naming import words
from bsweep.core.words import joined
from bsweep.plots import in_order
from bsweep.plots.splitting import MEGA


def splits(study: Study) -> dict[str, Any]:
    """Return the tables of the page's charts of split models, each as columns by name.

    Args:
        study: The study.

    Returns:
        `ways` and `memory`, each with a column `cell`, the name of the row's cell, and
        `cell_of_run`, the name of each run's cell. Empty for a study whose workers hold whole
        models.
    """
    found = {"ways": _ways(study), "memory": _memory(study)}
    if not any(map(len, found.values())):
        return {}
    of_runs = keyed(study.runs).set_index(cell_keys(study.runs))
    return {
        **{
            name: {str(column): [*table[column]] for column in table}
            for name, table in found.items()
        },
        "cell_of_run": _cells(study, of_runs),
    }


def _cells(study: Study, table: pd.DataFrame) -> list[str]:
    """Return the names of the cells of a table's rows, which differ wherever cells differ."""
    known = analysis.cells(study.runs)
    names = tables.names(known, ["variant", *(n for n in analysis.levels(known) if n != "variant")])
    of_cell = dict(zip(known.index, names, strict=True))
    keys = analysis.levels(known)
    places = table.index.to_frame(index=False)[keys].itertuples(index=False, name=None)
    return [of_cell[place] for place in places]


def _ways(study: Study) -> pd.DataFrame:
    table = tables.ways(study)
    if table.empty:
        return table
    table = in_order(study, table)
    named = tables.ways_in_words(table)
    pairs = zip(table["strategy"], table["replicas"], strict=True)
    workers = table.index.get_level_values("num_workers")
    batches = table.index.get_level_values("local_batch")
    is_one_batch = table["global_batch"].nunique() < 2
    batch_words = ["" if is_one_batch else words("local_batch", batch) for batch in batches]
    return pd.DataFrame({
        "cell": _cells(study, table),
        "num_workers": workers,
        "seconds": table["train_seconds"].to_numpy(),
        "strategy": [*table["strategy"]],
        "way": [
            joined([named[pair], batch, panel], ", ")
            for pair, batch, panel in zip(pairs, batch_words, table["panel"], strict=True)
        ],
        "is_fastest": table["is_fastest"].to_numpy(),
    })  # fmt: skip


def _memory(study: Study) -> pd.DataFrame:
    table = tables.worker_memory(study)
    if table.empty:
        return table
    table = in_order(study, table)
    amounts = {name: table[name].to_numpy() / MEGA for name in (*tables.PARTS, "peak_bytes")}
    workers = table.index.get_level_values("worker")
    megabytes = {name.replace("_bytes", ""): values for name, values in amounts.items()}
    return pd.DataFrame({"cell": _cells(study, table), "worker": workers, **megabytes})
