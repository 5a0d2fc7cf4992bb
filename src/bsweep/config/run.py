"""One point of a sweep: all its keys, what follows from them, and what contradicts what.

`conf/*.yaml` holds the defaults and says what each key means; the cards here give its type and
range. `parse` turns one composed configuration into a `RunConfig`, or raises a `ConfigError` that
lists everything wrong with it at once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from bsweep.config.allocation import AnyAllocation
from bsweep.config.batching import FIXED, AnyBatching
from bsweep.config.card import Card, Schema
from bsweep.config.compression import AnyCompression
from bsweep.config.data import AnyData
from bsweep.config.groups import StrategyConfig
from bsweep.config.launch import AnyLaunch, hosts_of_ranks
from bsweep.config.measure import NO_MEASURES, MeasureConfig, measure_problems
from bsweep.config.models import AnyModel
from bsweep.config.optimizers import AnyOptimizer
from bsweep.config.strategies import AnyStrategy
from bsweep.config.target import Target, target_of, target_problems
from bsweep.config.values import (
    ConfigError,
    Count,
    Every,
    Finite,
    Name,
    PathName,
    Processes,
    Seed,
    Trackers,
    abbreviated,
    did_you_mean,
    flatten,
    shortened,
    show,
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
)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Schema):
    """One point of a sweep. Exactly one of `local_batch` and `global_batch` is set; the other
    follows from it.
    """

    study: Name
    results_dir: PathName
    local_batch: Count | None
    global_batch: Count | None
    num_workers: Processes
    accumulation_steps: Count
    epochs: Count
    seed: Seed
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp64"]
    channels_last: Literal["auto", True, False]
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
    graph: Literal["auto", True, False] = "auto"  # nor this
    checkpoint_every: Every = "auto"
    resume_from: PathName | None = None
    evaluate_every_examples: Count | None = None
    target_accuracy: Finite | None = None
    target_loss: Finite | None = None
    stop_at_target: bool = True
    trackers: Trackers = ()  # nor this
    measure: MeasureConfig = NO_MEASURES

    @property
    def local_batches(self) -> tuple[int, ...]:
        """Examples of one forward pass, by worker."""
        return self.allocation.local_batches or (self.examples_per_pass,) * self.num_workers

    @property
    def worker_batches(self) -> tuple[int, ...]:
        """Examples of one optimizer step, by worker: its local batch over all accumulation
        steps.
        """
        return tuple(batch * self.accumulation_steps for batch in self.local_batches)

    @property
    def local_steps(self) -> tuple[int, ...]:
        """Optimizer steps between two synchronisations, by worker; 1 where each step is one."""
        return self.allocation.local_steps or (self.strategy.local_steps,) * self.num_workers

    @property
    def num_shards(self) -> int:
        """Slices that parameter servers hold between them; 0 without servers."""
        return self.strategy.num_shards(self.num_workers)

    @property
    def num_server_processes(self) -> int:
        """Processes beside the workers."""
        return self.strategy.num_server_processes(self.num_workers)

    @property
    def examples_per_step(self) -> int:
        """Examples of one optimizer step over all workers and accumulation steps: the global
        batch.
        """
        if self.allocation.local_batches:
            return sum(self.worker_batches)
        return (
            self.global_batch or self.examples_per_pass * self.num_workers * self.accumulation_steps
        )

    @property
    def target(self) -> Target | None:
        """What the run is to reach, if anything."""
        if self.target_accuracy is None and self.target_loss is None:
            return None
        return target_of(self.target_accuracy, self.target_loss)

    @property
    def measures_noise(self) -> bool:
        """Whether the gradient noise scale is measured: asked for, or what a policy or a rate goes
        by.
        """
        return (
            self.measure.noise_scale
            or self.batching.measures_noise
            or self.optimizer.measures_noise
        )

    def rate_batch(self, rank: int) -> float:
        """Examples behind an optimizer step of a worker, by which its learning rate goes."""
        return self.strategy.rate_batch(self, rank)

    @property
    def examples_per_pass(self) -> int:
        """Examples of one forward pass on one worker, before an allocation makes them uneven: the
        local batch.
        """
        return self.local_batch or (self.global_batch or 0) // (
            self.num_workers * self.accumulation_steps
        )

    @property
    def study_dir(self) -> Path:
        return _study_dir(self.results_dir, self.study)

    @functools.cached_property
    def run_id(self) -> str:
        """A readable name and a hash of all that changes the numbers, e.g.
        `b64_w4_horovod_s0-1a2b3c4d`.
        """
        numbers: dict[str, Any] = {
            key: getattr(self, key) for key in _TOP_KEYS if key not in _CHANGES_NO_NUMBER
        }
        if self.channels_last == "auto":
            numbers["channels_last"] = True  # as it was before it could be left to a measurement
        numbers |= {"examples_per_step": self.examples_per_step, **self.strategy.hashed(self)}
        texts = [
            pair
            for part in (*GROUPS, "measure")
            for pair in _texts_of_part(part, getattr(self, part))
        ]
        texts += [
            (key, _text_of_top(key, value))
            for key, value in numbers.items()
            if not is_left_out(key, value)
        ]
        digest = hashlib.sha256(
            f"{{{', '.join([text for _, text in sorted(texts)])}}}".encode()
        ).hexdigest()[:8]
        batch, workers = self.examples_per_pass, self.num_workers
        return f"b{batch}_w{workers}_{self.strategy.name}_s{self.seed}-{digest}"

    def process_name(self, rank: int) -> str:
        """A worker or server as messages name it: by its rank, and its host where hosts were
        named.
        """
        server, hosts = rank - self.num_workers, self.launch.named_hosts
        name = f"rank {rank}" + (f" (server {server})" if server >= 0 else "")
        return (
            f"{name} on {hosts_of_ranks(hosts, self.num_workers, self.num_server_processes)[rank]}"
            if hosts
            else name
        )


@functools.cache  # one for all points of a study
def _study_dir(results_dir: str, study: str) -> Path:
    return Path(results_dir).expanduser() / study


_ADDED_LATER: Mapping[str, object] = {
    "graph": "auto",
    "resume_from": None,
    "evaluate_every_examples": None,
    "target_accuracy": None,
    "target_loss": None,
    "stop_at_target": True,
    "measure.noise_scale": False,
    "measure.noise_scale_per_layer": False,
}
# Where a run writes. The batch sizes are hashed as the global batch they lead to.
_CHANGES_NO_NUMBER = {
    "study", "results_dir", "local_batch", "global_batch", "log_every_steps", "checkpoint_every",
    "trackers"
}  # fmt: skip
_TOP_KEYS = tuple(one.name for one in fields(RunConfig) if one.name not in (*GROUPS, "measure"))


@functools.cache  # a grid has few cards, and as many points as they can be combined
def _texts_of_part(part: str, card: Card | MeasureConfig) -> tuple[tuple[str, str], ...]:
    """What a run id hashes of a card: dotted keys, and each with its value as in a JSON object."""
    changes_none = card.changes_no_number if isinstance(card, Card) else ()
    numbers = [
        (f"{part}.{key}", value)
        for key, value in flatten(asdict(card)).items()
        if key not in changes_none
    ]
    return tuple((key, _text(key, value)) for key, value in numbers if not is_left_out(key, value))


def _text(key: str, value: object) -> str:
    """A key with its value as in a JSON object."""
    return f"{json.dumps(key)}: {json.dumps(value)}"


_text_of_top = functools.cache(_text)  # of numbers and words; a key has values of one type alone


def is_left_out(key: str, value: object) -> bool:
    """Whether a value says nothing that runs do not say which were saved before there was such a
    key.
    """
    return value in _added_later(key)


@functools.cache
def _added_later(key: str) -> tuple[object, ...]:
    """The values of a dotted key that say nothing, one for each variant that got it later."""
    group, _, name = key.partition(".")
    if key in _ADDED_LATER:
        return (_ADDED_LATER[key],)
    return tuple(card.added_later[name] for card in variants(group) if name in card.added_later)


_ADAPTER: TypeAdapter[RunConfig] = TypeAdapter(RunConfig)


def parse(composed: Mapping[str, Any]) -> RunConfig:
    """The run that a composed, resolved configuration describes.

    Raises:
        ConfigError: a key is unknown, a value has the wrong type or range, or values contradict
            each other.
    """
    config = validate(composed)
    refuse_contradictions(config)
    return config


def validate(composed: Mapping[str, Any]) -> RunConfig:
    """As `parse`, but for values that contradict each other: each key is looked at by itself."""
    try:
        # Strict JSON rules: 3.5 is no int and "yes" no bool, but a list may fill a tuple.
        return _ADAPTER.validate_json(json.dumps(dict(composed)), strict=True)
    except ValidationError as error:
        raise ConfigError(*(_explain(problem) for problem in error.errors())) from None
    except TypeError as error:  # a date, a set, a key that is a list
        raise ConfigError(f"a value that JSON has not: {error}.") from None


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


@functools.cache
def variants(group: str) -> tuple[type[Card], ...]:
    """The cards of a group, none if there is no such group."""
    if group not in GROUPS:
        return ()
    hint = typing.get_type_hints(RunConfig)[group]
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def names(card: type[Card]) -> tuple[str, ...]:
    """What a variant is called."""
    return typing.get_args(typing.get_type_hints(card)["name"])


def variants_with(key: str) -> list[str]:
    """The options of a group that have a dotted key: `strategy.num_servers` is parameter_server's
    alone.
    """
    group, _, key_of_group = key.partition(".")
    owners = (
        card for card in variants(group) if key_of_group in {field.name for field in fields(card)}
    )
    return [name for card in owners for name in names(card)]


def unknown_key(key: str) -> str:
    """What to say of a key that a configuration does not have."""
    owners = variants_with(key)
    if owners:
        group = key.partition(".")[0]
        return (
            f"{key}: only {group}={' or '.join(owners)} has this key. Choose it, or leave the key "
            f"out; in a sweep over "
            f"{group}, ++{key}=... gives it to each."
        )
    return f"{shortened(key)}: unknown key.{_meant(key)}"


def _meant(key: str) -> str:
    """` Did you mean 'x'?`: first of the keys in the same group, then of those that end alike, then
    of all.
    """
    group, _, name = key.rpartition(".")
    others = [known for known in known_keys() if known != key]
    within = [
        known.removeprefix(f"{group}.")
        for known in others
        if group and known.startswith(f"{group}.")
    ]
    if near := did_you_mean(name, within):
        return near.replace("'", f"'{group}.", 1)
    alike = [known for known in others if known.endswith(f".{name}")]
    if short := abbreviated(name, within):
        alike = [f"{group}.{short}"]
    return f" Did you mean '{alike[0]}'?" if alike else did_you_mean(key, others)


@functools.cache
def known_keys() -> tuple[str, ...]:
    """All keys of all variants, dotted: what a mistyped key may have meant."""
    return tuple(sorted(set(_keys(RunConfig))))


def _contradictions(config: RunConfig) -> Iterator[str]:
    c = config
    if (c.local_batch is None) == (c.global_batch is None):
        yield (
            f"local_batch={show(c.local_batch)} and global_batch={show(c.global_batch)}: give "
            f"exactly one, for "
            "example local_batch=64, and set the other to null where an experiment or data=text "
            "gives it."
        )
    if c.precision == "tf32" and c.device == "cpu":
        yield (
            "precision=tf32 with device=cpu: only GPUs have TF32. Use precision=fp32, or "
            "device=cuda."
        )
    if c.graph is True:
        yield from _graph_contradictions(c)
    yield from target_problems(c)
    yield from measure_problems(c)
    yield from c.model.problems(c)
    yield from c.launch.problems(c)
    yield from c.strategy.problems(c)
    yield from _codec_contradictions(c)
    for card in (c.compression, c.allocation, c.batching, c.optimizer, c.data):
        yield from card.problems(c)


def _graph_contradictions(c: RunConfig) -> Iterator[str]:
    remedy = "Leave graph out, or use graph=false."
    if c.device == "cpu":
        yield f"graph=true with device=cpu: there are CUDA graphs on GPUs alone. {remedy}"
    if c.strategy.can.exchanges_in_passes:
        yield (
            f"graph=true with strategy={c.strategy.name}: it exchanges within the backward pass. "
            f"{remedy}"
        )
    if c.launch.slowdown:
        yield f"graph=true with launch.slowdown, which stretches the passes. {remedy}"
    if c.data.device == "cpu":
        yield (
            f"graph=true with data.device=cpu: a graph cannot wait for examples on their way. "
            f"{remedy}"
        )


def _codec_contradictions(c: RunConfig) -> Iterator[str]:
    if c.compression.builds and not c.strategy.can.takes_codecs:
        cards = (
            card
            for card in variants("strategy")
            if issubclass(card, StrategyConfig) and card.kind_can.takes_codecs
        )
        *others, last = (name for card in cards for name in names(card))
        yield (
            f"compression={c.compression.name} with strategy={c.strategy.name}: only "
            f"{', '.join(others)} and {last} "
            f"take a codec.{c.strategy.can.own_compression} "
            "Use compression=none or another strategy."
        )


_NAME_FORM = "letters a to z, digits, '.', '_', '+' or '-'"
_FORMS = {
    "launch.network_interface": "eth0",
}


def _explain(problem: Any) -> str:
    """One pydantic problem as `key=value: what is wrong`, without the names of variants in its
    path.
    """
    kind, value = problem["type"], problem["input"]
    path = [str(part) for part in problem["loc"]]
    if len(path) > 1 and len(variants(path[0])) > 1:
        path.pop(1)  # the variant, which pydantic puts after the group
    key = ".".join(path)
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(key)
    if kind in ("missing", "missing_argument"):
        return f"{key}: no value given."
    if kind == "union_tag_invalid":
        known = problem["ctx"]["expected_tags"]
        return f"{key}={shortened(show(value.get('name')))}: unknown. Known: {known}."
    if kind == "union_tag_not_found":
        return (
            f"{key}: it has no name. Choose one: "
            f"{', '.join(name for card in variants(key) for name in names(card))}."
        )
    if kind == "json_invalid":
        return "a value holds bytes that are no text in UTF-8: give other names."
    if kind == "value_error":
        return f"{key}={shortened(show(value))}: {problem['ctx']['error']}."
    if kind == "literal_error" and isinstance(value, str):
        known = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        return (
            f"{key}={shortened(value)}: unknown.{did_you_mean(value, known)} Known: "
            f"{problem['ctx']['expected']}."
        )
    if kind == "string_pattern_mismatch":
        return f"{key}={shortened(value)}: not of the form {_FORMS.get(key, _NAME_FORM)}."
    return f"{key}={shortened(show(value))}: {problem['msg'][0].lower()}{problem['msg'][1:]}."


def _keys(schema: type, prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(schema)
    for one in fields(schema):
        yield f"{prefix}{one.name}"
        hint = hints[one.name]
        variants = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        for variant in variants:
            if is_dataclass(variant) and isinstance(variant, type):
                yield from _keys(variant, f"{one.name}.")
