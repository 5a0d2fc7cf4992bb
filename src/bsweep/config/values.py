"""What the value of a key may be, and the words for one that is wrong."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

# Numbers end where nobody means them, and some library or file format would.
_INT32 = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=_INT32)]
Natural = Annotated[int, Field(ge=0, le=_INT32)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
_MOST_PROCESSES = 2**16
Processes = Annotated[int, Field(ge=1, le=_MOST_PROCESSES)]
Width = Annotated[int, Field(ge=1, le=2**20)]
Side = Annotated[int, Field(ge=1, le=2**14)]
Port = Annotated[int, Field(ge=1, lt=2**16)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Megabytes = Annotated[float, Field(gt=0, le=1e9)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Density = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Slowdown = Annotated[float, Field(ge=1, le=1e6)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=100)]
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]


LrRule = Literal["fixed", "per_worker", "linear", "sqrt", "adascale"]
Kind = Literal["images", "text", "anything"]
"""Of what a data set consists."""

TrackerName = Literal["tensorboard", "mlflow", "wandb"]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("a tracker is named twice")
    return names


def _listed(given: object) -> object:
    if isinstance(given, str):
        raise ValueError(f"give a list, such as trackers=[{given}]")
    return tuple(given) if isinstance(given, list) else given  # a validator has no list of JSON


Trackers = Annotated[tuple[TrackerName, ...], AfterValidator(_each_once), BeforeValidator(_listed)]


def _fit_for_files(text: str) -> str:
    path = Path(text)
    if "\0" in text or any(len(os.fsencode(part)) > _MOST_PART_BYTES for part in path.parts):
        raise ValueError(
            f"no file system takes a name of more than {_MOST_PART_BYTES} bytes, or with a zero "
            "byte"
        )
    try:
        whole = os.fsencode(path.expanduser().absolute())
    except RuntimeError:
        raise ValueError(
            f"there is no user {path.parts[0].lstrip('~')}, whose folder it begins with"
        ) from None
    if len(whole) > _MOST_PATH_BYTES:
        raise ValueError(
            f"it is longer than {_MOST_PATH_BYTES} bytes, and no file system takes what lies below"
        )
    return text


_MOST_PART_BYTES = 255
_MOST_PATH_BYTES = 3500  # of the 4096 that Linux takes
PathName = Annotated[str, AfterValidator(_fit_for_files)]


def plain_file(path: Path) -> Path:
    """The path of a file or folder. OSError where neither lies there: a pipe or a device may never
    end.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return path


def _every(value: object) -> object:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _INT32
    if value in (None, "auto") or is_count or seconds_of(value):
        return value
    raise PydanticCustomError(
        "every", "Neither auto nor seconds such as 60s, epochs such as 1, or null"
    )


def seconds_of(value: object) -> float | None:
    """60 of `60s`; None of anything else, and of no time at all."""
    found = re.fullmatch(r"(\d+(\.\d+)?)s", value) if isinstance(value, str) else None
    return seconds if found and 0 < (seconds := float(found[1])) <= 1e9 else None


Every = Annotated[int | str | None, PlainValidator(_every)]
"""`auto`, seconds, epochs, or never."""


def _parallel(value: object) -> object:
    if value == "auto" or (
        isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_PROCESSES
    ):
        return value
    raise PydanticCustomError("parallel", "Neither auto nor a number of points, from 1 on")


Parallel = Annotated[int | Literal["auto"], PlainValidator(_parallel)]
"""Points at once: so many at most, or `auto` for as many as fit."""


class ConfigError(ValueError):
    """What the user can mend in a configuration: one message per line, each with the value and the
    remedy.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def shortened(text: str, most: int = 120) -> str:
    """The beginning of a text of thousands of letters."""
    return text if len(text) <= most else f"{text[: most // 2]}… ({len(text):,} letters)"


def show(value: object) -> str:
    """A value as it is written in YAML or on the command line."""
    return json.dumps(value, default=str).strip('"')


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """` Did you mean 'x'?` for a near miss, or nothing."""
    near = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


def abbreviated(word: str, known: Sequence[str]) -> str | None:
    """Which of those that are known is an abbreviation of a word, as lr of learning_rate, or the
    other way round.
    """
    found = [one for one in known if _abbreviates(one, word) or _abbreviates(word, one)]
    return min(found, key=len, default=None)


def _abbreviates(short: str, word: str) -> bool:
    letters = iter(word)
    return len(short) > 1 and short[0] == word[:1] and all(letter in letters for letter in short)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested dictionaries by their dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= (
            flatten(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return leaves
