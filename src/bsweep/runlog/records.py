"""The records of a run: the lines of `metrics.jsonl`, which is the source of all numbers.

The types are what `bsweep.runlog.reading` holds files to.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter
from pydantic_core import to_json

from bsweep.config.hosts import SpelledOut
from bsweep.config.values import Count, LrRule, Positive
from bsweep.runlog.measured import Evaluation, NoiseScale
from bsweep.runlog.values import Amount, Finite, Natural, Rate, Seed, plain

SCHEMA = 1

Status = Literal["completed", "failed", "out_of_memory", "diverged", "timeout", "interrupted"]


def _as(schema: type) -> AfterValidator:
    """Holds a mapping to a schema, and leaves it the mapping that it is."""

    def held(tree: Mapping[str, Any]) -> Mapping[str, Any]:
        adapter(schema).validate_json(to_json(tree), strict=True)
        return tree

    return AfterValidator(held)


@functools.cache
def adapter(schema: type) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


@dataclass(frozen=True, kw_only=True)
class _Variant:
    name: str


@dataclass(frozen=True, kw_only=True)
class _ToldOptimizer(_Variant):
    lr: Finite
    lr_rule: LrRule | None = None
    reference_batch: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class _ToldStrategy(_Variant):
    num_servers: Count | None = None
    colocated: bool = False


@dataclass(frozen=True, kw_only=True)
class _ToldData(_Variant):
    num_test: Natural | None = None
    num_classes: Natural | None = None
    root: str | None = None
    path: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, kw_only=True)
class _ToldLaunch:
    hosts: SpelledOut | Literal["slurm"] | None = None
    memory_limit_mb: tuple[Positive, ...] | None = None
    threads_per_worker: Count | None = None


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What tables read of a resolved configuration."""

    num_workers: Count
    local_batch: Count | None = None
    global_batch: Count | None = None
    accumulation_steps: Count = 1
    epochs: Natural
    seed: Seed
    precision: str
    data: _ToldData
    model: _Variant
    optimizer: _ToldOptimizer
    strategy: _ToldStrategy
    launch: _ToldLaunch = _ToldLaunch()
    compression: _Variant | None = None
    allocation: _Variant | None = None


Tree = Annotated[Mapping[str, Any], AfterValidator(plain)]
Resolved = Annotated[Tree, _as(_Told)]


