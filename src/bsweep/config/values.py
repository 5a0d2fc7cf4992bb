"""The types that values of keys may have, the error for wrong values, and functions that read, show
or suggest values.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

# Upper bounds lie beyond any sensible value, and within what libraries and file formats accept.
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


def _starts_no_program(option: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]+=[\w ./~%@:,+*?!^-]{1,1000}", option, re.ASCII):
        raise ValueError(
            "an option of ssh has the form NAME=VALUE, and its value consists of letters, digits, "
            "spaces and the signs _./~%@:,+*?!^- alone. Give other options in ~/.ssh/config"
        )
    if re.match(r".*(command|provider|smartcard|xauth)", option.partition("=")[0], re.IGNORECASE):
        raise ValueError(
            "this option can make ssh start a program or load a library. Give it in ~/.ssh/config"
        )
    return option


SshOption = Annotated[str, AfterValidator(_starts_no_program)]
"""An option of ssh as NAME=VALUE, such as `User=me`. It must not start a program, because
`bsweep resume` uses the options in a study's recorded commands, which others may have changed.
"""

LrRule = Literal["fixed", "per_worker", "linear", "sqrt", "adascale"]
Kind = Literal["images", "text", "anything"]
"""The kind of examples in a data set."""

TrackerName = Literal["tensorboard", "mlflow", "wandb"]


def _listed(given: object) -> object:
    if isinstance(given, str):
        raise ValueError(f"give a list, such as trackers=[{given}]")
    # Strict validation accepts no list here. A tracker that is named twice counts once.
    return tuple(dict.fromkeys(given)) if isinstance(given, list) else given


Trackers = Annotated[tuple[TrackerName, ...], BeforeValidator(_listed)]


def _with_known_home(text: str) -> str:
    try:
        Path(text).expanduser()
    except RuntimeError:
        raise ValueError(
            f"the home folder {Path(text).parts[0]} is unknown on this machine: give the path "
            "without ~"
        ) from None
    return text


PathName = Annotated[str, AfterValidator(_with_known_home)]


def _every(value: object) -> object:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _INT32
    if value in (None, "auto") or is_count or seconds_of(value):
        return value
    raise PydanticCustomError(
        "every", "Use auto, a time such as 60s, 5m or 1h, epochs such as 1, or null"
    )


_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(value: object) -> float | None:
    """Return the number of seconds that a time such as `60s`, `5m`, `2h` or `1.5d` gives; None for
    any other form, for zero seconds and for more than 1e9 seconds.
    """
    text = value if isinstance(value, str) else ""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", text)
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
    return seconds if 0 < seconds <= 1e9 else None


def numbers(option: str, text: str | None) -> tuple[float, ...]:
    """Return the numbers of an option such as `--speeds 1,1,0.5`; none without a text.

    Args:
        option: The option's name, with its dashes.
        text: Numbers joined by commas, or None.

    Raises:
        ValueError: If a part is no number.
    """
    try:
        return tuple(float(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise ValueError(f"{option} {text}: give numbers such as 1,1,0.5.") from None


def counts(option: str, given: int | str | Iterable[int]) -> list[int]:
    """Return counts that are numbers, or a text such as `1,2,4` or `1..4096`, which has all
    doublings.

    Args:
        option: The option's name, with its dashes, for messages.
        given: One number, several, or a text.

    Raises:
        ValueError: If a part is no positive integer.
    """
    texts = given.split(",") if isinstance(given, str) else given
    doublings: list[int] = []
    for text in texts if isinstance(texts, Iterable) else [texts]:
        match = re.fullmatch(r"([1-9]\d*)(?:\.\.([1-9]\d*))?", str(text).strip())
        begin, end = map(int, (match[1], match[2] or match[1])) if match else (1, 0)
        if begin > end:
            raise ValueError(f"{option} {text}: give counts such as 1,2,4 or 1..4096.")
        while begin < end:
            doublings.append(begin)
            begin *= 2
        doublings.append(end)
    return doublings


def parse_seconds(text: str) -> float:
    """Return the number of seconds that a time such as `60s`, `5m`, `2h` or `1.5d` gives.

    Args:
        text: A positive number with its unit: s, m (or min), h or d.

    Raises:
        ValueError: If the text is not such a time.
    """
    seconds = seconds_of(text.strip())
    if seconds is None:
        raise ValueError(f"{text!r} is not a time with a unit, such as 90s, 30m, 2h or 1d.")
    return seconds


Every = Annotated[int | str | None, PlainValidator(_every)]
"""The type of an interval: `auto`, a time such as `60s`, a number of epochs, or None for never."""


def _parallel(value: object) -> object:
    if value == "auto" or (
        isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_PROCESSES
    ):
        return value
    raise PydanticCustomError("parallel", "Use auto or a number of points, 1 or more")


Parallel = Annotated[int | Literal["auto"], PlainValidator(_parallel)]
"""The largest number of points that run at the same time, or `auto` for as many as fit."""


class ConfigError(ValueError):
    """The error for mistakes in a configuration that the user can correct. `problems` has a message
    for each mistake.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def shortened(text: str, most: int = 120) -> str:
    """Return a text unchanged if it has at most `most` letters, otherwise its beginning and its
    length.
    """
    return text if len(text) <= most else f"{text[: most // 2]}… ({len(text):,} letters)"


def show(value: object) -> str:
    """Return a value as text for a message: as JSON, but a text without its quotes."""
    return json.dumps(value, default=str).strip('"')


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the text ` Did you mean 'x'?` if a known word is similar to the given word, else an
    empty text.
    """
    near = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


def unreadable(path: Path, error: OSError) -> str:
    """Return a message about a file that cannot be read, which suggests a file beside it."""
    near = did_you_mean(path.name, [other.name for other in path.parent.glob("*")])
    return f"{path} cannot be read ({error.strerror}).{near}"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested dictionaries in one flat dictionary with dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        leaves |= flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return leaves


def check_above_zero(option: str, value: float | None, example: float | str) -> None:
    """Check an option's number.

    Args:
        option: The option's name.
        value: The number; None if it was not given.
        example: A number that would do, as a user writes it.

    Raises:
        ValueError: If the number is not above zero, or not finite.
    """
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"--{option} {value:g}: give a number above 0, such as {example}.")
