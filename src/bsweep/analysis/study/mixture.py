"""The differences that prevent a comparison of a study's runs: in hardware, in software versions,
or in a precision that bsweep chose itself.

Differences between patch releases of torch and Horovod, between versions of Python, between drivers
and between commits do not count. They are taken to change times less than machines vary from day to
day, and the provenance records them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from bsweep.core.words import counted, first_of, minor

_VERSIONS = ("torch", "horovod", "bsweep")

Mixture = Mapping[str, Mapping[str, Sequence[str]]]
"""The ids of the runs by value, for each property (such as hardware) in which runs differ. The most
common value comes first.
"""


def mixture(runs: pd.DataFrame, provenance: pd.DataFrame) -> Mixture:
    """Find the properties (hardware, software versions, automatically chosen precision) in which
    completed runs differ, and return the ids of the runs by value for each property.

    A value that was not recorded counts as no difference.

    A precision that was asked for is a setting like any other. A precision chosen automatically
    counts only if it differs between runs on the same kind of device.
    """
    runs = runs[runs["status"] == "completed"]
    origins = provenance.set_index("run_id").reindex(runs["run_id"])
    by_value = {"hardware": _runs_by(runs["hardware"], runs["run_id"])}
    for name in _VERSIONS:
        versions = origins.get(f"versions.{name}", pd.Series(dtype=object)).dropna().astype(str)
        versions = versions if name == "bsweep" else versions.map(minor)
        by_value[name] = _runs_by(versions, versions.index)
    if "asked_precision" in runs:
        left_open = runs[runs["asked_precision"] == "auto"]
        for device, alike in left_open.groupby("device"):
            by_value[f"precision on {device}"] = _runs_by(alike["precision"], alike["run_id"])
    return {name: values for name, values in by_value.items() if len(values) > 1}


def refuse(folder: Path, differences: Mixture) -> None:
    """Raise a ValueError if runs differ in hardware, software versions or automatically chosen
    precision; the message names the values and some of the runs.
    """
    lines = [f"  {name}: {in_words(values)}" for name, values in differences.items()]
    if lines:
        raise ValueError(
            "\n".join([f"{folder}: its runs cannot be compared. They differ in", *lines])
            + "\nRemove the folders of the smaller group and run the same sweep again, or move "
            "them to a study of their own. Or use all runs together by --mix of bsweep report and "
            "bsweep watch (mix=True in Python)."
        )


def in_words(values: Mapping[str, Sequence[str]]) -> str:
    """Return a text that lists the values of one property of runs, such as hardware, each with its
    number of runs.

    It also names runs, at most three for each value, of all values but the most common one.
    """
    (common, most), *rare = values.items()
    others = (f"{value} ({counted(len(ids), 'run')}: {first_of(ids)})" for value, ids in rare)
    return "; ".join([f"{common} ({counted(len(most), 'run')})", *others])


def _runs_by(values: pd.Series[str], run_ids: Iterable[str]) -> dict[str, list[str]]:
    by_value: dict[str, list[str]] = {}
    for value, run_id in zip(values, run_ids, strict=True):
        if value:
            by_value.setdefault(value, []).append(run_id)
    return dict(sorted(by_value.items(), key=lambda item: -len(item[1])))
