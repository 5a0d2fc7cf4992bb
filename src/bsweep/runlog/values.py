"""The types of the values in records, restricted to what tables can store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

MOST = 2**53  # Whole numbers up to this one are exact in JSON and in tables.

Natural = Annotated[int, Field(ge=0, lt=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Amount = Annotated[float, Field(ge=0, lt=MOST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # a learning rate, without upper bound
_DEEPEST = 10  # levels of a configuration


def plain(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that tables can store every value in a nested mapping, and return the mapping.

    A value may also be a list of values.

    Raises:
        ValueError: If a leaf is another value, or the mapping is nested too deep.
    """
    for value in _leaves(tree):
        for one in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(one, str | int | float | None) or not _is_bounded(one):
                raise ValueError(
                    f"{str(one)[:40]} cannot be the value of a setting, which is a text, true, "
                    "false, null, a finite number (integers between -2^63 and 2^63), or a list of "
                    "these"
                )
    return tree


def _is_bounded(value: object) -> bool:
    """Return False if the value is a number that tables cannot store, else True.

    Those are integers whose magnitude is 2^63 or more, infinities, and NaN.
    """
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
