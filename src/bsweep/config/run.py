"""One point of a sweep: all its keys, and the values derived from them.

`RunConfig` and the cards give each key's type, range, default and meaning.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

from bsweep.config import user_code
from bsweep.config.allocation import AnyAllocation, UniformConfig
from bsweep.config.batching import FIXED, AnyBatching
from bsweep.config.card import Card, Schema
from bsweep.config.compression import AnyCompression, NoCompressionConfig
from bsweep.config.data import AnyData, DigitsConfig
from bsweep.config.launch import AnyLaunch, HorovodrunConfig, hosts_of_ranks
from bsweep.config.measure import MeasureConfig
from bsweep.config.models import AnyModel, ResNet18Config
from bsweep.config.optimizers import AnyOptimizer, SGDConfig
from bsweep.config.programs import AnyProgram, BuiltinConfig
from bsweep.config.strategies import AnyStrategy, HorovodConfig
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

    study: Name = "default"
    """runs of one study lie in results_dir/study/ and share figures"""
    results_dir: PathName = "results"
    """folder that holds the folders of all studies"""
    local_batch: Count | None = None
    """examples (images or text sequences) per worker and pass; give this ..."""
    global_batch: Count | None = None
    """... or the examples of a step over all workers and passes"""
    num_workers: Processes = 1
    """inside horovodrun: its -np"""
    accumulation_steps: Count = 1
    """passes per worker and step"""
    epochs: Count = 5
    """passes over the training set"""
    seed: Seed = 0
    """chooses the first weights, the order of examples and their augmentation"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto (a GPU if there is one) | cpu | cuda"""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp64"] = "auto"
    """auto (fp32 on CPUs, bf16 on GPUs, fp16 on GPUs without bf16) | fp32 | tf32 (GPUs) | bf16 |
    fp16 | fp64
    """
    channels_last: Literal["auto", True, False] = "auto"
    """memory format of images: auto (true for models with 2-d convolutions) | true | false"""
    compile: bool = False
    """compile the passes of steps by torch.compile"""
    graph: bool = True
    """on GPUs, launch the passes of a step at once, as a CUDA graph, where this is possible"""
    average_batchnorm: bool = True
    """average BatchNorm statistics over workers before each evaluation"""
    evaluate_every_examples: Count | None = None
    """evaluate each time that this many more examples were trained, the same for all batch sizes;
    null: at the end of each epoch
    """
    target_accuracy: Finite | None = None
    """test accuracy to reach, such as 0.9 ..."""
    target_loss: Finite | None = None
    """... or test loss; two of three evaluations in a row must reach it"""
    stop_at_target: bool = True
    """end the run when it has reached the target"""
    checkpoint_every: Every = "auto"
    """interval of checkpoints, from which a run can resume: auto (costs under 1 %) | 60s | 2
    (epochs) | null (none)
    """
    keep_weights: bool = False
    """keep the trained weights of a completed run as final.pt in its folder, for bsweep.load_model
    """
    resume_from: PathName | None = None
    """folder of a run with a checkpoint, to resume with another num_workers or batch"""
    measure: MeasureConfig = MeasureConfig()
    log_every_steps: Count = 20
    """a `step` record with the mean loss since the last one"""
    trackers: Trackers = ()
    """[tensorboard,mlflow,wandb]: pass the records on during runs; afterwards: bsweep export STUDY
    --to ...
    """
    data: AnyData = DigitsConfig(name="digits")
    model: AnyModel = ResNet18Config(name="resnet18")
    optimizer: AnyOptimizer = SGDConfig(name="sgd")
    strategy: AnyStrategy = HorovodConfig(name="horovod")
    compression: AnyCompression = NoCompressionConfig(name="none")
    allocation: AnyAllocation = UniformConfig(name="uniform")
    batching: AnyBatching = FIXED
    launch: AnyLaunch = HorovodrunConfig(name="horovodrun")
    program: AnyProgram = BuiltinConfig(name="builtin")

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
    def examples_per_round(self) -> int:
        """Return the configured number of examples that all workers take in a round."""
        return sum(map(operator.mul, self.worker_batches, self.local_steps))

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
        return self.strategy.rate_batch(self.worker_batches, rank)

    @property
    def examples_per_pass(self) -> int:
        """Return the number of examples of one forward pass on one worker, if no allocation changes
        it.
        """
        return self.local_batch or (self.global_batch or 0) // (
            self.data_parallel_size * self.accumulation_steps
        )

    def with_fingerprints(self) -> RunConfig:
        """Return this configuration with the fingerprints of the user's own code and of other files
        that its cards name. No code is imported.

        Raises:
            ConfigError: If code or a file cannot be found.
        """
        config = user_code.with_fingerprints(self)
        return replace(
            config, **{group: getattr(config, group).with_fingerprints() for group in GROUPS}
        )

    @property
    def study_dir(self) -> Path:
        return _study_dir(self.results_dir, self.study)

    @property
    def folder(self) -> Path:
        """The folder of the point's run."""
        return self.study_dir / self.run_id

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
def cards_by_name(group: str) -> Mapping[str, type[Card]]:
    """Return the settings classes (cards) of a group such as `strategy` by the names of their
    variants; an empty mapping for an unknown group.
    """
    if group not in GROUPS:
        return {}
    hint = hints(RunConfig)[group]
    cards = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return {typing.get_args(hints(card)["name"])[0]: card for card in cards}


@functools.cache
def hints(schema: type[Any]) -> dict[str, Any]:
    """Return the types of a schema's keys."""
    return typing.get_type_hints(schema)
