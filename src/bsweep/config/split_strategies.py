"""The cards of the strategies whose workers hold parts of one model instead of copies of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Literal

from bsweep.config.allreduce import NATIVE, AllReduceConfig
from bsweep.config.capabilities import Capabilities
from bsweep.config.card import Point, clash
from bsweep.config.groups import StrategyConfig
from bsweep.config.values import Count, show
from bsweep.core.words import counted


class SplitConfig(StrategyConfig):
    """The base class of the cards of strategies that split a model over workers.

    `replicas` groups of workers train side by side; each group holds one whole model.
    """

    replicas: Count = 1
    """whole models side by side: 2 of 4 workers hold each half a model; a sweep may vary it"""
    reduce: Literal["fp32", "bf16"] = "fp32"
    """between replicas: fp32 (gradients as they are) | bf16: gradients travel in bf16"""

    in_probe: ClassVar[AllReduceConfig] = NATIVE
    kind_can: ClassVar[Capabilities] = Capabilities(
        launchers=("torchrun",),
        exchanges_in_passes=True,
        # Each run's process groups stay in the process, with their connections and threads.
        leaves_processes_clean=False,
        splits_model=True,
        loads_any_parts=True,
        stores_channels_last=False,  # torch divides contiguous tensors only
        why_no_fp16=(
            "a gradient may overflow on one worker alone, and all would have to skip the step. Use "
            "precision=bf16 or fp32."
        ),
    )

    @property
    def can(self) -> Capabilities:
        no_noise = self.kind_can.why_no_noise
        if not no_noise and self.replicas == 1:
            no_noise = "the noise is in the gradients of replicas. Use strategy.replicas=2"
        elif not no_noise and self.reduce == "bf16":
            no_noise = "strategy.reduce=bf16 rounds the gradient. Use strategy.reduce=fp32"
        return replace(self.kind_can, why_no_noise=no_noise)

    def data_parallel_size(self, num_workers: int) -> int:
        return self.replicas

    def num_parts(self, num_workers: int) -> int:
        return num_workers // self.replicas

    def _between_replicas(self, num_workers: int) -> float:
        """Return what a worker sends to sum gradients over replicas, as a multiple of the bytes of
        the model's parameters.
        """
        width = 0.5 if self.reduce == "bf16" else 1.0
        return 2 * width * (1 - 1 / self.replicas) / self.num_parts(num_workers)

    def problems_of_workers(self, num_workers: int) -> Iterator[str]:
        yield from super().problems_of_workers(num_workers)
        if num_workers % self.replicas:
            yield (
                f"strategy.replicas={self.replicas} with num_workers={num_workers}: use a divisor "
                "of num_workers, so that replicas have equally many workers."
            )

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        yield from self.problems_of_workers(point.num_workers)
        if self.reduce == "bf16" and point.precision == "fp64":
            yield clash(point, "precision strategy.reduce", "use only one of them.")


class ShardedConfig(SplitConfig):
    """FSDP2 (Zhao et al., arXiv 2304.11277): each worker keeps a part of the parameters, gradients
    and optimizer state (ZeRO, arXiv 1910.02054).
    """

    name: Literal["sharded"]
    replicas: Count = 1
    """whole models side by side: 2 of 4 workers hold each half a model (HSDP); a sweep may vary it
    """
    reshard: Literal["forward", "step"] = "forward"
    """forward: gathered parameters are dropped after the forward pass (ZeRO-3) | step: after the
    backward pass (ZeRO-2)
    """
    wrap: Literal["blocks", "model"] = "blocks"
    """what is gathered at once: blocks of the model | model: all of it"""
    reduce: Literal["fp32", "bf16"] = "fp32"
    """fp32 (gradients as they are) | bf16: gradients travel in bf16"""

    builds: ClassVar[str] = "bsweep.strategies.sharded:Sharded"
    kind_can: ClassVar[Capabilities] = replace(
        SplitConfig.kind_can,
        why_no_noise=(
            "FSDP2 sums gradients within the passes, and no worker has one of its own. Use "
            "strategy=allreduce, or tensor or pipeline with strategy.replicas=2"
        ),
    )

    @property
    def can(self) -> Capabilities:
        return replace(super().can, gathers_blocks=self.wrap == "blocks")

    def data_parallel_size(self, num_workers: int) -> int:
        """Return the number of workers: each takes a part of every batch, and computes with the
        whole parameters, which it gathers.
        """
        return num_workers

    def gathered_width(self, precision: str) -> float:
        """Return the bytes of a gathered parameter, relative to fp32, in a run's precision."""
        return 0.5 if precision == "bf16" else 1.0

    def sent_in_pass(
        self, num_workers: int, num_passes: int, precision: str = "fp32"
    ) -> tuple[float, float]:
        """Return the shares as `StrategyConfig.sent_in_pass` says: of the parameters, which are
        gathered, and of the gradients, whose sum counts as one gathering. All passes do this.
        """
        gatherings = (2 if self.reshard == "forward" else 1) * self.gathered_width(precision)
        width = 0.5 if self.reduce == "bf16" else 1.0
        within = (1 - 1 / self.num_parts(num_workers)) * (gatherings + width)
        return within + self._between_replicas(num_workers), 0.0


