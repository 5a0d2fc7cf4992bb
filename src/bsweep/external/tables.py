"""The rows of metrics in files that a training program writes: CSV, and lines of JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bsweep.config.values import flatten
from bsweep.core.words import first_of


@dataclass(frozen=True)
class Row:
    """Some values that a program wrote together.

    `place` says where, such as `log.csv:12`. `time` is when their file was last changed before it
    was read, in seconds since 1970.
    """

    values: Mapping[str, Any]
    place: str
    time: float = 0.0


Parse = Callable[[bytes, str, int], list[Row]]


class TextFiles:
    """A reader of growing CSV or JSON files. Rows that were there when it was created are left out.

    Args:
        pattern: The absolute path of the file; a star stands for any letters, as in
            `logs/*/metrics.csv`.
        parse: Returns the rows of a file's content: `csv_rows` or `json_rows`.
    """

    def __init__(self, pattern: Path, parse: Parse) -> None:
        self._pattern, self._parse = pattern, parse
        self._files = {path: _TextFile(path, parse, is_old=True) for path in self._paths()}
        self.begun_at: float | None = None
        """When the program began to write, before its first row; None if that cannot be seen."""

    def new_rows(self, *, is_last: bool) -> list[Row]:
        """Return the rows that were written since the last call.

        Args:
            is_last: True if the program has ended, so that its last row is complete.

        Raises:
            ValueError: If a row is damaged.
        """
        rows: list[Row] = []
        for path in self._paths():
            file = self._files.setdefault(path, _TextFile(path, self._parse, is_old=False))
            changed_at, new_rows = file.new_rows(is_last=is_last)
            if changed_at and not new_rows and self.begun_at is None:
                self.begun_at = changed_at  # for example a header without rows
            rows += new_rows
        return rows

    def _paths(self) -> list[Path]:
        pattern = self._pattern
        if "*" not in str(pattern):  # brackets and question marks in a path are letters
            return [pattern] if pattern.exists() else []
        return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


class _TextFile:
    """A text file to which a program appends rows, or which it writes again with more rows."""

    def __init__(self, path: Path, parse: Parse, *, is_old: bool) -> None:
        self._path, self._parse = path, parse
        self._seen = self._old = _state(path) if is_old else None
        self._known = path.read_bytes() if is_old else b""  # what was parsed, or is old
        self._num_rows = 0  # that were in it
        if is_old:
            with suppress(ValueError):  # it need not have rows if the program writes it again
                self._num_rows = len(parse(self._known, str(path), 0))

    def new_rows(self, *, is_last: bool) -> tuple[float | None, list[Row]]:
        """Return when the file changed, None if it did not, and the rows that are new in it."""
        try:
            at, state = self._path.stat().st_mtime, _state(self._path)
            if state == self._seen and not is_last:
                return None, []
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None, []
        changed_at = None if state == self._seen else at
        if self._old and changed_at:
            is_longer = len(content) > len(self._known) and content.startswith(self._known)
            if state[0] != self._old[0] or not is_longer:  # the program wrote it again
                self._known, self._num_rows = b"", 0
            self._old = None
        self._seen = state
        whole = content if is_last else content[: content.rfind(b"\n") + 1]
        if self._known.startswith(whole):  # the program is writing the file again
            return changed_at, []
        # While a file grows, its new rows alone are parsed: the training needs the cores.
        is_grown = whole.startswith(self._known)
        rows = self._parse(whole, str(self._path), len(self._known) if is_grown else 0)
        rows = [replace(row, time=at) for row in rows[0 if is_grown else self._num_rows :]]
        self._known = whole
        self._num_rows += len(rows)
        return changed_at, rows


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def csv_rows(content: bytes, path: str, begin: int = 0) -> list[Row]:
    """Return the rows of a CSV file with a header, without their empty values.

    Args:
        content: The file's content. Its separator is a comma, a semicolon or a tab.
        path: The file's path, for messages.
        begin: The number of bytes at the beginning whose rows are left out.

    Raises:
        ValueError: If the file is not UTF-8, its header is none or has a name twice, or a row has
            more values than the header has names.
    """
    num_left_out = content.count(b"\n", content.find(b"\n") + 1, begin)
    if begin:
        content = content[: content.find(b"\n") + 1] + content[begin:]
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{path}: the file is UTF-16: save it as UTF-8.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: the file is not UTF-8 ({error.reason}): save it as UTF-8."
        ) from None
    header = text.partition("\n")[0]
    if "\0" in header:
        raise ValueError(f"{path}: the file is UTF-16: save it as UTF-8.")
    if header.startswith("sep="):
        raise ValueError(f"{path}:1: remove the line {header.strip()}, which is for Excel alone.")
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count), strict=False
    )
    names = [name.strip() for name in reader.fieldnames or ()]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise ValueError(f"{path}:1: two columns are named {first_of(twice)}: rename one of them.")
    rows = []
    for values in reader:
        place = f"{path}:{num_left_out + reader.line_num}"
        if None in values:
            raise ValueError(
                f"{place}: the row has {len(values) - 1 + len(values[None])} values, but the "
                f"header has {len(reader.fieldnames or ())} names."
            )
        given = {name.strip(): value.strip() for name, value in values.items() if value}
        rows.append(Row({name: value for name, value in given.items() if value}, place))
    return rows


def json_rows(content: bytes, path: str, begin: int = 0) -> list[Row]:
    """Return the rows of a file of JSON objects, one a line. Values within objects get dotted
    names.

    Args:
        content: The file's content.
        path: The file's path, for messages.
        begin: The number of bytes at the beginning whose rows are left out.

    Raises:
        ValueError: If a line is not a JSON object, or has a name twice.
    """
    rows = []
    for number, line in enumerate(content[begin:].splitlines(), content.count(b"\n", 0, begin) + 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            values = json.loads(line, object_pairs_hook=_object)
        except ValueError as error:
            raise ValueError(f"{place}: the line is not JSON ({error}).") from None
        if not isinstance(values, dict):
            raise ValueError(f"{place}: the line is not a JSON object such as {{}}.")
        flat = {name: value for name, value in flatten(values).items() if value is not None}
        rows.append(Row(flat, place))
    return rows


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two values are named {first_of(twice)}: rename one of them")
    return dict(pairs)


def number_at(row: Row, name: str, key: str) -> float | None:
    """Return the number that a row has under a name; None if it has none.

    Args:
        row: The row.
        name: The name. If it ends in %, the value is in per cent and divided by 100.
        key: What the number is in bsweep, such as `test_accuracy`.

    Raises:
        ValueError: If the value is no number, or an accuracy is not a fraction.
    """
    value = row.values.get(name, row.values.get(name.removesuffix("%")))
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        comma = ": write a point for the comma" if re.fullmatch(r"-?\d+,\d+%?", str(value)) else ""
        raise ValueError(
            f"{row.place}: {name}={value!r:.60} is not a number ({key}){comma}."
        ) from None
    if name.endswith("%"):
        number /= 100
    if key.endswith("accuracy") and not (0 <= number <= 1 or math.isnan(number)):
        raise ValueError(
            f"{row.place}: {name}={value} is not a fraction between 0 and 1 ({key}): if it is in "
            f"per cent, name it '{name}%'."
        )
    return number


def numbers_at(row: Row, names: Mapping[str, str], keys: Iterable[str]) -> dict[str, float]:
    """Return the numbers that a row has, by their keys.

    Args:
        row: The row.
        names: The name of each key in the row.
        keys: The keys.

    Raises:
        ValueError: As in `number_at`.
    """
    numbers = {key: number_at(row, names[key], key) for key in keys}
    return {key: number for key, number in numbers.items() if number is not None}


def time_at(row: Row, name: str) -> float | None:
    """Return the time that a row has under a name, in seconds; None if it has none.

    Args:
        row: The row.
        name: The name of a number, or of a date and time such as 2026-01-31T12:00:00.

    Raises:
        ValueError: If the value is neither a number nor a date.
    """
    value = row.values.get(name)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    try:
        date = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(
            f"{row.place}: {name}={value!r:.60} is neither a number of seconds nor a time such as "
            "2026-01-31T12:00:00."
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
