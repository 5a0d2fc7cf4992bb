"""Evaluations on test or validation examples: when one is due, how it runs, and whether the target
is reached.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bsweep.core import memory
from bsweep.data import plan
from bsweep.data.dataset import Part
from bsweep.numerics.restoring import restoring
from bsweep.runlog.records import Evaluation, Event
from bsweep.strategies import Staged
from bsweep.train.cursor import Cursor, Scores
from bsweep.train.job import Job


def refuse_unknown(job: Job) -> None:
    """Raise ValueError if the run's target is an accuracy, but the model's correct answers cannot
    be counted.
    """
    target = job.config.target
    is_unknown = job.dataset.is_regression and not job.objective.own_score
    if target and target.metric == "test_accuracy" and is_unknown:
        raise ValueError(
            f"target_accuracy={target.value:g}: the labels are floating-point numbers, for which "
            "no answer counts as correct. Give target_loss, or the model a method score(outputs, "
            "targets)."
        )


def is_due(job: Job, cursor: Cursor) -> bool:
    """Return True if an evaluation is due now, in the middle of an epoch.

    This is so once the number of trained examples has reached the next multiple of
    `evaluate_every_examples`, at a moment when the workers are synchronised. At the end of an epoch
    there is an evaluation in any case.
    """
    every = job.config.evaluate_every_examples
    if every is None or not job.strategy.synchronised_now:
        return False
    return cursor.num_examples // every > cursor.evaluated_examples // every


def within_epoch(job: Job, cursor: Cursor, epoch_seconds: float) -> None:
    """Evaluate the model in the middle of an epoch, as `take` does, and leave the model as it was.

    Each worker gets back its own buffers, such as BatchNorm's statistics.
    """
    with restoring(job.model, job.device):
        take(job, cursor, epoch_seconds)
    job.training_model.train()


def take(job: Job, cursor: Cursor, epoch_seconds: float) -> None:
    """Evaluate the model on the test set, or on the validation examples if the run has some, and
    check whether the scores so far confirm that the run has reached its target.

    A run with `stop_at_target` then ends, see `loop`. If the run is evaluated within epochs too,
    also write a record of the evaluation.

    Args:
        job: This worker's job; all workers call this together.
        cursor: The position in the run, to which this adds the scores and, if the target is
            reached, a sentence that says so.
        epoch_seconds: The training time of the current epoch so far, in seconds.
    """
    loss, accuracy = evaluate(job, job.dataset.evaluated)
    if job.config.evaluate_every_examples:
        job.record(
            Evaluation(
                epoch=cursor.epoch,
                num_steps=cursor.num_steps,
                num_examples=cursor.num_examples,
                epochs_done=cursor.num_examples / cursor.num_train,
                train_seconds=cursor.train_seconds + epoch_seconds,
                test_loss=loss,
                test_accuracy=accuracy,
            )
        )
    cursor.evaluated_examples = cursor.num_examples
    cursor.scores.append((loss, accuracy))
    target = job.config.target
    if target is None or cursor.reached:
        return
    values = [scores[target.metric == "test_accuracy"] for scores in cursor.scores]
    if target.is_confirmed_by([value for value in values if value is not None]):
        cursor.reached = (
            f"reached a {target.score} of {target.value:g}: evaluation {len(values)}, after "
            f"{cursor.num_examples} examples ({cursor.num_steps} steps), confirms it"
        )
        job.record(Event(event="target_reached", message=cursor.reached))


def final(job: Job) -> Scores:
    """Return the loss and the accuracy of the trained model on the test set, if the run was
    evaluated on validation examples until now; (None, None) for other runs.
    """
    if job.dataset.validation is None:
        return None, None
    return evaluate(job, job.dataset.test)


def evaluate(job: Job, examples: Part) -> Scores:
    """Return the model's mean loss and its accuracy over a part of the data set, `examples`.

    The workers share them, so that each example counts once.
    """
    if job.config.average_batchnorm:
        average_batchnorm(job)
    loss, correct, num_labels = job.sums(_scores_of_own_examples(job, examples))
    return finite(loss / num_labels), finite(correct / num_labels)


def _scores_of_own_examples(job: Job, examples: Part) -> Tensor:
    """Return the sums of the losses, correct answers and labels on this worker's examples of a
    part of the data set, `examples`, as a float64 tensor (3,).
    """
    dataset, num_shares, strategy = job.dataset, job.config.data_parallel_size, job.strategy
    indices = plan.even_part(torch.arange(len(examples)), strategy.replica, num_shares)
    tokens = dataset.tokens_per_example
    fits = max(1, _EVALUATION_TOKENS // tokens) if tokens else _EVALUATION_IMAGES
    batches = job.config.local_batches
    common = max(batches) if strategy.collective_forward else batches[strategy.replica]
    at_once = max(fits, common)
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    # With some strategies workers exchange in every forward pass, so all make equally many.
    longest = -(-len(examples) // num_shares) if strategy.collective_forward else len(indices)
    num_more = -(-longest // at_once) - -(-len(indices) // at_once)
    forward = strategy.outputs if isinstance(strategy, Staged) else job.model
    job.model.eval()
    # The memory limit is for training steps only. FSDP2 and many models keep tensors from pass to
    # pass; no later pass could train with those of torch's inference mode.
    with memory.unlimited(), torch.no_grad(), strategy.evaluating():
        for batch, _ in examples.batches(torch.zeros(num_more, dtype=torch.int64), 1):
            with job.autocast():
                job.model(job.inputs.convert(batch))
        for batch, labels in examples.batches(indices, at_once):
            targets = job.inputs.targets(labels)
            with job.autocast():
                outputs = forward(job.inputs.convert(batch))  # None if another worker has them
            if outputs is not None:
                loss = job.objective.loss(outputs, targets)
                totals += job.objective.score(loss, outputs, targets)
            job.heartbeat.beat()
    return totals if strategy.reports_sums else torch.zeros_like(totals)


# The most images or tokens in one forward pass, unless a pass of training has more; they bound the
# memory of activations and logits.
_EVALUATION_IMAGES = 500
_EVALUATION_TOKENS = 4096


def average_batchnorm(job: Job) -> None:
    """Replace the floating-point buffers of the model, such as BatchNorm's statistics, by their
    mean over all workers that hold the same parts of the model.

    Each worker had gathered these statistics on its own part of the data.
    """
    statistics = [buffer for buffer in job.model.buffers() if buffer.is_floating_point()]
    if job.world.num_workers == 1 or not statistics:
        return
    means = job.strategy.mean(
        torch.cat([s.reshape(-1).to("cpu", torch.float64) for s in statistics])
    )
    for statistic, mean in zip(
        statistics, means.split([s.numel() for s in statistics]), strict=True
    ):
        statistic.copy_(mean.view_as(statistic))


def finite(value: float) -> float | None:
    """Return a number; None if it is infinite or NaN."""
    return value if abs(value) < float("inf") else None
