"""Strategies as a user of a simulation names them: `horovod`, or with settings
`diloco:sync_every=500:outer_lr=0.9`.

Settings that are not given are those of the study's runs with this strategy, or else the defaults
in `conf/strategy/`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd
import yaml
from pydantic import TypeAdapter, ValidationError

from bsweep.analysis.simulation.collectives import ALGORITHMS
from bsweep.analysis.simulation.constants import Constants
from bsweep.config.contradictions import exchange_contradictions
from bsweep.config.groups import CodecConfig, ModelConfig, OptimizerConfig, StrategyConfig
from bsweep.config.parsing import conf_dir
from bsweep.config.run import RunConfig, names, variants
from bsweep.config.values import did_you_mean

_SHORT = {"by_speed": "steps_by_speed"}  # as in conf/allocation
_UNKNOWN = ("own", "program")  # their code may exchange in any way
_OPTIMIZER = "adamw"  # if no run tells


@dataclass(frozen=True)
class Way:
    """One way in which simulated workers exchange: a strategy, a codec, an algorithm, and how work
    is shared among uneven workers; and the optimizer and the model, which some strategies refuse.

    `algorithm` is the user's choice for the exchange, or empty for the strategy's own.
    `has_replicas` tells a user's choice of replicas from the strategy's default.
    """

    name: str
    card: StrategyConfig
    codec: CodecConfig
    optimizer: OptimizerConfig
    algorithm: str = ""
    allocation: str = "uniform"
    has_replicas: bool = False
    model: ModelConfig | None = None  # that of the runs, if their settings tell it

    @property
    def allocation_card(self) -> Any:
        """The card of the allocation, with its default settings."""
        return _default("allocation", self.allocation)

    def of(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return those of a study's runs that exchanged in this way."""
        own = (runs["strategy"] == self.card.name) & (runs["compression"] == self.codec.name)
        own &= self.allocation == "uniform"
        own &= self.algorithm in ("", getattr(self.card, "algorithm", ""))
        of_strategy = runs[runs["strategy"] == self.card.name]
        for one in fields(self.card):
            recorded = _recorded(of_strategy, f"strategy.{one.name}")
            if len(recorded):
                wanted = getattr(self.card, one.name)
                alike = recorded.map(lambda value, wanted=wanted: value == wanted)
                own &= alike.reindex(runs.index, fill_value=False)
        return runs[own]

    def problem(self, num_workers: int, local_batch: float, of: Constants) -> str:
        """Return the first message with which bsweep would refuse a run of this way, or an empty
        text. Settings that no simulation has, such as the precision, fit the strategy.
        """
        if division := next(self.problems_of_division(num_workers, of), ""):
            return division
        card: Any = self.card
        codec: Any = self.codec
        optimizer: Any = self.optimizer
        can = self.card.can
        starts = "horovodrun" if can.uses_horovod else (can.launchers or ("torchrun",))[0]
        config = RunConfig(
            study="simulated", results_dir="results", num_workers=num_workers,
            local_batch=max(1, round(local_batch)), global_batch=None, accumulation_steps=1,
            epochs=1, seed=0, device="auto", precision="fp32", channels_last="auto",
            average_batchnorm=True, log_every_steps=20, data=_default("data", "synthetic"),
            model=_default("model", "tiny_cnn"), optimizer=optimizer, strategy=card,
            compression=codec, allocation=self.allocation_card,
            launch=_default("launch", starts),
        )  # fmt: skip
        return next(exchange_contradictions(config), "")

    def problems_of_division(self, num_workers: int, of: Constants) -> Iterator[str]:
        """Yield the messages with which bsweep would refuse to divide the model among so many
        workers, as far as the model's pieces, layers and heads are known.
        """
        card, has_problem = self.card, False
        for problem in card.problems_of_workers(num_workers):
            has_problem = True
            yield problem
        if has_problem:  # then there is no number of parts
            return
        if of.pieces:
            yield from card.problems_of_pieces(of.pieces, num_workers)
        if of.layer_shares:
            yield from card.problems_of_layers(len(of.layer_shares), card.num_shards(num_workers))
        if self.model is not None:
            yield from self.model.problems_of_parts(card, num_workers)


