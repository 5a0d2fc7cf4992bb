"""What the value of a key may be, and the words for one that is wrong."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Density = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Slowdown = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=100)]
Hosts = Annotated[str, Field(pattern=r"^[\w.-]+:[1-9]\d*(,[\w.-]+:[1-9]\d*)*$")]


class ConfigError(ValueError):
    """What the user can mend in a configuration: one message per line, each with the value and the remedy."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def show(value: object) -> str:
    """A value as it is written in YAML or on the command line."""
    return json.dumps(value, default=str).strip('"')


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """` Did you mean 'x'?` for a near miss, or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
