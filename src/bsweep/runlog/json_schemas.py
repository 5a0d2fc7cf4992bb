"""What stands beside the records of a run: the schemas of its JSON files.

The types are what `bsweep.runlog.reading` holds files to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bsweep.config.hosts import SpelledOut
from bsweep.config.values import Count
from bsweep.runlog.records import Status
from bsweep.runlog.values import Amount, Finite, Natural, Seed


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a run ended, and what its records come to; losses and accuracies are the last epoch's."""

    run_id: str
    status: Status
    message: str = ""
    strategy: str
    num_workers: Count
    local_batch: Count
    global_batch: Count
    seed: Seed
    epochs: Natural
    num_steps: Natural | None
    train_seconds: Amount | None
    wall_seconds: Finite | None
    images_per_second: Amount | None
    train_loss: Finite | None
    train_accuracy: Amount | None
    test_loss: Finite | None
    test_accuracy: Amount | None
    sent_bytes: Natural | None
    warnings: tuple[str, ...] = ()
    lost_workers: tuple[str, ...] = ()
    metrics_crc32: Natural | None = None  # of `metrics.jsonl`, if its records are sound


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Where a run was when a checkpoint of it was complete; `position` counts examples of the
    epoch.
    """

    epoch: Count
    position: Natural
    num_steps: Natural
    members: tuple[Natural, ...]  # ranks that had not been lost
    num_workers: Count
    metrics_bytes: Natural
    time: Finite
    train_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What the parent of a run knew of its surroundings, as far as it is read again."""

    launched_at: Finite | None = None
    wall_seconds_before: Finite | None = None  # of earlier attempts that the run goes on from
    command: str | None = None
    hosts: SpelledOut | None = None
    cpu: str | None = None
    cores: Natural | None = None
    gpus: tuple[str, ...] | None = None
    versions: Mapping[str, str | None] | None = None
    beside_others: bool = False  # other points ran on the machine meanwhile, see `launch.parallel`
