"""Removal of the measured times of runs that shared their machine with other runs of the sweep
(`launch.parallel`).

Such runs had cores and GPUs of their own, but shared memory, caches, disks and the heat of the
chip. Their times therefore do not compare with times of runs that ran alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pandas as pd

from bsweep.analysis.study import columns
from bsweep.analysis.study.frames import Study
from bsweep.core.words import counted

_OF_CLOCKS = re.compile(r"seconds|per_second|joules|^load$")  # matches the unit in a column's name


def timed_beside(provenance: pd.DataFrame) -> list[str]:
    """Return the ids of the runs that shared their machine with other runs, as their `meta.json`
    says.
    """
    if "beside_others" not in provenance:
        return []
    is_beside = provenance["beside_others"].astype(str) == "True"
    return list(provenance.loc[is_beside, "run_id"])


def without_times(study: Study) -> Study:
    """Return the study with all times, speeds and energies set to missing for runs that shared
    their machine with other runs.
    """
    run_ids = timed_beside(study.provenance)
    if not run_ids:
        return study
    tables: dict[str, Any] = {}
    for name, table in columns.TABLES.items():
        rows = getattr(study, name)
        times = [key for key in columns.names(table) if key in rows and _OF_CLOCKS.search(key)]
        is_beside = rows["run_id"].isin(run_ids)
        tables[name] = rows.assign(**{key: rows[key].mask(is_beside) for key in times})
    return replace(study, **tables, warnings=(*study.warnings, left_out(study.provenance)))


def left_out(provenance: pd.DataFrame) -> str:
    """Return a sentence that says how many runs have their times left out because they shared their
    machine with other runs; empty if there are none.

    Args:
        provenance: The table `Study.provenance`, one row for each run.

    Returns:
        One sentence, or an empty text if no times are left out.
    """
    count = len(timed_beside(provenance))
    if not count:
        return ""
    return (
        f"{counted(count, 'run')} shared the machine with other runs (launch.parallel). The times "
        "of such runs are left out of figures, tables and predictions; accuracies and losses are "
        "kept. To include the times, use bsweep report --beside, or bsweep.load(..., beside=True) "
        "in Python."
    )
