"""The one training loop: epochs, rounds, steps, and the evaluation after each epoch."""

from __future__ import annotations

from dataclasses import asdict
from typing import NoReturn

import torch
from torch import Tensor

from bsweep import checkpoint, memory, optim, runlog, steps
from bsweep.batching import Seen
from bsweep.checkpoint import Cursor
from bsweep.clock import StepClock
from bsweep.data import plan
from bsweep.errors import Diverged, Stopped
from bsweep.job import Job
from bsweep.strategies import Resumable, Rounds

Shares = tuple[plan.Share, ...]


def train(job: Job) -> None:
    """Train what is left of the run; see `bsweep.worker.train` for what is raised."""
    cursor = checkpoint.load(job)
    cursor = cursor or Cursor.of(job.device)
    # Of a run that stopped after its last round, the epoch is still to be evaluated.
    while cursor.epoch <= job.config.epochs and not (_is_finished(job) and cursor.position == 0):
        job.record(train_epoch(job, cursor))
        _record_rounds(job)  # of workers that were lost meanwhile
        if not bool(job.vector.parameters.sum().isfinite()):  # the same on every worker
            _diverge(job, f"parameters became infinite or NaN in epoch {cursor.epoch}")
        cursor.begin_epoch()
    job.record(runlog.End(status="completed", message=""))


def train_epoch(job: Job, cursor: Cursor) -> runlog.Epoch:
    """What is left of a pass over the training examples, then the evaluation."""
    num_train = len(job.dataset.train_labels)
    order = plan.epoch_order(num_train, seed=job.config.seed, epoch=cursor.epoch).to(job.dataset.train_labels.device)
    clock = StepClock(job.device, cursor.step_seconds)
    job.training_model.train()
    job.strategy.begin_epoch(cursor.epoch)
    memory.reset_peak(job.device)
    while cursor.position < num_train and not _is_finished(job):
        train_round(job, cursor, order, clock)
    return _epoch_record(job, cursor, clock)


def train_round(job: Job, cursor: Cursor, order: Tensor, clock: StepClock) -> None:
    """The round of `order`, the epoch's examples, at which the cursor stands; often it is one step."""
    shares = plan.of_members(job.policy.shares(_epochs_done(job, cursor)), job.strategy.members)
    size = plan.round_size(shares)
    batch, coming = (plan.step_indices(order, cursor.position + ahead, size) for ahead in (0, size))
    sums = _train_steps(job, cursor, shares, batch, coming, clock)
    _look_at_round(job, cursor, sums)
    _stop_if_told(job, cursor, clock)


def _epoch_record(job: Job, cursor: Cursor, clock: StepClock) -> runlog.Epoch:
    loss, correct, labels = job.sums(cursor.totals + cursor.recent)
    if _finite(loss) is None:
        _diverge(job, f"the training loss became {loss / labels} in epoch {cursor.epoch}")
    seconds = clock.seconds()
    traffic = asdict(job.strategy.traffic())
    waits = traffic["worker_wait_seconds"]
    peak_memory_bytes = memory.peak_bytes(job.device)
    if job.graph and peak_memory_bytes is not None:
        # Its steps allocate nothing; the optimizer's state is there by now.
        peak_memory_bytes = max(peak_memory_bytes, memory.allocated_bytes(job.device) + job.graph.replay_bytes)
    memory.reset_peak(job.device)
    test_loss, test_accuracy = evaluate(job)
    return runlog.Epoch(
        epoch=cursor.epoch,
        num_steps=len(seconds),
        train_seconds=sum(seconds),
        train_loss=loss / labels,
        train_accuracy=_finite(correct / labels),
        test_loss=test_loss,
        test_accuracy=test_accuracy,
        images_per_second=labels / job.labels_per_example / sum(seconds),
        tokens_per_second=labels / sum(seconds) if job.dataset.tokens_per_example else None,
        step_seconds_p50=_quantile(seconds, 0.5),
        step_seconds_p95=_quantile(seconds, 0.95),
        learning_rate=job.optimizer.param_groups[0]["lr"],
        global_batch=cursor.global_batch,
        peak_memory_bytes=peak_memory_bytes,
        evaluation_peak_memory_bytes=memory.peak_bytes(job.device),
        skipped_steps=job.vector.scale.count_skipped() if job.vector.scale else None,
        wait_seconds=sum(waits) / len(waits) if waits else None,
        **traffic,
    )


def _train_steps(job: Job, cursor: Cursor, shares: Shares, batch: Tensor, coming: Tensor, clock: StepClock) -> Tensor:
    """This worker's steps on its part of `batch`, and what the strategy does after them.

    `coming` are most likely the examples of the next round.

    Returns:
        Sum of losses, correct answers and labels of its part, float64 (3,) on the device.
    """
    strategy, own = job.strategy, shares[job.place.rank]
    parts = plan.local_steps(batch, job.place.rank, shares)
    coming_parts = [*parts, *plan.local_steps(coming, job.place.rank, shares)]
    sums = torch.zeros_like(cursor.totals)
    cursor.global_batch = plan.global_batch(shares)
    if isinstance(strategy, Rounds):
        strategy.begin_round(shares)
    for number, part in enumerate(parts, 1):
        ends_round = number == len(parts)
        job.dataset.train.expect(coming_parts[number - 1 : number + 1])
        with clock.step():
            trained = (number - 0.5) / len(parts) * len(batch)
            rate = job.learning_rate(_epochs_done(job, cursor, trained), strategy.rate_batch(shares))
            optim.set_learning_rate(job.optimizer, rate * job.policy.rate_factor)
            sums_of_step = steps.train_step(job, batch, part, cursor.epoch, own.num_passes)
            sums += sums_of_step
            cursor.recent += sums_of_step
            if ends_round:
                cursor.position += len(batch)
                if isinstance(strategy, Rounds):
                    with job.phase("exchange"):
                        strategy.end_round(cursor.epoch, sums, sum(map(len, parts)), _is_over(job, cursor))
        cursor.num_steps += 1
        job.heartbeat()
        ends_epoch = ends_round and (_is_over(job, cursor) or _is_finished(job))
        if len(clock) % job.config.log_every_steps == 0 or ends_epoch:
            trained = 0 if ends_round else number / len(parts) * len(batch)
            _log_step(job, cursor, clock, shares, _epochs_done(job, cursor, trained))
    return sums


