"""A study's folder as tables: `runs` with one row a run, `epochs` with one row a run and epoch, and so on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bsweep import config as schema
from bsweep.analysis import columns
from bsweep.analysis.derived import placement
from bsweep.analysis.records import Rows, rows_of
from bsweep.analysis.study import Study, study_of
from bsweep.runlog import RunPaths, read_run


def load(study_dir: str | Path) -> Study:
    """Read a study: a folder of run folders, or one with the `runs.csv` and `epochs.csv` of a report.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it holds no study, or one that a newer bsweep wrote, or a damaged record.
    """
    folder = Path(study_dir).expanduser()
    if not folder.is_dir():
        near = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        raise FileNotFoundError(f"{folder}: no such study folder.{schema.did_you_mean(folder.name, near)}")
    if _is_run(folder):
        raise ValueError(f"{folder}: this is one run of a study. Give the study: {folder.parent}")
    folders = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and _is_run(path))
    if folders:
        return _from_runs(folder, folders)
    if all((folder / name).is_file() for name in ("runs.csv", "epochs.csv")):
        return _from_csv(folder)
    raise ValueError(
        f"{folder}: no runs here, nor the runs.csv and epochs.csv of a report. "
        "Give the folder of one study, such as results/paper."
    )


def _is_run(folder: Path) -> bool:
    paths = RunPaths(folder)
    return paths.config.is_file() or paths.metrics.is_file() or paths.summary.is_file()


def _from_runs(folder: Path, run_folders: Sequence[Path]) -> Study:
    rows: dict[str, Rows] = defaultdict(list)
    left_out = []
    for run_folder in run_folders:
        of_run = rows_of(read_run(run_folder, with_steps=False))
        if of_run["runs"][0]["local_batch"] is None:
            left_out.append(run_folder.name)
            continue
        for name, of_table in of_run.items():
            rows[name] += of_table
    if not rows:
        raise ValueError(f"{folder}: none of its {len(left_out)} runs has a readable config.yaml.")
    tables = {name: pd.DataFrame(of_table) for name, of_table in rows.items()}
    return study_of(folder, tables.pop("provenance"), tables, left_out)


def _from_csv(folder: Path) -> Study:
    found = {name: folder / f"{name}.csv" for name in columns.TABLES}
    tables = {name: pd.read_csv(path) for name, path in found.items() if path.is_file()}
    for name in ("runs", "epochs"):
        missing = [column for column in columns.names(columns.TABLES[name], "promised") if column not in tables[name]]
        if missing:
            raise ValueError(f"{found[name]}: lacks the columns {', '.join(missing)}. Write the report again.")
    runs, path = tables["runs"], folder / "provenance.csv"
    provenance = pd.read_csv(path, dtype=str) if path.is_file() else runs[["run_id"]]
    if "placement" not in runs and "hosts" in provenance:  # of an older version
        hosts = runs["run_id"].map(provenance.set_index("run_id")["hosts"].fillna(""))
        runs["placement"] = [placement(of_run, n, 0) for of_run, n in zip(hosts, runs["num_workers"], strict=True)]
    return study_of(folder, provenance, tables)