def ways_of(text: str, runs: pd.DataFrame) -> list[Way]:
    """Return the ways that a text such as `horovod,diloco:sync_every=500` names, each once.

    Args:
        text: Names of strategies joined by commas, each followed by its settings. Beside the keys
            of a strategy, `compression`, `allocation` and, for any exchange, `algorithm` are
            settings.
        runs: The runs of a study, whose settings count; may be empty.

    Raises:
        ValueError: If a name, a key or a value is wrong.
    """
    words = dict.fromkeys(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise ValueError("--strategies names none: give some, as in --strategies horovod,diloco.")
    found = []
    for word in words:
        try:
            found.append(way_of(word, runs))
        except ValueError as error:
            raise ValueError(f"--strategies {word}: {error}") from None
    return found


def way_of(word: str, runs: pd.DataFrame) -> Way:
    """Return the way that a text such as `diloco:sync_every=500` names; see `ways_of`.

    Raises:
        ValueError: If a name, a key or a value is wrong. The message names no option of a command.
    """
    name, *pairs = word.split(":")
    kind = _kind("strategy", name)
    given = dict(_pair(pair) for pair in pairs)
    codec = str(given.pop("compression", "none"))
    allocation = str(given.pop("allocation", "uniform"))
    allocation = _SHORT.get(allocation, allocation)
    _kind("allocation", allocation)
    keys = [one.name for one in fields(kind)]
    algorithm = given.get("algorithm", "")
    if algorithm and ("algorithm" not in keys or algorithm == "hierarchical"):
        if algorithm not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {algorithm!r}. Known: {', '.join(ALGORITHMS)}.")
        given.pop("algorithm")
    for key in [one for one in given if one not in keys]:
        raise ValueError(f"strategy={name} has no key {key!r}.{did_you_mean(key, keys)}")
    own = runs[runs["strategy"] == name] if "strategy" in runs else runs
    settings = {**_defaults("strategy", name), **_of_runs(own, keys, "strategy"), **given}
    card = _card(kind, settings)
    codec_kind = _kind("compression", codec)
    coded = runs[runs["compression"] == codec] if "compression" in runs else runs
    of_codec = _of_runs(coded, [one.name for one in fields(codec_kind)], "compression")
    codec_card = _card(codec_kind, {**_defaults("compression", codec), **of_codec})
    has_replicas = getattr(card, "replicas", 1) != 1 or "replicas" in given
    return Way(
        word, card, codec_card, _optimizer(runs), str(algorithm), allocation, has_replicas,
        _model(runs),
    )  # fmt: skip


def _optimizer(runs: pd.DataFrame) -> OptimizerConfig:
    """Return the card of the runs' optimizer, with its default settings."""
    known = runs.get("optimizer", pd.Series(dtype=object)).dropna().unique()
    is_known = len(known) == 1 and known[0] not in _UNKNOWN
    found: OptimizerConfig = _default("optimizer", str(known[0]) if is_known else _OPTIMIZER)
    return found


def _model(runs: pd.DataFrame) -> ModelConfig | None:
    """Return the card of the runs' model; None if its settings are not known."""
    known = runs.get("model", pd.Series(dtype=object)).dropna().unique()
    if len(known) != 1 or known[0] in _UNKNOWN:
        return None
    name = str(known[0])
    try:
        kind = _kind("model", name)
        settings = _of_runs(runs, [one.name for one in fields(kind)], "model")
        card: ModelConfig = _card(kind, {**_defaults("model", name), **settings})
    except (ValueError, OSError):
        return None
    return card


@functools.cache
def _default(group: str, name: str) -> Any:
    """Return the card of a variant with the default settings."""
    return _card(_kind(group, name), _defaults(group, name))


def _pair(pair: str) -> tuple[str, Any]:
    key, is_pair, value = pair.partition("=")
    if not is_pair:
        raise ValueError(f"write key=value after a colon, not {pair!r}.")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"{value!r} is no value for {key}.") from None


def _kind(group: str, name: object) -> Any:
    known = {str(one): card for card in variants(group) for one in names(card)}
    others = [one for one in known if one not in _UNKNOWN]
    if name in _UNKNOWN:
        raise ValueError(
            f"{group}={name} has code that bsweep does not know, so it is not simulated. Choose "
            f"another {group}: {', '.join(others)}."
        )
    if str(name) not in known:
        near = did_you_mean(str(name), others)
        raise ValueError(f"{group}={name} is unknown.{near} Known: {', '.join(others)}.")
    return known[str(name)]


@functools.cache
def _defaults(group: str, name: str) -> Mapping[str, Any]:
    of_all, own = (
        yaml.safe_load((conf_dir() / file).read_text())
        for file in ("config.yaml", f"{group}/{name}.yaml")
    )
    of_others = [one for one in own.pop("defaults", ()) if isinstance(one, str)]
    others = {key: value for one in of_others for key, value in _defaults(group, one).items()}
    return {**of_all.get(group, {}), **others, **own}


def _of_runs(runs: pd.DataFrame, keys: Sequence[str], group: str) -> dict[str, Any]:
    """Return the settings of a group, such as `strategy`, that all of some runs share."""
    found = {}
    for key in keys:
        recorded = _recorded(runs, f"{group}.{key}")
        values = list({str(value): value for value in recorded}.values())
        if len(values) == 1 and values[0] != "":
            found[key] = values[0]
    return found


def _recorded(runs: pd.DataFrame, column: str) -> pd.Series:
    """Return what some runs recorded as one of their settings, as a card has it; empty if none has
    it. Where others have it, a run without a value has `null`.
    """
    known = runs.get(column, pd.Series(dtype=object))
    if known.isna().all():
        return pd.Series(dtype=object)
    of = [None if value != value or value is None else _plain(value) for value in known]
    return pd.Series(of, known.index, dtype=object)


def _plain(value: Any) -> Any:
    """Return a value of a table of runs as a card has it."""
    if isinstance(value, str) and ", " in value:  # a list, as tables show it
        return value.split(", ")
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def _card(kind: Any, settings: Mapping[str, Any]) -> Any:
    try:
        return TypeAdapter(kind).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}.") from None
