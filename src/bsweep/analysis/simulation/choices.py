"""Strategies as a user of a simulation names them: `horovod`, or with settings
`diloco:sync_every=500:outer_lr=0.9`.

Settings that are not given are those of the study's runs with this strategy, or else the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.simulation.constants import Constants
from bsweep.analysis.study.cards import OWN_CODE, settings_of_runs
from bsweep.config.card import Card
from bsweep.config.parsing import validate
from bsweep.config.rules import problems_of_cards
from bsweep.config.run import RunConfig, cards_by_name
from bsweep.config.values import did_you_mean

_SHORT = {"by_speed": "steps_by_speed"}  # as in conf/allocation
_OPTIMIZER = "adamw"  # of runs whose optimizer is not known


@dataclass(frozen=True, eq=False)
class Choice:
    """A strategy that a user has named, with its codec and its allocation.

    `config` has their cards and that of the optimizer, which some strategies refuse; its other
    values are of no account. `has_replicas` tells a user's choice of replicas from the strategy's
    default. `model` is the card of the runs' model, if their settings tell it.
    """

    name: str
    config: RunConfig
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
        if self.allocation.name != "uniform":
            return runs[:0]
        runs = runs[runs["strategy"] == self.strategy.name]
        rows = settings_of_runs(type(self.strategy), runs, "strategy")
        # Of a key that some run recorded, a run without a value has null.
        keys = {key for settings in rows for key, value in settings.items() if value is not None}
        has_settings = np.array(
            [all(run[key] == getattr(self.strategy, key) for key in keys) for run in rows], bool
        )
        return runs[has_settings & (runs["compression"] == self.config.compression.name)]

    def problem(self, num_workers: int, local_batch: float, constants: Constants) -> str:
        """Return the first message with which bsweep would refuse such a run, or an empty text.
        Settings that no simulation has, such as the precision, fit the strategy.
        """
        config = replace(
            self.config,
            num_workers=num_workers,
            local_batch=max(1, round(local_batch)),
            global_batch=None,
        )
        division_problems = self._problems_of_division(num_workers, constants)
        card_problems = problems_of_cards(config, ("strategy", "compression", "allocation"))
        return next(chain(division_problems, card_problems), "")

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


def choices_of(strategies: str | Sequence[str], runs: pd.DataFrame) -> list[Choice]:
    """Return the choices that texts such as `diloco:sync_every=500` name, each once.

    Args:
        strategies: Names of strategies, as a list or joined by commas, each followed by its
            settings. Beside the keys of a strategy, `compression` and `allocation` are settings.
        runs: The runs of a study, whose settings count; may be empty.

    Raises:
        ValueError: If a name, a key or a value is wrong.
    """
    texts = strategies.split(",") if isinstance(strategies, str) else strategies
    words = dict.fromkeys(text.strip() for text in texts if text.strip())
    if not words:
        raise ValueError("--strategies names none: give some, as in --strategies horovod,diloco.")
    choices = []
    for word in words:
        try:
            choices.append(choice_of(word, runs))
        except ValueError as error:
            raise ValueError(f"--strategies {word}: {error}") from None
    return choices


def choice_of(word: str, runs: pd.DataFrame, codec: str = "none") -> Choice:
    """Return the choice that a text such as `diloco:sync_every=500` names; see `choices_of`.

    Args:
        word: The text.
        runs: The runs of a study, whose settings count; may be empty.
        codec: The codec, if the text does not name one.

    Raises:
        ValueError: If a name, a key or a value is wrong. The message names no option of a command.
    """
    strategy, *pairs = word.split(":")
    keys = [key.name for key in fields(_class_of("strategy", strategy))]
    given = dict(map(_key_and_value, pairs))
    codec = str(given.pop("compression", codec))
    allocation = str(given.pop("allocation", "uniform"))
    for key in (key for key in given if key not in keys):
        raise ValueError(f"strategy={strategy} has no key {key!r}.{did_you_mean(key, keys)}")
    card = card_like("strategy", strategy, runs, given)
    optimizer = _only(runs, "optimizer") or _OPTIMIZER
    config = RunConfig(
        local_batch=1,
        precision="fp32",
        strategy=card,
        compression=card_like("compression", codec, runs),
        allocation=card_like("allocation", _SHORT.get(allocation, allocation)),
        optimizer=card_like("optimizer", optimizer),
        launch=card_like("launch", "horovodrun" if card.can.uses_horovod else "torchrun"),
    )
    has_replicas = getattr(card, "replicas", 1) != 1 or "replicas" in given
    return Choice(word, config, has_replicas, _model(runs))


def choice_of_point(config: RunConfig) -> Choice:
    """Return the choice of a point's strategy, codec and allocation.

    Raises:
        ValueError: If bsweep does not know their code.
    """
    for group in ("strategy", "compression"):
        _class_of(group, getattr(config, group).name)
    return Choice(str(config.strategy.name), config, model=config.model)


def card_like(
    group: str,
    name: str,
    runs: pd.DataFrame | None = None,
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Return the card of a variant. Unlike `cards.card_of`, which takes the settings of one run, it
    has the defaults of settings that are not known.

    Args:
        group: The group, such as `compression`.
        name: The name of the variant.
        runs: Runs of a study. If all with the variant share a setting, the card has it, too.
        given: Settings that a user has given. All others have their defaults.

    Raises:
        ValueError: If there is no such variant, bsweep does not know its code, or a value is wrong.
    """
    kind, settings = _class_of(group, name), {"name": name}
    if runs is not None and group in runs:
        first, *others = settings_of_runs(kind, runs[runs[group] == name], group) or [{}]
        settings |= {
            key: value
            for key, value in first.items()
            if value is not None and all(run[key] == value for run in others)
        }
    values = {**asdict(RunConfig()), group: {**settings, **(given or {})}}
    return getattr(validate(values), group)


def _key_and_value(pair: str) -> tuple[str, Any]:
    key, is_pair, value = pair.partition("=")
    if not is_pair:
        raise ValueError(f"write key=value after a colon, not {pair!r}.")
    with suppress(ValueError):
        number = float(value)
        return key, int(number) if number.is_integer() else number
    return key, {"true": True, "false": False, "null": None}.get(value, value)


def _model(runs: pd.DataFrame) -> Any:
    """Return the card of the runs' model; None if its settings are not known."""
    if not (name := _only(runs, "model")):
        return None
    try:
        return card_like("model", name, runs)
    except (ValueError, OSError):
        return None


def _only(runs: pd.DataFrame, group: str) -> str:
    """Return the name of the one variant of a group that runs have; empty if there is none."""
    known = runs.get(group, pd.Series(dtype=object)).dropna().unique()
    return str(known[0]) if len(known) == 1 and known[0] not in OWN_CODE else ""


def _class_of(group: str, name: str) -> type[Card]:
    """Return the class of a variant's card.

    Raises:
        ValueError: If there is no such variant, or bsweep does not know its code.
    """
    known = [name for name in cards_by_name(group) if name not in OWN_CODE]
    if name in OWN_CODE:
        raise ValueError(
            f"{group}={name} has code that bsweep does not know, so it is not simulated. Choose "
            f"another {group}: {', '.join(known)}."
        )
    if (card := cards_by_name(group).get(name)) is None:
        near = did_you_mean(name, known)
        raise ValueError(f"{group}={name} is unknown.{near} Known: {', '.join(known)}.")
    return card
