"""What a run measures beside its training, and where that cannot be measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bsweep.config.card import Schema

if TYPE_CHECKING:
    from bsweep.config.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class MeasureConfig(Schema):
    """What it costs, and how it is measured, is in `docs/noise_scale.md`."""

    noise_scale: bool = False
    noise_scale_per_layer: bool = False


_NOT_IN_STEP = (
    "its workers do not step together, so that there is no gradient of all of them at one model. "
    "Use strategy=horovod, allreduce or ddp, or leave the noise scale out."
)
NO_MEASURES = MeasureConfig()  # of runs that do not name them


def measure_problems(config: RunConfig) -> Iterator[str]:
    """What cannot be measured in a point, with the remedy."""
    c, measured = config, config.measure
    if measured.noise_scale_per_layer and not measured.noise_scale:
        yield "measure.noise_scale_per_layer=true without measure.noise_scale=true: give both."
    if not c.measures_noise:
        return
    key = "measure.noise_scale=true" if measured.noise_scale else f"batching={c.batching.name}"
    if c.optimizer.measures_noise:
        key = f"optimizer.lr_rule={c.optimizer.lr_rule}"
    what = f"{key} with strategy={c.strategy.name}"
    if reason := c.strategy.can.why_no_noise if c.strategy.can.in_step else _NOT_IN_STEP:
        yield f"{what}: {reason}"
    if c.compression.builds:
        yield (
            f"{key} with compression={c.compression.name}: what a codec lets through is not the "
            f"gradient. "
            "Use compression=none to measure the noise scale."
        )
    if measured.noise_scale_per_layer and c.strategy.can.exchanges_in_passes:
        yield (
            f"{what} and measure.noise_scale_per_layer=true: what travels within the backward pass "
            f"is cut into "
            "buckets, not layers. Use strategy=horovod strategy.buckets=1, or strategy=allreduce."
        )
    if c.examples_per_step == 1:
        yield f"{key} with a batch of one example, which has no halves: use local_batch=2 or more."
