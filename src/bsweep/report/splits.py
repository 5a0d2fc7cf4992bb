"""The tables that the page shows of a study of models split over workers: those of the figures
`time_by_split` and `memory_by_worker`, cell by cell.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables import split_models
from bsweep.analysis.study.naming import words
from bsweep.core.words import joined
from bsweep.plots import in_order
from bsweep.plots.splitting import MEGA, PARTS


def splits(study: Study) -> dict[str, Any]:
    """Return the tables of the page's charts of split models, each as columns by name.

    Args:
        study: The study.

    Returns:
        `ways` and `memory`, each with a column `cell`, the name of the row's cell, and
        `cell_of_run`, the name of each run's cell. Empty for a study whose workers hold whole
        models.
    """
    ways, memory = split_models.ways(study), split_models.worker_memory(study)
    if ways.empty and memory.empty:
        return {}
    tables = {
        "ways": _ways(study, ways) if len(ways) else _NONE,
        "memory": _memory(study, memory) if len(memory) else _NONE,
    }
    columns = {name: table.to_dict("list") for name, table in tables.items()}
    return {**columns, "cell_of_run": _cells(study, analysis.by_cell(study.runs))}


_NONE = pd.DataFrame(columns=["cell", "row"])


def _cells(study: Study, table: pd.DataFrame) -> list[str]:
    """Return the names of the cells of a table's rows, which differ wherever cells differ."""
    known = analysis.cells(study.runs)
    keys = analysis.levels(known)
    shown = ["variant", *(name for name in keys if name != "variant")]
    names = dict(zip(known.index, split_models.names(known, shown), strict=True))
    places = table.index.to_frame(index=False)[keys].itertuples(index=False, name=None)
    return [names[place] for place in places]


def _ways(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    table = in_order(study, table)
    named = split_models.ways_in_words(table)
    pairs = zip(table["strategy"], table["replicas"], strict=True)
    batches = table.index.get_level_values("local_batch")
    is_one_batch = table["global_batch"].nunique() < 2
    batch_words = ["" if is_one_batch else words("local_batch", batch) for batch in batches]
    rows = zip(pairs, batch_words, table["panel"], strict=True)
    return pd.DataFrame({
        "cell": _cells(study, table),
        "num_workers": table.index.get_level_values("num_workers"),
        "seconds": table["train_seconds"].to_numpy(),
        "way": [joined([named[pair], batch, panel], ", ") for pair, batch, panel in rows],
        "is_fastest": table["is_fastest"].to_numpy(),
    })  # fmt: skip


def _memory(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each worker and part of its memory, in megabytes; `row` is the worker's
    place among the bars of its cell, which stand in the middle of the cell's room.
    """
    table = in_order(study, table)
    workers = pd.Series(table.index.get_level_values("worker"))
    cells = pd.Series(_cells(study, table))
    free = workers.max() - workers.groupby(cells).transform("max")
    megabytes = table[[*PARTS, "peak_activation_bytes", "peak_bytes"]] / MEGA
    megabytes = megabytes.set_axis([*PARTS, "activation", "peak"], axis="columns")
    rows = megabytes.reset_index(drop=True)
    rows = rows.assign(cell=cells, worker=workers, row=workers + free // 2)
    kept = ["cell", "worker", "row", "activation", "peak"]
    long = pd.concat(
        rows[kept].assign(part=words_of_part, place=place, megabytes=rows[part])
        for place, (part, words_of_part) in enumerate(PARTS.items())
    )
    return long[long["megabytes"] > 0].sort_index(kind="stable")
