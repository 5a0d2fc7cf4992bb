"""One point of a sweep: all its keys, what follows from them, and what contradicts what.

`conf/*.yaml` holds the defaults and says what each key means; the cards here give its type and range.
`parse` turns one composed configuration into a `RunConfig`, or raises a `ConfigError` that lists everything wrong
with it at once.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter, ValidationError

from bsweep.config.allocation import AnyAllocation
from bsweep.config.batching import FIXED, AnyBatching
from bsweep.config.card import Card, ConfigError, Count, Name, Natural, did_you_mean, show
from bsweep.config.compression import AnyCompression, DGCConfig, QSGDConfig, SignSGDConfig, TernGradConfig, TopKConfig
from bsweep.config.data import AnyData, TextConfig
from bsweep.config.launch import AnyLaunch, ProcessesConfig
from bsweep.config.models import AnyModel, LlamaConfig, ResNet18Config
from bsweep.config.optimizers import AnyOptimizer, LARSConfig, SGDConfig
from bsweep.config.strategies import (
    AnyStrategy,
    DDPConfig,
    DiLoCoConfig,
    HorovodConfig,
    LocalSGDConfig,
    ParameterServerConfig,
)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Card):
    """One point of a sweep. Exactly one of `local_batch` and `global_batch` is set; the other follows from it."""

    study: Name
    results_dir: str
    local_batch: Count | None
    global_batch: Count | None
    num_workers: Count
    accumulation_steps: Count
    epochs: Count
    seed: Natural
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["auto", "fp32", "bf16", "fp64"]
    channels_last: bool
    average_batchnorm: bool
    log_every_steps: Count
    data: AnyData
    model: AnyModel
    optimizer: AnyOptimizer
    strategy: AnyStrategy
    compression: AnyCompression
    allocation: AnyAllocation
    launch: AnyLaunch
    batching: AnyBatching = FIXED  # which runs of earlier versions do not name

    @property
    def local_batches(self) -> tuple[int, ...]:
        """Examples of one forward pass, by worker."""
        return self.allocation.local_batches or (self._even_batch,) * self.num_workers

    @property
    def local_steps(self) -> tuple[int, ...]:
        """Optimizer steps between two synchronisations, by worker; 1 where each step is one."""
        every = self.strategy.sync_every if isinstance(self.strategy, DiLoCoConfig) else 1
        return self.allocation.local_steps or (every,) * self.num_workers

    @property
    def payload_share(self) -> float | None:
        """Bytes of a codec's payload over those of the fp32 gradient; None where payloads are summed on their way."""
        match self.compression:
            case TopKConfig() | DGCConfig() as codec:
                warmup = codec.warmup_densities[: self.epochs]
                mean = (sum(warmup) + codec.density * (self.epochs - len(warmup))) / self.epochs
                return 2 * mean  # a value and its index
            case QSGDConfig(bits=bits):
                return bits / 32
            case TernGradConfig():
                return 2 / 32
            case SignSGDConfig():
                return 1 / 32
        return None

    @property
    def num_shards(self) -> int:
        """Slices that parameter servers hold between them: by default one for two workers; 0 without servers."""
        if not isinstance(self.strategy, ParameterServerConfig):
            return 0
        return self.strategy.num_servers or max(1, self.num_workers // 2)

    @property
    def num_server_processes(self) -> int:
        """Processes beside the workers: colocated servers live in the workers' processes."""
        colocated = isinstance(self.strategy, ParameterServerConfig) and self.strategy.colocated
        return 0 if colocated else self.num_shards

    @property
    def examples_per_step(self) -> int:
        """Examples of one optimizer step over all workers and accumulation steps: the global batch."""
        if self.allocation.local_batches:
            return sum(self.allocation.local_batches) * self.accumulation_steps
        return self.global_batch or self._even_batch * self.num_workers * self.accumulation_steps

    def step_batch(self, rank: int) -> float:
        """Examples behind an optimizer step of a worker: the global batch, or its own part where it steps alone.

        In local SGD that is an even part: a larger one counts for more by its loss, not by its rate.
        """
        if isinstance(self.strategy, DiLoCoConfig):
            return self.local_batches[rank] * self.accumulation_steps
        if isinstance(self.strategy, LocalSGDConfig):
            return self.examples_per_step / self.num_workers
        return self.examples_per_step

    @property
    def examples_per_pass(self) -> int:
        """Examples of one forward pass on one worker, before an allocation makes them uneven: the local batch."""
        return self._even_batch

    @property
    def _even_batch(self) -> int:
        return self.local_batch or (self.global_batch or 0) // (self.num_workers * self.accumulation_steps)

    @property
    def study_dir(self) -> Path:
        return Path(self.results_dir).expanduser() / self.study

    @property
    def run_id(self) -> str:
        """A readable name and a hash of all that changes the numbers, e.g. `b64_w4_horovod_s0-1a2b3c4d`."""
        numbers = {
            key: value
            for key, value in _flatten(asdict(self))
            if key not in _CHANGES_NO_NUMBER and not is_left_out(key, value)
        }
        numbers["examples_per_step"] = self.examples_per_step
        if isinstance(self.strategy, LocalSGDConfig) and self.optimizer.lr_rule in ("linear", "sqrt"):
            numbers["step_batch"] = self.step_batch(0)  # the rule went by the global batch once: those runs are others
        digest = hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:8]
        batch, workers = self.examples_per_pass, self.num_workers
        return f"b{batch}_w{workers}_{self.strategy.name}_s{self.seed}-{digest}"


