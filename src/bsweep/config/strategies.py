"""The settings classes (cards) of the strategies, by which workers agree on one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import Self

from bsweep.config.allreduce import NATIVE, Algorithm, AllReduceConfig
from bsweep.config.capabilities import Capabilities
from bsweep.config.card import Point, clash
from bsweep.config.groups import StrategyConfig
from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.split_strategies import (
    DeepSpeedConfig,
    PipeDreamConfig,
    PipelineConfig,
    ShardedConfig,
    TensorConfig,
)
from bsweep.config.user_code import UserCode
from bsweep.config.values import (
    Count,
    Fraction,
    Megabytes,
    Natural,
    NonNegative,
    PathName,
    Positive,
    Seconds,
    show,
)

CYCLE_VARIABLE = "HOROVOD_CYCLE_TIME"
GPU_CYCLE_MS = 0.1
"""The cycle time of Horovod on GPUs in place of its default, in milliseconds."""


class SingleConfig(StrategyConfig):
    """One worker that exchanges nothing."""

    name: Literal["single"]

    brings: ClassVar[Mapping[str, str]] = {}
    builds: ClassVar[str] = "bsweep.strategies.single:Single"
    kind_can: ClassVar[Capabilities] = Capabilities(replicates=True)

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if point.num_workers > 1:
            remedy = "it exchanges nothing. Use strategy=horovod."
            yield clash(point, "strategy num_workers", remedy)


class HorovodConfig(StrategyConfig):
    """Horovod: ring all-reduce of the gradient vector, with Gloo on CPUs and NCCL on GPUs."""

    name: Literal["horovod"]
    op: Literal["average", "adasum"] = "average"
    """average | adasum (needs a Horovod built with MPI)"""
    buckets: Count = 1
    """parts of the vector; with more than one, parts travel during the backward pass"""
    fusion_threshold_mb: Annotated[NonNegative, Field(le=2**20)] = 128.0
    """MiB of tensors that Horovod sends as one; Horovod's default"""
    cycle_time_ms: Annotated[Positive, Field(le=1e6)] = 1.0
    """milliseconds between two exchanges of Horovod; 1.0 is Horovod's default, in whose place GPUs
    use 0.1
    """
    cache_capacity: Natural = 1024
    """responses that Horovod caches; Horovod's default"""

    brings: ClassVar[Mapping[str, str]] = {}
    builds: ClassVar[str] = "bsweep.strategies.horovod:Horovod"
    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("horovodrun", "inline"),
        uses_horovod=True,
        takes_codecs=True,
        replicates=True,
    )

    knobs: ClassVar[Mapping[str, tuple[str, int]]] = {
        "fusion_threshold_mb": ("HOROVOD_FUSION_THRESHOLD", 2**20),
        "cycle_time_ms": (CYCLE_VARIABLE, 1),
        "cache_capacity": ("HOROVOD_CACHE_CAPACITY", 1),
    }
    """The keys of settings that Horovod reads only once, from environment variables, when it starts
    in a process. Each has its variable, and the factor from the key's unit to the variable's.
    """

    @property
    def can(self) -> Capabilities:
        no_sum = "strategy.op=adasum does not sum gradients. Use strategy.op=average"
        is_adasum = self.op == "adasum"
        return replace(
            self.kind_can,
            exchanges_in_passes=self.buckets > 1,
            needs_mpi=is_adasum,
            takes_mean=not is_adasum,
            why_no_noise=no_sum if is_adasum else "",
        )

    def variables(self) -> dict[str, str]:
        """Return the environment variables for those settings of Horovod that differ from Horovod's
        defaults. Horovod 0.28.1 cannot restart if any of them is set.
        """
        return {
            variable: _horovod_value(getattr(self, key), unit)
            for key, (variable, unit) in self.knobs.items()
            if getattr(self, key) != getattr(HorovodConfig, key)
        }

    def refuse_started(self, variables: Mapping[str, str]) -> None:
        for key, (variable, unit) in self.knobs.items():
            wanted = _horovod_value(getattr(self, key), unit)
            started = float(variables.get(variable, getattr(HorovodConfig, key) * unit))
            if float(wanted) != started:
                raise ValueError(
                    f"strategy.{key}={getattr(self, key)}, but horovodrun started its processes "
                    f"with {started / unit}, and Horovod reads this value only then: start "
                    f"{variable}={wanted} horovodrun ..., or use the other value."
                )

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if not point.compression.builds:
            return
        if self.op == "adasum":
            remedy = "a codec needs the sum of the gradients. Use strategy.op=average."
            yield clash(point, "strategy.op compression", remedy)
        if self.buckets > 1:
            remedy = "a codec takes the whole gradient. Use strategy.buckets=1."
            yield clash(point, "strategy.buckets compression", remedy)


