"""One point of a sweep: all its keys, and the values derived from them.

The YAML files in `conf/` hold the defaults and say what the keys mean. `RunConfig` and the cards
give each key's type and range.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
import typing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

from bsweep.config import user_code
from bsweep.config.allocation import AnyAllocation
from bsweep.config.batching import FIXED, AnyBatching
from bsweep.config.card import Card, Schema
from bsweep.config.compression import AnyCompression
from bsweep.config.data import AnyData
from bsweep.config.launch import AnyLaunch, hosts_of_ranks
from bsweep.config.measure import NO_MEASURES, MeasureConfig
from bsweep.config.models import AnyModel
from bsweep.config.optimizers import AnyOptimizer
from bsweep.config.programs import BUILTIN, AnyProgram
from bsweep.config.strategies import AnyStrategy
from bsweep.config.target import Target, target_of
from bsweep.config.values import (
    Count,
    Every,
    Finite,
    Name,
    PathName,
    Processes,
    Seed,
    Trackers,
    flatten,
)

GROUPS = (
    "data",
    "model",
    "optimizer",
    "strategy",
    "compression",
    "allocation",
    "batching",
    "launch",
    "program",
)
CARDS = (*GROUPS, "measure")


class RunConfig(Schema):
    """One point of a sweep. After the check for contradictions, exactly one of `local_batch` and
    `global_batch` is set.
    """

    study: Name
    results_dir: PathName
    local_batch: Count | None
    global_batch: Count | None
    num_workers: Processes
    accumulation_steps: Count = 1
    epochs: Count
    seed: Seed
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp64"] = "auto"
    channels_last: Literal["auto", True, False] = "auto"
    compile: bool = False
    average_batchnorm: bool = True
    log_every_steps: Count
    data: AnyData
    model: AnyModel
    optimizer: AnyOptimizer
    strategy: AnyStrategy
    compression: AnyCompression
    allocation: AnyAllocation
    launch: AnyLaunch
    batching: AnyBatching = FIXED
    program: AnyProgram = BUILTIN
    graph: bool = True
    checkpoint_every: Every = "auto"
    keep_weights: bool = False
    resume_from: PathName | None = None
    evaluate_every_examples: Count | None = None
    target_accuracy: Finite | None = None
    target_loss: Finite | None = None
    stop_at_target: bool = True
    trackers: Trackers = ()
    measure: MeasureConfig = NO_MEASURES

    @property
    def local_batches(self) -> tuple[int, ...]:
        """Return each worker's configured number of examples in one forward pass. Workers that hold
        parts of one replica of a model count as one.
        """
        return self.allocation.local_batches or (self.examples_per_pass,) * self.data_parallel_size

    @property
    def worker_batches(self) -> tuple[int, ...]:
        """Return each worker's configured number of examples in one optimizer step: the local batch
        times the accumulation steps.
        """
        return tuple(batch * self.accumulation_steps for batch in self.local_batches)

    @property
    def local_steps(self) -> tuple[int, ...]:
        """Return the configured number of optimizer steps that each worker makes in a round."""
        steps = self.strategy.local_steps
        return self.allocation.local_steps or (steps,) * self.data_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Return the number of workers, or of groups of workers with one replica of a split model
        each, among which a batch is divided.
        """
        return self.strategy.data_parallel_size(self.num_workers)

    @property
    def num_shards(self) -> int:
        """Return the number of shards into which parameter servers divide the parameters; 0 for a
        strategy without servers.
        """
        return self.strategy.num_shards(self.num_workers)

    @property
    def num_server_processes(self) -> int:
        """Return the number of parameter-server processes, which run in addition to the workers."""
        return self.strategy.num_server_processes(self.num_workers)

    @property
    def examples_per_step(self) -> int:
        """Return the configured global batch: the number of examples of one optimizer step over all
        workers and accumulation steps.
        """
        if self.allocation.local_batches:
            return sum(self.worker_batches)
        passes = self.data_parallel_size * self.accumulation_steps
        return self.global_batch or self.examples_per_pass * passes

    @property
    def target(self) -> Target | None:
        """Return the accuracy or loss that the run is to reach; None if there is none."""
        if self.target_accuracy is None and self.target_loss is None:
            return None
        target = target_of(self.target_accuracy, self.target_loss)
        return replace(target, part=self.evaluated_part)

    @property
    def evaluated_part(self) -> str:
        """Return the name of the examples of the evaluations during the run: test or validation."""
        return "test" if self.data.validation_share is None else "validation"

    @property
    def measures_noise(self) -> bool:
        """Return True if the run measures the gradient noise scale, because the user asked for it
        or because a policy or a learning-rate rule needs it.
        """
        return (
            self.measure.noise_scale
            or self.batching.measures_noise
            or self.optimizer.measures_noise
        )

    def rate_batch(self, rank: int) -> float:
        """Return the batch size, in examples per optimizer step, from which the learning-rate rules
        `linear` and `sqrt` compute a worker's learning rate.
        """
        return self.strategy.rate_batch(self, rank)

    @property
    def examples_per_pass(self) -> int:
        """Return the number of examples of one forward pass on one worker, if no allocation changes
        it.
        """
        return self.local_batch or (self.global_batch or 0) // (
            self.data_parallel_size * self.accumulation_steps
        )

    def resolved(self) -> RunConfig:
        """Return this configuration with the fingerprints of the user's own code and of other files
        that its cards name. No code is imported.

        Raises:
            ConfigError: If code or a file cannot be found.
        """
        config = user_code.resolve(self)
        return replace(config, **{group: getattr(config, group).resolved() for group in GROUPS})

    @property
    def study_dir(self) -> Path:
        return _study_dir(self.results_dir, self.study)

    @functools.cached_property
    def run_id(self) -> str:
        """Return the run id: a readable name with a hash of the settings that may change the
        results, such as `b64_w4_horovod_s0-1a2b3c4d`.
        """
        numbers: dict[str, Any] = {
            key: getattr(self, key) for key in _TOP_KEYS if key not in _CHANGES_NO_NUMBER
        }
        numbers["examples_per_step"] = self.examples_per_step
        texts = [pair for part in CARDS for pair in _texts_of_part(part, getattr(self, part))]
        texts += [(key, _text_of_top(key, value)) for key, value in numbers.items()]
        digest = hashlib.sha256(
            f"{{{', '.join([text for _, text in sorted(texts)])}}}".encode()
        ).hexdigest()[:8]
        batch, workers = self.examples_per_pass, self.num_workers
        return f"b{batch}_w{workers}_{self.strategy.name}_s{self.seed}-{digest}"

    def process_name(self, rank: int) -> str:
        """Return the name of a worker or a server in messages, such as `rank 3 (server 1) on h1`.
        The name has a host only if the user named hosts or the launcher takes those of SLURM.
        """
        server, hosts = rank - self.num_workers, self.launch.named_hosts
        name = f"rank {rank}" + (f" (server {server})" if server >= 0 else "")
        if not hosts:
            return name
        return (
            f"{name} on {hosts_of_ranks(hosts, self.num_workers, self.num_server_processes)[rank]}"
        )


