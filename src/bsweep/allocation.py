"""How much each of several uneven workers computes: local batches and local steps by worker.

Pure functions for the policies, named as in the study that this follows ("GPU Performance-Aware Batch Size and Local
Step Adjustment for Efficient Geo-Distributed Training", Shin et al.): baseline (`uniform`: every worker the same, for
which the lists stay null), A, B and C; and `resolve`, which fills a run's lists in before anything starts.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from bsweep.config import (
    AllocationConfig,
    BySpeedConfig,
    ConfigError,
    DiLoCoConfig,
    HybridConfig,
    NetworkAwareConfig,
    NominalConfig,
    RunConfig,
    conf_dir,
    did_you_mean,
    refuse_contradictions,
    show,
)

PROBE_SCHEMA = 1


# --- What a probe found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbedBatch:
    local_batch: int
    step_seconds: float  # of a whole training step without its exchange


@dataclass(frozen=True)
class ProbedWorker:
    """`peak_flops` is measured, in FLOP/s of a large matrix product; `batches` rise up to `largest_batch`."""

    host: str
    device: str
    precision: str
    memory_bytes: int | None
    peak_flops: float
    batches: tuple[ProbedBatch, ...]
    largest_batch: int
    stopped_by: str  # out_of_memory | examples | seconds: why no larger batch was tried

    def step_seconds(self, local_batch: int) -> float:
        """Seconds per step at a batch up to `largest_batch`: straight lines between those that were measured."""
        assert self.batches[0].local_batch <= local_batch <= self.largest_batch, local_batch
        for before, after in zip(self.batches, self.batches[1:], strict=False):
            if local_batch <= after.local_batch:
                part = (local_batch - before.local_batch) / (after.local_batch - before.local_batch)
                return before.step_seconds + part * (after.step_seconds - before.step_seconds)
        return self.batches[-1].step_seconds


@dataclass(frozen=True)
class Probe:
    """What `bsweep probe` wrote. `probed` says of what, see `probed_of`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    schema: int
    probed: dict[str, Any]
    workers: tuple[ProbedWorker, ...]
    exchange_seconds: float  # of one exchange of the whole vector with its codec, nobody waiting


def probe_path(config: RunConfig) -> Path:
    given = config.allocation.probe
    return Path(given).expanduser() if given else config.study_dir / "probe.json"


def probed_of(config: RunConfig) -> dict[str, Any]:
    """What a probe's numbers hold for, by dotted key; JSON values."""
    data = {key: value for key, value in asdict(config.data).items() if key not in _OF_NO_EXAMPLE}
    keys = {
        **{key: getattr(config, key) for key in _PROBED_KEYS},
        **{f"model.{key}": value for key, value in asdict(config.model).items()},
        **{f"data.{key}": value for key, value in data.items()},
        "launch.hosts": getattr(config.launch, "hosts", None),
        "optimizer.name": config.optimizer.name,
        "launch.slowdown": config.launch.slowdown,
        "launch.memory_limit_mb": config.launch.memory_limit_mb,
        "launch.threads_per_worker": config.launch.threads_per_worker,
        **_exchange_of(config),
    }
    plain: dict[str, Any] = json.loads(json.dumps(keys))
    return plain


_PROBED_KEYS = ("num_workers", "accumulation_steps", "device", "precision", "channels_last")
_OF_NO_EXAMPLE = ("root", "download", "subset", "num_train", "num_test")  # keys that change no example's cost


def _exchange_of(config: RunConfig) -> dict[str, Any]:
    """What the seconds of an exchange depend on, and nothing else that a probe measures."""
    return {
        "strategy.name": config.strategy.name,
        "strategy.algorithm": getattr(config.strategy, "algorithm", None),
        "compression.name": config.compression.name,
    }


