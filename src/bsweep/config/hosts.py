"""Functions that expand a list of hosts to the form `h1:4,h2:4` or to the names of the hosts. The
list is a text, perhaps with SLURM's brackets, or a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from bsweep.config.values import shortened

SLURM = "slurm"
"""The value of the key `launch.hosts` that stands for the hosts of the SLURM allocation in which
the sweep is started.
"""

_MOST_HOSTS = 10_000

# A name must not look like an option of ssh, nor hold characters that a shell interprets.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_SLOTS = re.compile(r"[1-9]\d{0,3}")
_HOST = f"{_NAME.pattern}:{_SLOTS.pattern}"
_FORM = (
    "not of the form h1:4,h2:4 (host:slots, 1 to 9999 slots), h[1-4,7]:2, @FILE (a file of such "
    "lines, or of h1 slots=4) or slurm"
)


def spelled_out(given: str) -> str:
    """Return a list of hosts, given as a text such as `h[1-2]:4` or as `@FILE`, in the form
    `h1:4,h2:4`. Return `slurm` unchanged.

    Raises:
        ValueError: If the text does not name hosts in these forms, if the file cannot be read, or
            if there are too many hosts.
    """
    if given == SLURM:
        return given
    entries = _of_file(Path(given[1:])) if given.startswith("@") else _of_list(given)
    return ",".join(f"{name}:{slots}" for names, slots in entries for name in names)


Hosts = Annotated[str, AfterValidator(spelled_out)]
SpelledOut = Annotated[str, Field(pattern=rf"^{_HOST}(,{_HOST})*$")]


def same_name(host: str) -> str:
    """Return a host's name in the form that is equal for `NODE1`, `node1` and `node1.`."""
    return host.lower().removesuffix(".")


def names_in(text: str) -> list[str]:
    """Return the host names of a list in SLURM's form: `a[1-2,07],b` gives a1, a2, a07 and b.

    Raises:
        ValueError: If the text is no such list, or names too many hosts.
    """
    return [name for entry in _parts(text) for name in _names(entry)]


def _of_list(text: str) -> Iterator[tuple[list[str], str]]:
    for entry in _parts(text):
        names, _, slots = entry.partition(":")
        if "@" in entry or ":" in slots:
            raise ValueError(
                f"{entry!r} is not of the form host:slots: give a port by launch.ssh_port, a user "
                "by launch.ssh_options=[User=me], and an IPv6 address by a name for it in "
                "~/.ssh/config"
            )
        if not _SLOTS.fullmatch(slots):
            raise ValueError(_FORM)
        yield _names(names), slots


def _of_file(path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the names and the slots of the hosts in each line of a file that lists hosts. A line is
    `h1:4` or another list of hosts, or `h1 slots=4` as in Horovod and MPI; `#` starts a comment.
    """
    try:
        lines = path.expanduser().read_text("utf-8", "replace").splitlines()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", error)
        raise ValueError(f"the file cannot be read ({reason}): name another") from None
    entries = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    if not any(entry for _, entry in entries):
        raise ValueError("the file names no host: give it a line such as h1 slots=4 for each host")
    for number, entry in entries:
        try:
            if entry:
                yield from _of_list(_LINE.sub(r"\1:\2", entry))
        except ValueError as error:
            raise ValueError(f"line {number}, {shortened(entry)!r}: {error}") from None


_LINE = re.compile(r"^([^\s:]+)\s+slots\s*=\s*(\d+)(?:\s+max[-_]slots\s*=\s*\d+)?$")


def _parts(text: str) -> list[str]:
    """Return the entries of a list of hosts, which commas outside brackets separate."""
    return re.split(r",(?![^\[\]]*\])", text)


def _names(entry: str) -> list[str]:
    """Return the host names that an entry of a list of hosts, such as `a[1-4,7]-ib`, stands for."""
    pieces = re.split(r"\[([^\[\]]*)\]", entry)  # fixed text and number ranges alternate
    numbered = [_numbers(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    if math.prod(map(len, numbered)) > _MOST_HOSTS:
        raise ValueError(f"there are more than {_MOST_HOSTS:,} hosts: name fewer hosts")
    names = ["".join(chosen) for chosen in product(*numbered)]
    if not all(_NAME.fullmatch(name) for name in names):
        raise ValueError(_FORM)
    return names


def _numbers(ranges: str) -> list[str]:
    """Return the numbers between the brackets of a list of hosts: `1-3,07` gives 1, 2, 3 and 07.
    Leading zeros are kept.
    """
    numbers: list[str] = []
    for number_range in ranges.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", number_range)
        if not match:
            raise ValueError(_FORM)
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"[{number_range}] counts down: give the smaller number first")
        if last - first >= _MOST_HOSTS:
            raise ValueError(f"there are more than {_MOST_HOSTS:,} hosts: name fewer hosts")
        numbers += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return numbers
