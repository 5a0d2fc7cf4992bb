"""The ways in which the workers of runs share a model and exchange gradients, and what the time of
a step depends on in each of them.

Steps to a target depend on the global batch alone. So a prediction pools the steps of all ways, and
compares the seconds of their steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from bsweep.analysis import columns
from bsweep.analysis.keys import keyed
from bsweep.analysis.numbers import setting_text
from bsweep.analysis.prediction.step_time import (
    Cell,
    Form,
    Timing,
    probe_timings,
    read_probe,
)
from bsweep.config.capabilities import Capabilities
from bsweep.config.groups import StrategyConfig
from bsweep.config.run import names, variants
from bsweep.core.words import counted
from bsweep.runlog.probe_file import counts

_PREFIX = "strategy."
# Their code may do something else in each step.
_UNKNOWN = ("own", "program")
# The first parts of the columns in which runs of different ways must be equal.
_OTHERS = ("compression", "allocation", "batching", "slowdown")
# The columns of keys that have another name, or whose value a run finds out.
_FOUND_OUT = {
    "device": "device", "precision": "precision", "launch.threads_per_worker": "threads"
}  # fmt: skip
_RECORDED = {one.source: one.name for one in columns.RUNS if "." in one.source} | _FOUND_OUT
_PARAMETER_BYTES = 4


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
        of_parameters, of_examples = card.sent_in_pass(workers, passes, self.precision)
        in_group = batch / passes * num_parts / workers  # the examples of a replica
        sent = of_parameters * self.parameter_bytes + of_examples * self.example_bytes * in_group
        bubble = self.bubbles.get(workers, card.textbook_bubble(workers) or 0.0)
        # Each worker computes one of `num_parts` stages, for one micro-batch after another.
        fixed = card.num_microbatches / num_parts if card.can.cuts_model else 1.0
        form = Form(str(card.name), fixed, 1 - bubble, sent, True, self.name)
        return Cell(share, workers, passes, form)


WHOLE = Way()
"""The way of workers that each hold the whole model."""


def ways_of(
    runs: pd.DataFrame, epochs: pd.DataFrame, names: Mapping[str, str] | None = None
) -> tuple[pd.Series[str], dict[str, Way]]:
    """Return the name of each run's way, and all ways by their names.

    Args:
        runs: The runs of a prediction.
        epochs: The epochs of the study.
        names: The name of each run's way by run id. None: the names tell in what the runs differ.
    """
    shown = _names(runs) if names is None else runs["run_id"].map(names)
    sums_of = ["sent_bytes", "num_steps", "bubble"]
    of_runs = epochs.reindex(columns=sums_of).astype(float).groupby(epochs["run_id"])
    sums = of_runs.sum(min_count=1).reindex(runs["run_id"]).set_index(runs.index)
    in_pass = sums["sent_bytes"] / sums["num_steps"] / _passes(runs)
    bubbles = of_runs["bubble"].median().reindex(runs["run_id"]).set_axis(runs.index)
    found = {}
    for name, of in runs.groupby(shown, sort=False):
        card = card_of({str(key): value for key, value in of.iloc[0].items()})
        if card is None:
            found[str(name)] = Way(str(name))
            continue
        parameters = pd.to_numeric(of.get("num_parameters", pd.Series(dtype=float))).max()
        whole = 0.0 if pd.isna(parameters) else float(parameters) * _PARAMETER_BYTES
        measured = bubbles[of.index].groupby(of["num_workers"]).median().dropna()
        found[str(name)] = Way(
            str(name),
            card,
            whole,
            _example_bytes(card, of, in_pass[of.index], whole),
            {int(str(workers)): float(bubble) for workers, bubble in measured.items()},
            precision=str(of.iloc[0].get("precision")),
        )
    return shown, found


def _names(runs: pd.DataFrame) -> pd.Series[str]:
    """Return the name of each run's way: its strategy, and the settings that differ if it splits
    the model. The names are empty if all are equal.
    """
    found = runs["strategy"].astype(str)
    for name, of in runs.groupby("strategy"):
        if not _splits(str(name)):
            continue
        for column in [str(one) for one in runs if str(one).startswith(_PREFIX)]:
            texts = of[column].map(setting_text)
            if texts.nunique() > 1:
                found[of.index] += f" {column.removeprefix(_PREFIX)}=" + texts
    return found if found.nunique() > 1 else pd.Series("", runs.index)


def names_of_points(strategies: Sequence[StrategyConfig]) -> list[str]:
    """Return the name of the way of each of several points, given by its strategy: the names tell
    in what the points differ.
    """
    rows = [
        {f"{_PREFIX}{key}": _text(value) for key, value in asdict(one).items()}
        for one in strategies
    ]
    table = pd.DataFrame(rows).fillna("")
    return list(_names(table.rename(columns={f"{_PREFIX}name": "strategy"})))


def timed_way(name: str, strategy: StrategyConfig, steps: Sequence[TimedStep]) -> Way:
    """Return a way of which no run has told yet, but a few timed steps may have.

    Args:
        name: Its name.
        strategy: Its strategy, with its settings.
        steps: Steps of its workers.
    """
    if not strategy.can.splits_model:
        return Way(name)
    if not steps:  # then what workers send has units of its own
        return Way(name, strategy, 1.0, 1.0)
    parameters = max(one.num_parameters for one in steps) * _PARAMETER_BYTES
    facts = pd.DataFrame([one[:3] for one in steps], columns=TimedStep._fields[:3])
    sent = pd.Series([one.sent_bytes for one in steps]) / facts["accumulation_steps"]
    return Way(name, strategy, parameters, _example_bytes(strategy, facts, sent, parameters))


class TimedStep(NamedTuple):
    """A cell whose steps were timed, with the parameters of the model and the bytes that a worker
    sent in a step.
    """

    global_batch: int
    num_workers: int
    accumulation_steps: int
    num_parameters: int
    sent_bytes: float


class Probed(NamedTuple):
    """The measurements in a file of `bsweep probe` of the ways of a study.

    `ways` have the largest batches of the probe. `left_out` says in words what belongs to none of
    them.
    """

    timings: tuple[Timing, ...]
    ways: Mapping[str, Way]
    left_out: tuple[str, ...] = ()


def probed(path: str | Path, ways: Mapping[str, Way], runs: pd.DataFrame) -> Probed:
    """Return the timings in a file of `bsweep probe` that belong to the ways of a study: those of
    workers with the whole model, and those of split models.

    Args:
        path: The file.
        ways: The ways of the study.
        runs: The runs of the study. What was probed must have their model, data and so on.

    Raises:
        ValueError: If the file is no probe, or no batch was probed on all workers.
    """
    told, kept = read_probe(path), dict(ways)
    found: list[Timing] = []
    left_out: list[str] = []
    if told.workers and (differs := _unlike(told.probed, runs)):
        left_out.append(_said_left_out(path, "workers with the whole model", differs))
    else:
        found += _of_whole(probe_timings(path), str(told.probed.get("strategy.name")), ways)
    for split in told.splits:
        card, (workers, passes) = card_of(split.probed), counts(split.probed)
        own = [way for way in kept.values() if way.card and way.card == card]
        differs = _unlike(split.probed, runs) if own else "the runs have no such strategy"
        if differs:
            name = f"strategy={split.probed.get('strategy.name')} on {counted(workers, 'worker')}"
            left_out.append(_said_left_out(path, name, differs))
            continue
        for way in own:
            groups = 1 / way.local_batch(1, workers, 1)
            for batch in split.batches:
                cell = way.cell(batch.local_batch * groups * passes, workers, passes)
                found.append(Timing(cell, batch.step_seconds))
            if split.stopped_by == "out_of_memory":
                largest = {**way.largest, workers: split.largest_batch}
                kept[way.name] = replace(way, largest=largest)
    return Probed(tuple(found), kept, tuple(left_out))


def _of_whole(
    timings: Sequence[Timing], strategy: str, ways: Mapping[str, Way]
) -> Iterator[Timing]:
    """Yield the timings of workers with the whole model as those of their own way, or else the
    seconds of their passes alone as those of another such way.
    """
    plain = [way for way in ways.values() if way.card is None]
    own = [way for way in plain if way.name in ("", strategy)]
    for timing in timings:
        for way in (own or plain)[:1]:
            if own or timing.kind == "compute":
                yield timing._replace(cell=timing.cell._replace(form=Form(way.name)))


def _said_left_out(path: str | Path, what: str, why: str) -> str:
    return f"the prediction leaves out what {path} has of {what}: {why}."


def _unlike(probed: Mapping[str, Any], runs: pd.DataFrame) -> str:
    """Return in words how the configuration of a probe differs from that of the runs in what the
    seconds of their steps depend on; empty if it does not.
    """
    for key, value in probed.items():
        group, _, name = key.partition(".")
        column = _RECORDED.get(key, group if name == "name" else key)
        is_told = group in ("model", "data", "launch") or key in _FOUND_OUT
        if not is_told or column not in runs or (key in _FOUND_OUT and value in (None, "auto")):
            continue
        own = {_text(one) for one in runs[column]}
        if key == "device":
            own = {one if one == "cpu" else "cuda" for one in own}
        if _text(value) not in own:
            return f"it was probed with {key}={_text(value)}, but runs have {' or '.join(own)}"
    return ""


def _text(value: Any) -> str:
    """Return a setting as the table of runs shows it: lists as texts, and of a path its name."""
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value))
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
    if shown[others].astype(str).nunique().gt(1).any() or runs["strategy"].isin(_UNKNOWN).any():
        return False
    if not all(can.lockstep and can.takes_mean for can in capabilities_of(runs)):
        return False
    strategies = {str(name): of.index for name, of in runs.groupby("strategy")}
    if len(strategies) == 1 and not any(map(_splits, strategies)):
        return False
    settings = _settings(runs)
    return all(_splits(name) or settings[of].nunique() == 1 for name, of in strategies.items())


def capabilities_of(runs: pd.DataFrame) -> list[Capabilities]:
    """Return for each run what its strategy can do with the run's settings, as far as they are
    known.
    """
    names = [str(name) for name in runs if name == "strategy" or str(name).startswith(_PREFIX)]
    found: dict[str, Capabilities] = {}
    for text, settings in zip(_settings(runs), runs[names].to_dict("records"), strict=True):
        if text not in found:
            kind = _kind(str(settings["strategy"]))
            card = _card(kind, settings) if kind else None
            found[text] = card.can if card else kind.kind_can if kind else Capabilities()
    return [found[text] for text in _settings(runs)]


def _settings(runs: pd.DataFrame) -> pd.Series[str]:
    """Return all settings of each run's strategy as one text."""
    columns = [name for name in runs if name == "strategy" or str(name).startswith(_PREFIX)]
    texts = [" ".join(map(str, row)) for row in runs[columns].itertuples(index=False)]
    return pd.Series(texts, runs.index)


