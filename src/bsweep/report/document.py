"""The data of a study's interactive page, as one document of plain values.

A table is a mapping from its columns to lists of equal length. Runs are told apart by their place
in the table `runs`. What all runs have in common stands once, under `shared`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pandas as pd

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables.common_target import common_target
from bsweep.analysis.conclusions import recommendations
from bsweep.analysis.conclusions.maps import surface_rows
from bsweep.analysis.conclusions.recommendations import Answer
from bsweep.analysis.prediction.critical_batch import LEVEL
from bsweep.analysis.prediction.objectives import LEAST_GAIN, TELLS_APART
from bsweep.analysis.study.caching import caching
from bsweep.analysis.study.columns import described, heading
from bsweep.analysis.study.folder import load_run
from bsweep.analysis.study.naming import evaluated_part
from bsweep.analysis.study.numbers import plain, setting_text
from bsweep.analysis.study.run_rows import PATHS
from bsweep.config.saved import read_config
from bsweep.config.target import SETTINGS
from bsweep.config.values import ConfigError, flatten
from bsweep.core.words import counted
from bsweep.plots.curves import COLORS
from bsweep.plots.surface import DARK
from bsweep.report import details, splits
from bsweep.runlog.files import RunPaths

Document = dict[str, Any]

_CHARTS = Path(__file__).parent / "charts"  # specifications for Vega-Lite

_ALWAYS = ["run_id", "status", "strategy", "num_workers", "local_batch", "global_batch", "seed"]
_RESULTS = [
    "test_accuracy", "test_loss", "train_accuracy", "train_loss", "train_seconds", "wall_seconds",
    "images_per_second", "learning_rate", "sent_bytes", "energy_joules", "message",
]  # fmt: skip
_CELLS = [
    "global_batch", "num_workers", "local_batch", "seconds", "seconds_low", "seconds_high",
    "joules", "num_runs", "num_reached", "problem", "is_allowed", "is_recommended",
    "is_alternative", "is_extrapolated", "is_simulated",
]  # fmt: skip
_POINTS = {  # what a curve has, and the column of `Study.evaluations` for each
    "steps": "num_steps",
    "epochs": "epochs_done",
    "examples": "num_examples",
    "seconds": "train_seconds",
}
_CONSTANTS = {  # which the page's script shares with the figures and the predictions
    "colors": [*COLORS],
    "dark": DARK,
    "level": LEVEL,
    "least_gain": f"{100 * LEAST_GAIN:g} %",
    "tells_apart": f"{100 * TELLS_APART:g} %",
}


def document(study: Study) -> Document:
    """Return all that the interactive page shows of a study, in values that JSON can hold.

    The page's script takes such a document at its start, and a newer one at any time after
    (`update` in `page.js`).

    Args:
        study: The study.

    Returns:
        The document. Times are in seconds, accuracies are fractions.
    """
    with caching():
        runs, parts = study.runs, recommendations.parts(study)
        settings = [name for name in analysis.settings(runs) if name not in _ALWAYS]
        varying = [name for name in settings if runs[name].astype(str).nunique() > 1]
        shown = [*_ALWAYS, *varying, *(name for name in _RESULTS if name in runs)]
        target = common_target(study)
        contents = {
            "name": study.name,
            "summary": _summary(study),
            "folder": str(study.folder),
            "part": evaluated_part(runs),
            "target": target and {"metric": target[0].metric, "value": target[0].value},
            "chosen": "",  # what is shown at first, as the fragment of a link
            **_CONSTANTS,
            "columns": [_column(runs, name, name in varying) for name in shown],
            "runs": {name: [*runs[name]] for name in shown},
            "shared": {
                heading(name): setting_text(runs[name].iloc[0])
                for name in settings
                if name not in varying and runs[name].notna().any()
            },
            "part_of_run": _places(runs, [part for _, part in parts]),
            "curves": curves(study),
            "ranges": {name: _range(study.evaluations[name]) for name in SETTINGS},
            "answer": {"part": analysis.first_place(study), "lines": analysis.answer_lines(study)},
            "parts": _parts([where for where, _ in parts], recommendations.answers(study)),
            "commands": _commands(study),
            "warnings": [
                *analysis.recommendation_warnings(study),
                *analysis.cell_warnings(study),
                *study.warnings,
            ],
            "why": [*analysis.recommendations(study), *analysis.headlines(study)],
            "missing": analysis.missing_recommendations(study),
            "larger": study.larger.words() if study.larger else "",
            "splits": splits.splits(study),
            "details": details.details(study),
            "charts": {
                path.stem: orjson.loads(path.read_bytes())
                for path in sorted(_CHARTS.glob("*.json"))
            },
        }
        values: Document = plain(contents)
        return values


def _summary(study: Study) -> str:
    """Return a text on how many runs there are of each status, and how many cannot be read."""
    statuses = Counter(study.runs["status"].str.replace("_", " ")).items()
    left_out = f" {counted(len(study.skipped), 'run')} left out, not readable."
    counts = ", ".join(f"{count} {status}" for status, count in statuses)
    return f"{counted(len(study.runs), 'run')}: {counts}.{left_out * bool(study.skipped)}"


def _range(scores: pd.Series[float]) -> list[float]:
    """Return the ends of a study's scores, rounded outwards; nothing without a score."""
    if scores.isna().all():
        return []
    return [math.floor(100 * scores.min()) / 100, math.ceil(100 * scores.max()) / 100]