# Where a run writes and how patient its launcher is. The batch sizes are hashed as the global batch they lead to.
_CHANGES_NO_NUMBER = {
    "study",
    "results_dir",
    "local_batch",
    "global_batch",
    "log_every_steps",
    "data.download",
    "launch.ssh_port",
    "launch.ssh_identity_file",
    "allocation.probe",
    "allocation.devices",
    "launch.start_timeout_seconds",
    "launch.stall_timeout_seconds",
    "strategy.loss_timeout_seconds",
}

# Keys that runs of earlier versions do not have, with the values that change nothing for them: their ids stay.
_ADDED_LATER = (("launch.threads_per_worker", None), ("batching.name", "fixed"))


def is_left_out(key: str, value: object) -> bool:
    """Whether a value says nothing that runs do not say which were saved before there was such a key."""
    return (key, value) in _ADDED_LATER


_ADAPTER: TypeAdapter[RunConfig] = TypeAdapter(RunConfig)


def parse(composed: Mapping[str, Any]) -> RunConfig:
    """The run that a composed, resolved configuration describes.

    Raises:
        ConfigError: a key is unknown, a value has the wrong type or range, or values contradict each other.
    """
    try:
        # Strict JSON rules: 3.5 is no int and "yes" no bool, but a list may fill a tuple.
        config = _ADAPTER.validate_json(json.dumps(dict(composed)), strict=True)
    except ValidationError as error:
        raise ConfigError(*(_explain(problem) for problem in error.errors())) from None
    refuse_contradictions(config)
    return config


def refuse_contradictions(config: RunConfig) -> None:
    """ConfigError that lists which values of a configuration contradict each other, if any do."""
    problems = list(_contradictions(config))
    if problems:
        raise ConfigError(*problems)


def conf_dir() -> Path:
    """The configuration folder: inside an installed package, or beside `src/` in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def variants_with(key: str) -> list[str]:
    """The options of a group that have a dotted key: `strategy.num_servers` is parameter_server's alone."""
    group, _, name = key.partition(".")
    hint = typing.get_type_hints(RunConfig).get(group)
    variants = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    named = (typing.get_args(typing.get_type_hints(v)["name"]) for v in variants if name in _names(v))
    return [option for options in named for option in options]


def _names(schema: type) -> set[str]:
    return {field.name for field in fields(schema)}


def unknown_key(key: str) -> str:
    """What to say of a key that a configuration does not have."""
    group, _, option = key.partition(".options.")
    if option and f"{group}.options" in known_keys():
        return f"{key}: options of your own code are added. Give +{key}=..."
    owners = variants_with(key)
    if owners:
        group = key.partition(".")[0]
        return (
            f"{key}: only {group}={' or '.join(owners)} has this key. Choose it, or leave the key out; in a sweep over "
            f"{group}, ++{key}=... gives it to each."
        )
    return f"{key}: unknown key.{did_you_mean(key, known_keys())}"


def known_keys() -> list[str]:
    """All keys of all variants, dotted: what a mistyped key may have meant."""
    return sorted(set(_keys(RunConfig)))


def save(config: RunConfig, path: Path) -> None:
    """Write a resolved configuration; `read` gives it back."""
    path.write_text(yaml.safe_dump(json.loads(json.dumps(asdict(config))), sort_keys=False))


