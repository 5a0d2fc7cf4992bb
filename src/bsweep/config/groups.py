"""The base classes of the cards, one for each group such as `strategy`. A base class declares the
facts that other code may ask of every variant of its group.

The cards of the variants are in the module of their group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bsweep.config.capabilities import Capabilities
from bsweep.config.card import Card
from bsweep.config.point import Point, StrategyFacts
from bsweep.config.values import (
    Count,
    Kind,
    LrRule,
    Megabytes,
    NonNegative,
    PathName,
    Positive,
    Processes,
    Share,
    Slowdown,
    show,
)

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class DataConfig(Card):
    """The base class of the cards of all data sets, whose defaults are in `conf/data/`.

    `builds` names a module with two functions. `info(config)` downloads, decodes and caches the
    data; once that is done it needs no torch. `load(config)` returns the complete data set on the
    CPU. Both raise a ValueError that says how to correct the configuration.
    """

    subset: Count | None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    validation_share: Share | None = None
    """The share of the training examples that the run is evaluated on instead of the test set."""

    added_later: ClassVar[Mapping[str, object]] = {"device": "auto", "validation_share": None}

    consists_of: ClassVar[Kind]

    files: ClassVar[tuple[str, ...]] = ()
    """Keys that name files or folders without a known checksum, whose content must be the same on
    all hosts. The files of other data sets are checked by md5.
    """

    of_no_example: ClassVar[tuple[str, ...]] = ("subset", "validation_share")
    """Keys that change neither the time nor the memory that one example takes in training."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Card):
    """The base class of the cards of all models. `builds` names a callable `(config, *,
    num_classes, shape)` that returns the newly initialised module.
    """

    learns_from: ClassVar[Kind | None] = "images"
    """The kind of examples that the model trains on; None if it takes any kind."""

    has_batchnorm: ClassVar[bool | None] = False
    """True if the model has BatchNorm layers; None if only the built module can tell, see
    `bsweep.models.check_model`.
    """

    def resolved(self) -> Self:
        """Return this card with the hashes of the files that it names.

        Returns:
            A card of the same class.

        Raises:
            ConfigError: If a file cannot be read.
        """
        return self

    def problems(self, point: Point) -> Iterator[str]:
        if self.has_batchnorm:
            yield from self.lone_examples(point)
        if self.learns_from == "images" and point.data.consists_of == "text":
            yield (
                f"model={self.name} learns from images, but data={point.data.name} has none: use "
                "model=llama_tiny or llama_150m, or data=digits."
            )
        if self.learns_from == "text" and point.data.consists_of == "images":
            yield (
                f"model={self.name} learns from text, but data={point.data.name} holds images: use "
                "data=text data.path=FILE, or model=resnet18."
            )

    def lone_examples(self, point: Point) -> Iterator[str]:
        """Yield an error message if a model with BatchNorm would get local batches of one example.

        Args:
            point: The point, which holds the local batches.

        Yields:
            The message with its remedy, at most one.
        """
        batches = point.local_batches
        if 1 in batches:
            batch = (
                "local_batch"
                if set(batches) == {1}
                else f"local batches {show(batches)}: local_batch"
            )
            yield (
                f"{batch}=1 with model={self.name}: BatchNorm needs more than one example for its "
                "statistics. Use local_batch=2 or more."
            )

    def check_num_classes(self, num_classes: int) -> None:
        """Raise ValueError if the model cannot train on data with `num_classes` classes or, for
        text, with a vocabulary of `num_classes` tokens.

        Args:
            num_classes: The number of classes or tokens that the data have.

        Raises:
            ValueError: If the model was configured for another number.
        """


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Card):
    """The base class of the cards of all optimizers, whose defaults are in `conf/optimizer/`.
    `builds` names a callable `(config, vector)`.
    """

    lr: Positive
    lr_rule: LrRule
    reference_batch: Count
    warmup_epochs: NonNegative
    schedule: Literal["constant", "cosine", "multistep", "one_cycle"]
    milestones: tuple[Positive, ...]
    gamma: Positive
    weight_decay: NonNegative
    decay_norm_and_bias: bool

    needs_global_norm: ClassVar[bool] = False

    known_for_fednova: ClassVar[bool] = False
    """True if FedNova's paper says how to count the steps of this optimizer."""

    @property
    def needs_layer_norms(self) -> bool:
        """True if a step of this optimizer needs the norm of each whole layer, as a step of LARS or
        LAMB does.
        """
        return False

    @property
    def rate_follows_batch(self) -> bool:
        """True if the learning-rate rule raises the learning rate with the batch size."""
        return self.lr_rule in ("linear", "sqrt", "adascale")

    @property
    def measures_noise(self) -> bool:
        """True if the learning-rate rule uses the gradient noise scale."""
        return self.lr_rule == "adascale"

    def problems(self, point: Point) -> Iterator[str]:
        if self.schedule == "multistep" and not self.milestones:
            yield (
                "optimizer.schedule=multistep needs optimizer.milestones, in epochs, such as "
                "[30,40]."
            )
        if self.warmup_epochs > point.epochs:
            yield (
                f"optimizer.warmup_epochs={self.warmup_epochs:g} is longer than "
                f"epochs={point.epochs}: the learning rate would never reach its base value. Use a "
                "shorter warm-up or more epochs."
            )


