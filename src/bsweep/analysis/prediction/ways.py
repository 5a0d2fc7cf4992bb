"""The ways in which the workers of runs share a model and exchange gradients, and what the time of
a step depends on in each of them.

Steps to a target depend on the global batch alone. So a prediction pools the steps of all ways, and
compares the seconds of their steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.keys import keyed
from bsweep.analysis.cell_tables.means import run_steps
from bsweep.analysis.prediction.step_time import Cell, Form
from bsweep.analysis.study.cards import (
    OWN_CODE,
    PREFIX,
    capabilities_of,
    capabilities_of_kind,
    card_of,
    strategy_texts,
)
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.numbers import setting_text
from bsweep.config.groups import StrategyConfig

# The first parts of the columns in which runs of different ways must be equal.
_OTHERS = ("compression", "allocation", "batching", "slowdown")
PARAMETER_BYTES = 4
STEP = ["global_batch", "num_workers", "accumulation_steps", "num_parameters", "sent_bytes"]
"""The columns of a timed step: its cell, the model's parameters, the bytes that a worker sent."""


@dataclass(frozen=True)
class Way:
    """One way in which workers share a model and exchange gradients.

    `name` has the settings by which the ways of a study differ; it is empty if there is one way.
    `card` is None if each worker holds the whole model. `parameter_bytes` are those of the whole
    model, and `example_bytes` what the messages of an example take, by which the strategy's formula
    is multiplied. `bubbles` has the measured idle share by worker count, and `largest` the largest
    local batch that fits, where a probe found it. `precision` is that in which workers compute.
    """

    name: str = ""
    card: StrategyConfig | None = None
    parameter_bytes: float = 0.0
    example_bytes: float = 0.0
    bubbles: Mapping[int, float] = field(default_factory=dict)
    largest: Mapping[int, int] = field(default_factory=dict)
    precision: str = "fp32"

    def local_batch(self, batch: int, workers: int, passes: int) -> float:
        """Return the examples of a pass of one worker, or of one group of workers that compute the
        same examples.
        """
        groups = self.card.data_parallel_size(workers) if self.card else workers
        return batch / passes / groups

    def divides(self, batch: int, workers: int, passes: int) -> bool:
        """Return True if so many workers can share the model, and take a global batch in so many
        passes, with equal parts for all.
        """
        if self.card and any(self.card.problems_of_workers(workers)):
            return False
        parts = self.card.num_microbatches if self.card else 1
        return self.local_batch(batch, workers, passes) % parts == 0

    def cell(self, batch: float, workers: int, passes: int) -> Cell:
        """Return the facts of a cell on which the time of its steps depends."""
        share = batch / workers / passes
        if self.card is None:
            return Cell(share, workers, passes, Form(self.name))
        card, num_parts = self.card, self.card.num_parts(workers)
        parameter_share, example_share = card.sent_in_pass(workers, passes, self.precision)
        in_group = batch / passes * num_parts / workers  # the examples of a replica
        sent = parameter_share * self.parameter_bytes
        sent += example_share * self.example_bytes * in_group
        bubble = self.bubbles.get(workers, card.textbook_bubble(workers) or 0.0)
        # Each worker computes one of `num_parts` stages, for one micro-batch after another.
        fixed = card.num_microbatches / num_parts if card.can.cuts_model else 1.0
        form = Form(str(card.name), fixed, 1 - bubble, sent, True, self.name)
        return Cell(share, workers, passes, form)


WHOLE = Way()
"""The way of workers that each hold the whole model."""


def ways_of(
    study: Study, runs: pd.DataFrame, names: Mapping[str, str] | None = None
) -> tuple[pd.Series[str], dict[str, Way]]:
    """Return the name of each run's way, and all ways by their names.

    Args:
        study: The study.
        runs: The runs of a prediction.
        names: The name of each run's way by run id. None: the names tell in what the runs differ.
    """
    shown = _names(runs) if names is None else runs["run_id"].map(names)
    bubble = study.epochs.reindex(columns=["bubble"])["bubble"].astype(float)
    runs = runs.assign(
        sent_bytes=runs["run_id"].map(run_steps(study)["sent_bytes"]),
        bubble=runs["run_id"].map(bubble.groupby(study.epochs["run_id"]).median()),
    )
    groups = runs.groupby(shown, sort=False)
    ways = {
        str(name): way_of(str(name), split_card(group.iloc[0]), group) for name, group in groups
    }
    return shown, ways