def read(path: Path) -> RunConfig:
    return parse(yaml.safe_load(path.read_text()))


def _contradictions(config: RunConfig) -> Iterator[str]:
    c = config
    if (c.local_batch is None) == (c.global_batch is None):
        yield (
            f"local_batch={show(c.local_batch)} and global_batch={show(c.global_batch)}: give exactly one, for "
            "example local_batch=64, and set the other to null where an experiment or data=text gives it."
        )
    yield from _model_contradictions(c)
    yield from _launch_contradictions(c)
    yield from _strategy_contradictions(c)
    yield from _allocation_contradictions(c)
    if isinstance(c.optimizer, SGDConfig | LARSConfig) and c.optimizer.nesterov and not c.optimizer.momentum:
        yield "optimizer.nesterov=true needs momentum: set optimizer.momentum=0.9 or optimizer.nesterov=false."
    if c.optimizer.schedule == "multistep" and not c.optimizer.milestones:
        yield "optimizer.schedule=multistep needs optimizer.milestones, in epochs, such as [30,40]."
    if c.optimizer.warmup_epochs > c.epochs:
        yield (
            f"optimizer.warmup_epochs={c.optimizer.warmup_epochs:g} is longer than epochs={c.epochs}: "
            "the learning rate would never reach its base value."
        )


def _model_contradictions(c: RunConfig) -> Iterator[str]:
    if isinstance(c.model, ResNet18Config) and 1 in c.local_batches:
        batch = "local_batch" if set(c.local_batches) == {1} else f"local batches {show(c.local_batches)}: local_batch"
        yield (
            f"{batch}=1 with model=resnet18: BatchNorm needs more than one example for its statistics. "
            "Use local_batch=2 or more."
        )
    is_text = isinstance(c.data, TextConfig)
    if is_text and not isinstance(c.model, LlamaConfig):
        yield (
            f"model={c.model.name} learns from images, data=text has none: use model=llama_tiny or llama_150m, or "
            "data=digits."
        )
    if isinstance(c.model, LlamaConfig):
        if not is_text:
            yield (
                f"model={c.model.name} learns from text, data={c.data.name} are images: use data=text data.path=FILE, "
                "or model=resnet18."
            )
        if c.model.hidden_size % (2 * c.model.num_heads):
            yield (
                f"model.hidden_size={c.model.hidden_size} with model.num_heads={c.model.num_heads}: rotary embeddings "
                "need heads of equal, even size. Use a hidden size that twice the number of heads divides."
            )


def _launch_contradictions(c: RunConfig) -> Iterator[str]:
    if c.launch.name == "inline" and c.num_workers > 1:
        yield (
            f"launch=inline runs one worker in this process, but num_workers={c.num_workers}: "
            "leave launch out or use num_workers=1."
        )
    starters = _STARTERS.get(c.strategy.name, ())
    if starters and c.launch.name not in starters:
        yield f"strategy={c.strategy.name} is started by {' or '.join(starters)}, not by launch={c.launch.name}."
    if isinstance(c.launch, ProcessesConfig) and c.launch.hosts:
        slots = sum(int(host.split(":")[1]) for host in c.launch.hosts.split(","))
        if slots < c.num_workers + c.num_server_processes:
            servers = f" and {c.num_server_processes} servers" if c.num_server_processes else ""
            yield (
                f"num_workers={c.num_workers}{servers}, but launch.hosts={c.launch.hosts} offers {slots} slots: "
                "name more hosts or slots, or use fewer workers."
            )
    if c.launch.slowdown is not None and len(c.launch.slowdown) != c.num_workers:
        yield (
            f"launch.slowdown={show(c.launch.slowdown)} has {len(c.launch.slowdown)} factors for "
            f"num_workers={c.num_workers}: give one for each worker, 1 for an undisturbed one."
        )
    if c.launch.memory_limit_mb is not None and len(c.launch.memory_limit_mb) != c.num_workers:
        yield (
            f"launch.memory_limit_mb={show(c.launch.memory_limit_mb)} has {len(c.launch.memory_limit_mb)} limits for "
            f"num_workers={c.num_workers}: give one for each worker."
        )


# Which launchers start a strategy's processes; a strategy without exchange takes any.
_STARTERS = {
    "horovod": ("horovodrun", "inline"),
    **dict.fromkeys(("ddp", "allreduce", "parameter_server", "local_sgd"), ("torchrun",)),
    "diloco": ("torchrun", "horovodrun"),
}


