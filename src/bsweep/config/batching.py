"""The settings classes (cards) of the batching policies, which decide how many examples each round
takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.card import Card, Point, clash
from bsweep.config.user_code import UserCode
from bsweep.config.values import AtLeastOne, Count, PathName, Positive, Share

# The largest ratio between a batch and the configured one, where no bound is given.
_MOST_FACTOR = 16
_HALVES = "a lone worker compares the halves of its batch. Use a batch of 2 or more"


class BatchingConfig(Card):
    """The base class of the cards of all batching policies. `builds` names a callable that
    takes the run's configuration and returns a `bsweep.batching.Policy`.
    """

    goes_on_elsewhere: ClassVar[bool] = True
    """True if a run with this policy may begin at the checkpoint of another run (`resume_from`),
    even if that run had another global batch or another number of workers.
    """

    measures_noise: ClassVar[bool] = False
    """True if the policy uses the measured gradient noise. The run then measures the noise even
    without `measure.noise_scale=true`.
    """

    changes_batch: ClassVar[bool] = True
    """True if the policy may change the batch during a run."""

    may_return: ClassVar[bool] = False
    """True if the policy may return to a batch that it has left. The workers then keep the CUDA
    graphs of that batch.
    """

    def problems_with_data(self, point: Point, num_train: int) -> Iterator[str]:
        """Yield an error message, with the remedy, if a bound of this policy is larger than the
        training set of `num_train` examples.
        """
        yield from ()


class FixedConfig(BatchingConfig):
    """The configured batch at every step; with allocation.adapt_every, local steps follow the
    changing speeds of workers.
    """

    name: Literal["fixed"]

    changes_batch: ClassVar[bool] = False
    builds: ClassVar[str] = "bsweep.batching.drift:build"


class DecidingConfig(BatchingConfig):
    """The base class of the cards of all policies but `fixed`: those that choose the batch size
    during a run. Their decisions hold only for the configured batch and the workers of that run.
    """

    goes_on_elsewhere: ClassVar[bool] = False

    def problems(self, point: Point) -> Iterator[str]:
        if point.allocation.adapts:
            remedy = "both would set the local steps. Leave one of them out."
            yield clash(point, "allocation.adapt_every batching", remedy)


class ChangingConfig(DecidingConfig):
    """The base class of the cards of bsweep's own policies that change the global batch during a
    run. The global batch starts as configured and stays within bounds.
    """

    min_global_batch: Count | None = None
    """null: a sixteenth of the configured batch, and at least one example for each worker"""
    max_global_batch: Count | None = None
    """null: 16 times the configured batch, within the training set"""
    max_local_batch: Count | None = None
    """most examples of a worker in one pass, larger shares take several passes; null: the local
    batch
    """

    fits_batch_to_rate: ClassVar[str] = ""
    """The reason, as a clause, why this policy forbids a learning rate that follows the batch size;
    an empty text if it allows one.
    """

    def bounds(self, point: Point) -> tuple[int, int]:
        """Return the smallest and the largest global batch, in examples, that this policy may
        choose. A bound that is not given lies within a fixed factor of the configured batch.
        """
        configured = point.examples_per_step
        least = min(configured, max(self._least_batch(point), -(-configured // _MOST_FACTOR)))
        return self.min_global_batch or least, self.max_global_batch or configured * _MOST_FACTOR

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if not all(point.local_batches):
            return  # the global batch is too small for the workers, which the point itself says
        configured, (least, most) = point.examples_per_step, self.bounds(point)
        if not least <= configured <= most:
            yield (
                f"batching.min_global_batch={least} to max_global_batch={most} excludes the global "
                f"batch of {configured} with which the run begins: use another bound, or batch."
            )
        smallest = self._least_batch(point)
        if self.min_global_batch is not None and self.min_global_batch < smallest:
            remedy = f"use {smallest} or more, for each worker's part, or leave it out."
            yield clash(point, "batching.min_global_batch num_workers", remedy)
        if self._needs_halves(point) and configured < 2:
            yield f"batching={self.name} with one example in a step: {_HALVES}."
        largest = max(point.local_batches)
        if self.max_local_batch is not None and self.max_local_batch < largest:
            remedy = f"use at least the largest local batch, {largest}, or leave it out."
            yield clash(point, "batching.max_local_batch", remedy)
        if self.fits_batch_to_rate and point.optimizer.rate_follows_batch:
            remedy = f"{self.fits_batch_to_rate}. Use optimizer.lr_rule=fixed."
            yield clash(point, "optimizer.lr_rule batching", remedy)

    def _least_batch(self, point: Point) -> int:
        """Return the smallest global batch of which every worker gets one example or more, or two
        or more where the model may have BatchNorm or a lone worker has to measure the gradient
        noise.

        Each worker gets its part in proportion to its configured batch. BatchNorm needs two
        examples for its statistics. A lone worker needs two to measure the noise. With one example
        it could never measure the noise again, and a policy that follows the noise would keep that
        batch for ever.
        """
        needs_two = self._needs_halves(point) or point.model.has_batchnorm is not False
        return -(-(2 if needs_two else 1) * sum(point.local_batches) // min(point.local_batches))

    def _needs_halves(self, point: Point) -> bool:
        """Return True if a lone worker has to measure the gradient noise for its policy or its
        learning-rate rule. It compares the two halves of its batch.
        """
        return point.num_workers == 1 and (self.measures_noise or point.optimizer.measures_noise)

    def problems_with_data(self, point: Point, num_train: int) -> Iterator[str]:
        if self.max_global_batch is not None and self.max_global_batch > num_train:
            yield (
                f"batching.max_global_batch={self.max_global_batch} is larger than the training "
                f"set of {num_train} examples: use {num_train} or less."
            )


class ScheduleConfig(ChangingConfig):
    """The global batch times a factor every k epochs (AdaBatch, arXiv 1712.02029)."""

    name: Literal["schedule"]
    factor: Positive = 2.0
    """below 1, the batch shrinks"""
    every_epochs: Positive = 1.0
    """epochs between two changes of the batch"""
    rate: Literal["by_rule", "seesaw"] = "by_rule"
    """by_rule (as in optimizer.lr_rule: linear follows the batch, fixed does not) | seesaw (divided
    by sqrt(2) when the batch doubles)
    """

    builds: ClassVar[str] = "bsweep.batching.schedule:Schedule"

    @property
    def fits_batch_to_rate(self) -> str:  # type: ignore[override]
        return (
            "batching.rate=seesaw already sets how the learning rate follows the batch"
            if self.rate == "seesaw"
            else ""
        )

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if self.factor < 1 and self.rate == "seesaw":
            remedy = "Seesaw grows the batch. Use batching.factor=2."
            yield clash(point, "batching.rate batching.factor", remedy)


class RaiseInsteadOfDecayConfig(ChangingConfig):
    """When optimizer.schedule=multistep would lower the learning rate, the batch grows instead
    (Smith et al., arXiv 1711.00489).
    """

    name: Literal["raise_instead_of_decay"]
    max_global_batch: Count | None = None
    """when the batch has reached it, the rate falls; null: 16 times the configured batch, within
    the training set
    """

    builds: ClassVar[str] = "bsweep.batching.raise_instead_of_decay:RaiseInsteadOfDecay"
    fits_batch_to_rate: ClassVar[str] = (
        "this policy grows the batch instead of lowering the learning rate, and the rule would "
        "raise the rate"
    )

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if point.optimizer.schedule != "multistep":
            remedy = "Use optimizer.schedule=multistep 'optimizer.milestones=[30,40]'."
            yield clash(point, "batching optimizer.schedule", remedy)


class MeasuringConfig(ChangingConfig):
    """The base class of the cards of policies that decide on the batch size at most once in
    `every_steps` steps, by the measured gradient noise and, in some policies, other measurements.
    """

    every_steps: Count
    """steps between decisions"""

    measures_noise: ClassVar[bool] = True
    may_return: ClassVar[bool] = True


class NoiseScaleConfig(MeasuringConfig):
    """The global batch follows the gradient noise scale (arXiv 1812.06162)."""

    name: Literal["noise_scale"]
    every_steps: Count = 50
    hysteresis: AtLeastOne = 1.4142
    """keep the batch while the noise scale is within this factor of it"""

    builds: ClassVar[str] = "bsweep.batching.noise_scale:NoiseScale"


class NormTestConfig(MeasuringConfig):
    """The global batch grows when its gradient is mostly noise (Byrd et al., 2012)."""

    name: Literal["norm_test"]
    theta: Share = 0.7
    """allowed noise of a step, as a share of the gradient's norm; a smaller value gives larger
    batches
    """
    every_steps: Count = 50

    builds: ClassVar[str] = "bsweep.batching.norm_test:NormTest"
    may_return: ClassVar[bool] = False


class CABSConfig(MeasuringConfig):
    """The global batch is lr x variance of an example's gradient / training loss (arXiv
    1612.05086).
    """

    name: Literal["cabs"]
    every_steps: Count = 20
    hysteresis: AtLeastOne = 1.4142
    """keep the batch while that value is within this factor of it"""

    builds: ClassVar[str] = "bsweep.batching.cabs:CABS"
    fits_batch_to_rate: ClassVar[str] = (
        "this policy fits the batch to the learning rate, so the rate must not follow the batch"
    )


class GoodputConfig(MeasuringConfig):
    """The global batch with the highest goodput: examples per second, weighted by their statistical
    efficiency (Pollux, OSDI 2021).
    """

    name: Literal["goodput"]
    every_steps: Count = 200

    builds: ClassVar[str] = "bsweep.batching.goodput:Goodput"


class OwnBatchingConfig(UserCode, DecidingConfig):
    """A batching policy of your own: a callable takes (config, **options) and returns a
    bsweep.batching.Policy.
    """

    name: Literal["own"]
    target: PathName
    """batching.target=mypolicy.py:Policy or package.module:name"""

    builds: ClassVar[str] = "bsweep.batching:from_target"
    may_return: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = ("config",)


AnyBatching = Annotated[
    FixedConfig
    | ScheduleConfig
    | RaiseInsteadOfDecayConfig
    | NoiseScaleConfig
    | NormTestConfig
    | CABSConfig
    | GoodputConfig
    | OwnBatchingConfig,
    Field(discriminator="name"),
]

FIXED = FixedConfig(name="fixed")