@dataclass(frozen=True, kw_only=True)
class Start:
    """Written when all workers are ready to train; `config` is the resolved configuration.

    `device` names each kind of device that a worker has, once.
    """

    run_id: str
    config: Resolved
    local_batch: Count
    global_batch: Count
    num_train: Natural
    num_test: Natural
    classes: tuple[str, ...]
    num_parameters: Natural
    tokens_per_example: Natural | None = None
    device: str
    precision: str
    threads: Natural
    start_seconds: Amount | None  # from the launch to here
    learning_rate: Rate | None = (
        None  # the first worker's, by its rule, before warm-up and schedule
    )
    gpu_software: str | None = None  # drivers and NCCL; None on CPUs
    graph: bool | None = None  # all workers launch full steps as a CUDA graph; None on CPUs
    workers: tuple[Mapping[str, Any], ...] | None = None  # by rank, see `bsweep.train.peers_check`
    channels_last: bool  # the memory format of images
    transport: str | None = (
        None  # how gradients travel, where that is chosen: network, shared_memory
    )

    type: str = "start"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A sample within an epoch: the mean training loss since the last sample.

    Over all workers, or over rank 0's examples where workers are not in step.
    """

    epoch: Natural
    step: Natural  # of the run, from 1
    train_loss: Finite | None
    learning_rate: Rate
    images_per_second: Amount | None
    global_batch: Natural  # of the last step, as planned: the last one of an epoch is shorter
    epochs_done: Amount  # the part of this epoch that is trained included

    type: str = "step"


@dataclass(frozen=True)
class ServerLoad:
    """What one parameter server did since the last report.

    `share` is its part of all parameters. `queue_seconds` sums the time that pushes waited for it
    to be free, `busy_seconds` the time it received, updated and sent.
    """

    share: Amount
    received_bytes: Natural
    sent_bytes: Natural
    pushes: tuple[Natural, ...]  # by worker
    max_lead: Natural  # clocks by which an answered worker was ahead of the slowest
    busy_seconds: Amount
    queue_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the exchanges of an epoch cost; None is not measured, or of a codec that there is none.

    Bytes are means over workers. `exchange_steps`: messages that had to follow one another, of the
    worker with most. `exchange_seconds`: while data travelled and nobody waited, hidden behind
    computing or not. `exposed_exchange_seconds`: the part of that which computing did not hide.
    `codec_seconds`: compressing and decompressing, the mean of workers. `worker_wait_seconds`:
    ready to send until the slowest was, by worker.
    """

    sent_bytes: int | None = None
    received_bytes: int | None = None
    exchange_steps: int | None = None
    exchange_seconds: float | None = None
    exposed_exchange_seconds: float | None = None
    codec_seconds: float | None = None
    worker_wait_seconds: tuple[float, ...] | None = None
    servers: tuple[ServerLoad, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One finished epoch. Times in seconds, rates per second, `None` for what was not measured.

    `train_seconds` counts training steps only. `train_loss` and `train_accuracy` are means over the
    epoch's training examples (of a text over their tokens), taken while training; `test_*` over the
    whole test set. `images_per_second` counts examples, of a text its sequences. `exchange_seconds`
    is the time in which data travelled and nobody waited, hidden behind computing or not;
    `exposed_exchange_seconds` what of it was not hidden, all where nothing is; `codec_seconds` what
    compressing and decompressing took, the mean over workers, null without a codec (where rounds
    overlap that is beside computing, and what of it is not hidden is in
    `exposed_exchange_seconds`); `wait_seconds` the mean time for which a worker was ready to send
    and waited for the slowest, `worker_wait_seconds` each worker's. `sent_bytes` is the mean over
    workers, `exchange_steps` counts messages that had to follow one another, on the worker with
    most of them. `servers` says what each parameter server did, see `ServerLoad`. `global_batch`
    (as planned: a tail is shorter) and `learning_rate` are those of its last step.
    `peak_memory_bytes` is rank 0's while it trained, until the epoch's first evaluation,
    `evaluation_peak_memory_bytes` while it evaluated at its end, on batches of another size.
    `skipped_steps` are those of rank 0 that changed nothing, for gradients overflowed in fp16; null
    in other precisions. `checkpoint_seconds` is what saving checkpoints took since the last epoch's
    record; it is not in `train_seconds`. `energy_joules` is what all workers' GPUs used, or of
    workers on CPUs the processors of their hosts, from the epoch's begin until its last step,
    without the evaluations between, but with checkpoints; null where the hardware does not say it,
    and of an epoch that was taken up within.
    """

    epoch: Natural  # from 1
    num_steps: Natural
    train_seconds: Amount
    train_loss: Finite | None
    train_accuracy: Amount | None
    test_loss: Finite | None
    test_accuracy: Amount | None
    images_per_second: Amount
    tokens_per_second: Amount | None = None
    step_seconds_p50: Amount
    step_seconds_p95: Amount
    exchange_seconds: Amount | None = None
    exposed_exchange_seconds: Finite | None = None
    codec_seconds: Amount | None = None
    wait_seconds: Finite | None = None
    worker_wait_seconds: tuple[Finite, ...] | None = None
    sent_bytes: Natural | None
    received_bytes: Natural | None
    exchange_steps: Natural | None = None
    servers: tuple[Annotated[Mapping[str, Any], _as(ServerLoad)], ...] | None = None
    learning_rate: Rate
    global_batch: Natural
    peak_memory_bytes: Natural | None
    evaluation_peak_memory_bytes: Natural | None = None
    skipped_steps: Natural | None = None
    checkpoint_seconds: Amount | None = None
    energy_joules: Amount | None = None

    type: str = "epoch"


@dataclass(frozen=True, kw_only=True)
class Round:
    """Local steps of several workers and the synchronisation after them.

    Tuples have an entry for each of `workers`, the ranks that took part. Each worker computes, is
    idle until the last one arrives, and is held up by the exchange: `began_seconds` says when it
    began, on rank 0's clock since its first round began, and `exposed_exchange_seconds` lasts from
    the last arrival until it goes on, its codec's computing included. In `exchange_seconds` its
    data travelled and in `codec_seconds` (null: none) its codec computed, hidden behind the next
    round's computing or not. `train_loss` is the mean over all `num_examples` of the round. One
    that an epoch's end cuts short is not `is_whole`.
    """

    epoch: Natural
    round: Natural  # of the run, from 1
    workers: tuple[Natural, ...]
    worker_batches: tuple[Natural, ...]  # examples of one optimizer step
    local_steps: tuple[Natural, ...]
    began_seconds: tuple[Finite, ...]
    compute_seconds: tuple[Amount, ...]
    idle_seconds: tuple[Finite, ...]
    exposed_exchange_seconds: tuple[Finite, ...] = ()
    exchange_seconds: tuple[Amount, ...]
    codec_seconds: tuple[Amount, ...] | None = None
    train_loss: Finite | None
    num_examples: Natural
    is_whole: bool

    type: str = "round"

    def __post_init__(self) -> None:
        by_worker = (
            *(
                self.worker_batches,
                self.local_steps,
                self.began_seconds,
                self.compute_seconds,
                self.idle_seconds,
            ),
            *(self.exchange_seconds, self.exposed_exchange_seconds or self.exchange_seconds),
        )
        if any(len(values) != len(self.workers) for values in by_worker):
            raise ValueError(f"not {len(self.workers)} values, one for each worker")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something a reader of the numbers should know: `event` is its kind, such as `warning`."""

    event: str
    message: str

    type: str = "event"


@dataclass(frozen=True, kw_only=True)
class Continued(Event):
    """The records before are those of another run, `branch_of`, of which this one goes on after
    `num_steps`.

    `train_seconds` until there are its.
    """

    event: str = "continued"
    branch_of: str
    num_steps: Natural
    train_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class BatchChanged(Event):
    """What a batching policy decided, and by what: from here on a step takes `global_batch`
    examples of all workers.
    """

    event: str = "batch_changed"
    epochs_done: Amount
    before: Natural  # the global batch until here
    global_batch: Natural
    inputs: Mapping[str, Finite | None]


@dataclass(frozen=True, kw_only=True)
class End:
    status: Status
    message: str

    type: str = "end"


Record = Start | Step | Round | Epoch | Evaluation | NoiseScale | Event | End