@functools.cache  # the points of a study share one path
def _study_dir(results_dir: str, study: str) -> Path:
    return Path(results_dir).expanduser() / study


# These say where and how often a run writes. The batch sizes are hashed as the global batch.
_CHANGES_NO_NUMBER = {
    "study", "results_dir", "local_batch", "global_batch", "log_every_steps", "checkpoint_every",
    "keep_weights", "trackers"
}  # fmt: skip
_TOP_KEYS = tuple(field.name for field in fields(RunConfig) if field.name not in CARDS)


@functools.cache  # a grid has few cards but many points that combine them
def _texts_of_part(part: str, card: Card | MeasureConfig) -> tuple[tuple[str, str], ...]:
    """Return the settings of one card that are hashed into the run id, as pairs of a dotted key and
    the JSON text `"key": value`.
    """
    changes_none = card.changes_no_number if isinstance(card, Card) else ()
    return tuple(
        (f"{part}.{key}", _text(f"{part}.{key}", value))
        for key, value in flatten(asdict(card)).items()
        if key not in changes_none
    )


def _text(key: str, value: object) -> str:
    """Return a key and its value as the text `"key": value` of a JSON object."""
    return f"{json.dumps(key)}: {json.dumps(value)}"


_text_of_top = functools.cache(_text)  # safe, because the values of a key have one type


@functools.cache
def variants(group: str) -> tuple[type[Card], ...]:
    """Return the settings classes (cards) of a group such as `strategy`; an empty tuple for an
    unknown group.
    """
    if group not in GROUPS:
        return ()
    hint = typing.get_type_hints(RunConfig)[group]
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def names(card: type[Card]) -> tuple[str, ...]:
    """Return the names of the variants that a settings class (card) describes."""
    return typing.get_args(typing.get_type_hints(card)["name"])
