"""The base classes of the cards, one for each group such as `strategy`; only that of `batching` is
in the module `config.batching`. A base class declares the facts that other code may ask of every
variant of its group.

The cards of the variants are in the modules of the groups, such as `config.strategies`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from typing_extensions import Self

from bsweep.config.capabilities import Capabilities
from bsweep.config.card import Card, Point, clash
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


class DataConfig(Card):
    """The base class of the cards of all data sets.

    `builds` names a module with two functions. `info(config)` returns the facts about the data set.
    If needed, it downloads, decodes and caches the data first; once that is done, it needs no
    torch. `load(config)` returns the complete data set on the CPU. Both raise ValueError if the
    user can mend what is wrong.
    """

    subset: Count | None = None
    """train on this many examples only; null: all"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: keep examples on the GPU if they take at most half of its free memory | cuda | cpu:
    stream them
    """
    validation_share: Share | None = None
    """0.1: evaluate on this share of the training examples, and on the test set only once, at the
    end
    """

    consists_of: ClassVar[Kind]

    files: ClassVar[tuple[str, ...]] = ()
    """Keys that name files or folders of the user, which have no known checksum and must have the
    same content on all hosts.
    """

    of_no_example: ClassVar[tuple[str, ...]] = (
        *("subset", "validation_share", "num_train", "num_test"),
        *("root", "download", "skip_broken"),
    )
    """Keys that change neither the time nor the memory that one example takes in training; a card
    has some of them.
    """


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

    def problems(self, point: Point) -> Iterator[str]:
        if self.has_batchnorm:
            yield from self.lone_examples(point)
        yield from self.problems_of_parts(point.strategy, point.num_workers)
        if {self.learns_from, point.data.consists_of} == {"images", "text"}:
            yield (
                f"model={self.name} learns from {self.learns_from}, but data={point.data.name} "
                f"holds {point.data.consists_of}: use model=llama_tiny with data=text "
                "data.path=FILE, or model=resnet18 with data=digits."
            )

    def problems_of_parts(self, strategy: StrategyConfig, num_workers: int) -> Iterator[str]:
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
                f"strategy={strategy.name} with model={self.name}: the model has no plan to divide "
                "its layers. Use model=llama_tiny or vgg16, a model=own with a method tensor_plan, "
                "or strategy=sharded."
            )
        parts = strategy.num_parts(num_workers)
        uneven = [str(number) for number in self.divided if parts and number % parts]
        if strategy.can.splits_layers and uneven:
            yield (
                f"model={self.name} with strategy={strategy.name}: {parts} workers of a replica "
                f"cannot divide {' and '.join(uneven)} evenly. Use fewer workers, or more "
                "strategy.replicas."
            )

    @property
    def divided(self) -> tuple[int, ...]:
        """The numbers, such as that of the values between large layers, of which each worker of a
        replica has the same part if `tensor_plan` divides the model; empty if only the model itself
        can tell.
        """
        return ()

    def lone_examples(self, point: Point) -> Iterator[str]:
        """Yield an error message if a worker would get local batches of one example, which are too
        small for a model with BatchNorm.

        Args:
            point: The point, which holds the local batches.

        Yields:
            The message with its remedy, at most one.
        """
        allocated, number = point.allocation.local_batches, point.strategy.num_microbatches
        if number in point.local_batches:
            key, remedy = "local_batch", f"Use local_batch={2 * number}"
            if allocated:
                key, remedy = "allocation.local_batches", f"Give each worker {2 * number} or more"
            parts = f" in strategy.microbatches={number}" if number > 1 else ""
            yield (
                f"{key}={show(allocated or number)}{parts} with model={self.name}: BatchNorm needs "
                f"two examples or more at a time. {remedy}."
            )

    def check_num_classes(self, num_classes: int) -> None:
        """Raise ValueError if the model cannot train on data with `num_classes` classes or, for
        text, with a vocabulary of `num_classes` tokens.

        Args:
            num_classes: The number of classes or tokens that the data have.

        Raises:
            ValueError: If the model was configured for another number.
        """


class OptimizerConfig(Card):
    """The base class of the cards of all optimizers. `builds` names a callable `(config, vector)`
    that returns a `torch.optim.Optimizer`.
    """

    lr: Positive
    """learning rate, before lr_rule and schedule change it"""
    lr_rule: LrRule = "fixed"
    """fixed | per_worker (lr x workers) | linear | sqrt (of a step's batch / reference_batch) |
    adascale (x AdaScale's gain)
    """
    reference_batch: Count = 128
    """the batch at which linear and sqrt give lr itself: the global batch, or the batch of a worker
    that steps alone
    """
    warmup_epochs: NonNegative = 0.0
    """linear, from near zero"""
    schedule: Literal["constant", "cosine", "multistep", "one_cycle"] = "constant"
    """constant | cosine | multistep | one_cycle"""
    milestones: tuple[Positive, ...] = ()
    """multistep: epochs after which the rate is multiplied by gamma"""
    gamma: Positive = 0.1
    """factor of the rate at each milestone"""
    weight_decay: NonNegative = 0.0
    """weight decay; 0: none"""
    decay_norm_and_bias: bool = True
    """false: vectors (normalisation layers and biases) have no weight decay"""

    needs_global_norm: ClassVar[bool] = False

    needs_layer_norms: ClassVar[bool] = False
    """True if a step of this optimizer needs whole layers, as the norms of LARS and LAMB do."""

    known_for_fednova: ClassVar[bool] = False
    """True if FedNova's paper says how to count the steps of this optimizer."""

    @property
    def vectors_of_state(self) -> int | None:
        """The number of parameter-sized vectors of its state, such as momentum; None if unknown."""
        return None

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
            yield "optimizer.schedule=multistep needs epochs: optimizer.milestones=[30,40]."
        if self.warmup_epochs > point.epochs:
            yield clash(point, "optimizer.warmup_epochs epochs", "use a shorter warm-up.")


class StrategyConfig(Card):
    """The base class of the cards of all strategies. `builds` names a callable `(config, strategy,
    world, paths)` that returns a `bsweep.strategies.Strategy`.
    """

    brings: ClassVar[Mapping[str, str]] = {"launch": "torchrun"}

    kind_can: ClassVar[Capabilities] = Capabilities()
    """Capabilities of the strategy, from which `can` starts; `can` sets those that depend on the
    strategy's settings.
    """

    vectors_held: ClassVar[int] = 0
    """The number of parameter-sized vectors that a worker needs for this strategy in addition to
    those that a probe measures.

    A probe runs the strategy `in_probe`. The vectors of the model and its optimizer are not
    counted.
    """

    vectors_of_first_step: ClassVar[int] = 0
    """The number of the vectors counted by `vectors_held` that a worker allocates only at its first
    step.
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

    @property
    def in_probe(self) -> StrategyConfig:
        """The card of the strategy that a probe (a short measurement) runs to measure this
        strategy.

        It is this card, or that of a strategy with the same all-reduce which exchanges the whole
        vector at each step and does not overlap the exchange with computation.
        """
        return self

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

    def rate_batch(self, worker_batches: Sequence[int], rank: int) -> float:
        """Return the batch size, in examples per optimizer step, from which the learning-rate rules
        `linear` and `sqrt` compute a worker's learning rate.

        By default these are the examples of one step of all workers.

        Args:
            worker_batches: The examples of one step of each worker. Workers that hold parts of one
                replica of a model count as one.
            rank: The index of the worker among these, from 0.

        Returns:
            The number of examples.
        """
        return sum(worker_batches)

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
            remedy = f"{self.can.why_apart}, or evaluate_every_examples=null."
            yield clash(point, "evaluate_every_examples strategy", remedy)
        if point.precision == "fp16" and self.can.why_no_fp16:
            yield clash(point, "precision strategy", self.can.why_no_fp16)
        if point.launch.slowdown and self.kind_can.exchanges_in_passes:
            remedy = "it would stretch the exchange within passes, too. Use strategy=allreduce."
            yield clash(point, "launch.slowdown strategy", remedy)
        if point.channels_last is True and not self.can.stores_channels_last:
            remedy = "it divides tensors that are stored contiguously. Leave channels_last out."
            yield clash(point, "channels_last strategy", remedy)
        if point.compile and self.can.exchanges_in_passes is not False:
            remedy = "it needs gradients one by one within the passes. Leave compile out."
            yield clash(point, "compile strategy", remedy)


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

    def problems(self, point: Point) -> Iterator[str]:
        can = point.strategy.can
        if self.builds and not can.takes_codecs:
            remedy = f"it takes no codec.{can.own_compression} Use strategy=horovod or allreduce."
            yield clash(point, "compression strategy", remedy)

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
                f"compression={self.name} saves no traffic with {workers} workers: each sends "
                f"{(workers - 1) * share:.3g} times the bytes of its gradient, and with "
                f"compression=none, in a ring, {2 * (workers - 1) / workers:.3g} times"
            )


class AllocationConfig(Card):
    """The base class of the cards of all allocations. An allocation fills in the lists that it
    chooses, unless the user gave them.

    `builds` names a callable `(config, allocation)` that returns the run's configuration with its
    lists filled in. It is called if the user has not given them.
    """

    devices: tuple[str, ...] | None = None
    """["4 A30","3 RTX 2080 Ti + TITAN RTX"]: for *_by_flops: by worker, from conf/devices.yaml;
    null: the probe's
    """
    probe: PathName | None = None
    """what `bsweep probe` wrote; null: probe.json in the study's folder"""
    local_batches: tuple[Count, ...] | None = None
    """[4,4,6,5]: examples per forward pass, by worker; null: what the policy chooses"""
    local_steps: tuple[Count, ...] | None = None
    """[100,104,145,117]: steps between synchronisations, by worker; null: as above"""

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
        size = point.data_parallel_size
        for key in ("local_batches", "local_steps"):
            values = getattr(self, key)
            if values is not None and len(values) != size:
                remedy = f"it has {len(values)} numbers. Give {size}."
                yield clash(point, f"allocation.{key} num_workers", remedy)
        if self.shares_batches and not self.local_batches and size != point.num_workers:
            remedy = "the workers of a replica take the same examples. Use allocation=uniform."
            yield clash(point, "allocation strategy", remedy)
        if not point.strategy.can.takes_local_steps and (self.shares_steps or self.local_steps):
            keys = "allocation strategy" if self.shares_steps else "allocation.local_steps strategy"
            remedy = "use strategy=diloco, or share batches, as by allocation=batch_by_flops."
            yield clash(point, keys, remedy)
        if point.global_batch is not None:
            yield from self._batch_problems(point, point.global_batch)

    def _batch_problems(self, point: Point, global_batch: int) -> Iterator[str]:
        passes, workers = point.accumulation_steps, point.data_parallel_size
        parts, least = passes * (1 if self.shares_batches else workers), passes * workers
        if self.local_batches is None:
            if global_batch % parts or global_batch < least:
                yield (
                    f"global_batch={global_batch} cannot be divided among num_workers={workers} "
                    f"with accumulation_steps={passes}: use a multiple of {parts}, {least} or more."
                )
        elif point.examples_per_step != global_batch:
            yield clash(
                point,
                "allocation.local_batches accumulation_steps global_batch",
                f"the batches sum to {point.examples_per_step}. Give this global_batch.",
            )


class LaunchConfig(Card):
    """The base class of the cards of all launchers.

    `builds` names a subclass of `bsweep.launch.launcher.Launcher`, which is created without
    arguments.
    """

    slowdown: tuple[Slowdown, ...] | None = None
    """[1,1,2,1]: stretch the steps of each worker by its factor, by sleeping"""
    memory_limit_mb: tuple[Megabytes, ...] | None = None
    """[512,256]: MiB that the steps of each worker may take on a CPU, in addition to its data and
    model
    """
    threads_per_worker: Processes | None = None
    """threads that a worker computes with on a CPU; null: the cores of its machine divided by its
    workers
    """

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

    def why_not(self, strategy: StrategyConfig) -> str:
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
        for key in ("slowdown", "memory_limit_mb"):
            values = getattr(self, key)
            if values is not None and len(values) != point.num_workers:
                yield clash(point, f"launch.{key} num_workers", "give one for each worker.")
        if point.compile and self.memory_limit_mb:
            remedy = "the compiler would work in this memory, too. Leave one of them out."
            yield clash(point, "compile launch.memory_limit_mb", remedy)
