"""Strategies as a user of a simulation names them: `horovod`, or with settings
`diloco:sync_every=500:outer_lr=0.9`.

Settings that are not given are those of the study's runs with this strategy, or else the defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.study.cards import OWN_CODE, card_like, class_of, settings_of_runs
from bsweep.config.run import RunConfig
from bsweep.config.values import did_you_mean

_SHORT = {"by_speed": "steps_by_speed"}  # as in conf/allocation
_OPTIMIZER = "adamw"  # of runs whose optimizer is not known


@dataclass(frozen=True, eq=False)
class Choice:
    """A strategy in the words of a user, with its codec and its allocation.

    `config` has their cards and that of the optimizer, which some strategies refuse, and
    that of the model, or None if it is not known. Its other values are of no account.
    `has_replicas` is True if the words name the replicas.
    """

    name: str
    config: RunConfig
    has_replicas: bool

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
        is_even = runs["allocation"].fillna("uniform").eq("uniform")
        is_even &= self.allocation.name == "uniform"
        runs = runs[is_even & (runs["strategy"] == self.strategy.name)]
        rows = settings_of_runs(type(self.strategy), runs, "strategy")
        # Of a key that some run recorded, a run without a value has null.
        keys = {key for settings in rows for key, value in settings.items() if value is not None}
        has_settings = np.array(
            [all(run[key] == getattr(self.strategy, key) for key in keys) for run in rows], bool
        )
        return runs[has_settings & (runs["compression"] == self.config.compression.name)]


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
    keys = [key.name for key in fields(class_of("strategy", strategy))]
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
        model=_model(runs),
    )
    return Choice(word, config, has_replicas="replicas" in given)


def choice_of_point(config: RunConfig) -> Choice:
    """Return the choice of a point's strategy, codec and allocation.

    Raises:
        ValueError: If bsweep does not know their code.
    """
    for group in ("strategy", "compression"):
        class_of(group, getattr(config, group).name)
    return Choice(str(config.strategy.name), config, has_replicas=True)


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
    with suppress(ValueError, OSError):
        return card_like("model", _only(runs, "model"), runs)
    return None


def _only(runs: pd.DataFrame, group: str) -> str:
    """Return the name of the one variant of a group that runs have; empty if there is none."""
    known = runs.get(group, pd.Series(dtype=object)).dropna().unique()
    return str(known[0]) if len(known) == 1 and known[0] not in OWN_CODE else ""