class TensorConfig(SplitConfig):
    """Tensor parallelism (Megatron-LM, Shoeybi et al., arXiv 1909.08053): each worker computes a
    part of every large layer, by the model's plan.
    """

    name: Literal["tensor"]
    replicas: Count = 1
    """whole models side by side: 2 of 4 workers compute each half of one model's layers; a sweep
    may vary it
    """

    builds: ClassVar[str] = "bsweep.strategies.tensor:TensorParallel"
    kind_can: ClassVar[Capabilities] = replace(SplitConfig.kind_can, splits_layers=True)

    def sent_in_pass(
        self, num_workers: int, num_passes: int, precision: str = "fp32"
    ) -> tuple[float, float]:
        """Return the shares as `StrategyConfig.sent_in_pass` says: of activations, which all
        workers of a replica sum. Replicas sum gradients once in a step.
        """
        between = self._between_replicas(num_workers) / num_passes
        return between, 1 - 1 / self.num_parts(num_workers)


class DeepSpeedConfig(StrategyConfig):
    """DeepSpeed's own ZeRO (Rajbhandari et al., arXiv 1910.02054): its engine sums gradients and
    updates the parameters. The extra bsweep[deepspeed] installs it.
    """

    name: Literal["deepspeed"]
    stage: Literal[1, 2, 3] = 2
    """workers divide 1: the optimizer's state | 2: and the gradients | 3: and the parameters"""

    builds: ClassVar[str] = "bsweep.strategies.deepspeed:DeepSpeed"
    needs: ClassVar[tuple[str, ...]] = ("deepspeed",)
    in_probe: ClassVar[AllReduceConfig] = NATIVE
    vectors_held: ClassVar[int] = 2
    """The copy of its part of the parameters that a worker updates, and that part's gradient in one
    piece.
    """
    vectors_of_first_step: ClassVar[int] = 1
    kind_can: ClassVar[Capabilities] = replace(
        SplitConfig.kind_can,
        loads_any_parts=False,
        why_no_noise=(
            "DeepSpeed sums gradients within the passes, and no worker has one of its own. Use "
            "strategy=allreduce"
        ),
    )

    def num_parts(self, num_workers: int) -> int:
        return num_workers

    def sent_in_pass(
        self, num_workers: int, num_passes: int, precision: str = "fp32"
    ) -> tuple[float, float]:
        """Return the shares as `StrategyConfig.sent_in_pass` says.

        Stage 1 sums the gradients once in a step, stage 2 in each pass, both by an all-reduce,
        which sends twice what a gathering does; then they gather the parameters. In each pass,
        stage 3 gathers the parameters twice and leaves each worker its part of the sums.
        """
        gatherings = {1: 3 / num_passes, 2: 2 + 1 / num_passes, 3: 3.0}[self.stage]
        return (1 - 1 / num_workers) * gatherings, 0.0

    def parts_held(self, num_workers: int) -> tuple[int, int, int]:
        gradient_parts = num_workers if self.stage >= 2 else 1
        return num_workers if self.stage == 3 else 1, gradient_parts, num_workers

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if point.precision != "fp32":
            remedy = "its engine would convert the model. Use precision=fp32, or strategy=sharded."
            yield clash(point, "precision strategy", remedy)
        if point.optimizer.needs_layer_norms or point.optimizer.needs_global_norm:
            remedy = "its engine flattens layers. Use optimizer=sgd or adamw, or strategy=sharded."
            yield clash(point, "optimizer strategy", remedy)


