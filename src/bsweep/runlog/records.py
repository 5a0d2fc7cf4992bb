"""The records of a run: the lines of `metrics.jsonl`, which is the source of all numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA = 1

Status = Literal["completed", "failed", "out_of_memory", "diverged", "timeout", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Start:
    """Written when all workers are ready to train; `config` is the resolved configuration.

    `device` names each kind of device that a worker has, once.
    """

    run_id: str
    config: Mapping[str, Any]
    local_batch: int
    global_batch: int
    num_train: int
    num_test: int
    classes: tuple[str, ...]
    num_parameters: int
    tokens_per_example: int | None
    device: str
    precision: str
    threads: int
    start_seconds: float | None  # from the launch to here
    learning_rate: float | None = None  # the first worker's, by its rule, before warm-up and schedule
    gpu_software: str | None = None  # drivers and NCCL; None on CPUs
    graph: bool | None = None  # all workers launch full steps as a CUDA graph; None on CPUs
    workers: tuple[Mapping[str, Any], ...] | None = None  # by rank, see `bsweep.peers`
    channels_last: bool | None = None  # the memory format of images

    type: str = "start"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A sample within an epoch: the mean training loss since the last sample.

    Over all workers, or over rank 0's examples where workers are not in step.
    """

    epoch: int
    step: int  # of the run, from 1
    train_loss: float | None
    learning_rate: float
    images_per_second: float | None
    global_batch: int  # of the last step, as planned: the last one of an epoch is shorter
    epochs_done: float  # the part of this epoch that is trained included

    type: str = "step"


@dataclass(frozen=True)
class ServerLoad:
    """What one parameter server did since the last report.

    `share` is its part of all parameters. `queue_seconds` sums the time that pushes waited for it to be free,
    `busy_seconds` the time it received, updated and sent.
    """

    share: float
    received_bytes: int
    sent_bytes: int
    pushes: tuple[int, ...]  # by worker
    max_lead: int  # clocks by which an answered worker was ahead of the slowest
    busy_seconds: float
    queue_seconds: float


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the exchanges of an epoch cost; None is not measured, or of a codec that there is none.

    Bytes are means over workers. `exchange_steps`: messages that had to follow one another, of the worker with most.
    `exchange_seconds`: while data travelled and nobody waited, hidden behind computing or not.
    `exposed_exchange_seconds`: the part of that which computing did not hide. `codec_seconds`: compressing and
    decompressing, the mean of workers. `worker_wait_seconds`: ready to send until the slowest was, by worker.
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

    `train_seconds` counts training steps only. `train_loss` and `train_accuracy` are means over the epoch's
    training examples (of a text over their tokens), taken while training; `test_*` over the whole test set.
    `images_per_second` counts examples, of a text its sequences. `exchange_seconds` is the time in which data travelled
    and nobody waited, hidden behind computing or not; `exposed_exchange_seconds` what of it was not hidden, all where
    nothing is; `codec_seconds` what compressing and decompressing took, the mean over workers, null without a codec
    (where rounds overlap that is beside computing, and what of it is not hidden is in `exposed_exchange_seconds`);
    `wait_seconds` the mean time for which a worker was ready to send and waited for the slowest, `worker_wait_seconds`
    each worker's. `sent_bytes` is the mean over workers, `exchange_steps` counts messages that had to follow one
    another, on the worker with most of them. `servers` says what each parameter server did, see
    `ServerLoad`. `global_batch` (as planned: a tail is
    shorter) and `learning_rate` are those of its last step. `peak_memory_bytes` is rank 0's while it trained,
    `evaluation_peak_memory_bytes` while it evaluated afterwards, on batches of another size. `skipped_steps` are those
    of rank 0 that changed nothing, for gradients overflowed in fp16; null in other precisions.
    """

    epoch: int  # from 1
    num_steps: int
    train_seconds: float
    train_loss: float | None
    train_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None
    images_per_second: float
    tokens_per_second: float | None
    step_seconds_p50: float
    step_seconds_p95: float
    exchange_seconds: float | None
    exposed_exchange_seconds: float | None
    codec_seconds: float | None
    wait_seconds: float | None
    worker_wait_seconds: tuple[float, ...] | None
    sent_bytes: int | None
    received_bytes: int | None
    exchange_steps: int | None
    servers: tuple[Mapping[str, Any], ...] | None
    learning_rate: float
    global_batch: int
    peak_memory_bytes: int | None
    evaluation_peak_memory_bytes: int | None = None
    skipped_steps: int | None = None

    type: str = "epoch"


@dataclass(frozen=True, kw_only=True)
class Round:
    """Local steps of several workers and the synchronisation after them.

    Tuples have an entry for each of `workers`, the ranks that took part. Each worker computes, is idle until the last
    one arrives, and is held up by the exchange: `began_seconds` says when it began, on rank 0's clock since its first
    round began, and `exposed_exchange_seconds` lasts from the last arrival until it goes on, its codec's computing
    included. In `exchange_seconds` its data travelled and in `codec_seconds` (null: none) its codec computed, hidden
    behind the next round's computing or not.
    `train_loss` is the mean over all `num_examples` of the round. One that an epoch's end cuts short is not `is_whole`.
    """

    epoch: int
    round: int  # of the run, from 1
    workers: tuple[int, ...]
    worker_batches: tuple[int, ...]  # examples of one optimizer step
    local_steps: tuple[int, ...]
    began_seconds: tuple[float, ...]
    compute_seconds: tuple[float, ...]
    idle_seconds: tuple[float, ...]
    exposed_exchange_seconds: tuple[float, ...]
    exchange_seconds: tuple[float, ...]
    codec_seconds: tuple[float, ...] | None
    train_loss: float | None
    num_examples: int
    is_whole: bool

    type: str = "round"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something a reader of the numbers should know: `event` is its kind, such as `warning`."""

    event: str
    message: str

    type: str = "event"


@dataclass(frozen=True, kw_only=True)
class End:
    status: Status
    message: str

    type: str = "end"


Record = Start | Step | Round | Epoch | Event | End
