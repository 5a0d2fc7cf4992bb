"""The records of a run that bsweep's own loop did not train."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bsweep.config.run import RunConfig
from bsweep.external.client import MEASURED, SCORES, TRAINED, WHOLE
from bsweep.runlog.records import End, Epoch, Start, Status


def start_record(config: RunConfig, **facts: Any) -> Start:
    """Return the record of a run's start.

    Args:
        config: The point.
        **facts: Other values of the record. None: not known.
    """
    data = ("num_train", "num_test", "num_classes")
    known: dict[str, Any] = {name: getattr(config.data, name, None) for name in data}
    known |= dict.fromkeys(("num_parameters", "threads", "start_seconds"))
    known |= dict.fromkeys(("device", "precision"), "unknown")
    known |= {name: value for name, value in facts.items() if value is not None}
    return Start(
        run_id=config.run_id,
        config=asdict(config),
        local_batch=config.examples_per_pass,
        global_batch=config.examples_per_step,
        classes=(),
        channels_last=None,
        **known,
    )


def epoch_record(
    config: RunConfig,
    number: int,
    step_seconds: Sequence[float],
    examples: int,
    values: Mapping[str, Any],
) -> Epoch:
    """Return the record of an epoch.

    Args:
        config: The point.
        number: The epoch's number, from 1.
        step_seconds: The seconds of each of its steps.
        examples: The training examples that all workers took.
        values: The epoch's `train_seconds` and, as far as they are known, `lr`, losses, accuracies
            and what was measured, by the names of the record.
    """
    ordered, train_seconds = sorted(step_seconds), values["train_seconds"]
    measured: dict[str, Any] = {
        name: values.get(name) for name in (*TRAINED, *SCORES, *MEASURED, *WHOLE)
    }
    measured |= {name: round(values[name]) for name in WHOLE if name in values}
    return Epoch(
        epoch=number,
        num_steps=len(ordered),
        train_seconds=train_seconds,
        images_per_second=examples / train_seconds if train_seconds else 0.0,
        step_seconds_p50=statistics.median(ordered),
        step_seconds_p95=ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        learning_rate=values.get("lr"),
        global_batch=config.examples_per_step,
        **measured,
    )


def end_record(status: Status, message: str, num_epochs: int, num_steps: int) -> End:
    """Return the record of a run's end, with its totals if it is completed."""
    if status != "completed":
        return End(status=status, message=message)
    return End(status=status, message=message, epochs=num_epochs, num_steps=num_steps)
