"""Reading of a study's folder into tables: `runs` with one row for each run, `epochs` with one for
each epoch of a run, and so on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bsweep.analysis.study import columns, mixture
from bsweep.analysis.study.beside_others import without_times
from bsweep.analysis.study.frames import Study, study_of
from bsweep.analysis.study.run_rows import rows_of
from bsweep.core.words import escaped
from bsweep.runlog.files import RunPaths, no_such_study


def load(study_dir: str | Path, *, mix: bool = False, beside: bool = False) -> Study:
    """Read a study into tables, from its folder of runs or from a report's folder with `runs.csv`
    and `epochs.csv`.

    A run whose folder is damaged, or that a newer bsweep wrote, is left out; `Study.skipped` names
    it.

    Args:
        study_dir: The folder.
        mix: If False, refuse completed runs of different hardware, software versions or
            automatically chosen precision; see `mixture`.
        beside: If False, leave out the times of runs that shared their machine with other runs; see
            `beside_others`.

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
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if folders := [path for path in paths if _is_run(path)]:
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
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    skipped: dict[str, str] = {}
    for run_folder in run_folders:
        run_id = run_folder.name
        try:
            by_table = rows_of(run_folder)
        except (ValueError, OSError) as error:
            skipped[run_id] = escaped(str(error))
            continue
        for table, added in by_table.items():
            rows[table] += [{**row, "run_id": run_id} for row in added]
    if not rows:
        raise ValueError(
            f"{folder}: none of its {len(skipped)} runs can be read: {next(iter(skipped.values()))}"
        )
    tables = {name: pd.DataFrame(of_study) for name, of_study in rows.items()}
    return study_of(folder, tables.pop("provenance"), tables, skipped)


def _read_csv(path: Path, table: Sequence[columns.Column]) -> pd.DataFrame:
    """Return a report's table; a version of torch such as 2.10, or the name NA, stays the text that
    it was.
    """
    texts = {column.name: str for column in table if column.type.startswith("text")}
    return pd.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""])


def _from_csv(folder: Path) -> Study:
    paths = {name: folder / f"{name}.csv" for name in columns.TABLES}
    present = [name for name, path in paths.items() if path.is_file()]
    tables = {name: _read_csv(paths[name], columns.TABLES[name]) for name in present}
    for name in ("runs", "epochs"):
        promised = columns.names(columns.TABLES[name], "promised")
        if missing := ", ".join(column for column in promised if column not in tables[name]):
            raise ValueError(
                f"{paths[name]}: the columns {missing} are missing. Write the report again."
            )
    path = folder / "provenance.csv"
    provenance = pd.read_csv(path, dtype=str) if path.is_file() else tables["runs"][["run_id"]]
    return study_of(folder, provenance, tables)
