"""What keeps the runs of a study from being compared: other hardware, other versions, or another
precision than asked.

Patches of torch and Horovod, Python, drivers and commits do not count: they change times less than
machines do from day to day, and the provenance has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from bsweep.core.words import counted, first_of

_VERSIONS = ("torch", "horovod", "bsweep")

Mixture = Mapping[str, Mapping[str, Sequence[str]]]
"""By what differs, the runs of each value, the most common first."""


def mixture(runs: pd.DataFrame, provenance: pd.DataFrame) -> Mixture:
    """What completed runs differ in though nobody chose it; what is not on record differs from
    nothing.

    A precision that was asked for is a setting like any other, and so is one that comes with the
    kind of device.
    """
    runs = runs[runs["status"] == "completed"]
    told = provenance.set_index("run_id").reindex(runs["run_id"])
    by_run = {"hardware": runs["hardware"].tolist()}
    for name in _VERSIONS:
        versions = [
            str(version) if pd.notna(version) else ""
            for version in told.get(f"versions.{name}", ())
        ]
        by_run[name] = (
            versions
            if name == "bsweep"
            else [".".join(version.split(".")[:2]) for version in versions]
        )
    found = {name: _runs_by(values, runs["run_id"]) for name, values in by_run.items()}
    if "asked_precision" in runs:
        left_open = runs[runs["asked_precision"] == "auto"]
        for device, alike in left_open.groupby("device"):
            found[f"precision on {device}"] = _runs_by(alike["precision"].tolist(), alike["run_id"])
    return {name: values for name, values in found.items() if len(values) > 1}


def refuse(folder: Path, found: Mixture) -> None:
    """ValueError that names what differs, if anything does."""
    if not found:
        return
    lines = [f"  {name}: {in_words(values)}" for name, values in found.items()]
    raise ValueError(
        "\n".join([f"{folder}: its runs do not compare. They differ in", *lines])
        + "\nRemove the folders of the fewer ones and run the same sweep again, or move them to a "
        "study of their own. "
        "Or ask for all together by --mix, in Python by mix=True: different hardware and precision "
        "then make separate "
        "curves, different versions do not."
    )


def in_words(values: Mapping[str, Sequence[str]]) -> str:
    (common, most), *rare = values.items()
    return "; ".join(
        [
            f"{common} ({counted(len(most), 'run')})",
            *(f"{value} ({counted(len(ids), 'run')}: {first_of(ids)})" for value, ids in rare),
        ]
    )


def _runs_by(values: Sequence[str], run_ids: pd.Series[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value, run_id in zip(values, run_ids, strict=False):
        if value:
            found.setdefault(value, []).append(run_id)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
