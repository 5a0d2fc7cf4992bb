"""Formatting of numbers as text, mostly with three or four significant digits, and of means with no
more digits than their intervals support; conversion of values to types that JSON has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

# Relative; an interval this small comes from rounding errors, not from measured values.
_ROUNDING = 1e-9


def number(value: float) -> str:
    """Return a number as text with three or four significant digits, or rounded to a whole number
    if that has more digits; `-` for NaN, which marks a number that was not measured.
    """
    if math.isnan(value):
        return "-"
    if not 1e-4 <= abs(value) < math.inf:
        return f"{value:.3g}"
    return f"{value:.{_decimals(value)}f}"


def spread(
    mean: float,
    half_width: float = math.nan,
    points: Sequence[float] = (),
    decimals: int | None = None,
) -> str:
    """Return a mean as text, such as `12.31 ± 0.24` with half the width of its interval; `-` for a
    mean that was not measured.

    Without an interval, the text is the mean alone, or the values of two seeds if exactly two
    `points` are given. Without `decimals`, the interval decides how many there are.
    """

    def text(value: float) -> str:
        return number(value) if decimals is None else f"{value:.{decimals}f}"

    if math.isnan(mean):
        return "-"
    if math.isnan(half_width):
        return ", ".join(map(text, points)) if len(points) == 2 else text(mean)
    if decimals is None:
        if half_width <= _ROUNDING * abs(mean):
            return f"{number(mean)} ± 0"
        first = -math.floor(math.log10(half_width))  # the place of its first digit
        decimals = max(0, first, min(first + 1, _decimals(mean)))
    return f"{mean:.{decimals}f} ± {half_width:.{decimals}f}"


def _decimals(value: float) -> int:
    digits = 3 if abs(value) < 0.1 else 4
    rounded = abs(float(f"{value:.{digits}g}"))  # 9.9999 is 10.00
    return max(0, digits - 1 - math.floor(math.log10(rounded))) if rounded else 0


def interval_text(low: float, high: float) -> str:
    """Return the ends of an interval as text, such as `12.31 to 12.79`; empty if it is not
    known.
    """
    return "" if math.isnan(low) else f"{number(low)} to {number(high)}"


def setting_text(value: object) -> str:
    """Return a setting's value as text, a float with at most six significant digits, a list with
    commas.

    Args:
        value: The value of any setting.

    Returns:
        The text, such as `0.1` or `ddp`.
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def different_texts(values: Iterable[Any]) -> list[str]:
    """Return the different values of a setting as texts, each once, numbers before texts.

    Args:
        values: The values, of which missing ones and empty texts are left out.
    """
    different: set[Any] = {value for value in values if pd.notna(value) and value != ""}
    in_order = sorted(different, key=lambda value: (isinstance(value, str), value))
    return [*dict.fromkeys(map(setting_text, in_order))]


def plain(value: Any) -> Any:
    """Return a value converted to types that JSON has: None for NaN and infinity, and Python's
    numbers for numpy's.
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value
