"""Words for settings and their values, which titles, legends and sentences show in place of the
names in the configuration.

`labels.csv` has the words for names that are not clear once blanks replace their underscores: those
of values, of strategies, and of details of a strategy such as its codec.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from bsweep.analysis.study import columns
from bsweep.analysis.study.frames import Study, ends_in_rounds
from bsweep.analysis.study.numbers import setting_text
from bsweep.core.words import counted

with Path(__file__).with_name("labels.csv").open(encoding="utf-8", newline="") as _file:
    _LABELS = [*csv.DictReader(_file)]
_VALUES = {row["name"]: row["label"] for row in _LABELS if row["kind"] == "value"}
# The parts of a variant's name in words. A detail of a strategy is preceded by a comma.
_PARTS = {
    row["name"]: f", {row['label']}" if row["kind"] == "detail" else row["label"]
    for row in _LABELS
    if row["kind"] != "value"
}
_KNOWN = re.compile(rf"(?<!\S)(?:{'|'.join(sorted(_PARTS, key=len, reverse=True))})(?!\S)")


def words(name: str, value: object) -> str:
    """Return a setting's value in the words of a figure's legend, such as `4 workers`, with the
    setting's name unless the value alone is clear.

    Args:
        name: The column of the setting, such as `strategy`.
        value: The setting's value.

    Returns:
        The words, such as `4 workers`.
    """
    text = setting_text(value)
    if name == "variant":
        return _variant(text)
    return columns.legend(name, _VALUES.get(text, columns.spoken(name, text)))


def evaluated_part(runs: pd.DataFrame) -> str:
    """Return in words on which examples the runs of a study were evaluated while they trained.

    Args:
        runs: The table `Study.runs`.

    Returns:
        `test`; or `validation` for runs with `data.validation_share`; or `test or validation`.
    """
    shares = runs.get("data.validation_share", pd.Series(np.nan, index=runs.index))
    has_share = pd.to_numeric(shares, errors="coerce").notna()
    if not has_share.any():
        return "test"
    return "validation" if has_share.all() else "test or validation"


def heading(runs: pd.DataFrame, name: str) -> str:
    """Return the heading of a column of the given runs in words, such as `test accuracy`.

    Args:
        runs: The table `Study.runs`.
        name: The column, such as `test_accuracy`.

    Returns:
        The heading. For a test score it names the evaluated examples, as in `validation accuracy`.
    """
    text = columns.heading(name)
    is_score = name.removesuffix("_ratio") in ("test_accuracy", "test_loss", "best_median")
    return text.replace("test", evaluated_part(runs)) if is_score else text


def applies(name: str, value: object) -> bool:
    """Return False for a dotted setting, such as `model.target`, that a cell does not have or that
    is null in it; a cell's name leaves such a setting out.

    Args:
        name: The column of the setting.
        value: The setting's value in a table of cells.
    """
    return "." not in name or value != "none"


def settings_in_words(names: Iterable[str], values: Iterable[object]) -> str:
    """Return the settings that tell a cell apart in words, such as `DDP, 4 workers`.

    Args:
        names: The columns of the settings.
        values: The setting's values in a table of cells.
    """
    pairs = zip(names, values, strict=True)
    return ", ".join(words(name, value) for name, value in pairs if applies(name, value))


def length_of(study: Study) -> str:
    """Return in words how long the completed runs of a study trained, such as `3 epochs`; empty if
    their lengths differ or none is known.

    The length is the planned epochs. If any run of the study may end with a round, it is the rounds
    that the runs trained, such as `10 rounds`.

    Args:
        study: The study.

    Returns:
        The length in words, or an empty text.
    """
    if ends_in_rounds(study):
        lengths = study.rounds.groupby("run_id")["round"].max().unique()
        return counted(lengths[0], "round") if len(lengths) == 1 else ""
    runs = study.runs[study.runs["status"] == "completed"]
    is_shorter = (runs["epochs"] < runs["planned_epochs"]).fillna(False).any()  # by its target
    lengths = runs["planned_epochs"].dropna().unique()
    return counted(lengths[0], "epoch") if len(lengths) == 1 and not is_shorter else ""


def _variant(text: str) -> str:
    """Return a variant's name in words, such as `local SGD, synchronised every 4`."""
    text = _KNOWN.sub(lambda match: _PARTS[match[0]], text)
    text = re.sub(r"num_servers (\d+)", lambda match: f", {counted(match[1], 'server')}", text)
    text = re.sub(r"every_steps (\d+)", lambda match: f", every {counted(match[1], 'step')}", text)
    return columns.spoken("variant", text.replace(" ,", ",")).strip(", ")
