"""The schemas of three JSON files of a run: `summary.json`, `meta.json`, and the `complete.json` of
its checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bsweep.config.hosts import SpelledOut
from bsweep.config.values import Count, Finite, Processes, Seed
from bsweep.runlog.records import Status
from bsweep.runlog.values import Amount, Natural


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The content of `summary.json`: how a run ended, some of its settings, its totals, and the
    losses and accuracies of its last epoch.
    """

    run_id: str
    status: Status
    message: str = ""
    strategy: str
    num_workers: Processes
    local_batch: Count
    global_batch: Count
    seed: Seed
    epochs: Natural
    num_steps: Natural | None
    train_seconds: Amount | None
    wall_seconds: Amount | None
    images_per_second: Amount | None
    train_loss: Finite | None
    train_accuracy: Amount | None
    test_loss: Finite | None
    test_accuracy: Amount | None
    sent_bytes: Natural | None
    final_test_loss: Finite | None = None  # of runs with validation examples
    final_test_accuracy: Amount | None = None
    warnings: tuple[str, ...] = ()
    metrics_crc32: Natural | None = None  # of `metrics.jsonl`; None if its records are damaged


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The content of `complete.json`: how far a run had trained when its checkpoint was saved, and
    checksums that reveal damage to the checkpoint and to the earlier records.

    `position` is the number of examples of the epoch that the run has trained on.
    """

    epoch: Count
    position: Natural
    num_steps: Natural
    num_workers: Processes
    metrics_bytes: Natural
    metrics_crc32: Natural  # of the first `metrics_bytes` bytes of `metrics.jsonl`
    sha256: Mapping[str, str]  # of the checkpoint's files, by name
    facts_crc32: Natural  # of all other keys of this file
    time: Finite
    train_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class Meta:
    """The keys of `meta.json` whose types bsweep checks: facts about the start of a run and its
    machine.
    """

    launched_at: Finite | None = None
    wall_seconds_before: Amount | None = None  # of earlier attempts that the run resumes
    command: str | None = None
    hosts: SpelledOut | None = None
    cpu: str | None = None
    cores: Natural | None = None
    gpus: tuple[str, ...] | None = None
    versions: Mapping[str, str | None] | None = None
    # True if other points ran on the machine at the same time, see `launch.parallel`.
    beside_others: bool = False
