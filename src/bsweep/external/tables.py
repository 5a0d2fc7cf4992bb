"""Tables of metrics that others wrote, as CSV or as lines of JSON: their rows, and the values of
epochs in them by bsweep's names.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from bsweep.config.values import flatten
from bsweep.core.words import first_of
from bsweep.external.client import SCORES, TRAINED
from bsweep.runlog.values import MOST

SINCE_1970 = 1e8
"""Seconds: a smaller time of a record counts from the beginning of its run."""


@dataclass(frozen=True)
class Row:
    """Some values that a program wrote together.

    `place` says where, such as `log.csv:12`. `time` is when their file was last changed before it
    was read, in seconds since 1970.
    """

    values: Mapping[str, Any]
    place: str
    time: float = 0.0


def csv_rows(content: bytes, path: str, begin: int = 0) -> list[Row]:
    """Return the rows of a CSV file with a header, without their empty values.

    Args:
        content: The file's content. Its separator is a comma, a semicolon or a tab.
        path: The file's path, for messages.
        begin: The number of bytes at the beginning whose rows are left out.

    Raises:
        ValueError: If the file is not UTF-8, its header has a name twice, or a row has more values
            than the header has names.
    """
    header_bytes = content.find(b"\n") + 1
    num_left_out = content.count(b"\n", header_bytes, begin)
    try:
        text = (content[:header_bytes] + content[max(begin, header_bytes) :]).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: the file is not UTF-8 ({error.reason}): save it as UTF-8."
        ) from None
    header = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count))
    names = [name.strip() for name in next(reader, [])]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise ValueError(f"{path}:1: two columns are named {first_of(twice)}: rename one of them.")
    rows = []
    for cells in reader:
        place = f"{path}:{num_left_out + reader.line_num}"
        if len(cells) > len(names):
            raise ValueError(
                f"{place}: the row has {len(cells)} values, but the header has {len(names)} names."
            )
        cells = [cell.strip() for cell in cells]
        if any(cells):
            pairs = zip(names, cells, strict=False)
            rows.append(Row({name: cell for name, cell in pairs if cell}, place))
    return rows


def json_rows(content: bytes, path: str, begin: int = 0) -> list[Row]:
    """Return the rows of a file of JSON objects, one a line. Values within objects get dotted
    names.

    Args:
        content: The file's content.
        path: The file's path, for messages.
        begin: The number of bytes at the beginning whose rows are left out.

    Raises:
        ValueError: If a line is not a JSON object.
    """
    rows = []
    for number, line in enumerate(content[begin:].splitlines(), content.count(b"\n", 0, begin) + 1):
        if not line.strip():
            continue
        values = None
        with suppress(ValueError):
            values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError(f"{path}:{number}: the line is not a JSON object such as {{}}.")
        known = {name: value for name, value in flatten(values).items() if value is not None}
        rows.append(Row(known, f"{path}:{number}"))
    return rows


def values_at(row: Row, names: Mapping[str, str], keys: Iterable[str]) -> dict[str, float]:
    """Return the numbers that a row has, by bsweep's names.

    Args:
        row: The row.
        names: The name in the row of each key. A value is in per cent, and divided by 100, if its
            name ends in %.
        keys: The keys, such as `test_accuracy`. `time` may be a date and time, too.

    Raises:
        ValueError: If a value is not a number, or impossible.
    """
    numbers = {}
    for key in keys:
        name = names[key]
        value = row.values.get(name, row.values.get(name.removesuffix("%")))
        if value is not None:
            numbers[key] = _number(row, name, key, value)
    return numbers


def _number(row: Row, name: str, key: str, value: Any) -> float:
    subject = f"{row.place}: {name}={value!s:.60} is"
    try:
        number = _seconds(str(value)) if key == "time" else float(value)
    except (TypeError, ValueError):
        comma = ": write a point for the comma" if re.fullmatch(r"-?\d+,\d+%?", str(value)) else ""
        time = " of seconds, nor a time such as 2026-01-31T12:00:00" if key == "time" else ""
        raise ValueError(f"{subject} not a number{time} ({key}){comma}.") from None
    if name.endswith("%"):
        number /= 100
    if key.endswith("accuracy") and not (0 <= number <= 1 or math.isnan(number)):
        raise ValueError(
            f"{subject} not a fraction between 0 and 1 ({key}): if it is in per cent, name it "
            f"'{name}%'."
        )
    is_score = key in (*TRAINED, *SCORES)
    is_amount = key not in ("time", "train_loss", "test_loss")
    if (is_amount and number < 0) or not (is_score or abs(number) < MOST):
        raise ValueError(f"{subject} impossible ({key}).")
    return number


def _seconds(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    date = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()


@dataclass
class Epoch:
    """The values of an epoch by bsweep's names. `label` is the number that the program gave it."""

    label: float
    values: dict[str, float] = field(default_factory=dict)
    time: float = 0.0


def epoch_at(
    epochs: list[Epoch], label: float, place: str, remedy: str, num_earlier: int = 0
) -> Epoch:
    """Return the epoch with a number: the last one, or a new one, which is put after it.

    Args:
        epochs: The epochs so far.
        label: The number, see `Epoch`.
        place: The place of the row with this number.
        remedy: What the user can do if the epoch does not follow the last one.
        num_earlier: The number of epochs that earlier attempts have trained.

    Raises:
        ValueError: If a new epoch does not follow the last one.
    """
    before = epochs[-1].label if epochs else None
    if label == before:
        return epochs[-1]
    if label not in ((num_earlier, num_earlier + 1) if before is None else (before + 1,)):
        position = "is the first one" if before is None else f"follows epoch {before:g}"
        raise ValueError(
            f"{place}: epoch {label:g} {position}: each epoch needs a row, and they count from 0 "
            f"or 1. {remedy}"
        )
    epochs.append(Epoch(label))
    return epochs[-1]
