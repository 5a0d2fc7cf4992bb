"""What got slower since an earlier run of the benches, as its file tells."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

_REFERENCES = (
    "plain", "plain without TF32", "DDP", "torch.distributed", "Horovod's wrapper",
)  # fmt: skip
"""Programs without bsweep's code: where a case has one, times are compared as multiples of its, on
any machine.
"""

_NOT_OURS = {*_REFERENCES, "barrier"}  # what becomes of them is no regression of bsweep
_SLOWER = 1.1  # times as slow is worth a word, if the rounds' quartiles are apart too


def compared(
    now: Mapping[str, Any], then: Mapping[str, Any], same_hardware: bool = True
) -> tuple[list[str], int]:
    """Return lines on what got slower, and the number of values that were compared.

    Those of bsweep that both files have are. Of other hardware seconds say nothing, unless a
    reference ran beside.
    """
    before, lines, count = dict(cases(then)), [], 0
    for case, values in cases(now):
        earlier = before.get(case, {})
        reference = next((name for name in _REFERENCES if name in values and name in earlier), None)
        if same_hardware or reference:
            for name in sorted(values.keys() & earlier.keys() - _NOT_OURS):
                count += 1
                if line := _line(name, values, earlier, reference):
                    lines.append(f"{' / '.join(case)}: {name} {line}")
    return sorted(lines), count


def _line(name: str, now: Mapping[str, Any], then: Mapping[str, Any], reference: str | None) -> str:
    """Say how much longer a value of a case takes; return "" where it does not."""
    recent, old = (_relative(values, name, reference) for values in (now, then))
    middle, earlier = statistics.median(recent), statistics.median(old)
    # A part is small beside its step: what matters is how much longer that takes.
    whole = then["step"] if isinstance(now[name], float) and "step" in then else earlier
    if middle - earlier <= (_SLOWER - 1) * whole or _quartile(recent, 0) <= _quartile(old, 2):
        return ""
    unit = f"times {reference}" if reference else "s"
    return f"takes {middle / earlier:.2f}x as long: {middle:.3g} {unit}, was {earlier:.3g}"


def _relative(values: Mapping[str, Any], name: str, reference: str | None) -> list[float]:
    whole = statistics.median(values[reference]) if reference else 1.0
    rounds = values[name] if isinstance(values[name], list) else [values[name]]
    return [value / whole for value in rounds]


def _quartile(values: list[float], number: int) -> float:
    return statistics.quantiles(values, n=4)[number] if len(values) > 1 else values[0]


def cases(
    found: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield groups of values, wherever they are in a file: seconds by round, or of a part."""
    values = {name: value for name, value in found.items() if _is_measured(value)}
    if values and path:  # what is beside the benches is of the hardware
        yield path, values
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from cases(value, (*path, name))


def _is_measured(value: object) -> bool:
    rounds = value if isinstance(value, list) else [value]
    return bool(rounds) and all(type(seconds) in (float, int) for seconds in rounds)
