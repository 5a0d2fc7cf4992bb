"""The training loop of every run: epochs, rounds and steps, with evaluations when they are due."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import NoReturn

import torch
from torch import Tensor

from bsweep.batching import RoundStats
from bsweep.core import energy, memory
from bsweep.data import plan
from bsweep.models import final_file
from bsweep.numerics import optim
from bsweep.numerics.timing import StepClock
from bsweep.runlog.errors import Diverged
from bsweep.runlog.records import End, Epoch, Event, Round, Step, WorkerMemory
from bsweep.strategies import Rounds
from bsweep.train import evaluation, graph_capture, step
from bsweep.train.checkpointing import CheckpointSchedule
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job


def train(job: Job, cursor: Cursor | None) -> None:
    """Train the model from the position `cursor` to the end of the run; begin at the start if
    `cursor` is None.

    `bsweep.train.worker.train` says which exceptions this raises.
    """
    cursor = cursor or Cursor.create(job.device, len(job.dataset.train))
    checkpoints = CheckpointSchedule(job)
    # A run that stopped after its last round still needs the record of that epoch.
    while cursor.epoch <= job.config.epochs and not (
        _is_finished(job, cursor) and cursor.position == 0
    ):
        job.record(train_epoch(job, cursor, checkpoints))
        # A worker may hold a part of the parameters only.
        sums = torch.stack([tensor.sum().double() for tensor in job.vector.held])
        if not math.isfinite(job.sums(sums.sum().view(1))[0]):
            _diverge(job, f"parameters became infinite or NaN in epoch {cursor.epoch}")
        cursor.begin_epoch()
        cursor.checkpoint_seconds += checkpoints.after_epoch(cursor)
    loss, accuracy = evaluation.final(job)
    if job.config.keep_weights:
        _keep_weights(job)
    messages = [cursor.reached] if cursor.reached and job.config.stop_at_target else []
    messages += [f"test accuracy {accuracy:.4f}, measured once"] if accuracy is not None else []
    job.record(
        End(
            status="completed",
            message="; ".join(messages),
            epochs=cursor.epoch - 1,
            num_steps=cursor.num_steps,
            final_test_loss=loss,
            final_test_accuracy=accuracy,
        )
    )


def _keep_weights(job: Job) -> None:
    """Write the trained weights, on the first worker."""
    weights = job.strategy.weights(job.model)
    if job.world.rank != 0:
        return
    try:
        final_file.write(weights, job.dataset, job.paths.final)
    except (OSError, RuntimeError) as error:
        message = f"{job.paths.final} was not written: {error}"
        job.record(Event(event="warning", message=message))


def train_epoch(job: Job, cursor: Cursor, checkpoints: CheckpointSchedule) -> Epoch:
    """Train to the end of the current epoch or of the run, evaluate the model, and return the
    epoch's record.
    """
    order = plan.epoch_order(cursor.num_train, seed=job.config.seed, epoch=cursor.epoch)
    order = order.to(job.dataset.train.labels.device)
    clock = StepClock(job.device, cursor.step_seconds)
    job.training_model.train()
    job.strategy.begin_epoch(cursor.epoch)
    memory.reset_peak(job.device)
    meter = energy.EnergyMeter(job.device, counts_host=job.world.local_rank == 0)
    is_whole, has_steps = cursor.position == 0, not _is_over(job, cursor)
    while not _is_over(job, cursor):
        train_and_record_round(job, cursor, order, clock)
        if not _is_over(job, cursor) and evaluation.is_due(job, cursor):
            # This waits for the GPU to finish its steps before its energy is read.
            seconds = clock.seconds()
            with clock.pause(), meter.paused():
                if cursor.peak_memory_bytes is None:
                    cursor.peak_memory_bytes = memory.peak_bytes(job.device)
                evaluation.within_epoch(job, cursor, sum(seconds))
        cursor.checkpoint_seconds += checkpoints.after_round(cursor, clock)
    joules = meter.joules() if is_whole else math.nan
    # A run that resumes where an epoch's last step had ended has measured no step of it.
    measured_peak = memory.peak_bytes(job.device) if has_steps else None
    peak_memory_bytes = cursor.peak_memory_bytes or measured_peak
    return _epoch_record(job, cursor, clock, joules, peak_memory_bytes)


def train_and_record_round(job: Job, cursor: Cursor, order: Tensor, clock: StepClock) -> None:
    """Train one round, which begins at the position `cursor`; with most strategies a round is one
    step. Record it, and show its measurements to the batching policy, which may then change the
    batch size.

    Args:
        job: This worker's job.
        cursor: The position in the run, which this advances.
        order: The indices of the epoch's examples in training order, int64 (num_train,).
        clock: The clock that times the steps.
    """
    shares = job.policy.shares(cursor.epochs_done())
    graph_capture.drop_left(job, shares)
    sums = torch.zeros_like(cursor.totals)
    for num_ahead in step.train_round(job, cursor, order, shares, clock, sums):
        ends_training = not num_ahead and _is_over(job, cursor)
        if len(clock) % job.config.log_every_steps == 0 or ends_training:
            _log_step(job, cursor, clock, shares, cursor.epochs_done(num_ahead))
    rounds: list[Round] = []
    if isinstance(job.strategy, Rounds):
        rounds, job.strategy.records = job.strategy.records, []
    job.record(*rounds)
    for record in rounds:
        if record.train_loss is None:
            _diverge(job, f"the training loss became infinite or NaN in round {record.round}")
    if job.noise and (noise_scale := job.noise.record(cursor)):
        job.record(noise_scale)
    stats = RoundStats(
        epochs_done=cursor.epochs_done(),
        rounds=tuple(rounds),
        sums=sums,
        gather=job.strategy.gather,
        noise=job.noise.estimate() if job.noise else None,
        num_train=cursor.num_train,
        learning_rate=job.optimizer.param_groups[0]["lr"],
        step_seconds=clock.seconds,
    )
    job.record(*job.policy.observe(stats))


def _epoch_record(
    job: Job,
    cursor: Cursor,
    clock: StepClock,
    host_joules: float,
    peak_memory_bytes: int | None,
) -> Epoch:
    """Return the record of an epoch; evaluate the model first, if that is due."""
    totals = (cursor.totals + cursor.recent).tolist()
    loss, correct, labels, joules = job.sums(
        torch.tensor([*totals, host_joules], dtype=torch.float64)
    )
    if evaluation.finite(loss) is None:
        _diverge(job, f"the training loss became {loss / labels} in epoch {cursor.epoch}")
    seconds = clock.seconds()
    traffic = asdict(job.strategy.traffic())
    waits = traffic["worker_wait_seconds"]
    if job.graphs and peak_memory_bytes is not None:
        # Steps that replay a graph allocate nothing, and the optimizer's state exists by now.
        peak_memory_bytes = max(
            peak_memory_bytes, memory.allocated_bytes(job.device) + job.graphs.replay_bytes
        )
    memory.reset_peak(job.device)
    checkpoint_seconds, cursor.checkpoint_seconds = cursor.checkpoint_seconds, 0.0
    evaluation_peak_memory_bytes = None
    if not cursor.scores or cursor.num_examples > cursor.evaluated_examples:
        evaluation.take(job, cursor, sum(seconds))
        evaluation_peak_memory_bytes = memory.peak_bytes(job.device)
    test_loss, test_accuracy = cursor.scores[-1]
    return Epoch(
        epoch=cursor.epoch,
        num_steps=len(seconds),
        train_seconds=sum(seconds),
        train_loss=loss / labels,
        train_accuracy=evaluation.finite(correct / labels),
        test_loss=test_loss,
        test_accuracy=test_accuracy,
        images_per_second=labels / job.inputs.labels_per_example / sum(seconds),
        tokens_per_second=labels / sum(seconds) if job.dataset.tokens_per_example else None,
        step_seconds_p50=_quantile(seconds, 0.5),
        step_seconds_p95=_quantile(seconds, 0.95),
        learning_rate=job.optimizer.param_groups[0]["lr"],
        global_batch=cursor.global_batch,
        worker_memory=_worker_memory(job, peak_memory_bytes),
        peak_memory_bytes=peak_memory_bytes,
        evaluation_peak_memory_bytes=evaluation_peak_memory_bytes,
        skipped_steps=job.vector.scale.count_skipped() if job.vector.scale else None,
        checkpoint_seconds=checkpoint_seconds,
        energy_joules=None if math.isnan(joules) else joules,
        wait_seconds=sum(waits) / len(waits) if waits else None,
        **traffic,
    )


def _worker_memory(job: Job, peak_bytes: int | None) -> tuple[WorkerMemory, ...]:
    """Return the memory of each worker, by rank."""
    memory_now = WorkerMemory(
        parameter_bytes=sum(tensor.nbytes for tensor in job.vector.held),
        gradient_bytes=job.vector.num_bytes,
        optimizer_bytes=optim.state_bytes(job.optimizer),
        peak_bytes=peak_bytes,
    )
    return tuple(WorkerMemory(**each) for each in job.strategy.gather_json(asdict(memory_now)))


def _is_finished(job: Job, cursor: Cursor) -> bool:
    """Return True if the run is to end now, even if some of its epochs are not trained yet.

    It has reached its target and was asked to stop there, or its strategy is finished.
    """
    is_at_target = job.config.stop_at_target and bool(cursor.reached)
    return is_at_target or (isinstance(job.strategy, Rounds) and job.strategy.is_finished)


def _is_over(job: Job, cursor: Cursor) -> bool:
    """Return True if all examples of the epoch are trained, or if the whole run is to end now."""
    return cursor.ends_epoch or _is_finished(job, cursor)


def _log_step(
    job: Job, cursor: Cursor, clock: StepClock, shares: tuple[plan.Share, ...], epochs_done: float
) -> None:
    # Workers that do not step together must not wait for one another here. So this worker's sums,
    # scaled to the size of the whole round, stand for all.
    strategy = job.strategy
    scale = plan.round_size(shares) / shares[strategy.replica].num_examples
    loss, _, labels = (
        job.sums(cursor.recent) if strategy.lockstep else (cursor.recent * scale).tolist()
    )
    cursor.totals += cursor.recent
    cursor.recent.zero_()
    num_recent = (len(clock) - 1) % job.config.log_every_steps + 1
    seconds = sum(clock.seconds()[-num_recent:])
    job.record(
        Step(
            epoch=cursor.epoch,
            step=cursor.num_steps,
            train_loss=evaluation.finite(loss / labels) if labels else None,
            learning_rate=job.optimizer.param_groups[0]["lr"],
            images_per_second=labels / job.inputs.labels_per_example / seconds,
            global_batch=cursor.global_batch,
            epochs_done=epochs_done,
        )
    )
    if evaluation.finite(loss) is None and strategy.lockstep:
        _diverge(
            job,
            f"the training loss became {loss / labels} in epoch {cursor.epoch}, by step "
            f"{len(clock)} of the epoch",
        )


def _diverge(job: Job, message: str) -> NoReturn:
    job.record(End(status="diverged", message=message))
    raise Diverged(message)


def _quantile(values: list[float], q: float) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(q))