def _column(runs: pd.DataFrame, name: str, is_varying: bool) -> dict[str, Any]:
    """Return how the page treats a column of the table of runs: its heading, whether its values are
    numbers, and the word of a command that sets it, if one does.
    """
    column, is_number = described(name), pd.api.types.is_numeric_dtype(runs[name])
    is_setting = column.role not in ("other", "placement") and column.source not in (
        "start", "meta",
    )  # fmt: skip
    key = (column.source or name).removesuffix(".name")
    is_word = name in ("num_workers", "local_batch", "seed", "strategy") or (
        is_varying and is_setting and name not in PATHS and not name.endswith("sha256")
    )
    return {
        "name": name,
        "heading": heading(name),
        "is_number": is_number and not pd.api.types.is_bool_dtype(runs[name]),
        "is_result": name in _RESULTS,
        "word": key if is_word else "",
    }


def _places(runs: pd.DataFrame, parts: Sequence[Study]) -> list[int | None]:
    """Return for each run the place of the part of the study that it belongs to, or None."""
    places = {run_id: place for place, part in enumerate(parts) for run_id in part.runs["run_id"]}
    return [places.get(run_id) for run_id in runs["run_id"]]


def curves(study: Study) -> list[dict[str, list[float | None]] | None]:
    """Return the evaluations of each run, in the order of `study.runs`; None for a run without.

    Amounts have nine digits, which is more than was measured.

    Args:
        study: The study.

    Returns:
        For each run its `steps`, `epochs`, `examples`, `seconds`, `test_accuracy` and `test_loss`,
        each a list with an element for each evaluation.
    """
    points = {
        run_id: {
            **{name: details.rounded(rows[column], 9) for name, column in _POINTS.items()},
            **{name: [*rows[name]] for name in SETTINGS},  # as exact as the target
        }
        for run_id, rows in study.evaluations.groupby("run_id", sort=False)
    }
    return [points.get(run_id) for run_id in study.runs["run_id"]]


def curve_of(run_folder: Path, *, beside: bool) -> dict[str, list[float | None]] | None:
    """Return the evaluations of one run as `curves` does, read from its folder; None without any.

    Args:
        run_folder: The run's folder.
        beside: See `bsweep.load`.

    Raises:
        ValueError: If the run cannot be read.
    """
    return curves(load_run(run_folder, beside=beside))[0]


def _parts(names: Sequence[str], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return the parts of a study by place: their names and, for the largest, their answers."""
    known = dict(enumerate(map(_answer, answers)))
    return [{"name": name, **known.get(place, {})} for place, name in enumerate(names)]


def _answer(answer: Answer) -> dict[str, Any]:
    """Return one of a study's answers: the cells, the recommended one, and the cell to run next."""
    prediction = answer.prediction
    if prediction is None:
        return {"sentences": answer.sentences}
    cells, cell = surface_rows(answer.where, prediction), prediction.next_cell()
    names = ["global_batch", "num_workers", "local_batch", "is_simulated", "gain"]
    return {
        "target": {"metric": prediction.target.metric, "value": prediction.target.value},
        "networks": prediction.network_lines(),
        "cells": {name: [*cells[name]] for name in _CELLS},
        "sure": prediction.sure,
        "next": None if cell is None else {name: cell[name] for name in names},
        "evaluate_every_examples": prediction.evaluate_every_examples,
        "is_check": not prediction.recommended["num_reached"],  # of the cell to run next
    }


def _commands(study: Study) -> dict[str, Any]:
    """Return the words of the commands that started the runs, without the words of sweeps, and for
    each run the place of its command; None where the words are not known.
    """
    recorded = study.provenance.set_index("run_id").get("command", pd.Series(dtype=object))
    varying = [key for key in PATHS if key in study.runs and study.runs[key].nunique() > 1]
    words = {
        run_id: _words(command, study.folder / str(run_id), varying)
        for run_id, command in recorded.items()
        if isinstance(command, str)
    }
    known = {run_id: typed for run_id, typed in words.items() if typed is not None}
    different = [*dict.fromkeys(known.values())]
    of_run = (known.get(run_id) for run_id in study.runs["run_id"])
    return {
        "words": different,
        "of_run": [None if typed is None else different.index(typed) for typed in of_run],
    }


def _words(command: str, run_folder: Path, varying: Sequence[str]) -> tuple[str, ...] | None:
    """Return the overrides in a command, such as `epochs=3`. Paths that vary or that the command
    sweeps over are those of the run's configuration; without it, no words are known.
    """
    try:
        words = shlex.split(command)
    except ValueError:  # an unbalanced quote
        return None
    kept = [word for word in words if "=" in word and not word.startswith(("-", "study="))]
    swept = [word.partition("=")[0] for word in kept if re.search("=.*[,(]", word)]
    if keys := [key for key in PATHS if key in varying or key in swept]:
        try:
            settings = flatten(asdict(read_config(RunPaths(run_folder).config)))
        except ConfigError:
            return None
        kept = [word for word in kept if word.partition("=")[0] not in keys]
        kept += [f"{key}='{settings[key]}'" for key in keys if settings.get(key)]
    return tuple(kept)
