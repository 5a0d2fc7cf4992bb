"""The training loop of every run: epochs, rounds and steps, with evaluations when they are due."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, NoReturn

import torch
from torch import Tensor

from bsweep.batching import RoundStats
from bsweep.core import energy, memory
from bsweep.data import plan
from bsweep.models import final_file
from bsweep.numerics import optim
from bsweep.numerics.clock import StepClock
from bsweep.runlog.errors import Diverged
from bsweep.runlog.measured import NoiseScale
from bsweep.runlog.records import End, Epoch, Event, Round, Step, WorkerMemory
from bsweep.strategies import Rounds
from bsweep.train import evaluation, graph_capture, step
from bsweep.train.checkpointing import CheckpointSchedule
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job

Shares = tuple[plan.Share, ...]


def train(job: Job, cursor: Cursor | None) -> None:
    """Train the model from the position `cursor` to the end of the run; begin at the start if
    `cursor` is None.

    `bsweep.train.worker.train` says which exceptions this raises.
    """
    cursor = cursor or Cursor.of(job.device, len(job.dataset.train_labels))
    keeper = CheckpointSchedule(job)
    # A run that stopped after its last round still needs the record of that epoch.
    while cursor.epoch <= job.config.epochs and not (
        _is_finished(job, cursor) and cursor.position == 0
    ):
        job.record(train_epoch(job, cursor, keeper))
        own = job.vector.parameters.sum().double().view(1)  # a worker may hold a part of them only
        if not math.isfinite(job.sums(own)[0]):
            _diverge(job, f"parameters became infinite or NaN in epoch {cursor.epoch}")
        cursor.begin_epoch()
        cursor.checkpoint_seconds += keeper.after_epoch(cursor)
    loss, accuracy = evaluation.final(job)
    if job.config.keep_weights:
        _keep_weights(job)
    told = [cursor.reached] if cursor.reached and job.config.stop_at_target else []
    told += [f"test accuracy {accuracy:.4f}, measured once"] if accuracy is not None else []
    job.record(
        End(
            status="completed",
            message="; ".join(told),
            epochs=cursor.epoch - 1,
            num_steps=cursor.num_steps,
            final_test_loss=loss,
            final_test_accuracy=accuracy,
        )
    )


def _keep_weights(job: Job) -> None:
    """Write the trained weights, on the first worker."""
    weights = job.strategy.weights(job.model)
    if job.place.rank != 0:
        return
    try:
        final_file.write(weights, job.dataset, job.paths.final)
    except (OSError, RuntimeError) as error:
        message = f"{job.paths.final} was not written: {error}"
        job.record(Event(event="warning", message=message))


def train_epoch(job: Job, cursor: Cursor, keeper: CheckpointSchedule) -> Epoch:
    """Train to the end of the current epoch or of the run, evaluate the model, and return the
    epoch's record.
    """
    order = plan.epoch_order(cursor.num_train, seed=job.config.seed, epoch=cursor.epoch)
    order = order.to(job.dataset.train_labels.device)
    since_log = len(cursor.step_seconds) % job.config.log_every_steps
    clock = StepClock(job.device, cursor.step_seconds, since_log)
    job.training_model.train()
    job.strategy.begin_epoch(cursor.epoch)
    memory.reset_peak(job.device)
    meter = energy.Meter(job.device, counts_host=job.place.local_rank == 0)
    is_whole = cursor.position == 0
    while not _is_over(job, cursor):
        train_round(job, cursor, order, clock)
        if not _is_over(job, cursor) and evaluation.is_due(job, cursor):
            # This waits for the GPU to finish its steps before its energy is read.
            seconds = clock.seconds()
            with meter.paused():
                if cursor.peak_memory_bytes is None:
                    cursor.peak_memory_bytes = memory.peak_bytes(job.device)
                cursor.add_evaluation(*evaluation.within_epoch(job, cursor, sum(seconds)))
            clock.pause()
        if seconds_of_checkpoint := keeper.after_round(cursor, clock):
            cursor.checkpoint_seconds += seconds_of_checkpoint
            clock.pause()
    return _epoch_record(job, cursor, clock, meter.joules() if is_whole else math.nan)


def train_round(job: Job, cursor: Cursor, order: Tensor, clock: StepClock) -> None:
    """Train one round, which begins at the position `cursor`; with most strategies a round is one
    step.

    Args:
        job: This worker's job.
        cursor: The position in the run, which this advances.
        order: The indices of the epoch's examples in training order, int64 (num_train,).
        clock: The clock that times the steps.
    """
    shares = job.policy.shares(cursor.epochs_done())
    graph_capture.drop_left(job, shares)
    size = plan.round_size(shares)
    batch, coming = (plan.step_indices(order, cursor.position + ahead, size) for ahead in (0, size))
    sums = _train_steps(job, cursor, shares, batch, coming, clock)
    _look_at_round(job, cursor, sums, clock)


def _epoch_record(job: Job, cursor: Cursor, clock: StepClock, own_joules: float) -> Epoch:
    own = (cursor.totals + cursor.recent).tolist()
    loss, correct, labels, joules = job.sums(torch.tensor([*own, own_joules], dtype=torch.float64))
    if evaluation.finite(loss) is None:
        _diverge(job, f"the training loss became {loss / labels} in epoch {cursor.epoch}")
    seconds = clock.seconds()
    traffic = asdict(job.strategy.traffic())
    waits = traffic["worker_wait_seconds"]
    peak_memory_bytes = cursor.peak_memory_bytes or memory.peak_bytes(job.device)
    if job.graphs and peak_memory_bytes is not None:
        # Steps that replay a graph allocate nothing, and the optimizer's state exists by now.
        peak_memory_bytes = max(
            peak_memory_bytes, memory.allocated_bytes(job.device) + job.graphs.replay_bytes
        )
    memory.reset_peak(job.device)
    checkpoint_seconds, cursor.checkpoint_seconds = cursor.checkpoint_seconds, 0.0
    if not cursor.scores or cursor.num_examples > cursor.evaluated_examples:
        cursor.add_evaluation(*evaluation.take(job, cursor, sum(seconds)))
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
        evaluation_peak_memory_bytes=memory.peak_bytes(job.device),
        skipped_steps=job.vector.scale.count_skipped() if job.vector.scale else None,
        checkpoint_seconds=checkpoint_seconds,
        energy_joules=None if math.isnan(joules) else joules,
        wait_seconds=sum(waits) / len(waits) if waits else None,
        **traffic,
    )


def _worker_memory(job: Job, peak_bytes: int | None) -> tuple[dict[str, Any], ...]:
    """Return the memory of each worker, in the form of `WorkerMemory`."""
    own = WorkerMemory(
        parameter_bytes=job.vector.parameters.nbytes,
        gradient_bytes=job.vector.gradients.nbytes,
        optimizer_bytes=optim.state_bytes(job.optimizer),
        peak_bytes=peak_bytes,
    )
    return tuple(job.strategy.gather_json(asdict(own)))


def _train_steps(
    job: Job, cursor: Cursor, shares: Shares, batch: Tensor, coming: Tensor, clock: StepClock
) -> Tensor:
    """Run this worker's training steps of one round on its part of `batch`, then let the strategy
    end the round.

    Args:
        job: This worker's job.
        cursor: The position in the run, which this advances.
        shares: The share of each worker, by rank.
        batch: The indices of the round's examples, of all workers.
        coming: The examples that the next round will most likely use, to load them early.
        clock: The clock that times the steps.

    Returns:
        The sum of losses, the number of correct answers and the number of labels of this worker's
        part, as a float64 tensor (3,) on the device.
    """
    strategy, own = job.strategy, shares[job.strategy.replica]
    parts = plan.local_steps(batch, strategy.replica, shares)
    coming_parts = [*parts, *plan.local_steps(coming, strategy.replica, shares)]
    sums = torch.zeros_like(cursor.totals)
    cursor.global_batch = plan.global_batch(shares)
    if isinstance(strategy, Rounds):
        strategy.begin_round(shares)
    for number, part in enumerate(parts, 1):
        ends_round = number == len(parts)
        job.dataset.train.expect(coming_parts[number - 1 : number + 1])
        if job.noise:
            job.noise.begin_step(shares, len(batch), cursor.num_steps, bool(job.graphs))
        with clock.step():
            middle = cursor.epochs_done((number - 0.5) / len(parts) * len(batch))
            rate = job.learning_rate(middle, strategy.rate_batch(shares))
            optim.set_learning_rate(job.optimizer, rate * job.policy.rate_factor(middle))
            sums_of_step = step.train_step(job, batch, part, cursor.epoch, own.num_passes)
            sums += sums_of_step
            cursor.recent += sums_of_step
            if ends_round:
                cursor.position += len(batch)
                if isinstance(strategy, Rounds):
                    with job.phase("exchange"):
                        strategy.end_round(
                            cursor.epoch, sums, sum(map(len, parts)), cursor.ends_epoch
                        )
        cursor.num_steps += 1
        job.heartbeat()
        ends_training = ends_round and _is_over(job, cursor)
        if len(clock) % job.config.log_every_steps == 0 or ends_training:
            trained = 0 if ends_round else number / len(parts) * len(batch)
            _log_step(job, cursor, clock, shares, cursor.epochs_done(trained))
    return sums


def _look_at_round(job: Job, cursor: Cursor, sums: Tensor, clock: StepClock) -> None:
    """Record a finished round, and show its measurements to the batching policy, which may then
    change the batch size.
    """
    rounds = _record_rounds(job)
    _record_noise(job, cursor)
    seen = RoundStats(
        epochs_done=cursor.epochs_done(),
        rounds=tuple(rounds),
        sums=sums,
        gather=job.strategy.gather,
        noise=job.noise.estimate() if job.noise else None,
        num_train=cursor.num_train,
        learning_rate=job.optimizer.param_groups[0]["lr"],
        step_seconds=clock.seconds,
    )
    job.record(*job.policy.observe(seen))


def _record_noise(job: Job, cursor: Cursor) -> None:
    """Write a record of the gradient noise scale if one is due and a step was measured."""
    measured = job.noise.record(job.strategy.gather) if job.noise else None
    if measured is None:
        return
    epochs_done = cursor.epochs_done()
    job.record(
        NoiseScale(
            epoch=cursor.epoch,
            num_steps=cursor.num_steps,
            num_examples=round(epochs_done * cursor.num_train),
            epochs_done=epochs_done,
            gradient_square=measured.squared_norm,
            variance=measured.trace,
            num_gradients=measured.num_gradients,
            gradient_batch=measured.gradient_batch,
        )
    )


def _record_rounds(job: Job) -> list[Round]:
    if not isinstance(job.strategy, Rounds):
        return []
    records, job.strategy.records = job.strategy.records, []
    job.record(*records)
    for record in records:
        if record.train_loss is None:
            _diverge(job, f"the training loss became infinite or NaN in round {record.round}")
    return records


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
    job: Job, cursor: Cursor, clock: StepClock, shares: Shares, epochs_done: float
) -> None:
    # Workers that do not step together must not wait for one another here. So this worker's sums,
    # scaled to the size of the whole round, stand for all.
    strategy, own = job.strategy, shares[job.strategy.replica].num_examples
    others = plan.round_size(shares) / own
    loss, _, labels = (
        job.sums(cursor.recent) if strategy.lockstep else (cursor.recent * others).tolist()
    )
    cursor.totals += cursor.recent
    cursor.recent.zero_()
    job.record(
        Step(
            epoch=cursor.epoch,
            step=cursor.num_steps,
            train_loss=evaluation.finite(loss / labels) if labels else None,
            learning_rate=job.optimizer.param_groups[0]["lr"],
            images_per_second=clock.rate(labels / job.inputs.labels_per_example),
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
