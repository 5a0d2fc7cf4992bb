"""The types of a run's records, which are the lines of `metrics.jsonl`.

`bsweep.runlog.reading` checks files against them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter
from pydantic_core import to_json

from bsweep.config.hosts import SpelledOut
from bsweep.config.values import Count, Finite, LrRule, Name, Positive, Processes, Seed, Width
from bsweep.runlog.values import MOST, Amount, Natural, Rate, plain

SCHEMA = 1

Status = Literal["completed", "failed", "out_of_memory", "diverged", "timeout", "interrupted"]


@functools.cache
def adapter(schema: type) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


@dataclass(frozen=True, kw_only=True)
class _Variant:
    name: Name


@dataclass(frozen=True, kw_only=True)
class _Optimizer(_Variant):
    lr: Finite | None
    lr_rule: LrRule | None = None
    reference_batch: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class _Strategy(_Variant):
    num_servers: Processes | None = None
    colocated: bool = False


@dataclass(frozen=True, kw_only=True)
class _Data(_Variant):
    num_test: Natural | None = None
    num_classes: Width | None = None
    root: str | None = None
    path: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Launch:
    hosts: SpelledOut | Literal["slurm"] | None = None
    memory_limit_mb: tuple[Positive, ...] | None = None
    threads_per_worker: Processes | None = None


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """The settings in a run's `start` record that tables read, in the form of every release."""

    num_workers: Processes
    local_batch: Count | None = None
    global_batch: Count | None = None
    accumulation_steps: Count = 1
    epochs: Natural
    seed: Seed
    precision: str
    data: _Data
    model: _Variant
    optimizer: _Optimizer
    strategy: _Strategy
    launch: _Launch = _Launch()
    compression: _Variant | None = None
    allocation: _Variant | None = None


def _checked(config: Mapping[str, Any]) -> Mapping[str, Any]:
    adapter(_Settings).validate_json(to_json(config), strict=True)
    return config


@dataclass(frozen=True, kw_only=True)
class Start:
    """The record that a run writes whenever all its workers are ready to train or to resume.

    `config` is the resolved configuration. `device` names each kind of device that the workers
    have, once.
    """

    run_id: str
    config: Annotated[Mapping[str, Any], AfterValidator(plain), AfterValidator(_checked)]
    local_batch: Count
    global_batch: Count
    num_train: Natural
    num_test: Natural | None
    classes: tuple[str, ...]  # their names; empty if they have none
    num_classes: Natural | None = None  # or the size of a text's vocabulary; None for a regression
    chance: Amount | None = None  # the accuracy of a guesser: the share of the commonest class
    num_parameters: Natural | None  # None if only the user's own program knows it, as num_test
    layer_parameters: tuple[Natural, ...] | None = None  # of each layer, in the model's order
    num_blocks: Natural | None = None  # which workers that divide the model handle one at a time
    pieces: tuple[str, ...] | None = None  # into which the model can be cut, if it can
    tokens_per_example: Natural | None = None
    device: str
    precision: str
    threads: Natural | None
    start_seconds: Amount | None  # from the launch to this record
    # The first worker's, after the lr rule, before warm-up and schedule.
    learning_rate: Rate | None = None
    gpu_software: str | None = None  # drivers and NCCL; None on CPUs
    graph: bool | None = None  # True if all workers run full steps as a CUDA graph; None on CPUs
    workers: tuple[Mapping[str, Any], ...] | None = None  # by rank, see `bsweep.train.peers_check`;
    # of a program of the user's own only the hosts
    software: Mapping[str, str] | None = None  # of such a program: interpreter, Python, packages
    channels_last: bool | None  # the memory format of images
    compile: bool = False  # True if torch compiled the passes of steps
    compile_seconds: Amount | None = None  # the seconds of the warm-up in which it did so
    # The pieces of the model in each stage, if workers hold stages of it.
    stages: tuple[tuple[str, ...], ...] | None = None

    type: str = "start"


@dataclass(frozen=True, kw_only=True)
class Step:
    """The record of a sampled step, with the mean training loss since the previous record of this
    kind or, if that is of an earlier epoch, since the epoch began.

    The mean is over the examples of all workers, or of the worker that writes the record if workers
    do not step together.
    """

    epoch: Natural
    step: Natural  # of the run, from 1
    train_loss: Finite | None
    learning_rate: Rate | None
    images_per_second: Amount | None
    global_batch: Natural  # of the last step, as planned; an epoch's last step may be smaller
    epochs_done: Amount  # including the trained part of this epoch

    type: str = "step"


@dataclass(frozen=True)
class ServerLoad:
    """The work that one parameter server has done since its last report.

    `share` is the server's fraction of all parameters. `queue_seconds` is the total time that
    pushes waited until the server was free. `busy_seconds` is the total time in which the server
    received, updated and sent.
    """

    share: Amount
    received_bytes: Natural
    sent_bytes: Natural
    pushes: tuple[Natural, ...]  # by worker
    max_lead: Natural  # the most clocks by which an answered worker was ahead of the slowest
    busy_seconds: Amount
    queue_seconds: Amount


