"""What got slower since an earlier run of the bench, as its file tells."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

_REFERENCES = ("plain", "DDP", "torch.distributed")
"""Programs that are not bsweep's: where a case has one, times are compared as multiples of its, on any machine."""

_SLOWER = 1.1  # times as slow is worth a word, if the rounds' quartiles are apart too


def slower(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """Lines on all programs that are in both files and got slower."""
    before, lines = dict(_cases(then)), []
    for case, seconds in _cases(now):
        earlier = before.get(case, {})
        reference = next((name for name in _REFERENCES if name in seconds and name in earlier), None)
        for name in seconds.keys() & earlier.keys() - {reference}:
            recent, old = (_relative(one, name, reference) for one in (seconds, earlier))
            ratio = statistics.median(recent) / statistics.median(old)
            if ratio > _SLOWER and _quartile(recent, 0) > _quartile(old, 2):
                unit = f"times {reference}" if reference else "s"
                lines.append(
                    f"{' / '.join(case)}: {name} takes {ratio:.2f}x as long: {statistics.median(recent):.3g} {unit}, "
                    f"was {statistics.median(old):.3g}"
                )
    return sorted(lines)


def _relative(seconds: Mapping[str, list[float]], name: str, reference: str | None) -> list[float]:
    whole = statistics.median(seconds[reference]) if reference else 1.0
    return [value / whole for value in seconds[name]]


def _quartile(values: list[float], number: int) -> float:
    return statistics.quantiles(values, n=4)[number] if len(values) > 1 else values[0]


def _cases(found: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Groups of programs with their seconds by round, wherever they are in a file."""
    programs = {name: value for name, value in found.items() if _is_seconds(value)}
    if programs:
        yield path, programs
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _cases(value, (*path, name))


def _is_seconds(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, float) for each in value)
