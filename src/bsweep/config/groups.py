"""The base classes of the cards, one for each group such as `strategy`; only that of `batching` is
in the module `config.batching`. A base class declares the facts that other code may ask of every
variant of its group.

The cards of the variants are in the modules of the groups, such as `config.strategies`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

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

    `builds` names a module with two functions. `info(config)` returns the facts about the data set.
    If needed, it downloads, decodes and caches the data first; once that is done, it needs no
    torch. `load(config)` returns the complete data set on the CPU. Both raise ValueError if the
    user can mend what is wrong.
    """

    subset: Count | None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    validation_share: Share | None = None
    """The share of the training examples on which a run is evaluated during training; the test set
    is then used only once, at the end. If None, every evaluation uses the test set.
    """

    consists_of: ClassVar[Kind]

    files: ClassVar[tuple[str, ...]] = ()
    """Keys that name files or folders of the user, which have no known checksum and must have the
    same content on all hosts.
    """

    of_no_example: ClassVar[tuple[str, ...]] = ("subset", "validation_share")
    """Keys that change neither the time nor the memory that one example takes in training."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Card):
    """The base class of the cards of all models. `builds` names a callable `(config, *,
    num_classes, shape)` that returns a new module.
    """

    learns_from: ClassVar[Kind | None] = "images"
    """The kind of examples that the model trains on; None if it takes any kind."""

    has_batchnorm: ClassVar[bool | None] = False
    """True if the model has BatchNorm layers; None if only the built module can tell, see
    `bsweep.models.check_model`.
    """

    casts_images_first: ClassVar[bool] = False
    """True if all that the model does with its images is to convolve them, for which autocast
    rounds them to half precision. So they may be rounded before.
    """

    block_names: ClassVar[tuple[str, ...]] = ()
    """The value of `names_of_blocks` for models that always have the same."""

    tensor_plan: ClassVar[str] = ""
    """The name of a callable `(model)` that returns the plan by which `strategy=tensor` divides the
    model's layers among workers, see `bsweep.models.plans`; empty if there is none.
    """

    pieces: ClassVar[str] = ""
    """The function that takes the model and returns its pieces, as `module:name`; see
    `bsweep.models.pieces`. If empty, only the model itself may have pieces.
    """

    @property
    def names_of_blocks(self) -> tuple[str, ...]:
        """The names of the model's blocks, as `torch.nn.Module.named_modules` has them, with `*`
        for any characters between two dots. If empty, `bsweep.models.blocks` chooses blocks by
        their size.
        """
        return self.block_names

    def resolved(self) -> Self:
        """Return this card with the hash of its file of pretrained weights, if it names one.

        Returns:
            A card of the same class.

        Raises:
            ConfigError: If the file cannot be read.
        """
        return self

    def problems(self, point: Point) -> Iterator[str]:
        if self.has_batchnorm:
            yield from self.lone_examples(point)
        yield from self.problems_of_parts(point.strategy, point.num_workers)
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

    def problems_of_parts(self, strategy: StrategyFacts, num_workers: int) -> Iterator[str]:
        """Yield an error message, with the remedy, for each reason why so many workers cannot
        divide the layers of this model as a strategy does.

        Args:
            strategy: The strategy.
            num_workers: The number of workers.

        Yields:
            One message for each conflict.
        """
        if strategy.can.splits_layers and not self.tensor_plan:
            yield (
                f"strategy={strategy.name} with model={self.name}: the model has no plan of how to "
                "divide its layers. Use model=llama_tiny, llama_150m or vgg16, a model=own with a "
                "method tensor_plan, or strategy=sharded."
            )
        parts = strategy.num_parts(num_workers)
        if strategy.can.splits_layers and parts and self.divided_values % parts:
            yield (
                f"model={self.name} with strategy={strategy.name}: the {self.divided_values} "
                f"values between its large layers cannot be divided among the {parts} workers of "
                "a replica. Use fewer workers, or larger strategy.replicas."
            )

    @property
    def divided_values(self) -> int:
        """The number of values between large layers of which each worker of a replica has the same
        number if `tensor_plan` divides the model; 0 if only the model itself can tell.
        """
        return 0

    def lone_examples(self, point: Point) -> Iterator[str]:
        """Yield an error message if a worker would get local batches of one example, which are too
        small for a model with BatchNorm.

        Args:
            point: The point, which holds the local batches.

        Yields:
            The message with its remedy, at most one.
        """
        batches, number = point.local_batches, point.strategy.num_microbatches
        if number in batches:
            alike = set(batches) == {number}
            batch = f"local_batch={number}" if alike else f"local batches {show(batches)}"
            parts = f" in strategy.microbatches={number}" * (number > 1)
            yield (
                f"{batch}{parts} with model={self.name}: BatchNorm needs more than one example for "
                "its statistics. Use a batch that gives each worker two examples or more in a "
                f"pass, such as local_batch={2 * number}."
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
    `builds` names a callable `(config, vector)` that returns a `torch.optim.Optimizer`.
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
    def vectors_of_state(self) -> int | None:
        """The number of parameter-sized vectors of its state, such as momentum; None if unknown."""
        return None

    @property
    def needs_layer_norms(self) -> bool:
        """True if a step of this optimizer needs whole layers, as the norms of LARS and LAMB do."""
        return False

    @property
    def rate_follows_batch(self) -> bool:
        """True if a larger batch gives a larger learning rate by the learning-rate rule."""
        return self.lr_rule in ("linear", "sqrt", "adascale")

    @property
    def measures_noise(self) -> bool:
        """True if the learning-rate rule uses the measured gradient noise."""
        return self.lr_rule == "adascale"

    def problems(self, point: Point) -> Iterator[str]:
        if self.schedule == "multistep" and not self.milestones:
            yield (
                "optimizer.schedule=multistep needs optimizer.milestones, in epochs, such as "
                "[30,40]."
            )
        if self.warmup_epochs > point.epochs:
            yield (
                f"optimizer.warmup_epochs={show(self.warmup_epochs)} is longer than "
                f"epochs={point.epochs}: the warm-up would not end. Use a shorter warm-up or more "
                "epochs."
            )


@dataclass(frozen=True, kw_only=True)
class StrategyConfig(Card):
    """The base class of the cards of all strategies. `builds` names a callable `(config, strategy,
    place, paths)` that returns a `bsweep.strategies.Strategy`.
    """

    kind_can: ClassVar[Capabilities] = Capabilities()
    """Capabilities of the strategy, from which `can` starts; `can` sets those that depend on the
    strategy's settings.
    """

    @property
    def can(self) -> Capabilities:
        """The capabilities that the strategy has with the settings of this card."""
        return self.kind_can

    @property
    def local_steps(self) -> int:
        """The number of optimizer steps that a worker makes in a round. A strategy that averages
        parameters within its own steps, as `local_sgd` does, has rounds of one step.
        """
        return 1

    def with_local_steps(self, local_steps: int) -> Self:
        """Return this card with `local_steps` optimizer steps of a worker in a round.

        Args:
            local_steps: The number of steps; without a key for it, the card has only one value.

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
            The number of shards.
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

    def data_parallel_size(self, num_workers: int) -> int:
        """Return the number of workers, or of groups of workers, that each take a part of every
        batch. It is less than the number of workers if workers of one group compute the same
        examples together, each with its part of a model.

        Args:
            num_workers: The number of workers.

        Returns:
            The number of parts of a batch.
        """
        return num_workers

    @property
    def num_microbatches(self) -> int:
        """The number of parts of a local batch that follow one another in a pass."""
        return 1

    def problems_of_pieces(self, pieces: Sequence[str], num_workers: int) -> Iterator[str]:
        """Yield an error message, with the remedy, for each reason why a model cannot be cut as
        this card says. Only cards of strategies that cut models (`Capabilities.cuts_model`) are
        asked.

        Args:
            pieces: The names of the model's pieces, in their order.
            num_workers: The number of workers.

        Yields:
            One message for each conflict.
        """
        yield from ()

    def problems_of_layers(self, num_layers: int, num_shards: int) -> Iterator[str]:
        """Yield an error message, with the remedy, if servers that each hold whole layers are more
        than these.

        Args:
            num_layers: The number of the model's layers with parameters.
            num_shards: The number of servers.

        Yields:
            The message, at most one.
        """
        yield from ()

    def problems_of_workers(self, num_workers: int) -> Iterator[str]:
        """Yield an error message, with the remedy, for each reason why so many workers cannot
        share a model as this card says.

        Args:
            num_workers: The number of all workers.

        Yields:
            One message for each conflict.
        """
        yield from ()

    def sent_in_pass(
        self, num_workers: int, num_passes: int, precision: str = "fp32"
    ) -> tuple[float, float]:
        """Return by a formula what a worker of a split model sends in a pass, as the mean over
        workers and over the passes of a step.

        Args:
            num_workers: The number of all workers.
            num_passes: The passes of a step.
            precision: The precision in which the run computes.

        Returns:
            The bytes as a multiple of those of the model's parameters, and for each example of the
            replica as a multiple of what depends on the model, such as the size of activations.
        """
        return 0.0, 0.0

    def textbook_bubble(self, num_workers: int) -> float | None:
        """Return the share of a step in which a worker has nothing to do, if all stages take the
        same time and messages take none.

        Args:
            num_workers: The number of all workers.

        Returns:
            The share; None if there is no formula for it.
        """
        return 0.0

    def in_flight(self, part: int, num_workers: int) -> tuple[int, ...]:
        """Return of how many micro-batches a worker that holds stages of a model keeps activations
        when it keeps most.

        Args:
            part: The index of the worker among those of its replica.
            num_workers: The number of all workers.

        Returns:
            The number of micro-batches for each stage of the worker, in the order of its stages;
            empty if it holds none.
        """
        return ()

    @property
    def in_probe(self) -> StrategyConfig:
        """The card of the strategy that a probe (a short measurement) runs to measure this
        strategy.

        It is this card, or that of a strategy with the same all-reduce which exchanges the whole
        vector at each step and does not overlap the exchange with computation.
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

    def num_parts(self, num_workers: int) -> int:
        """Return the number of workers over which each replica of the model is split.

        Args:
            num_workers: The number of all workers.

        Returns:
            The number of workers of one replica; 1 if each worker holds the whole model.
        """
        return 1

    def parts_held(self, num_workers: int) -> tuple[int, int, int]:
        """Return into how many parts, of which each worker holds one, a replica's workers divide
        the parameters, the gradients and the optimizer's state.

        Args:
            num_workers: The number of all workers.

        Returns:
            The three numbers; by default all are `num_parts`.
        """
        return (self.num_parts(num_workers),) * 3

    def rate_batch(self, point: Point, rank: int) -> float:
        """Return the batch size, in examples per optimizer step, from which the learning-rate rules
        `linear` and `sqrt` compute a worker's learning rate.

        Args:
            point: The point.
            rank: The worker's rank, from 0.

        Returns:
            The number of examples.
        """
        return point.examples_per_step

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
        if point.launch.slowdown and self.kind_can.exchanges_in_passes:
            yield (
                f"launch.slowdown with strategy={self.name}: this strategy exchanges within the "
                "passes, so that a slowdown cannot stretch the computation alone. Use "
                "strategy=allreduce."
            )


@dataclass(frozen=True, kw_only=True)
class CodecConfig(Card):
    """The base class of the cards of all codecs. `builds` names a callable `(config, setting)` that
    returns a `bsweep.compression.Codec`; it is empty if nothing is compressed.
    """

    summed_share: ClassVar[float | None] = None
    """The part of the bytes of an fp32 gradient that remains, if compressed gradients are summed
    during the exchange and this part is the same for all models.
    """

    def payload_share(self, epochs: int) -> float | None:
        """Return about which part of the bytes of an fp32 gradient remains after compression, as a
        mean over the epochs. Return None if compressed gradients are summed during the exchange, if
        nothing is compressed, or for the user's own codec.

        Args:
            epochs: The number of epochs of the run, over which the share may change.

        Returns:
            The ratio, such as 0.03125 for one bit instead of 32, or None.
        """
        return None

    def warnings(self, point: Point) -> Iterator[str]:
        """Yield a warning if a worker sends at least as many bytes with this codec as in a ring
        all-reduce without a codec. This can happen if the codec has a `payload_share`: then every
        worker gets every other worker's compressed gradient.

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
    """The base class of the cards of all allocations, whose defaults are in `conf/allocation/`. An
    allocation fills in the lists that it chooses, unless the user gave them.

    `builds` names a callable `(config, allocation)` that returns the run's configuration with its
    lists filled in. It is called if the user has not given them.
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
        """True if the allocation may change the workers' numbers of local steps during a run."""
        return False

    def problems(self, point: Point) -> Iterator[str]:
        for key, values in (
            ("local_batches", self.local_batches),
            ("local_steps", self.local_steps),
        ):
            size = point.data_parallel_size
            if values is not None and len(values) != size:
                whose = "worker" if size == point.num_workers else "replica of the split model"
                yield (
                    f"allocation.{key}={show(values)} has {len(values)} numbers for "
                    f"num_workers={point.num_workers}: give one for each {whose}."
                )
        if not point.strategy.can.takes_local_steps and (
            self.shares_steps or self.local_steps is not None
        ):
            steps = f"allocation.local_steps={show(self.local_steps)}"
            key_and_value = f"allocation={self.name}" if self.shares_steps else steps
            other = "allocation=batch_by_flops or batch_by_memory"
            if self.local_steps is not None:
                other = "leave allocation.local_steps out" + f" and use {other}" * self.shares_steps
            yield (
                f"{key_and_value} with strategy={point.strategy.name}: this strategy takes no "
                "number of local steps for each worker. Use strategy=diloco, or "
                f"{other}."
            )
        if point.global_batch is not None:
            yield from self._batch_problems(point, point.global_batch)

    def _batch_problems(self, point: Point, global_batch: int) -> Iterator[str]:
        passes, workers = point.accumulation_steps, point.data_parallel_size
        if self.local_batches is not None:
            if point.examples_per_step != global_batch:
                yield (
                    f"allocation.local_batches={show(self.local_batches)} x "
                    f"accumulation_steps={passes} sum to {point.examples_per_step}, but "
                    f"global_batch={global_batch}: give global_batch={point.examples_per_step}, or "
                    "other batches."
                )
            return
        parts, least = passes * (1 if self.shares_batches else workers), passes * workers
        if global_batch % parts:
            yield (
                f"global_batch={global_batch} cannot be divided by "
                f"{'' if self.shares_batches else f'num_workers={workers} x '}"
                f"accumulation_steps={passes}: choose a multiple of {parts}, such as "
                f"{max(least, round(global_batch / parts) * parts)}."
            )
        elif global_batch < least:
            yield (
                f"global_batch={global_batch} is too small for num_workers={workers} x "
                f"accumulation_steps={passes}: every worker needs an example for each pass. Use "
                f"global_batch={least} or more."
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

        None if the launcher takes the hosts of an allocation but there is no allocation, or if it
        takes hosts that the user names and the user named none.
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
            f"launch={' or '.join(launchers)}"
            f"{', which runs one worker only' if launchers[-1] == 'inline' else ''}."
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