class StagedConfig(SplitConfig):
    """The base class of the cards of strategies that cut a model into stages."""

    cuts: tuple[Count, ...] | None = None
    """[2,4]: numbers of pieces before each cut | null: balanced, by the measured time of the pieces
    """

    kind_can: ClassVar[Capabilities] = replace(
        SplitConfig.kind_can, cuts_model=True, stores_channels_last=True
    )

    @property
    def stages_of_worker(self) -> int:
        """The number of stages that a worker holds if no `cuts` are given."""
        return 1

    @property
    def takes_more_stages(self) -> bool:
        """True if `cuts` may give a worker more stages than that."""
        return False

    def num_stages(self, num_workers: int) -> int:
        """Return the number of stages into which the model is cut.

        Args:
            num_workers: The number of all workers.

        Returns:
            One stage more than `cuts`; without them, `stages_of_worker` for each worker of a
            replica.
        """
        if self.cuts is not None:
            return len(self.cuts) + 1
        return self.num_parts(num_workers) * self.stages_of_worker

    def part_of(self, stage: int, num_workers: int) -> int:
        """Return which worker of a replica holds a stage, counted from 0.

        Args:
            stage: The index of the stage.
            num_workers: The number of all workers.

        Returns:
            The index of the worker among those of its replica.
        """
        return stage % self.num_parts(num_workers)

    def textbook_bubble(self, num_workers: int) -> float | None:
        return None

    def problems_of_workers(self, num_workers: int) -> Iterator[str]:
        yield from super().problems_of_workers(num_workers)
        if num_workers % self.replicas == 0 and self.cuts is not None:
            yield from self._problems_of_cuts(self.cuts, self.num_parts(num_workers))

    def _problems_of_cuts(self, cuts: Sequence[int], num_parts: int) -> Iterator[str]:
        if list(cuts) != sorted(set(cuts)):
            yield f"strategy.cuts={show(cuts)}: give cuts in ascending order, each once."
        num_stages, wanted = len(cuts) + 1, self.stages_of_worker
        per_worker, left = divmod(num_stages, num_parts)
        if left or per_worker < wanted or (per_worker > wanted and not self.takes_more_stages):
            yield (
                f"strategy.cuts={show(cuts)} makes {num_stages} stages, not {wanted * num_parts}: "
                f"give {counted(wanted * num_parts - 1, 'cut')}, or strategy.cuts=null."
            )

    def problems_of_pieces(self, pieces: Sequence[str], num_workers: int) -> Iterator[str]:
        num_stages = self.num_stages(num_workers)
        if num_stages > len(pieces):
            yield (
                f"num_workers={num_workers} with strategy={self.name} needs {num_stages} stages, "
                f"but the model has only {len(pieces)} pieces ({', '.join(pieces)}): use fewer."
            )
        elif self.cuts and self.cuts[-1] >= len(pieces):
            yield (
                f"strategy.cuts={show(self.cuts)}: give cuts between 1 and {len(pieces) - 1}, as "
                f"the model has {len(pieces)} pieces ({', '.join(pieces)})."
            )


