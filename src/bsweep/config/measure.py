"""The settings class of the optional measurements during training, with a check for points in which
a measurement is impossible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bsweep.config.card import Schema
from bsweep.config.point import Point

_NOT_IN_STEP = (
    "its workers do not step together, so no step has the gradient of all workers at one model. "
    "Use strategy=horovod, allreduce or ddp"
)


@dataclass(frozen=True, kw_only=True)
class MeasureConfig(Schema):
    """The settings of the optional measurements of a run, such as the gradient noise scale.
    `docs/noise_scale.md` says how they work and what they cost.
    """

    noise_scale: bool = False

    def problems(self, point: Point) -> Iterator[str]:
        """Yield an error message, with the remedy, for each measurement that is configured but
        impossible in a point.
        """
        if not point.measures_noise:
            return
        key = "measure.noise_scale=true" if self.noise_scale else f"batching={point.batching.name}"
        if point.optimizer.measures_noise:
            key = f"optimizer.lr_rule={point.optimizer.lr_rule}"
        can = point.strategy.can
        if reason := can.why_no_noise if can.lockstep else _NOT_IN_STEP:
            yield f"{key} with strategy={point.strategy.name}: {reason}, or leave {key} out."
        if point.compression.builds:
            yield (
                f"{key} with compression={point.compression.name}: a codec changes the gradient, "
                f"so that its noise cannot be measured. Use compression=none, or leave {key} out."
            )
        if point.examples_per_step == 1:
            yield (
                f"{key} with a batch of one example: the measurement compares the two halves of a "
                "batch. Use a batch of 2 or more."
            )


NO_MEASURES = MeasureConfig()  # the default