def _horovod_value(value: float, unit: int) -> str:
    """Return a setting as the environment variable of Horovod takes it, in units such as bytes,
    without rounding, and without a decimal point if it is whole.
    """
    return str(int(value * unit)) if unit > 1 or value == int(value) else repr(value)


class DDPConfig(StrategyConfig):
    """torch's DistributedDataParallel: all-reduce in buckets during the backward pass, with Gloo on
    CPUs and NCCL on GPUs.
    """

    name: Literal["ddp"]
    hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """none | fp16 | bf16 | powersgd: DDP's own communication hooks"""
    powersgd_rank: Count = 1
    """rank of hook=powersgd"""
    bucket_mb: Annotated[Megabytes, Field(le=2**20)] = 25.0
    """MiB of gradients that travel together"""

    in_probe: ClassVar[AllReduceConfig] = NATIVE
    builds: ClassVar[str] = "bsweep.strategies.ddp:DDP"
    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("torchrun",),
        own_compression=" strategy.hook is DDP's own compression.",
        exchanges_in_passes=True,
        needs_each_gradient=True,
        # Each run's process group stays in the process, with its connections and threads; see
        # `bsweep.strategies.ddp`.
        leaves_processes_clean=False,
    )

    @property
    def can(self) -> Capabilities:
        no_noise = f"strategy.hook={self.hook} changes the gradient. Use strategy.hook=none"
        no_cpu = "strategy.hook=bf16 needs GPUs, with NCCL: use strategy.hook=fp16 or none on CPUs."
        no_fp16 = (
            "strategy.hook=powersgd would keep a gradient that overflowed. Use precision=bf16 or "
            "fp32, or strategy=allreduce compression=powersgd."
        )
        is_powersgd = self.hook == "powersgd"  # each worker keeps the error of its compression
        return replace(
            self.kind_can,
            replicates=not is_powersgd,
            takes_mean=not is_powersgd,
            why_no_fp16=no_fp16 if is_powersgd else "",
            why_no_noise=no_noise if self.hook != "none" else "",
            why_no_cpu=no_cpu if self.hook == "bf16" else "",
        )

    @property
    def summed_share(self) -> float | None:
        """The share of the gradient's bytes that workers sum; None if it depends on the model."""
        return {"none": 1.0, "fp16": 0.5, "bf16": 0.5}.get(self.hook)

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if self.hook in ("fp16", "bf16") and point.precision == "fp64":
            yield clash(point, "precision strategy.hook", "use only one of them.")


class LocalSGDConfig(StrategyConfig):
    """Local SGD (Stich, arXiv 1805.09767): workers step alone and average their parameters from
    time to time.
    """

    name: Literal["local_sgd"]
    sync_every: Count = 8
    """steps between two averages; 1 is synchronous SGD"""
    warmup_steps: Natural = 0
    """first steps, averaged after each one (post-local SGD, arXiv 1808.07217)"""
    algorithm: Algorithm = "native"
    """ring | tree | native"""

    builds: ClassVar[str] = "bsweep.strategies.local_sgd:LocalSGD"
    kind_can: ClassVar[Capabilities] = Capabilities(launchers=("torchrun",), lockstep=False)

    @property
    def in_probe(self) -> AllReduceConfig:
        return AllReduceConfig(name="allreduce", algorithm=self.algorithm)

    def rate_batch(self, worker_batches: Sequence[int], rank: int) -> float:
        """Return the global batch divided by the number of workers. The rules `linear` and `sqrt`
        use this number for every worker: one with a larger batch counts for more through its loss,
        not through its learning rate.
        """
        return sum(worker_batches) / len(worker_batches)


class EitherConfig(StrategyConfig):
    """The base class of the cards of strategies whose workers exchange over torch.distributed or
    over Horovod, as the key `algorithm` says.
    """

    algorithm: Algorithm | Literal["horovod"] = "native"
    """algorithm of the exchange: ring | tree | native | horovod (with launch=horovodrun)"""

    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("torchrun", "horovodrun"), takes_codecs=True
    )

    @property
    def can(self) -> Capabilities:
        return replace(self.kind_can, uses_horovod=self.algorithm == "horovod")

    @property
    def in_probe(self) -> HorovodConfig | AllReduceConfig:
        if self.algorithm == "horovod":
            return HorovodConfig(name="horovod")
        return AllReduceConfig(name="allreduce", algorithm=self.algorithm)

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        wanted = "horovodrun" if self.can.uses_horovod else "torchrun"
        if point.launch.name != wanted and point.launch.name in ("torchrun", "horovodrun"):
            yield clash(point, "strategy.algorithm launch", f"Use launch={wanted}.")


