"""What all cards share: the base, the scalars of their keys, and the words for what is wrong with a value."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Density = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=100)]


class ConfigError(ValueError):
    """What the user can mend in a configuration: one message per line, each with the value and the remedy."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Card:
    """The schema of a variant. A key that it does not have is refused."""

    __pydantic_config__ = ConfigDict(extra="forbid")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """` Did you mean 'x'?` for a near miss, or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


def show(value: object) -> str:
    """A value as it is written in YAML or on the command line."""
    return json.dumps(value, default=str).strip('"')