def _strategy_contradictions(c: RunConfig) -> Iterator[str]:
    if c.strategy.name == "single" and c.num_workers > 1:
        yield (
            f"strategy=single exchanges nothing, but num_workers={c.num_workers}: "
            "use strategy=horovod or num_workers=1."
        )
    if c.compression.name != "none" and c.strategy.name not in ("horovod", "allreduce", "diloco"):
        own = " strategy.hook is DDP's own compression." if c.strategy.name == "ddp" else ""
        yield (
            f"compression={c.compression.name} with strategy={c.strategy.name}: only horovod, allreduce "
            f"and diloco take a codec.{own} Use compression=none or another strategy."
        )
    if c.precision == "fp64" and c.compression.name == "fp16":
        yield "precision=fp64 is exact, compression=fp16 is not: use one of them."
    if isinstance(c.strategy, DDPConfig) and c.strategy.hook in ("fp16", "bf16") and c.precision == "fp64":
        yield f"precision=fp64 is exact, strategy.hook={c.strategy.hook} is not: use one of them."
    if c.strategy.name == "ddp" and c.launch.slowdown:
        yield (
            "launch.slowdown with strategy=ddp: its exchange hides in the backward pass, so that computing cannot be "
            "stretched alone. Use strategy=allreduce."
        )
    if isinstance(c.strategy, HorovodConfig) and c.compression.name != "none":
        if c.strategy.op == "adasum":
            yield f"strategy.op=adasum is no sum, compression={c.compression.name} needs one: use strategy.op=average."
        if c.strategy.buckets > 1:
            yield (
                f"strategy.buckets={c.strategy.buckets} with compression={c.compression.name}: a codec takes the whole "
                "gradient at once. Use strategy.buckets=1."
            )
    if isinstance(c.strategy, ParameterServerConfig):
        yield from _server_contradictions(c, c.strategy)
    if isinstance(c.strategy, DiLoCoConfig):
        yield from _diloco_contradictions(c, c.strategy)


def _diloco_contradictions(c: RunConfig, s: DiLoCoConfig) -> Iterator[str]:
    wanted = "horovodrun" if s.algorithm == "horovod" else "torchrun"
    if c.launch.name != wanted and c.launch.name in _STARTERS["diloco"]:
        yield (
            f"strategy.algorithm={s.algorithm} with launch={c.launch.name}: {wanted} starts its processes. Type "
            f"launch={wanted} strategy.algorithm={s.algorithm}."
        )
    if s.algorithm == "horovod" and s.on_loss != "fail":
        yield (
            f"strategy.on_loss={s.on_loss} with strategy.algorithm=horovod: horovodrun ends all workers with the "
            "first. Use strategy.on_loss=fail, or strategy.algorithm=native launch=torchrun."
        )
    if s.overlap and s.on_loss != "fail":
        yield (
            f"strategy.overlap=true with strategy.on_loss={s.on_loss}: what travels while a worker is lost cannot be "
            "repeated. Use strategy.on_loss=fail, or strategy.overlap=false."
        )
    if s.weights is not None and len(s.weights) != c.num_workers:
        yield (
            f"strategy.weights={show(s.weights)} has {len(s.weights)} weights for num_workers={c.num_workers}: give "
            "one for each worker."
        )
    if s.weights is not None and abs(sum(s.weights) - 1) > 1e-6:
        yield f"strategy.weights={show(s.weights)} sum to {sum(s.weights):.9g}: give weights that sum to 1."
    if s.weights is not None and min(s.weights, default=1) == 0 and s.on_loss != "fail":
        yield (
            f"strategy.weights={show(s.weights)} with strategy.on_loss={s.on_loss}: nothing would count when the "
            "others are lost. Give each worker a weight greater than 0, or use strategy.on_loss=fail."
        )


def _allocation_contradictions(c: RunConfig) -> Iterator[str]:
    a = c.allocation
    for key, values in (("local_batches", a.local_batches), ("local_steps", a.local_steps)):
        if values is not None and len(values) != c.num_workers:
            yield (
                f"allocation.{key}={show(values)} has {len(values)} numbers for num_workers={c.num_workers}: give one "
                "for each worker."
            )
    if c.strategy.name != "diloco" and (a.name in _STEP_POLICIES or a.local_steps is not None):
        what = f"allocation={a.name}" if a.name in _STEP_POLICIES else f"allocation.local_steps={show(a.local_steps)}"
        yield (
            f"{what} with strategy={c.strategy.name}: every step is a synchronisation, so that there are no local "
            "steps to share. Use strategy=diloco, or allocation=batch_by_flops or batch_by_memory."
        )
    yield from _batch_contradictions(c)