def _passes(runs: pd.DataFrame) -> pd.Series[float]:
    return pd.to_numeric(runs["accumulation_steps"], errors="coerce").fillna(1).astype(float)


def _kind(strategy: str) -> type[StrategyConfig] | None:
    return next((one for one in variants("strategy") if strategy in names(one)), None)  # type: ignore[return-value]


def _splits(strategy: str) -> bool:
    return (kind := _kind(strategy)) is not None and kind.kind_can.splits_model


def card_of(settings: Mapping[str, Any]) -> StrategyConfig | None:
    """Return the card of a strategy that splits the model, from its settings by dotted key; None
    for other strategies, and if the settings are not complete and valid.
    """
    kind = _kind(str(settings.get("strategy.name", settings.get("strategy"))))
    return _card(kind, settings) if kind and kind.kind_can.splits_model else None


def _card(kind: type[StrategyConfig], settings: Mapping[Any, Any]) -> StrategyConfig | None:
    """Return a strategy's card from its settings by dotted key; None if they are not complete and
    valid.

    The settings are those of a table, where numbers may be floats and lists are texts.
    """
    values = {"name": settings.get("strategy.name", settings.get("strategy"))}
    for one in fields(kind):
        if one.name == "name":
            continue
        value = settings.get(f"{_PREFIX}{one.name}")
        if value is None or value == "" or value != value:  # NaN
            value = None
        elif isinstance(value, str) and str(one.type).startswith("tuple"):
            value = value.split(", ")
        values[one.name] = value.item() if isinstance(value, np.generic) else value
    try:
        card: StrategyConfig = TypeAdapter(kind).validate_python(values)
    except ValidationError:
        return None
    return card


def _example_bytes(
    card: StrategyConfig, runs: pd.DataFrame, sent_in_pass: pd.Series[float], parameters: float
) -> float:
    """Return what a message of one example takes, by the bytes that runs sent beside what depends
    on the parameters.
    """
    found = []
    facts = (runs["num_workers"], runs["global_batch"], _passes(runs), sent_in_pass)
    for workers, batch, passes, sent in zip(*facts, strict=True):
        of_parameters, of_examples = card.sent_in_pass(int(workers), int(passes))
        in_group = batch / passes * card.num_parts(int(workers)) / workers
        if of_examples and sent > 0:
            found.append((sent - of_parameters * parameters) / of_examples / in_group)
    return max(0.0, float(np.median(found))) if found else 0.0
