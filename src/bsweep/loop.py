"""The one training loop: epochs, rounds, steps, and the evaluation after each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep import checkpoint, memory, optim, runlog
from bsweep.batching import Policy, Seen
from bsweep.checkpoint import Cursor
from bsweep.clock import Slowdown, StepClock
from bsweep.config import ImageConfig, RunConfig
from bsweep.data import augment, plan
from bsweep.data.dataset import Dataset
from bsweep.errors import Diverged, Stopped
from bsweep.objective import Objective
from bsweep.place import Place
from bsweep.runlog import RunLog, RunPaths, SignOfLife
from bsweep.strategies import InBackward, Resumable, Rounds, Strategy
from bsweep.vector import Vector

Shares = tuple[plan.Share, ...]


@dataclass(frozen=True)
class Job:
    """All that the loop needs: what to train, on what, and this worker's place among the others."""

    config: RunConfig
    paths: RunPaths
    place: Place
    device: torch.device
    precision: str
    peers: tuple[Mapping[str, Any], ...]  # what each worker computes on, by rank; see `bsweep.peers`
    dataset: Dataset
    model: nn.Module
    training_model: nn.Module  # the same, or what a strategy wraps around it
    objective: Objective
    vector: Vector
    optimizer: Optimizer
    strategy: Strategy
    policy: Policy
    learning_rate: Callable[[float, float], float]  # of the epochs done and the examples behind a step
    slowdown: Slowdown
    alive: SignOfLife
    log: RunLog
    on_step: Callable[[], None]

    def record(self, *records: runlog.Record) -> None:
        """One worker writes: the first of those that still take part."""
        if self.place.rank == self.strategy.members[0]:
            for record in records:
                self.log.write(record)

    def heartbeat(self) -> None:
        self.alive.show()
        self.on_step()

    def inputs(self, examples: Tensor) -> Tensor:
        """Inputs of the model: images normalised, in the model's memory format; tokens as int64; others as they are."""
        if examples.is_floating_point():
            return examples.to(self.vector.parameters.dtype)
        if self.dataset.mean is None or self.dataset.std is None:
            return examples.long()
        return augment.normalize(
            examples,
            self.dataset.mean,
            self.dataset.std,
            dtype=self.vector.parameters.dtype,
            memory_format=memory_format(self.config),
        )

    def training_examples(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Inputs of the model and its targets: images cropped and flipped at random, others as they are."""
        examples, labels, indices = self.dataset.train.take(indices)
        if self.dataset.mean is not None and isinstance(self.config.data, ImageConfig):
            examples = augment.crop_and_flip(
                examples,
                indices,
                seed=self.config.seed,
                epoch=epoch,
                padding=self.config.data.crop_padding,
                flip=self.config.data.flip,
            )
        return self.inputs(examples), self.targets(labels)

    def targets(self, labels: Tensor) -> Tensor:
        """What the model is to answer: classes and tokens as int64, other numbers in the model's precision."""
        return labels.to(self.vector.parameters.dtype) if labels.is_floating_point() else labels.long()

    @property
    def labels_per_example(self) -> int:
        """Losses that an example counts for: of the image, of each token, of each number."""
        return self.dataset.train_labels[0].numel()

    def autocast(self) -> AbstractContextManager[None]:
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def sums(self, values: Tensor) -> list[float]:
        """Sums over workers of a few numbers."""
        return self.strategy.gather(values.to("cpu", torch.float64)).sum(dim=0).tolist()


def train(job: Job) -> None:
    """Train what is left of the run; see `bsweep.worker.train` for what is raised."""
    cursor = checkpoint.load(job.paths, job.strategy, job.policy, job.model, job.optimizer)
    cursor = cursor or Cursor.of(job.device)
    # Of a run that stopped after its last round, the epoch is still to be evaluated.
    while cursor.epoch <= job.config.epochs and not (_is_finished(job) and cursor.position == 0):
        job.record(train_epoch(job, cursor))
        _record_rounds(job)  # of workers that were lost meanwhile
        if not bool(job.vector.parameters.sum().isfinite()):  # the same on every worker
            _diverge(job, f"parameters became infinite or NaN in epoch {cursor.epoch}")
        cursor.begin_epoch()
    job.record(runlog.End(status="completed", message=""))


def warm_up(job: Job) -> None:
    """A forward and a backward pass that nothing remembers: kernels are loaded and chosen before the clock starts."""
    local_batch = job.config.local_batches[job.place.rank]
    indices = torch.arange(min(local_batch, len(job.dataset.train_labels)), device=job.device)
    statistics = [buffer.clone() for buffer in job.model.buffers()]
    job.model.train()
    with job.autocast(), _batchnorm_fit_for(job.model, len(indices)):
        examples, labels, _ = job.dataset.train.take(indices)
        outputs = job.model(job.inputs(examples))
    targets = job.targets(labels)
    job.objective.check(outputs, targets, job.dataset.num_classes)
    job.objective.loss(outputs, targets).backward()
    job.vector.collect_gradients()
    for buffer, before in zip(job.model.buffers(), statistics, strict=True):
        buffer.copy_(before)


def train_epoch(job: Job, cursor: Cursor) -> runlog.Epoch:
    """What is left of a pass over the training examples, then the evaluation."""
    num_train = len(job.dataset.train_labels)
    order = plan.epoch_order(num_train, seed=job.config.seed, epoch=cursor.epoch).to(job.dataset.train_labels.device)
    clock = StepClock(job.device, cursor.step_seconds)
    job.training_model.train()
    job.strategy.begin_epoch(cursor.epoch)
    memory.reset_peak(job.device)
    while cursor.position < num_train and not _is_finished(job):
        shares = plan.of_members(job.policy.shares(_epochs_done(job, cursor)), job.strategy.members)
        size = plan.round_size(shares)
        batch, coming = (plan.step_indices(order, cursor.position + ahead, size) for ahead in (0, size))
        sums = _train_round(job, cursor, shares, batch, coming, clock)
        _look_at_round(job, cursor, sums)
        _stop_if_told(job, cursor, clock)
    return _epoch_record(job, cursor, clock)


def _epoch_record(job: Job, cursor: Cursor, clock: StepClock) -> runlog.Epoch:
    loss, correct, labels = job.sums(cursor.totals + cursor.recent)
    if _finite(loss) is None:
        _diverge(job, f"the training loss became {loss / labels} in epoch {cursor.epoch}")
    seconds = clock.seconds()
    traffic = asdict(job.strategy.traffic())
    waits = traffic["worker_wait_seconds"]
    peak_memory_bytes = memory.peak_bytes(job.device)
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
        wait_seconds=sum(waits) / len(waits) if waits else None,
        **traffic,
    )


