"""The settings classes (cards) of the optimizers, and the formulas of the learning-rate rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.card import Point, clash
from bsweep.config.groups import OptimizerConfig
from bsweep.config.user_code import UserCode
from bsweep.config.values import Fraction, LrRule, NonNegative, PathName, Positive


class MomentumConfig(OptimizerConfig):
    """The base class of the cards of optimizers with one momentum."""

    momentum: Fraction = 0.9
    """0: none"""
    nesterov: bool = False
    """true: Nesterov's momentum"""

    @property
    def vectors_of_state(self) -> int:
        return int(self.momentum > 0)

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if self.nesterov and not self.momentum:
            yield "optimizer.nesterov=true needs momentum: set optimizer.momentum=0.9."


class SGDConfig(MomentumConfig):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    lr: Positive = 0.01

    builds: ClassVar[str] = "bsweep.numerics.optim:sgd"
    known_for_fednova: ClassVar[bool] = True


class LARSConfig(MomentumConfig):
    """LARS (You et al., arXiv 1708.03888) from timm: a rate per layer, for large batches."""

    name: Literal["lars"]
    lr: Positive = 1.0
    weight_decay: NonNegative = 1.0e-4
    decay_norm_and_bias: bool = False
    """timm's LARS adapts the rate only for weights that decay"""
    trust_coefficient: Positive = 0.001
    """factor of each layer's own rate"""

    builds: ClassVar[str] = "bsweep.numerics.optim:lars"
    needs: ClassVar[tuple[str, ...]] = ("timm",)
    needs_layer_norms: ClassVar[bool] = True


class AdamConfig(OptimizerConfig):
    """The base class of the cards of optimizers with the two running means of Adam."""

    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """decay rates of the running means of the gradient and of its square"""
    eps: Positive
    """small number added to the denominator"""

    vectors_of_state: ClassVar[int] = 2


class AdamWConfig(AdamConfig):
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101)."""

    name: Literal["adamw"]
    lr: Positive = 0.001
    weight_decay: NonNegative = 0.01
    eps: Positive = 1.0e-8

    builds: ClassVar[str] = "bsweep.numerics.optim:adamw"


class LAMBConfig(AdamConfig):
    """LAMB (You et al., arXiv 1904.00962) from timm: a rate per layer on Adam's step, for large
    batches.
    """

    name: Literal["lamb"]
    lr: Positive = 0.005
    weight_decay: NonNegative = 0.01
    decay_norm_and_bias: bool = False
    eps: Positive = 1.0e-6

    builds: ClassVar[str] = "bsweep.numerics.optim:lamb"
    needs: ClassVar[tuple[str, ...]] = ("timm",)
    needs_layer_norms: ClassVar[bool] = True
    needs_global_norm: ClassVar[bool] = True


class OwnOptimizerConfig(UserCode, OptimizerConfig):
    """An optimizer of your own, or any of torch's: a callable takes (parameters, lr, **options) and
    returns it.
    """

    name: Literal["own"]
    target: PathName
    """optimizer.target=myoptimizer.py:build, or a package's, such as torch.optim:RMSprop"""
    lr: Positive = 0.1
    weight_decay: NonNegative = 0.0
    """set in each parameter group; the optimizer applies it"""
    by_layer: bool = False
    """false: one long parameter, which is fast; true: the model's tensors, for rules that work by
    layer
    """

    builds: ClassVar[str] = "bsweep.numerics.optim:from_target"
    takes: ClassVar[tuple[str, ...]] = ("parameters", "lr")

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if "weight_decay" in self.options:
            yield "optimizer.options.weight_decay: give optimizer.weight_decay=... instead."

    @property
    def needs_layer_norms(self) -> bool:  # type: ignore[override]
        return self.by_layer


class ProgramOptimizerConfig(OptimizerConfig):
    """The optimizer of your own program, see program=own."""

    name: Literal["program"]
    lr: Positive | None = None  # type: ignore[assignment]
    """learning rate; lr_rule computes {lr} and bsweep.join().lr from it; null: the program's own"""
    weight_decay: NonNegative = 0.0
    """0: your program has a weight decay of its own"""

    def problems(self, point: Point) -> Iterator[str]:
        if self.lr_rule == "adascale":
            remedy = "bsweep gives the program one rate. Use lr_rule=linear or sqrt."
            yield clash(point, "optimizer.lr_rule program", remedy)
        if self.lr is None and self.lr_rule != "fixed":
            remedy = "it needs a rate to scale. Give optimizer.lr=0.1, and {lr} in program.command."
            yield clash(point, "optimizer.lr_rule program", remedy)
        if self.schedule != "constant" or self.warmup_epochs or self.weight_decay:
            remedy = "leave them out; program.options.NAME=... passes values on to the program."
            keys = "optimizer.schedule optimizer.warmup_epochs optimizer.weight_decay program"
            yield clash(point, keys, remedy)


AnyOptimizer = Annotated[
    SGDConfig | AdamWConfig | LARSConfig | LAMBConfig | OwnOptimizerConfig | ProgramOptimizerConfig,
    Field(discriminator="name"),
]


def base_learning_rate(point: Point, rate_batch: float) -> float | None:
    """Return a learning rate of a point before warm-up and schedule change it; None if the user
    gave no rate, as a program of the user's own allows.

    The learning-rate rule computes it from the configured rate, the number of examples that count
    for a worker's step (such as `RunConfig.rate_batch`), and the number of workers.
    """
    card = point.optimizer
    if card.lr is None:
        return None
    return scaled_rate(
        card.lr,
        card.lr_rule,
        reference_batch=card.reference_batch,
        rate_batch=rate_batch,
        num_workers=point.data_parallel_size,
    )


def scaled_rate(
    lr: float, rule: LrRule, *, reference_batch: float, rate_batch: float, num_workers: int
) -> float:
    """Return the learning rate that a learning-rate rule gives after warm-up, before a schedule or
    a batching policy changes this rate.

    `fixed` keeps lr. `adascale` keeps lr here; `bsweep.batching.adascale` multiplies it by the gain
    as it is measured. `per_worker` is lr x workers, whatever the batch. `linear` multiplies lr
    by `rate_batch / reference_batch` (Goyal et al., arXiv 1706.02677), and `sqrt` by the square
    root of that (Krizhevsky, arXiv 1404.5997).

    Args:
        lr: The base learning rate.
        rule: The rule's name.
        reference_batch: The batch in examples for which lr was chosen.
        rate_batch: The examples behind one optimizer step.
        num_workers: The number of workers.
    """
    scale = rate_batch / reference_batch
    factors: dict[LrRule, float] = {
        "fixed": 1.0, "adascale": 1.0, "per_worker": num_workers, "linear": scale,
        "sqrt": math.sqrt(scale)
    }  # fmt: skip
    return lr * factors[rule]
