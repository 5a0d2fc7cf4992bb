"""Strategies as a user of a simulation names them: `horovod`, or with settings
`diloco:sync_every=500:outer_lr=0.9`.

Settings that are not given are those of the study's runs with this strategy, or else the defaults
in `conf/`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
import yaml

from bsweep.analysis.simulation.collectives import ALGORITHMS
from bsweep.analysis.simulation.constants import Constants
from bsweep.config.parsing import conf_dir, validate
from bsweep.config.rules import problems_of_cards
from bsweep.config.run import RunConfig, names, variants
from bsweep.config.values import did_you_mean

_SHORT = {"by_speed": "steps_by_speed"}  # as in conf/allocation
_UNKNOWN = ("own", "program")  # their code may exchange in any way
_OPTIMIZER = "adamw"  # if no run tells


@dataclass(frozen=True)
class Choice:
    """A strategy that a user has named, with its codec, its allocation and the algorithm of its
    exchange.

    `config` has their cards and that of the optimizer, which some strategies refuse; its other
    values are of no account. `algorithm` is the user's choice for the exchange, or empty for the
    strategy's own. `has_replicas` tells a user's choice of replicas from the strategy's default.
    `model` is the card of the runs' model, if their settings tell it.
    """

    name: str
    config: RunConfig
    algorithm: str = ""
    has_replicas: bool = False
    model: Any = None

    @property
    def strategy(self) -> Any:
        """The card of the strategy."""
        return self.config.strategy

    @property
    def allocation(self) -> Any:
        """The card of the allocation."""
        return self.config.allocation

    def runs_of(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return those of a study's runs that exchanged in this way."""
        of_strategy = runs["strategy"] == self.strategy.name
        chosen: pd.Series[bool] = of_strategy & (
            runs["compression"] == self.config.compression.name
        )
        chosen &= self.allocation.name == "uniform"
        chosen &= self.algorithm in ("", getattr(self.strategy, "algorithm", ""))
        for key in _keys("strategy", self.strategy.name):
            values = runs.get(f"strategy.{key}", pd.Series(index=runs.index, dtype=object))
            if values[of_strategy].notna().any():  # then a run without a value has null
                setting = getattr(self.strategy, key)
                chosen &= np.array([_plain(value) == setting for value in values])
        return runs[chosen]

    def problem(self, num_workers: int, local_batch: float, constants: Constants) -> str:
        """Return the first message with which bsweep would refuse such a run, or an empty text.
        Settings that no simulation has, such as the precision, fit the strategy.
        """
        config = replace(
            self.config, num_workers=num_workers, local_batch=max(1, round(local_batch))
        )
        division = next(self._problems_of_division(num_workers, constants), "")
        return division or next(
            problems_of_cards(config, ("strategy", "compression", "allocation")), ""
        )

    def _problems_of_division(self, num_workers: int, constants: Constants) -> Iterator[str]:
        """Yield the messages with which bsweep would refuse to divide the model among so many
        workers, as far as the model's pieces, layers and heads are known.
        """
        strategy = self.strategy
        if problems := list(strategy.problems_of_workers(num_workers)):
            yield from problems
            return  # there is no number of parts
        if constants.pieces:
            yield from strategy.problems_of_pieces(constants.pieces, num_workers)
        if constants.layer_shares:
            num_shards = strategy.num_shards(num_workers)
            yield from strategy.problems_of_layers(len(constants.layer_shares), num_shards)
        if self.model is not None:
            yield from self.model.problems_of_parts(strategy, num_workers)

    def with_replicas(self, num_workers: int, constants: Constants) -> Choice:
        """Return this choice with as many replicas as it takes to divide a model among at most
        eight workers, if its strategy divides a model and the user did not choose replicas.
        """
        if hasattr(self.strategy, "replicas") and not self.has_replicas:
            for parts in (parts for parts in (8, 4, 2) if num_workers % parts == 0):
                strategy = replace(self.strategy, replicas=num_workers // parts)
                divided = replace(self, config=replace(self.config, strategy=strategy))
                if not any(divided._problems_of_division(num_workers, constants)):
                    return divided
        return self

    def held_bytes(self, num_workers: int, constants: Constants) -> float:
        """Return the bytes of the parameters, the gradients, the optimizer's state and the
        strategy's copies of a worker.
        """
        parameters, gradients, state = self.strategy.parts_held(num_workers)
        # What DeepSpeed holds beside is of a worker's own part, as the optimizer's state is.
        beside = self.strategy.vectors_held + (self.config.optimizer.vectors_of_state or 0)
        copies = 1 / parameters + 1 / gradients + beside / state
        return float(copies * constants.parameter_bytes)


def choices_of(text: str, runs: pd.DataFrame) -> list[Choice]:
    """Return the choices that a text such as `horovod,diloco:sync_every=500` names, each once.

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
    choices = []
    for word in words:
        try:
            choices.append(choice_of(word, runs))
        except ValueError as error:
            raise ValueError(f"--strategies {word}: {error}") from None
    return choices


def choice_of(word: str, runs: pd.DataFrame) -> Choice:
    """Return the choice that a text such as `diloco:sync_every=500` names; see `choices_of`.

    Raises:
        ValueError: If a name, a key or a value is wrong. The message names no option of a command.
    """
    strategy, *pairs = word.split(":")
    keys, given = _keys("strategy", strategy), dict(map(_key_and_value, pairs))
    codec = str(given.pop("compression", "none"))
    allocation = str(given.pop("allocation", "uniform"))
    algorithm = str(given.get("algorithm", ""))
    if algorithm and ("algorithm" not in keys or algorithm == "hierarchical"):
        if algorithm not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {algorithm!r}. Known: {', '.join(ALGORITHMS)}.")
        given.pop("algorithm")
    for key in (key for key in given if key not in keys):
        raise ValueError(f"strategy={strategy} has no key {key!r}.{did_you_mean(key, keys)}")
    settings = {
        "strategy": {**_shared(runs, "strategy", strategy), **given},
        "compression": _shared(runs, "compression", codec),
    }
    is_horovod = "horovod" in (strategy, settings["strategy"].get("algorithm"))
    chosen = {
        "strategy": strategy, "compression": codec, "data": "synthetic", "model": "tiny_cnn",
        "allocation": _SHORT.get(allocation, allocation),
        "optimizer": _only(runs, "optimizer") or _OPTIMIZER,
        "launch": "horovodrun" if is_horovod else "torchrun",
    }  # fmt: skip
    config = _config(chosen, settings)
    has_replicas = getattr(config.strategy, "replicas", 1) != 1 or "replicas" in given
    return Choice(word, config, algorithm, has_replicas, _model(runs, chosen))


def _key_and_value(pair: str) -> tuple[str, Any]:
    key, is_pair, value = pair.partition("=")
    if not is_pair:
        raise ValueError(f"write key=value after a colon, not {pair!r}.")
    with suppress(ValueError):
        return key, _plain(float(value))  # which may be 1e-3, a text in YAML
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"{value!r} is no value for {key}.") from None


def _model(runs: pd.DataFrame, chosen: Mapping[str, str]) -> Any:
    """Return the card of the runs' model; None if its settings are not known."""
    if not (name := _only(runs, "model")):
        return None
    try:
        settings = {"model": _shared(runs, "model", name)}
        return _config({**chosen, "model": name}, settings).model
    except (ValueError, OSError):
        return None


def _only(runs: pd.DataFrame, group: str) -> str:
    """Return the name of the one variant of a group that runs have; empty if there is none."""
    known = runs.get(group, pd.Series(dtype=object)).dropna().unique()
    return str(known[0]) if len(known) == 1 and known[0] not in _UNKNOWN else ""


def _shared(runs: pd.DataFrame, group: str, name: str) -> dict[str, Any]:
    """Return the settings that all of the runs with a variant share, such as a strategy's."""
    with_variant = runs[runs[group] == name] if group in runs else runs
    settings = {}
    for key in _keys(group, name):
        recorded = [_plain(value) for value in with_variant.get(f"{group}.{key}", ())]
        if len(set(map(str, recorded))) == 1 and recorded[0] not in (None, ""):
            settings[key] = recorded[0]
    return settings


def _plain(value: Any) -> Any:
    """Return a value of a table of runs as a card has it."""
    if value is None or value != value:  # NaN
        return None
    if isinstance(value, str) and ", " in value:  # a list, as tables show it
        return [yaml.safe_load(item) for item in value.split(", ")]
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _config(chosen: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Return a configuration of the chosen variants with their default settings, but for those that
    are given. Both are by group, such as `strategy`.
    """
    values = {key: value for key, value in _yaml("config.yaml").items() if key != "defaults"}
    values |= {"num_workers": 1, "local_batch": 1, "precision": "fp32"}
    for group, name in chosen.items():
        _keys(group, name)  # which refuses unknown names
        values[group] = {**_defaults(group, name), **settings.get(group, {})}
    return validate(values)


def _keys(group: str, name: str) -> list[str]:
    """Return the keys of a variant.

    Raises:
        ValueError: If there is no such variant, or bsweep does not know its code.
    """
    kinds = {known: card for card in variants(group) for known in names(card)}
    others = [known for known in kinds if known not in _UNKNOWN]
    if name in _UNKNOWN:
        raise ValueError(
            f"{group}={name} has code that bsweep does not know, so it is not simulated. Choose "
            f"another {group}: {', '.join(others)}."
        )
    if name not in kinds:
        near = did_you_mean(name, others)
        raise ValueError(f"{group}={name} is unknown.{near} Known: {', '.join(others)}.")
    return [key.name for key in fields(kinds[name])]


@functools.cache
def _yaml(file: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((conf_dir() / file).read_text())
    return values


def _defaults(group: str, name: str) -> dict[str, Any]:
    """Return the settings of a variant in `conf/`, with those of the variants that it names."""
    settings = _yaml(f"{group}/{name}.yaml")
    bases = [base for base in settings.get("defaults", ()) if isinstance(base, str)]
    inherited = {key: value for base in bases for key, value in _defaults(group, base).items()}
    values = {**_yaml("config.yaml").get(group, {}), **inherited, **settings}
    return {key: values[key] for key in values if key != "defaults"}