@dataclass(frozen=True)
class WorkerMemory:
    """The memory of one worker's parts of the model, in bytes.

    `optimizer_bytes` is that of the optimizer's state, such as momentum. `peak_bytes` is the peak
    of all memory of the process (on GPUs: of the GPU) while it trained; null if it is not measured.
    """

    parameter_bytes: Natural
    gradient_bytes: Natural
    optimizer_bytes: Natural
    peak_bytes: Natural | None


@dataclass(frozen=True)
class StageLoad:
    """The work of one worker that holds stages of a model, in the passes of training steps.

    `busy_seconds` is the time in which it computed. `exchange_seconds` is the time in which it
    waited for activations or gradients that travelled: each message counts with the time that it
    takes when both workers are ready, as measured before training, but at most with the time for
    which the worker waited for it. `idle_seconds` is the rest, the bubble.
    `peak_activation_bytes` is the most memory that autograd kept for backward passes.

    `weight_versions` is the most versions of its weights that the worker kept at one time, the
    newest included, and `stashed_bytes` the memory of the copies among them. `staleness` is the
    number of updates that the weights of a pass lacked, the mean over steps.
    """

    busy_seconds: Amount
    idle_seconds: Amount
    exchange_seconds: Amount
    peak_activation_bytes: Natural
    weight_versions: Natural = 1
    stashed_bytes: Natural = 0
    staleness: Amount = 0.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The bytes and the seconds of the exchanges in one stretch of training, such as an epoch; a
    value that was not measured is None.

    `sent_bytes` and `received_bytes` are means over workers. `exchange_steps` counts the messages
    that had to follow one another, on the worker with the most. `exchange_seconds` is the time in
    which data travelled and no worker waited, whether or not it overlapped with computing.
    `exposed_exchange_seconds` is the part of it that did not overlap with computing.
    `codec_seconds` is the time for compressing and decompressing, the mean over workers; None
    without a codec. `worker_wait_seconds` has, for each worker, the time from being ready to send
    until the slowest worker was ready.

    If workers hold stages of a model, `stage_loads` has the work of each worker, and `bubble` the
    idle share of their time. `textbook_bubble` is this share if all stages took the same time and
    messages none; None if the schedule has no such formula.
    """

    sent_bytes: int | None = None
    received_bytes: int | None = None
    exchange_steps: int | None = None
    exchange_seconds: float | None = None
    exposed_exchange_seconds: float | None = None
    codec_seconds: float | None = None
    worker_wait_seconds: tuple[float, ...] | None = None
    servers: tuple[ServerLoad, ...] | None = None
    stage_loads: tuple[StageLoad, ...] | None = None
    bubble: float | None = None
    textbook_bubble: float | None = None


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One finished epoch. Times are in seconds, rates per second; None means not measured.

    Training: `train_seconds` lasts from the beginning of the first step to the end of the last one,
    without evaluations and checkpoints. `train_loss` and `train_accuracy` are means over the
    epoch's training examples (for a text: over their tokens), taken while training. `test_loss` and
    `test_accuracy` are means over the whole test set, or over the validation examples if the run
    has some (`data.validation_share`). `images_per_second` counts examples (for a text: sequences).
    `global_batch` and `learning_rate` are those of the epoch's last step; `global_batch` is the
    planned one, even if the last step was smaller.
    `skipped_steps` counts the steps of rank 0 that changed nothing because gradients overflowed in
    fp16; null in other precisions. `checkpoint_seconds` is the time for saving checkpoints since
    the last epoch's record; it is not part of `train_seconds`.

    Exchange: `exchange_seconds` is the time in which data travelled and no worker waited, whether
    or not it overlapped with computing. `exposed_exchange_seconds` is the part of it that did not
    overlap; without overlap, that is all of it. `codec_seconds` is the time for compressing and
    decompressing, the mean over workers; null without a codec. `wait_seconds` is the mean time for
    which a worker was ready to send and waited for the slowest one; `worker_wait_seconds` has this
    time for each worker. `sent_bytes` is the mean over workers. `exchange_steps` counts the
    messages that had to follow one another, on the worker with the most. `servers` has the work of
    each parameter server, see `ServerLoad`. `stage_loads` has the work of each worker that holds
    stages of a model, see `StageLoad`; `bubble` and `textbook_bubble` are those of `Traffic`.

    Memory and energy: `worker_memory` has the memory of each worker, see `WorkerMemory`.
    `peak_memory_bytes` is that of rank 0 while it trained, until the epoch's first evaluation; null
    if the run resumed after the epoch's last step.
    `evaluation_peak_memory_bytes` is that of rank 0 during the evaluation at the epoch's end, which
    uses batches of another size; null if the run reached its target within the epoch, and ended.
    `energy_joules` is the energy that all workers'
    GPUs used or, for workers on CPUs, that the processors of their hosts used. It covers the time
    from the epoch's beginning to its last step, with checkpoints but without evaluations. It is
    null if the hardware does not report energy, and for an epoch that was resumed in the middle.
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
    servers: tuple[ServerLoad, ...] | None = None
    stage_loads: tuple[StageLoad, ...] | None = None
    bubble: Amount | None = None
    textbook_bubble: Amount | None = None
    learning_rate: Rate | None
    global_batch: Natural
    worker_memory: tuple[WorkerMemory, ...] | None = None
    peak_memory_bytes: Natural | None
    evaluation_peak_memory_bytes: Natural | None = None
    skipped_steps: Natural | None = None
    checkpoint_seconds: Amount | None = None
    energy_joules: Amount | None = None

    type: str = "epoch"

    def __post_init__(self) -> None:
        if self.images_per_second * self.train_seconds >= MOST:
            raise ValueError(
                f"images_per_second times train_seconds, an epoch's examples, must be below {MOST}"
            )


@dataclass(frozen=True, kw_only=True)
class Round:
    """The record of one round of `diloco`: the local steps of the workers, and the synchronisation
    after them.

    Each tuple has one entry for each of `workers`, by rank. In a round, each
    worker computes, is idle until the last worker arrives, and then waits for the exchange.

    `began_seconds` is the time at which a worker began, on rank 0's clock, since the run's first
    round began. `exposed_exchange_seconds` is the time from the last arrival until a worker goes
    on, including its codec's computing. `exchange_seconds` is the time in which a worker's data
    travelled. `codec_seconds` is the time in which its codec computed; null without a codec.
    `train_loss` is the mean over all `num_examples` of the round. `is_whole` is False if the end of
    an epoch cut the round short.
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
        lists = (
            self.worker_batches, self.local_steps, self.began_seconds, self.compute_seconds,
            self.idle_seconds, self.exchange_seconds,
            self.exposed_exchange_seconds or self.exchange_seconds,
        )  # fmt: skip
        if any(len(values) != len(self.workers) for values in lists):
            raise ValueError(
                f"a list of the round does not have {len(self.workers)} values, one for each worker"
            )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The record of an evaluation: the model's loss and accuracy on the test set, or on the
    validation examples if the run has some (`data.validation_share`).

    `num_steps`, `num_examples`, `epochs_done` and `train_seconds` count the training since the run
    began.
    """

    epoch: Natural
    num_steps: Natural
    num_examples: Natural | None = None
    epochs_done: Amount | None = None
    train_seconds: Amount | None = None
    test_loss: Finite | None = None
    test_accuracy: Amount | None = None

    type: str = "evaluation"


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The record of the two parts of the gradient noise scale, which is `variance` divided by
    `gradient_square`.

    `variance` is that of one example's gradient; `gradient_square` is the squared norm of the true
    gradient. Both are means over the measured steps since the last record, see
    `bsweep.numerics.noise_scale`. Both are estimates, so either may be zero or negative.

    The estimates come from `num_gradients` gradients, each the mean over `gradient_batch` examples.
    `num_examples` counts the training examples since the run began.
    """

    epoch: Natural
    num_steps: Natural
    num_examples: Natural | None = None
    epochs_done: Amount | None = None
    gradient_square: Finite | None = None
    variance: Finite | None = None
    num_gradients: Natural | None = None
    gradient_batch: Finite | None = None

    type: str = "noise_scale"


