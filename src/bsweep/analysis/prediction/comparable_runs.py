"""The runs of a study that a prediction compares. Of the settings that change their steps or
seconds, these may differ only in batch size, worker count, passes, the way of splitting the model,
learning rate and seed. Others are refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import pandas as pd

from bsweep.analysis.cell_tables.keys import cell_keys, keyed
from bsweep.analysis.prediction.ways import differ_in_ways_alone
from bsweep.analysis.study import columns
from bsweep.analysis.study.cards import capabilities_of
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.numbers import setting_text
from bsweep.config.values import did_you_mean
from bsweep.core.words import counted

# The planned length of a run, the times of its evaluations, what it measures and its passes change
# neither its steps nor their seconds, or a prediction knows how.
_NO_DIFFERENCE = (
    "target_accuracy", "target_loss", "stop_at_target", "evaluate_every_examples",
    "accumulation_steps",
)  # fmt: skip
_MEASURING = "measure."
_MAY_DIFFER = ("num_workers", "local_batch", "lr")  # beside the way of splitting the model
_MOST_OPTIONS = 8  # parts of a study that a message names


def selected(runs: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Return the runs with a fixed batch size whose columns have the values in `where`.

    Raises:
        ValueError: If there are none, or no such column. The message says what there is.
    """
    shown = keyed(runs)
    kept = runs
    for name, value in where.items():
        if name not in shown:
            near = did_you_mean(name, [str(column) for column in shown])
            raise ValueError(f"--where {name}={value}: runs have no such column.{near}")
        texts = shown.loc[kept.index, name].map(setting_text)
        among = " that the other --where select" if len(kept) < len(runs) else ""
        if not (texts == value).any():
            raise ValueError(
                f"--where {name}={value}: no run{among} has this value. Known values: "
                f"{', '.join(sorted(set(texts)))}."
            )
        kept = kept[texts == value]
    kept = of_one_batch(kept)
    if kept.empty:
        chosen = "run that --where selects" if where else "run of the study"
        raise ValueError(
            f"each {chosen} has a batching policy that may change its batch size, but a prediction "
            "needs runs with a fixed batch size. Train some runs with batching=fixed."
        )
    return kept


def of_one_batch(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with a fixed batch size, which no policy changes during the run."""
    if "batching" not in runs:
        return runs
    return runs[runs["batching"].fillna("").isin(["", "fixed"])]


def schedule(runs: pd.DataFrame) -> str:
    """Return the name of the runs' learning-rate schedule; several names are joined by `or`."""
    schedules = runs.get("optimizer.schedule", pd.Series(dtype=object)).dropna().unique()
    return " or ".join(map(str, schedules)) or "constant"


def unsynchronised(study: Study, runs: pd.DataFrame) -> list[str]:
    """Return the names of the strategies of those runs whose workers do not take every step
    together.

    A prediction refuses such runs.
    """
    is_together = pd.Series([can.lockstep for can in capabilities_of(runs)], runs.index, dtype=bool)
    is_apart = runs["run_id"].isin(study.rounds["run_id"]) | ~is_together
    return sorted(set(runs.loc[is_apart, "strategy"]))


def refuse_unsynchronised(study: Study, runs: pd.DataFrame) -> None:
    """Raise ValueError if workers of some runs do not take every step together."""
    if names := unsynchronised(study, runs):
        raise ValueError(
            f"the workers of the runs with {', '.join(names)} do not take every step together: a "
            "prediction needs steps that all workers take with one gradient of the global batch. "
            "Choose or train other runs, as in --where strategy=horovod."
        )


def refuse_mixed(all_runs: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Raise ValueError if runs differ in a setting that affects the number of their steps to a
    target or the seconds of a step.

    Batch size, workers, passes of a step, the way of splitting the model, learning rate and seed
    may differ.
    """
    values = differing(runs)
    if not values or (values.keys() == {"variant"} and differ_in_ways_alone(runs)):
        return
    remedy = f"Choose one part: {where_options(all_runs, runs)}."
    if "hardware" in values:
        raise ValueError(
            "the runs are of different hardware, and their times cannot be compared: "
            f"{'; '.join(values['hardware'])}. {remedy}"
        )
    settings = "; ".join(
        f"{columns.heading(name)}: {', '.join(texts)}" for name, texts in values.items()
    )
    raise ValueError(
        f"the runs differ in more than batch size, workers and seed ({settings}). {remedy}"
    )


def where_options(
    all_runs: pd.DataFrame, runs: pd.DataFrame, among: pd.DataFrame | None = None
) -> str:
    """Return a text with the `--where` options that select sets of comparable runs (at most eight),
    the largest set first.

    Args:
        all_runs: All runs of the study.
        runs: The runs to choose from.
        among: The runs whose differing settings become options, by default `runs`.
    """
    names = list(differing(runs if among is None else among))
    texts = keyed(all_runs).loc[runs.index, names].map(setting_text)
    counts = texts.groupby(names, sort=False).size().sort_values(ascending=False, kind="stable")
    shown = []
    for key, count in zip(counts.index.to_frame().to_numpy(), counts, strict=True):
        pairs = zip(names, key, strict=True)
        options = " ".join(f"--where {name}={shlex.quote(value)}" for name, value in pairs)
        shown.append(f"{options} ({counted(count, 'run')})")
    more = len(shown) - _MOST_OPTIONS
    return "; ".join([*shown[:_MOST_OPTIONS], *[f"and {more} more"] * (more > 0)])


def differing(runs: pd.DataFrame) -> dict[str, list[str]]:
    """Return the settings, with their values, in which runs differ so that they cannot be
    compared; see `keyed`.
    """
    # At a constant rate a longer run is the same run, continued.
    length = ("planned_epochs",) if schedule(runs) == "constant" else ()
    irrelevant = [
        name
        for name in map(str, runs)
        if name in (*_NO_DIFFERENCE, *length) or name.startswith(_MEASURING)
    ]
    kept = runs.drop(columns=irrelevant)
    known = keyed(kept)
    names = [name for name in cell_keys(kept) if name not in _MAY_DIFFER]
    values = {name: sorted(set(map(setting_text, known[name]))) for name in names}
    return {name: texts for name, texts in values.items() if len(texts) > 1}