class DiLoCoConfig(EitherConfig):
    """DiLoCo (Douillard et al., arXiv 2311.08105): an inner optimizer on each worker, and an outer
    one for the average of their changes.
    """

    name: Literal["diloco"]
    sync_every: Count = 100
    """local steps of a round (H); an allocation may give each worker its own"""
    outer_lr: Positive = 0.7
    """learning rate of the outer optimizer"""
    outer_momentum: Fraction = 0.9
    """its momentum"""
    outer_nesterov: bool = True
    """true: Nesterov's momentum for it"""
    weighting: Literal["uniform", "examples", "fednova"] = "examples"
    """weights of workers in the outer gradient: uniform | examples | fednova"""
    weights: tuple[NonNegative, ...] | None = None
    """[0.3,0.7]: use these weights of workers instead"""
    max_rounds: Count | None = None
    """end after this number of rounds ..."""
    max_seconds: Seconds | None = None
    """... or after the round in which the training time exceeds this"""

    brings: ClassVar[Mapping[str, str]] = {**EitherConfig.brings, "optimizer": "adamw_diloco"}
    builds: ClassVar[str] = "bsweep.strategies.diloco:DiLoCo"
    kind_can: ClassVar[Capabilities] = replace(
        EitherConfig.kind_can, lockstep=False, takes_local_steps=True
    )

    @property
    def local_steps(self) -> int:
        return self.sync_every

    def with_local_steps(self, local_steps: int) -> Self:
        return replace(self, sync_every=local_steps)

    @property
    def ends_after(self) -> tuple[int | None, float | None]:
        return self.max_rounds, self.max_seconds

    vectors_held: ClassVar[int] = 2  # the anchor and the outer momentum
    vectors_of_first_step: ClassVar[int] = 1  # the outer momentum

    def rate_batch(self, worker_batches: Sequence[int], rank: int) -> float:
        """Return the examples of one step of the worker with this rank. The rules `linear` and
        `sqrt` compute the worker's learning rate from this number. Other workers' examples do not
        count, because each worker steps by itself.
        """
        return worker_batches[rank]

    def warnings(self, point: Point) -> Iterator[str]:
        """Yield a warning if the strategy weights workers as FedNova does, but the paper on FedNova
        does not say how to count the steps of the optimizer.
        """
        is_fednova = self.weighting == "fednova" and not self.weights
        if is_fednova and not point.optimizer.known_for_fednova:
            yield (
                f"strategy.weighting=fednova counts steps of optimizer={point.optimizer.name} as "
                "SGD's, because FedNova's paper does not have this optimizer: use optimizer=sgd, "
                "or another strategy.weighting"
            )

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        weights = self.weights
        if weights and (len(weights) != point.num_workers or abs(sum(weights) - 1) > 1e-6):
            yield (
                f"strategy.weights={show(weights)}: {len(weights)} weights sum to "
                f"{sum(weights):.9g}, and num_workers={point.num_workers}. Give each worker one, "
                "so that they sum to 1."
            )


class OwnStrategyConfig(UserCode, EitherConfig):
    """A strategy of your own: a callable takes (config, strategy, world, paths, **options) and
    returns a bsweep.strategies.Strategy.
    """

    name: Literal["own"]
    target: PathName
    """strategy.target=mystrategy.py:Mine or package.module:name"""
    algorithm: Algorithm | Literal["horovod"] = "native"
    """ring | tree | native, which the strategy may use | horovod: type launch=horovodrun"""
    sync_every: Count = 1
    """local steps between synchronisations, for a strategy that inherits bsweep.strategies.Rounds
    """

    builds: ClassVar[str] = "bsweep.strategies.own:build"
    takes: ClassVar[tuple[str, ...]] = ("config", "strategy", "world", "paths")
    kind_can: ClassVar[Capabilities] = replace(
        EitherConfig.kind_can,
        launchers=("torchrun", "horovodrun", "inline"),
        exchanges_in_passes=None,
        leaves_processes_clean=False,  # the user's code may leave anything behind
    )

    @property
    def local_steps(self) -> int:
        return self.sync_every


class ProgramStrategyConfig(StrategyConfig):
    """The exchange of your own program, such as Horovod's or DDP's, see program=own."""

    name: Literal["program"]

    brings: ClassVar[Mapping[str, str]] = {}
    kind_can: ClassVar[Capabilities] = Capabilities(
        exchanges_in_passes=None,
        leaves_processes_clean=False,  # the user's code may leave anything behind
    )


AnyStrategy = Annotated[
    SingleConfig
    | HorovodConfig
    | DDPConfig
    | AllReduceConfig
    | ParameterServerConfig
    | LocalSGDConfig
    | DiLoCoConfig
    | ShardedConfig
    | TensorConfig
    | PipelineConfig
    | PipeDreamConfig
    | DeepSpeedConfig
    | OwnStrategyConfig
    | ProgramStrategyConfig,
    Field(discriminator="name"),
]
