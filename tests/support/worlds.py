"""Worlds in which a prediction is tried. In one of them, something differs from what the formulas
of the prediction assume; `results/measured/stress_predict/worlds.py` has seven more.

A world is drawn by a number, with its critical batch, its costs of a step and its overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from tests.support.synthetic_targets import Truth

_PLACES = (128, 256, 512)  # batches at which a threshold or a badly tuned rate may begin


def drawn(number: int) -> Truth:
    """The law S_min + E_min / B and Pollux's form of a step's seconds, with drawn parameters."""
    rng = np.random.default_rng([number, 11])
    critical, fixed, each, sync, more = rng.standard_normal(5)
    step = 0.02 * 1.5**fixed
    return Truth(
        minimum_examples=800 * 200 * 3.0**critical, pass_seconds=step,
        example_seconds=step / 40 * 2**each,
        sync_seconds=step / 2 * 2**sync, sync_worker_seconds=step / 10 * 2**more,
        overlap=10 ** rng.random(),
    )  # fmt: skip


@dataclass(frozen=True)
class Placed(Truth):
    """A world in which larger batches than `place` differ."""

    place: int = 256


class Threshold(Placed):
    """Larger batches never get beyond an accuracy of 0.87."""

    def most_accuracy(self, batch: float) -> float:
        return 0.87 if batch > self.place else 1.0


def world_of(kind: type[Truth]) -> Callable[[int], Truth]:
    """Return a function that draws a world of this kind by a number."""

    def world(number: int) -> Truth:
        law = drawn(number)
        own = {field.name: getattr(law, field.name) for field in fields(law)}
        place = np.random.default_rng([number, 12]).choice(_PLACES)
        return kind(**own, **({"place": int(place)} if issubclass(kind, Placed) else {}))

    return world


WORLDS: dict[str, Callable[[int], Truth]] = {"law": drawn, "threshold": world_of(Threshold)}