def way_of(name: str, card: StrategyConfig | None, steps: pd.DataFrame) -> Way:
    """Return a way in which workers share a model, by its runs or by a few timed steps.

    Args:
        name: Its name.
        card: The card of a strategy that splits the model, or None.
        steps: A row for each run or timed step, with the columns `STEP` and, if they are known,
            `bubble` and `precision`.
    """
    if card is None:
        return Way(name)
    if steps.empty:  # then what workers send has units of its own
        return Way(name, card, 1.0, 1.0)
    precision = str(steps.iloc[0].get("precision", Way.precision))
    steps = steps.reindex(columns=[*STEP, "bubble"])
    parameters = pd.to_numeric(steps["num_parameters"]).max()
    whole = 0.0 if pd.isna(parameters) else float(parameters) * PARAMETER_BYTES
    passes, example_bytes = passes_of(steps), []
    facts = (steps["num_workers"], steps["global_batch"], passes, steps["sent_bytes"] / passes)
    for workers, batch, number, sent in zip(*facts, strict=True):
        parameter_share, example_share = card.sent_in_pass(int(workers), int(number), precision)
        in_group = batch / number * card.num_parts(int(workers)) / workers
        if example_share and sent > 0:
            example_bytes.append((sent - parameter_share * whole) / example_share / in_group)
    typical = max(0.0, float(np.median(example_bytes))) if example_bytes else 0.0
    measured = steps.groupby("num_workers")["bubble"].median().dropna()
    bubbles = {int(str(workers)): float(share) for workers, share in measured.items()}
    return Way(name, card, whole, typical, bubbles, precision=precision)


def passes_of(runs: pd.DataFrame) -> pd.Series[float]:
    """Return the passes of each run's steps."""
    return pd.to_numeric(runs["accumulation_steps"], errors="coerce").fillna(1).astype(float)


def _names(runs: pd.DataFrame) -> pd.Series[str]:
    """Return the name of each run's way: its strategy, and the settings that differ if it splits
    the model. The names are empty if all are equal.
    """
    names = runs["strategy"].astype(str)
    for strategy, group in runs.groupby("strategy"):
        if not capabilities_of_kind(str(strategy)).splits_model:
            continue
        for column in [str(column) for column in runs if str(column).startswith(PREFIX)]:
            texts = group[column].map(setting_text)
            if texts.nunique() > 1:
                names[group.index] += f" {column.removeprefix(PREFIX)}=" + texts
    return names if names.nunique() > 1 else pd.Series("", runs.index)


def names_of_points(strategies: Sequence[StrategyConfig]) -> list[str]:
    """Return the name of the way of each of several points, given by its strategy: the names tell
    in what the points differ.
    """
    rows = [
        {f"{PREFIX}{key}": value_text(value) for key, value in asdict(card).items()}
        for card in strategies
    ]
    table = pd.DataFrame(rows).fillna("")
    return list(_names(table.rename(columns={f"{PREFIX}name": "strategy"})))


def value_text(value: Any) -> str:
    """Return a setting as the table of runs shows it: lists as texts, and of a path its name."""
    if value is None or value != value:  # NaN
        return ""
    return setting_text(value).rpartition("/")[2]


def differ_in_ways_alone(runs: pd.DataFrame) -> bool:
    """Return True if runs differ only in their strategies, or in how these split the model, and
    all of them make the same steps.

    The user's own code, and another strategy with several settings, may make other steps.
    """
    shown = keyed(runs)
    others = [name for name in shown if str(name).partition(".")[0] in _OTHERS]
    if shown[others].astype(str).nunique().gt(1).any() or runs["strategy"].isin(OWN_CODE).any():
        return False
    if not all(can.lockstep and can.takes_mean for can in capabilities_of(runs)):
        return False
    groups = strategy_texts(runs).groupby(runs["strategy"])
    return all(
        capabilities_of_kind(str(name)).splits_model or texts.nunique() == 1
        for name, texts in groups
    )


def split_card(settings: Mapping[Any, Any] | pd.Series[Any]) -> StrategyConfig | None:
    """Return the card of a strategy that splits the model, from its settings by dotted key; None
    for other strategies, and if the settings are not complete and valid.
    """
    return split_or_none(card_of(settings))


def split_or_none(card: StrategyConfig | None) -> StrategyConfig | None:
    """Return the card if its strategy splits the model, otherwise None."""
    return card if card and card.can.splits_model else None
