"""The settings class of the optional measurements during training, with a check for points in which
a measurement is impossible.
"""

from __future__ import annotations

from collections.abc import Iterator

from bsweep.config.card import Point, Schema

_NOT_IN_STEP = "its workers do not step together. Use strategy=horovod, allreduce or ddp"
_CHANGES = "a codec changes the gradient. Use compression=none"
_ONE = "the two halves of a batch are compared. Use a batch of 2 or more"
_PROGRAM = "pass a bsweep.NoiseScale to bsweep.join().noise() in the program instead"


class MeasureConfig(Schema):
    """The settings of the optional measurements of a run, such as the gradient noise scale.
    `docs/batching.md` says how they work and what they cost.
    """

    noise_scale: bool = False
    """record the gradient noise scale, if workers step together (docs/batching.md)"""

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
        reasons = {
            f"strategy={point.strategy.name}": can.why_no_noise if can.lockstep else _NOT_IN_STEP,
            f"compression={point.compression.name}": _CHANGES if point.compression.builds else "",
            "a batch of one example": _ONE if point.examples_per_step == 1 else "",
            "program=own": _PROGRAM if point.program.is_own else "",
        }
        for setting, reason in reasons.items():
            if reason:
                yield f"{key} with {setting}: {reason}, or leave {key} out."