@dataclass(frozen=True, kw_only=True)
class StrategyConfig(Card):
    """The base class of the cards of all strategies. `builds` names a callable `(config, strategy,
    place, paths)` that returns a `bsweep.strategies.Strategy`.
    """

    kind_can: ClassVar[Capabilities] = Capabilities()
    """Capabilities of the strategy that do not depend on its settings; `can` adds those that do."""

    @property
    def can(self) -> Capabilities:
        """The capabilities that the strategy has with the settings of this card.

        Other code asks only for these capabilities.
        """
        return self.kind_can

    @property
    def patience_seconds(self) -> float:
        """The seconds without a sign of life from a worker after which the other workers treat this
        worker as lost.
        """
        return float("inf")

    @property
    def local_steps(self) -> int:
        """The number of optimizer steps that a worker makes between two synchronisations."""
        return 1

    def with_local_steps(self, local_steps: int) -> Self:
        """Return a copy of this card in which a worker makes `local_steps` optimizer steps between
        two synchronisations.

        Args:
            local_steps: The optimizer steps of a worker between two synchronisations.

        Returns:
            A card of the same class.
        """
        assert local_steps == self.local_steps, f"{self.name} has no steps to share"
        return self

    @property
    def ends_after(self) -> tuple[int | None, float | None]:
        """The number of rounds and the seconds of training after which a run ends, even if epochs
        are left.

        None stands for no limit.
        """
        return None, None

    def num_shards(self, num_workers: int) -> int:
        """Return the number of shards into which parameter servers divide the parameters; 0 for a
        strategy without servers.

        Args:
            num_workers: The number of workers.

        Returns:
            The number of slices.
        """
        return 0

    def num_server_processes(self, num_workers: int) -> int:
        """Return the number of parameter-server processes, which run in addition to the workers.

        Args:
            num_workers: The number of workers.

        Returns:
            The number of processes.
        """
        return 0

    @property
    def in_probe(self) -> StrategyConfig:
        """The card of the strategy that a probe (a short measurement) runs instead of this
        strategy.

        The other strategy exchanges the whole vector at each step, and does not overlap the
        exchange with computation.
        """
        return self

    @property
    def vectors_held(self) -> int:
        """The number of parameter-sized vectors that a worker needs for this strategy in addition
        to those that a probe measures.

        A probe runs the strategy `in_probe`. The vectors of the model and its optimizer are not
        counted.
        """
        return 0

    @property
    def vectors_of_first_step(self) -> int:
        """The number of the vectors counted by `vectors_held` that a worker allocates only at its
        first step.
        """
        return 0

    def rate_batch(self, point: Point, rank: int) -> float:
        """Return the batch size, in examples per optimizer step, from which the learning-rate rule
        computes a worker's learning rate.

        Args:
            point: The point.
            rank: The worker's rank, from 0.

        Returns:
            The number of examples.
        """
        return point.examples_per_step

    def hashed(self, point: Point) -> dict[str, Any]:
        """Return values, by name, that are hashed into a run's id together with the settings of the
        run's point.

        Args:
            point: The point.

        Returns:
            Plain values by name; empty if the keys say everything.
        """
        return {}

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that hold settings of this strategy for its exchange
        library, which reads them only when it starts in a process.

        Returns:
            The values by the names of the variables.
        """
        return {}

    def refuse_started(self, variables: Mapping[str, str]) -> None:
        """Raise ValueError if processes have already started with environment variables that
        contradict the settings of this strategy.

        Args:
            variables: The environment variables of the processes, by name.

        Raises:
            ValueError: If the variables differ from what the card needs.
        """

    def problems(self, point: Point) -> Iterator[str]:
        if why_not := point.launch.why_not(self):
            yield why_not
        if point.evaluate_every_examples and self.can.why_apart:
            yield (
                f"evaluate_every_examples={point.evaluate_every_examples} needs one model of all "
                f"workers: {self.can.why_apart}. Or evaluate at the ends of epochs only, with "
                "evaluate_every_examples=null."
            )
        if point.precision == "fp16" and self.can.why_no_fp16:
            yield f"precision=fp16 with strategy={self.name}: {self.can.why_no_fp16}"


@dataclass(frozen=True, kw_only=True)
class CodecConfig(Card):
    """The base class of the cards of all codecs. `builds` names a callable `(config, setting)` that
    returns a `bsweep.compression.Codec`; it is empty if nothing is compressed.
    """

    def payload_share(self, epochs: int) -> float | None:
        """Return the ratio of the bytes of a gradient that this codec compressed to the bytes of
        the fp32 gradient. Return None if compressed gradients are summed during the exchange.

        Args:
            epochs: The number of epochs of the run, over which the share may change.

        Returns:
            The ratio, such as 0.03125 for one bit instead of 32, or None.
        """
        return None

    def warnings(self, point: Point) -> Iterator[str]:
        """Yield a warning if a worker sends at least as many bytes with this codec as in a ring
        all-reduce without a codec. With a codec every worker gets every compressed gradient, while
        a ring sends twice the vector.

        Args:
            point: The point, which has no conflicts.

        Yields:
            The message, at most one.
        """
        share, workers = self.payload_share(point.epochs), point.num_workers
        if share is not None and workers > 1 and share >= 2 / workers:
            yield (
                f"compression={self.name} saves no traffic with {workers} workers: each worker "
                f"sends {(workers - 1) * share:.3g} times the bytes of its gradient, while a ring "
                f"all-reduce with compression=none sends {2 * (workers - 1) / workers:.3g} times "
                "these bytes"
            )


@dataclass(frozen=True, kw_only=True)
class AllocationConfig(Card):
    """The base class of the cards of all allocations, whose defaults are in `conf/allocation/`. The
    allocation fills in the lists that are null.

    `builds` names a callable `(config, allocation)` that returns the run's configuration with its
    lists filled in.
    """

    devices: tuple[str, ...] | None
    probe: PathName | None
    local_batches: tuple[Count, ...] | None
    local_steps: tuple[Count, ...] | None

    changes_no_number: ClassVar[tuple[str, ...]] = ("probe", "devices")

    shares_batches: ClassVar[bool] = False
    shares_steps: ClassVar[bool] = False

    takes_devices: ClassVar[bool] = False
    """True if the allocation uses the workers' nominal FLOP/s, which the key `devices` can give
    without a probe.
    """

    asks_exchange: ClassVar[bool] = False
    """True if the allocation uses the measured time of an exchange."""

    fills_memory: ClassVar[bool] = False
    """True if the allocation gives each worker the largest batch that fitted into its memory in a
    probe.
    """

    @property
    def adapts(self) -> bool:
        """True if the allocation changes the workers' numbers of local steps during a run, when
        their speeds change.
        """
        return False

    def problems(self, point: Point) -> Iterator[str]:
        for key, values in (
            ("local_batches", self.local_batches),
            ("local_steps", self.local_steps),
        ):
            if values is not None and len(values) != point.num_workers:
                yield (
                    f"allocation.{key}={show(values)} has {len(values)} numbers for "
                    f"num_workers={point.num_workers}: give one for each worker."
                )
        if not point.strategy.can.takes_local_steps and (
            self.shares_steps or self.local_steps is not None
        ):
            steps = f"allocation.local_steps={show(self.local_steps)}"
            key_and_value = f"allocation={self.name}" if self.shares_steps else steps
            yield (
                f"{key_and_value} with strategy={point.strategy.name}: with this strategy, all "
                "workers take the same number of steps between two synchronisations. Use "
                "strategy=diloco, or allocation=batch_by_flops or batch_by_memory."
            )
        if point.global_batch is not None:
            yield from self._batch_problems(point, point.global_batch)

    def _batch_problems(self, point: Point, global_batch: int) -> Iterator[str]:
        uneven = self.local_batches is not None or self.shares_batches
        passes, workers = point.accumulation_steps, point.num_workers
        parts = passes * (1 if uneven else workers)
        if global_batch % parts:
            yield (
                f"global_batch={global_batch} cannot be divided by "
                f"{'' if uneven else f'num_workers={workers} x '}accumulation_steps={passes}: "
                f"choose a multiple of {parts}, such as "
                f"{max(1, round(global_batch / parts)) * parts}."
            )
        elif global_batch < workers * passes:
            yield (
                f"global_batch={global_batch} is too small for num_workers={workers} x "
                f"accumulation_steps={passes}: every worker needs an example for each pass. Use a "
                "larger global batch."
            )
        elif point.examples_per_step != global_batch:
            yield (
                f"allocation.local_batches={show(self.local_batches)} x "
                f"accumulation_steps={passes} sum to {point.examples_per_step}, but "
                f"global_batch={global_batch}: give global_batch={point.examples_per_step}, or "
                "other batches."
            )


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Card):
    """The base class of the cards of all launchers, whose defaults are in `conf/launch/`.

    `builds` names a subclass of `bsweep.launch.launcher.Launcher`, which is created without
    arguments.
    """

    slowdown: tuple[Slowdown, ...] | None
    memory_limit_mb: tuple[Megabytes, ...] | None
    threads_per_worker: Processes | None = None

    added_later: ClassVar[Mapping[str, object]] = {"threads_per_worker": None}

    starts_processes: ClassVar[bool] = True
    uses_horovod: ClassVar[bool] = False

    @property
    def num_retries(self) -> int:
        """The number of times that bsweep may start a point again after a failure that the point
        did not cause, such as a lost host.
        """
        return 0

    @property
    def named_hosts(self) -> str | None:
        """The hosts and their slots, such as `h1:4,h2:4`, that the user named or that the SLURM
        allocation has.

        None if the user named no hosts, or named those of an allocation but is outside one.
        """
        return None

    def why_not(self, strategy: StrategyFacts) -> str:
        """Return the reason why this launcher cannot start the processes of a strategy, with the
        remedy; an empty text if it can.

        Args:
            strategy: The card of the strategy.

        Returns:
            The reason in a sentence, or an empty text.
        """
        launchers = strategy.can.launchers
        if not launchers or self.name in launchers:
            return ""
        return (
            f"launch={self.name} cannot start strategy={strategy.name}: use "
            f"launch={' or '.join(launchers)}."
        )

    def problems(self, point: Point) -> Iterator[str]:
        if self.slowdown is not None and len(self.slowdown) != point.num_workers:
            yield (
                f"launch.slowdown={show(self.slowdown)} has {len(self.slowdown)} factors for "
                f"num_workers={point.num_workers}: give one for each worker, and 1 for a worker at "
                "its full speed."
            )
        if self.memory_limit_mb is not None and len(self.memory_limit_mb) != point.num_workers:
            yield (
                f"launch.memory_limit_mb={show(self.memory_limit_mb)} has "
                f"{len(self.memory_limit_mb)} limits for num_workers={point.num_workers}: give one "
                "for each worker."
            )