def _batch_contradictions(c: RunConfig) -> Iterator[str]:
    if c.global_batch is None:
        return
    uneven = c.allocation.local_batches is not None or c.allocation.name in _BATCH_POLICIES
    parts = c.accumulation_steps * (1 if uneven else c.num_workers)
    if c.global_batch % parts:
        workers = "" if uneven else f"num_workers={c.num_workers} x "
        yield (
            f"global_batch={c.global_batch} cannot be divided by {workers}accumulation_steps={c.accumulation_steps}: "
            f"choose a multiple of {parts}, such as {max(1, round(c.global_batch / parts)) * parts}."
        )
    elif c.global_batch < c.num_workers * c.accumulation_steps:
        yield (
            f"global_batch={c.global_batch} is too small for num_workers={c.num_workers} x "
            f"accumulation_steps={c.accumulation_steps}: every worker needs an example for each forward pass."
        )
    elif c.examples_per_step != c.global_batch:
        yield (
            f"allocation.local_batches={show(c.allocation.local_batches)} x accumulation_steps={c.accumulation_steps} "
            f"sum to {c.examples_per_step}, but global_batch={c.global_batch}: give "
            f"global_batch={c.examples_per_step}, or other batches."
        )


# Policies by what they share among the workers; see `bsweep.allocation`.
_STEP_POLICIES = ("steps_by_flops", "steps_by_speed", "hybrid", "network_aware")
_BATCH_POLICIES = ("batch_by_flops", "batch_by_memory", "hybrid")


def _server_contradictions(c: RunConfig, s: ParameterServerConfig) -> Iterator[str]:
    if s.consistency == "stale_synchronous" and s.staleness is None:
        yield "strategy.consistency=stale_synchronous needs strategy.staleness: the clocks of a lead, such as 3."
    if s.consistency != "stale_synchronous" and s.staleness is not None:
        yield (
            f"strategy.staleness={s.staleness} with strategy.consistency={s.consistency}: only "
            "strategy.consistency=stale_synchronous has a bound. Leave strategy.staleness out."
        )
    if s.colocated and c.num_shards > c.num_workers:
        yield (
            f"strategy.num_servers={c.num_shards} with strategy.colocated=true and num_workers={c.num_workers}: a "
            "colocated server lives with a worker. Use at most one for each worker."
        )
    if c.optimizer.name == "lamb" and c.num_shards > 1:
        yield (
            f"optimizer=lamb clips by the norm of the whole gradient, which no one of {c.num_shards} servers has: use "
            "strategy.num_servers=1, or another optimizer."
        )
    if c.optimizer.name in ("lars", "lamb") and s.sharding in ("memory", "hashed_chunks"):
        yield (
            f"optimizer={c.optimizer.name} needs the norms of whole layers, which strategy.sharding={s.sharding} cuts: "
            "use strategy.sharding=layer, or optimizer=sgd."
        )


def _explain(problem: Any) -> str:
    """One pydantic problem as `key=value: what is wrong`, without the names of variants in its path."""
    kind, value = problem["type"], problem["input"]
    path = [str(part) for part in problem["loc"]]
    if len(path) > 1 and path[0] in _GROUPS:
        path.pop(1)  # the variant, which pydantic puts after the group
    key = ".".join(path)
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(key)
    if kind in ("missing", "missing_argument"):
        return f"{key}: no value given."
    if kind == "union_tag_invalid":
        known = problem["ctx"]["expected_tags"]
        return f"{key}={problem['ctx']['tag']}: unknown. Known: {known}."
    if kind == "string_pattern_mismatch":
        remedy = "h1:4,h2:4" if key == "launch.hosts" else "letters, digits, '.', '_', '+' or '-'"
        return f"{key}={value}: not of the form {remedy}."
    return f"{key}={show(value)}: {problem['msg'][0].lower()}{problem['msg'][1:]}."


_GROUPS = ("data", "model", "optimizer", "strategy", "compression", "allocation", "launch")


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _keys(schema: type, prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(schema)
    for one in fields(schema):
        yield f"{prefix}{one.name}"
        hint = hints[one.name]
        variants = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        for variant in variants:
            if is_dataclass(variant) and isinstance(variant, type):
                yield from _keys(variant, f"{one.name}.")
