"""What got slower, or larger, since an earlier run of the bench, as its file tells."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

_REFERENCES = (
    *("plain", "plain without TF32", "by hand"),
    *("DDP", "torch.distributed", "Horovod's wrapper"),
)
"""Programs without bsweep's code: where a case has one, times are compared as multiples of its, on
any machine.
"""

_STAND_IN = "ddp"
"""Bsweep's own loop over torch's DDP, a reference on other hardware alone: what slows all
strategies slows it too.
"""

NOT_OURS = {*_REFERENCES, "barrier"}  # what becomes of them is no regression of bsweep
_SLOWER = 1.1  # times as slow is worth a word, if the rounds' quartiles are apart too
_EXPONENT, _BYTES = "exponent of ", "_bytes"


def compared(
    now: Mapping[str, Any], then: Mapping[str, Any], same_hardware: bool = True
) -> tuple[list[str], int]:
    """Lines on what got slower or larger, and the number of values that were compared.

    Those of bsweep that both files have are. Of other hardware seconds say nothing, unless a
    reference ran beside.
    """
    references = _REFERENCES if same_hardware else (*_REFERENCES, _STAND_IN)
    before, lines, count = dict(cases(then)), [], 0
    for case, values in cases(now):
        earlier = before.get(case, {})
        reference = next((name for name in references if name in values and name in earlier), None)
        for name in sorted(values.keys() & earlier.keys() - {*NOT_OURS, reference}):
            if not (
                same_hardware or reference or name.startswith(_EXPONENT) or name.endswith(_BYTES)
            ):
                continue
            count += 1
            if line := _line(name, values, earlier, reference):
                lines.append(f"{' / '.join(case)}: {name} {line}")
    return sorted(lines), count


def _line(name: str, now: Mapping[str, Any], then: Mapping[str, Any], reference: str | None) -> str:
    """How a value of a case got worse; empty where it did not."""
    recent, old = (_relative(one, name, reference) for one in (now, then))
    middle, earlier = statistics.median(recent), statistics.median(old)
    if name.startswith(_EXPONENT):  # up to 1 is as it should be, and what is fitted there is noise
        return (
            f"is {middle:.2f}, was {earlier:.2f}" if middle > max(earlier, 1) + _SLOWER - 1 else ""
        )
    if name.endswith(_BYTES):
        is_larger = middle > _SLOWER * earlier
        return (
            f"is {middle / earlier:.2f}x as much: {middle / 1e6:.0f} MB, was {earlier / 1e6:.0f}"
            if is_larger
            else ""
        )
    # A part is small beside its step, of which it tells: what matters is how much longer that
    # takes.
    of_what = then["step"] if isinstance(now[name], float) and "step" in then else earlier
    if middle - earlier <= (_SLOWER - 1) * of_what or _quartile(recent, 0) <= _quartile(old, 2):
        return ""
    unit = f"times {reference}" if reference else "s"
    return f"takes {middle / earlier:.2f}x as long: {middle:.3g} {unit}, was {earlier:.3g}"


def _relative(values: Mapping[str, Any], name: str, reference: str | None) -> list[float]:
    whole = statistics.median(values[reference]) if reference else 1.0
    return [
        value / whole
        for value in (values[name] if isinstance(values[name], list) else [values[name]])
    ]


def _quartile(values: list[float], number: int) -> float:
    return statistics.quantiles(values, n=4)[number] if len(values) > 1 else values[0]


def cases(
    found: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Groups of values, wherever they are in a file: seconds by round, those of a part, bytes and
    exponents.
    """
    values = {name: value for name, value in found.items() if _is_measured(value)}
    if values and path:  # what is beside the benches is of the hardware
        yield path, values
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from cases(value, (*path, name))


def _is_measured(value: object) -> bool:
    each = value if isinstance(value, list) else [value]
    return bool(each) and all(
        isinstance(one, float | int) and not isinstance(one, bool) for one in each
    )