def read_probe(config: RunConfig) -> Probe:
    """The probe for a run.

    Raises:
        ConfigError: there is none, it is none, or it was taken of something else than this run.
    """
    path = probe_path(config)
    remedy = "run `bsweep probe` with the same overrides"
    try:
        probe = _PROBE.validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        or_devices = ", or name the GPUs in allocation.devices" if config.allocation.name.endswith("flops") else ""
        raise ConfigError(
            f"allocation={config.allocation.name} needs a probe, and there is no {path}: {remedy} first{or_devices}."
        ) from None
    except (OSError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(f"{path} is no probe of this version ({reason}): {remedy} again.") from None
    if probe.schema > PROBE_SCHEMA:
        raise ConfigError(f"{path}: written with probe schema {probe.schema}: update bsweep, or {remedy} again.")
    ours = probed_of(config)
    ignored = () if isinstance(config.allocation, NetworkAwareConfig) else _exchange_of(config)
    problems = [
        f"{key}={show(ours.get(key))}, but {path} was probed with {show(probe.probed.get(key))}: {remedy} again."
        for key in sorted({*ours, *probe.probed})
        if key not in ignored and ours.get(key) != probe.probed.get(key)
    ]
    if problems:
        raise ConfigError(*problems)
    if len(probe.workers) != config.num_workers:
        raise ConfigError(f"{path} has {len(probe.workers)} workers, num_workers={config.num_workers}: {remedy} again.")
    return probe


_PROBE: TypeAdapter[Probe] = TypeAdapter(Probe)


def table(probe: Probe) -> str:
    """A probe as a person reads it: seconds per step at each batch, by worker."""
    batches = sorted({batch.local_batch for one in probe.workers for batch in one.batches})
    rows = [["worker", "host", "device", *(f"b={batch}" for batch in batches), "largest", "TFLOP/s"]]
    for rank, one in enumerate(probe.workers):
        seconds = {batch.local_batch: f"{batch.step_seconds:.3g}" for batch in one.batches}
        largest = f"{one.largest_batch}" if one.stopped_by == "out_of_memory" else f">={one.largest_batch}"
        times = [seconds.get(batch, "-") for batch in batches]
        rows.append([str(rank), one.host, one.device, *times, largest, f"{one.peak_flops / 1e12:.3g}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(["seconds per step at local batches:", *lines, f"one exchange: {probe.exchange_seconds:.3g} s"])


# --- Policies ---------------------------------------------------------------------------------------------------------


def batch_by_flops(flops: Sequence[float], local_batch: int) -> tuple[int, ...]:
    """A: batches in proportion to nominal FLOP/s; the slowest worker has `local_batch`."""
    return tuple(round(local_batch * worker / min(flops)) for worker in flops)


def batch_by_memory(workers: Sequence[ProbedWorker]) -> tuple[int, ...]:
    """B: the largest batch that fits each worker."""
    return tuple(worker.largest_batch for worker in workers)


def steps_by_flops(flops: Sequence[float], every: int) -> tuple[int, ...]:
    """C: local steps in proportion to nominal FLOP/s; the slowest worker does `every`."""
    return tuple(round(every * worker / min(flops)) for worker in flops)


def by_seconds(step_seconds: Sequence[float], every: int) -> tuple[int, ...]:
    """Local steps by measured seconds per step: the slowest worker does `every`, and nobody takes longer than it.

    With Liu et al. (arXiv 2401.09135) these are whole steps, rounded down: a worker idles for less than one of its own.
    """
    slowest = max(step_seconds)
    return tuple(math.floor(every * slowest / seconds * (1 + 1e-9)) for seconds in step_seconds)


def drifted(before: Sequence[float], after: Sequence[float], max_drift: float) -> bool:
    """Whether a worker's share of all workers' speed changed by more than the part `max_drift` of it.

    Args:
        before: Seconds per step by worker, to which the steps were fitted.
        after: Those measured since.
        max_drift: 0.1 allows a share of 0.5 to become 0.45 or 0.55.
    """
    return any(abs(new / old - 1) > max_drift for old, new in zip(_speeds(before), _speeds(after), strict=True))


def _speeds(step_seconds: Sequence[float]) -> list[float]:
    """Each worker's part of all steps per second."""
    speeds = [1 / seconds for seconds in step_seconds]
    return [speed / sum(speeds) for speed in speeds]


def steps_by_speed(workers: Sequence[ProbedWorker], batches: Sequence[int], every: int) -> tuple[int, ...]:
    """C with measured speed in place of nominal: local steps that take all workers the same time at their batches."""
    return by_seconds([worker.step_seconds(batch) for worker, batch in zip(workers, batches, strict=True)], every)


def knee_batch(worker: ProbedWorker, local_batch: int, knee: float) -> int:
    """The smallest probed batch, `local_batch` at least, with the part `knee` of this worker's best throughput.

    Of `hybrid`, which the study leaves to future work: a batch large enough to keep each device busy, then local steps
    that take the same time, that of a round without it: larger batches do not make exchanges rarer.
    """
    rates = {batch.local_batch: batch.local_batch / batch.step_seconds for batch in worker.batches}
    enough = [b for b, rate in rates.items() if b >= local_batch and rate >= knee * max(rates.values())]
    # Where larger batches are slower, none from local_batch on may reach the knee: the best of them, then.
    return min(enough, default=max((b for b in rates if b >= local_batch), key=lambda b: rates[b], default=local_batch))


def least_steps(exchange_seconds: float, step_seconds: float, max_exchange_share: float) -> int:
    """Local steps of a round of which the exchange is `max_exchange_share` at most (`network_aware`).

    x / (x + H * t) <= s where H >= x * (1 - s) / (s * t).
    """
    wanted = exchange_seconds * (1 - max_exchange_share) / (max_exchange_share * step_seconds)
    return max(1, math.ceil(wanted * (1 - 1e-9)))


def shares(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """`total` in whole parts in proportion to `weights`, 1 at least, by the method of largest remainders."""
    assert total >= len(weights), (total, weights)
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [max(1, math.floor(part)) for part in exact]
    order = sorted(range(len(parts)), key=lambda i: exact[i] - parts[i])
    while sum(parts) < total:
        parts[order.pop()] += 1
    while sum(parts) > total:  # 1 was more than some should have: those that have most give it
        parts[parts.index(max(parts))] -= 1
    return tuple(parts)


# --- Nominal devices --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """Nominal dense half-precision FLOP/s and bytes of memory of one GPU, or of several that work as one."""

    flops: float
    memory_bytes: float


def device(entry: str) -> Device:
    """What `conf/devices.yaml` says of an entry such as `4 A30` or `3 RTX 2080 Ti + TITAN RTX`.

    Of several GPUs, the mean FLOP/s and the smallest memory: they train in step, with equal batches.

    Raises:
        ConfigError: a name is not in the file.
    """
    found: list[Device] = []
    for part in entry.split("+"):
        match = re.fullmatch(r"(?:([1-9]\d?) *x? +)?(.+)", part.strip())
        count, name = (int(match[1] or 1), match[2]) if match else (1, part)
        if _plain(name) not in _devices():
            near = did_you_mean(name, [str(key) for key in _table()])
            raise ConfigError(
                f"allocation.devices: '{name}' is not in conf/devices.yaml.{near} Known: {', '.join(_table())}. "
                "For another device leave allocation.devices out: `bsweep probe` measures it."
            )
        found += [_devices()[_plain(name)]] * count
    return Device(sum(one.flops for one in found) / len(found), min(one.memory_bytes for one in found))


@functools.cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = yaml.safe_load((conf_dir() / "devices.yaml").read_text())
    return table


@functools.cache
def _devices() -> Mapping[str, Device]:
    return {
        _plain(alias): Device(entry["tflops"] * 1e12, entry["memory_gb"] * 1e9)
        for name, entry in _table().items()
        for alias in (name, *entry.get("names", ()))
    }


def _plain(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla", "quadro"))


# --- A run's allocation -----------------------------------------------------------------------------------------------


def resolve(config: RunConfig) -> RunConfig:
    """The run with the batches and steps by worker that its policy chooses; lists that are given stay as they are.

    Raises:
        ConfigError: a probe is missing or of something else, a device is unknown, or a batch does not fit.
    """
    a = config.allocation
    if a.name == "uniform":
        return config
    batches, steps = a.local_batches, a.local_steps
    match a:
        case NominalConfig(name="batch_by_flops"):
            if batches is None:
                flops = _flops(config, a)
                batches = _shared(config, flops) or batch_by_flops(flops, config.examples_per_pass)
        case NominalConfig(name="steps_by_flops"):
            steps = steps or steps_by_flops(_flops(config, a), _every(config))
        case NominalConfig():
            if batches is None:
                largest = batch_by_memory(read_probe(config).workers)
                batches = _shared(config, largest) or largest
                _refuse_unprobed(config, batches)
        case BySpeedConfig():
            steps = steps or _steps(config, config.local_batches, _every(config))
        case HybridConfig():
            if batches is None:
                workers = read_probe(config).workers
                _refuse_unprobed(config, (config.local_batch or 1,) * config.num_workers)
                knees = [knee_batch(worker, config.local_batch or 1, a.knee) for worker in workers]
                batches = _shared(config, knees) or tuple(knees)
            steps = steps or _steps(config, batches, _every_at(config, batches))
        case NetworkAwareConfig():
            if steps is None:
                every = _network_steps(config, a)
                steps = _steps(config, config.local_batches, every)
                assert isinstance(config.strategy, DiLoCoConfig), config.strategy
                config = replace(config, strategy=replace(config.strategy, sync_every=every))
    resolved = replace(config, allocation=replace(a, local_batches=batches, local_steps=steps))
    refuse_contradictions(resolved)
    return resolved


def doubts(config: RunConfig) -> list[str]:
    """What the run's allocation goes by though its probe could not tell."""
    if config.allocation.name != "batch_by_memory":
        return []
    try:
        workers = read_probe(config).workers
    except ConfigError:  # the batches were given
        return []
    return [
        f"local batch {batch} of worker {rank} is the largest that its probe had time for: more may fit"
        for rank, (worker, batch) in enumerate(zip(workers, config.local_batches, strict=True))
        if worker.stopped_by == "seconds" and batch == worker.largest_batch
    ]


def _every(config: RunConfig) -> int:
    assert isinstance(config.strategy, DiLoCoConfig), config.strategy  # others have no steps to share
    return config.strategy.sync_every


def _every_at(config: RunConfig, batches: Sequence[int]) -> int:
    """Steps of the slowest worker at these batches that take it as long as a round of even batches would."""
    workers, even = read_probe(config).workers, config.examples_per_pass
    _refuse_unprobed(config, batches)
    before, after = (
        max(worker.step_seconds(batch) for worker, batch in zip(workers, every, strict=True))
        for every in ([min(even, worker.largest_batch) for worker in workers], batches)
    )
    return max(1, round(_every(config) * before / after))


def _shared(config: RunConfig, weights: Sequence[float]) -> tuple[int, ...] | None:
    """The given global batch, shared; None where a local batch is given instead."""
    if config.global_batch is None:
        return None
    return shares(config.global_batch // config.accumulation_steps, weights)


def _steps(config: RunConfig, batches: Sequence[int], every: int) -> tuple[int, ...]:
    probe = read_probe(config)
    _refuse_unprobed(config, batches)
    return steps_by_speed(probe.workers, batches, every)


def _network_steps(config: RunConfig, a: NetworkAwareConfig) -> int:
    probe = read_probe(config)
    _refuse_unprobed(config, config.local_batches)
    slowest = max(w.step_seconds(batch) for w, batch in zip(probe.workers, config.local_batches, strict=True))
    return least_steps(probe.exchange_seconds, slowest, a.max_exchange_share)


def _refuse_unprobed(config: RunConfig, batches: Sequence[int]) -> None:
    """ConfigError for batches beyond what the probe found to fit, or was able to try."""
    problems = []
    for rank, (worker, batch) in enumerate(zip(read_probe(config).workers, batches, strict=True)):
        if batch > worker.largest_batch:
            why = "fits" if worker.stopped_by == "out_of_memory" else "was probed with"
            problems.append(
                f"local batch {batch}: worker {rank} ({worker.host}, {worker.device}) {why} {worker.largest_batch} at "
                f"most, says {probe_path(config)}. Use a smaller batch, or more accumulation_steps."
            )
    if problems:
        raise ConfigError(*problems)


def _flops(config: RunConfig, a: AllocationConfig) -> list[float]:
    """FLOP/s by worker, nominal for all of them or measured for all of them: the two are far apart."""
    if a.devices is not None:
        if len(a.devices) != config.num_workers:
            raise ConfigError(
                f"allocation.devices={show(a.devices)} names {len(a.devices)} devices for "
                f"num_workers={config.num_workers}: give one entry for each worker, such as '4 A30'."
            )
        return [device(entry).flops for entry in a.devices]
    workers = read_probe(config).workers
    known = [_devices().get(_plain(worker.device)) for worker in workers]
    if all(known):
        return [one.flops for one in known if one]
    return [worker.peak_flops for worker in workers]