def _train_round(job: Job, cursor: Cursor, shares: Shares, batch: Tensor, coming: Tensor, clock: StepClock) -> Tensor:
    """This worker's steps on its part of `batch`, and what the strategy does after them; often a round is one step.

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
            sums_of_step = train_step(job, batch, part, cursor.epoch, own.num_passes)
            sums += sums_of_step
            cursor.recent += sums_of_step
            if ends_round:
                cursor.position += len(batch)
                if isinstance(strategy, Rounds):
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
        checkpoint.save(job.paths, cursor, strategy, job.policy, job.model, job.optimizer)
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


def train_step(job: Job, batch: Tensor, part: Tensor, epoch: int, num_passes: int = 1) -> Tensor:
    """One optimizer step of this worker on the examples `part`, of all workers' `batch`.

    Returns:
        Sum of losses, correct answers and labels of its part, float64 (3,) on the device.
    """
    strategy = job.strategy
    parts = (plan.worker_part(part, i, num_passes) for i in range(num_passes))
    passes = [indices for indices in parts if len(indices)]
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    job.vector.drop_gradients()
    with job.slowdown.step(len(part)):
        # A worker that has no example of a tail computes one that counts nothing: some exchanges travel within a pass.
        for number, indices in enumerate(passes or [batch[:1]], 1):
            inputs, targets = job.training_examples(indices, epoch)
            if isinstance(strategy, InBackward) and number == max(1, len(passes)):
                strategy.before_last_pass()
            with strategy.passes() if isinstance(strategy, InBackward) else nullcontext():
                with job.autocast(), _batchnorm_fit_for(job.model, len(indices)):
                    outputs = job.training_model(inputs)
                loss = job.objective.loss(outputs, targets)
                num_labels = strategy.loss_divisor(len(part), len(batch)) * job.labels_per_example
                (loss * (bool(passes) / num_labels)).backward()
            if passes:
                totals += job.objective.score(loss, outputs, targets)
        job.vector.collect_gradients()
    strategy.step()
    return totals


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


@contextmanager
def _batchnorm_fit_for(model: nn.Module, num_examples: int) -> Iterator[None]:
    """A lone example, in the tail of an epoch, has no batch statistics where maps are 1x1: use the running ones."""
    if num_examples > 1:
        yield
        return
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    for norm in norms:
        norm.eval()
    yield
    for norm in norms:
        norm.train()


def memory_format(config: RunConfig) -> torch.memory_format:
    return torch.channels_last if config.channels_last else torch.contiguous_format


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _quantile(values: list[float], q: float) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(q))