def _look_at_round(job: Job, cursor: Cursor, sums: Tensor) -> None:
    """Put a round on record, and let the policy see it."""
    records = _record_rounds(job)
    rounds = tuple(record for record in records if isinstance(record, runlog.Round))
    seen = Seen(_epochs_done(job, cursor), rounds, sums, job.strategy.gather)
    job.record(*job.policy.observe(seen))


def _record_rounds(job: Job) -> list[runlog.Event | runlog.Round]:
    if not isinstance(job.strategy, Rounds):
        return []
    records, job.strategy.records = job.strategy.records, []
    job.record(*records)
    for record in records:
        if isinstance(record, runlog.Round) and record.train_loss is None:
            _diverge(job, f"the training loss became infinite or NaN in round {record.round}")
    return records


def _stop_if_told(job: Job, cursor: Cursor, clock: StepClock) -> None:
    strategy = job.strategy
    if isinstance(strategy, Resumable) and strategy.stop_reason:
        clock.seconds()  # The checkpoint holds them, and a GPU has perhaps not finished these steps yet.
        checkpoint.save(job, cursor)
        job.record(runlog.End(status="interrupted", message=f"{strategy.stop_reason}; start it again to go on"))
        raise Stopped(strategy.stop_reason)


def _is_finished(job: Job) -> bool:
    return isinstance(job.strategy, Rounds) and job.strategy.is_finished


def _is_over(job: Job, cursor: Cursor) -> bool:
    """Whether all examples of the epoch are trained."""
    return cursor.position == len(job.dataset.train_labels)


def _epochs_done(job: Job, cursor: Cursor, more_examples: float = 0) -> float:
    return cursor.epoch - 1 + (cursor.position + more_examples) / len(job.dataset.train_labels)


def _log_step(job: Job, cursor: Cursor, clock: StepClock, shares: Shares, epochs_done: float) -> None:
    # Workers that are not in step are not made to wait for one another: this one speaks for all.
    strategy, own = job.strategy, shares[job.place.rank].num_examples
    others = plan.round_size(shares) / own
    loss, _, labels = job.sums(cursor.recent) if strategy.in_step else (cursor.recent * others).tolist()
    cursor.totals += cursor.recent
    cursor.recent.zero_()
    job.record(
        runlog.Step(
            epoch=cursor.epoch,
            step=cursor.num_steps,
            train_loss=_finite(loss / labels) if labels else None,
            learning_rate=job.optimizer.param_groups[0]["lr"],
            images_per_second=clock.rate(labels / job.labels_per_example),
            global_batch=cursor.global_batch,
            epochs_done=epochs_done,
        )
    )
    if _finite(loss) is None and strategy.in_step:
        _diverge(job, f"the training loss became {loss / labels} in epoch {cursor.epoch}, by step {len(clock)}")


def _diverge(job: Job, message: str) -> NoReturn:
    job.record(runlog.End(status="diverged", message=message))
    raise Diverged(message)


def evaluate(job: Job) -> tuple[float | None, float | None]:
    """Mean loss and accuracy over the whole test set, each example counted once by one worker."""
    if job.config.average_batchnorm:
        average_batchnorm(job)
    members = job.strategy.members
    loss, correct, num_labels = job.sums(_scores_of_own_part(job))
    if job.strategy.members != members:
        return evaluate(job)  # what was lost with a worker is shared among the others
    return _finite(loss / num_labels), _finite(correct / num_labels)


def _scores_of_own_part(job: Job) -> Tensor:
    """Sums of losses, correct answers and labels of this worker's part of the test set, float64 (3,)."""
    dataset, members = job.dataset, job.strategy.members
    mine = plan.worker_part(torch.arange(len(dataset.test_labels)), members.index(job.place.rank), len(members))
    tokens = dataset.tokens_per_example
    at_once = max(1, _EVALUATION_TOKENS // tokens) if tokens else _EVALUATION_IMAGES
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    job.model.eval()
    with memory.unlimited(), torch.inference_mode():  # the limit is on what steps take
        for examples, labels in dataset.test.batches(mine, at_once):
            targets = job.targets(labels)
            with job.autocast():
                outputs = job.model(job.inputs(examples))
            totals += job.objective.score(job.objective.loss(outputs, targets), outputs, targets)
            job.heartbeat()
    return totals


# Of one forward pass, to bound the memory of activations and of logits.
_EVALUATION_IMAGES = 500
_EVALUATION_TOKENS = 4096


def average_batchnorm(job: Job) -> None:
    """Give all workers the mean of their BatchNorm statistics, which each gathered on its own part of the data."""
    statistics = [buffer for buffer in job.model.buffers() if buffer.is_floating_point()]
    if job.place.num_workers == 1 or not statistics:
        return
    means = job.strategy.mean(torch.cat([s.reshape(-1).to("cpu", torch.float64) for s in statistics]))
    for statistic, mean in zip(statistics, means.split([s.numel() for s in statistics]), strict=True):
        statistic.copy_(mean.view_as(statistic))


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _quantile(values: list[float], q: float) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(q))
