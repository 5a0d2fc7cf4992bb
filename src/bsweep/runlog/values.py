"""The types of the values in records, restricted to what tables can store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from bsweep.config.values import flatten

MOST = 2**53  # Whole numbers up to this one are exact in JSON and in tables.

Natural = Annotated[int, Field(ge=0, lt=MOST)]
Amount = Annotated[float, Field(ge=0, lt=MOST)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # a learning rate, without upper bound


def plain(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that tables can store every value in a nested mapping, and return the mapping.

    A value may also be a list of values.

    Raises:
        ValueError: If it is something else.
    """
    for setting in flatten(tree).values():
        for value in setting if isinstance(setting, list | tuple) else (setting,):
            bound = 2**63 if isinstance(value, int) else math.inf
            is_number = isinstance(value, int | float) and abs(value) < bound
            if not (is_number or isinstance(value, str | None)):
                raise ValueError(
                    f"{str(value)[:40]} cannot be the value of a setting, which is a text, true, "
                    "false, null, a finite number (integers between -2^63 and 2^63), or a list of "
                    "these"
                )
    return tree
