"""Reading of a study's folder into tables: `runs` with one row for each run, `epochs` with one for
each epoch of a run, and so on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis import columns, mixture
from bsweep.analysis.beside_others import without_times
from bsweep.analysis.loaded import Study, study_of
from bsweep.analysis.records import NO_COLUMNS, Rows, rows_of
from bsweep.core.words import escaped
from bsweep.runlog.files import RunPaths, no_such_study
from bsweep.runlog.reading import read_run


def load(study_dir: str | Path, *, mix: bool = False, beside: bool = False) -> Study:
    """Read a study into tables, from its folder of runs or from a report's folder with `runs.csv`
    and `epochs.csv`.

    A run whose folder is damaged, or that a newer bsweep wrote, is left out; `Study.skipped` names
    it.

    Args:
        study_dir: The folder.
        mix: If False, refuse completed runs of different hardware, software versions or
            automatically chosen precision; see `bsweep.analysis.mixture`.
        beside: If False, leave out the times of runs that shared their machine with other runs; see
            `bsweep.analysis.beside_others`.

    Returns:
        The study, with all tables in memory.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If the folder holds no study, if none of its runs can be read, if a CSV lacks
            columns, or if its runs do not compare.
    """
    study = _read(study_dir)
    if not mix:
        mixture.refuse(study.folder, mixture.mixture(study.runs, study.provenance))
    return study if beside else without_times(study)


def load_run(run_folder: Path, *, beside: bool = False) -> Study:
    """Read one run of a study, as a study of that run alone.

    Args:
        run_folder: The run's folder.
        beside: See `load`.

    Raises:
        ValueError: If the run cannot be read.
    """
    study = _from_runs(run_folder.parent, [run_folder])
    return study if beside else without_times(study)


def _read(study_dir: str | Path) -> Study:
    folder = Path(study_dir).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(no_such_study(folder))
    if _is_run(folder):
        raise ValueError(
            f"{folder} is one run of a study. Give the folder of the study: {folder.parent}"
        )
    folders = sorted(
        path for path in folder.iterdir() if not path.name.startswith(".") and _is_run(path)
    )
    if folders:
        return _from_runs(folder, folders)
    if all((folder / name).is_file() for name in ("runs.csv", "epochs.csv")):
        return _from_csv(folder)
    raise ValueError(
        f"{folder} holds no runs, and no runs.csv and epochs.csv of a report. Give the folder of "
        "one study, such as results/paper."
    )


def _is_run(folder: Path) -> bool:
    paths = RunPaths(folder)
    return any(path.exists() for path in (paths.config, paths.metrics, paths.summary))


def _from_runs(folder: Path, run_folders: Sequence[Path]) -> Study:
    growing: dict[str, _Growing] = defaultdict(_Growing)
    skipped: dict[str, str] = {}
    for run_folder in run_folders:
        run_id = run_folder.name
        try:
            of_run = tables_of(run_folder)
        except (ValueError, OSError) as error:
            skipped[run_id] = escaped(str(error))
            continue
        for name, rows in of_run.items():
            growing[name].add(run_id, rows, without=NO_COLUMNS if name == "epochs" else ())
    if not growing:
        raise ValueError(
            f"{folder}: none of its {len(skipped)} runs can be read: {next(iter(skipped.values()))}"
        )
    tables = {name: table.frame(columns.TABLES.get(name, ())) for name, table in growing.items()}
    return study_of(folder, tables.pop("provenance"), tables, skipped)


def tables_of(run_folder: Path) -> dict[str, Rows]:
    """Read the records of a run, and return the rows that the run adds to each table of its study.
    Raise Damaged if the records are damaged, or Newer if a newer bsweep wrote them.
    """
    return rows_of(read_run(run_folder, with_steps=None))


_NUMBERS = {"number": float, "count": None, "count_or_null": None}
"""The types of columns that become numpy arrays, each with the dtype of the array. None lets numpy
choose the dtype.
"""


class _Growing:
    """A table under construction, to which the rows of one run after another are added; each column
    is a list of values.

    A study has many epochs, and lists of numbers cost a fraction of what one dictionary for each
    row costs.
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {"run_id": []}

    def add(self, run_id: str, rows: Rows, without: Collection[str] = ()) -> None:
        run_ids, found, nulls = self._columns["run_id"], _by_column(rows), (None,) * len(rows)
        for name in found:  # the tables keep this order
            if name == "run_id" or name in without:
                continue
            column = self._columns.setdefault(name, [])
            if found[name] != nulls:  # empty columns are common; `frame` fills them at once
                # The runs before this one lack the column.
                column += [None] * (len(run_ids) - len(column))
                column += found[name]
        run_ids += [run_id] * len(rows)

    def frame(self, table: Sequence[columns.Column]) -> pd.DataFrame:
        num_rows = len(self._columns["run_id"])
        for column in self._columns.values():
            column += [None] * (num_rows - len(column))
        # `columns.as_table` sets the final types. numpy converts lists of numbers in a fraction of
        # the time that pandas needs.
        types = {
            of.name: _NUMBERS[of.type]
            for of in table
            if of.type in _NUMBERS and of.name in self._columns
        }
        arrays = {name: np.array(self._columns[name], dtype) for name, dtype in types.items()}
        return pd.DataFrame({**self._columns, **arrays})


def _by_column(rows: Rows) -> dict[str, tuple[Any, ...]]:
    """Return the values of rows by column name, None where a row lacks the column."""
    names = tuple(rows[0]) if rows else ()
    if len(names) > 1 and {*map(len, rows)} == {len(names)}:
        with suppress(KeyError):  # usually all rows have the same names, and this path is fast
            return dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
    return {
        name: tuple(row.get(name) for row in rows)
        for name in dict.fromkeys(chain.from_iterable(rows))
    }


def _read_csv(path: Path, table: Sequence[columns.Column]) -> pd.DataFrame:
    """Return a report's table; a version of torch such as 2.10, or the name NA, stays the text that
    it was.
    """
    texts = {column.name: str for column in table if column.type.startswith("text")}
    return pd.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""])


def _from_csv(folder: Path) -> Study:
    found = {name: folder / f"{name}.csv" for name in columns.TABLES}
    tables = {
        name: _read_csv(path, columns.TABLES[name])
        for name, path in found.items()
        if path.is_file()
    }
    for name in ("runs", "epochs"):
        missing = [
            column
            for column in columns.names(columns.TABLES[name], "promised")
            if column not in tables[name]
        ]
        if missing:
            raise ValueError(
                f"{found[name]}: the columns {', '.join(missing)} are missing. Write the report "
                "again."
            )
    path = folder / "provenance.csv"
    provenance = pd.read_csv(path, dtype=str) if path.is_file() else tables["runs"][["run_id"]]
    return study_of(folder, provenance, tables)