class PipelineConfig(StagedConfig):
    """Pipeline parallelism by torch.distributed.pipelining: each worker holds consecutive pieces of
    the model and passes activations on.
    """

    name: Literal["pipeline"]
    schedule: Literal[
        "gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev"
    ] = "1f1b"
    """gpipe (arXiv 1811.06965) | 1f1b (2006.09503) | interleaved_1f1b (2104.04473) |
    interleaved_zero_bubble, zbv (2401.10241) | dualpipev (2412.19437)
    """
    microbatches: Count = 4
    """into which a worker divides each local batch; BatchNorm sees one of them at a time"""

    builds: ClassVar[str] = "bsweep.strategies.pipeline:Pipeline"

    @property
    def num_microbatches(self) -> int:
        return self.microbatches

    @property
    def is_interleaved(self) -> bool:
        """True if a worker holds several stages that are not neighbours."""
        return self.schedule.startswith("interleaved")

    @property
    def is_v(self) -> bool:
        """True if the first worker holds the first and the last stage, the second worker the second
        and the last but one, and so on.
        """
        return self.schedule in ("zbv", "dualpipev")

    @property
    def stages_of_worker(self) -> int:
        return 2 if self.is_interleaved or self.is_v else 1

    @property
    def takes_more_stages(self) -> bool:
        return self.is_interleaved

    def part_of(self, stage: int, num_workers: int) -> int:
        num_parts = self.num_parts(num_workers)
        folded = self.is_v and stage >= num_parts
        return 2 * num_parts - 1 - stage if folded else stage % num_parts

    def sent_in_pass(
        self, num_workers: int, num_passes: int, precision: str = "fp32"
    ) -> tuple[float, float]:
        """Return the shares as `StrategyConfig.sent_in_pass` says: of activations, which pass each
        border between workers twice. Replicas sum gradients once in a step.
        """
        stages = range(self.num_stages(num_workers))
        owners = [self.part_of(stage, num_workers) for stage in stages]
        borders = sum(owner != next_owner for owner, next_owner in pairwise(owners))
        between = self._between_replicas(num_workers) / num_passes
        return between, borders / self.num_parts(num_workers)

    def textbook_bubble(self, num_workers: int) -> float | None:
        """Return the idle share of a step: (p - 1) / (v m + p - 1) for p workers with v stages each
        and m micro-batches (Narayanan et al., arXiv 2104.04473).

        Args:
            num_workers: The number of all workers.

        Returns:
            The share; None for schedules that fill the bubble by dividing the backward pass.
        """
        if self.schedule not in ("gpipe", "1f1b", "interleaved_1f1b"):
            return None
        num_parts = self.num_parts(num_workers)
        per_worker = self.num_stages(num_workers) // num_parts
        return (num_parts - 1) / (per_worker * self.microbatches + num_parts - 1)

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        number = self.microbatches
        uneven = sorted({batch for batch in point.local_batches if batch % number})
        if uneven and point.num_workers % self.replicas == 0:
            remedy = f"use a divisor of the local batch {' and '.join(map(str, uneven))}."
            yield clash(point, "strategy.microbatches", remedy)

    def problems_of_workers(self, num_workers: int) -> Iterator[str]:
        yield from super().problems_of_workers(num_workers)
        if num_workers % self.replicas == 0:
            yield from self._problems_of_schedule(self.num_parts(num_workers))

    def _problems_of_schedule(self, num_parts: int) -> Iterator[str]:
        number = self.microbatches
        given = f"strategy.microbatches={number} with strategy.schedule={self.schedule}"
        # With fewer, torch raises an error, or its workers wait for one another for ever.
        least = {"gpipe": 1, "dualpipev": 2 * num_parts}.get(self.schedule, num_parts)
        if number < least:
            yield f"{given}: use strategy.microbatches={least} or more, or strategy.schedule=gpipe."
        if self.is_interleaved and number % max(1, number // num_parts):
            yield f"{given}: use a multiple of the {num_parts} workers of a replica."

    def warnings(self, point: Point) -> Iterator[str]:
        if self.microbatches > 1 and point.model.has_batchnorm is not False:
            yield (
                f"strategy.microbatches={self.microbatches}: BatchNorm, if the model has it, "
                "computes its statistics from one micro-batch at a time, not from the local batch"
            )


class PipeDreamConfig(StagedConfig):
    """PipeDream (Narayanan et al., SOSP 2019): a pipeline that never waits for a step to end; each
    worker keeps versions of its weights.
    """

    name: Literal["pipedream"]
    vertical_sync: bool = False
    """true: all stages compute a batch with the version of the weights that the first stage used"""

    builds: ClassVar[str] = "bsweep.strategies.pipedream:PipeDream"
    kind_can: ClassVar[Capabilities] = replace(
        StagedConfig.kind_can,
        lockstep=False,
        why_no_noise="its stages are at different steps. Use strategy=pipeline",
        why_apart="its stages are at different steps until an epoch ends. Use strategy=pipeline",
    )

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if point.num_workers > self.replicas and point.optimizer.needs_global_norm:
            remedy = "stages know no norm of all. Use optimizer=adamw, or strategy=pipeline."
            yield clash(point, "optimizer strategy", remedy)