@dataclass(frozen=True, kw_only=True)
class Event:
    """The record of something that happened in a run; `event` is its kind, such as `warning`."""

    event: str
    message: str

    type: str = "event"


@dataclass(frozen=True, kw_only=True)
class Continued(Event):
    """The event which says that this run began at a checkpoint of another run, `branch_of`.

    That run saved the checkpoint after `num_steps` steps. The records before this event are copies
    of that run's. `train_seconds` is that run's training time until then.
    """

    event: str = "continued"
    branch_of: str
    num_steps: Natural
    train_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class BatchChanged(Event):
    """The event which says that the batching policy changed the batch size.

    From this event on, a step takes `global_batch` examples over all workers. `inputs` are the
    measurements by which the policy decided.
    """

    event: str = "batch_changed"
    epochs_done: Amount
    before: Natural  # the global batch until this event
    global_batch: Natural
    inputs: Mapping[str, Finite | None]


@dataclass(frozen=True, kw_only=True)
class End:
    """The last record of an attempt that the workers ended themselves, without an error.

    The record of a completed run also says how many epochs and steps the run has trained, so that
    lost records are noticed.
    """

    status: Status
    message: str
    epochs: Natural | None = None
    num_steps: Natural | None = None
    # On the test set, if the run has validation examples; see `Epoch`.
    final_test_loss: Finite | None = None
    final_test_accuracy: Amount | None = None

    type: str = "end"


Record = Start | Step | Round | Epoch | Evaluation | NoiseScale | Event | End
