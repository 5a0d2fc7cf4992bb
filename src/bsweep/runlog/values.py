"""Numbers and trees as records hold them: what tables can take, and no more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

MOST = 2**53  # up to which all whole numbers are exact in JSON and in tables

Natural = Annotated[int, Field(ge=0, lt=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Amount = Annotated[float, Field(ge=0, lt=MOST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # of learning, as high as somebody dares
_DEEPEST = 10  # levels of a configuration


def plain(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The mapping, if its leaves are values, or lists of values, as tables hold them."""
    for value in _leaves(tree):
        for one in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(one, str | int | float | None) or not _is_bounded(one):
                raise ValueError(f"{str(one)[:40]} is no value of a setting")
    return tree


def _is_bounded(value: object) -> bool:
    """Not a number that tables cannot hold: an integer of 64 bits and more, infinity."""
    return not isinstance(value, int | float) or abs(value) < (
        2**63 if isinstance(value, int) else math.inf
    )


def _leaves(tree: Mapping[str, Any], depth: int = 1) -> Iterator[Any]:
    if depth > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} levels deep")
    for value in tree.values():
        if isinstance(value, Mapping):
            yield from _leaves(value, depth + 1)
        else:
            yield value
