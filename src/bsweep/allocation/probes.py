"""The probe file of a run: where it lies, for which configurations its measurements hold, and what
is added to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError, show
from bsweep.runlog.files import write_json
from bsweep.runlog.probe_file import PROBE_SCHEMA, Probe, ProbedSplit, read, reason


def probe_path(config: RunConfig) -> Path:
    """Return the path of the file in which `bsweep probe` keeps its results for a run."""
    given = config.allocation.probe
    return Path(given).expanduser() if given else config.study_dir / "probe.json"


def probed_of(config: RunConfig) -> dict[str, Any]:
    """Return the settings on which the results of a probe depend, as JSON values by dotted key."""
    data = {
        key: value
        for key, value in asdict(config.data).items()
        if key not in config.data.of_no_example
    }
    keys = {
        **{key: getattr(config, key) for key in _PROBED_KEYS},
        **{f"model.{key}": value for key, value in asdict(config.model).items()},
        **{f"data.{key}": value for key, value in data.items()},
        "launch.hosts": config.launch.named_hosts,
        "optimizer.name": config.optimizer.name,
        "launch.slowdown": config.launch.slowdown,
        "launch.memory_limit_mb": config.launch.memory_limit_mb,
        "launch.threads_per_worker": config.launch.threads_per_worker,
        **_exchange_of(config),
    }
    plain: dict[str, Any] = json.loads(json.dumps(keys))
    return plain


_PROBED_KEYS = ("num_workers", "accumulation_steps", "device", "precision", "channels_last")


def _exchange_of(config: RunConfig) -> dict[str, Any]:
    """Return the settings of strategy and codec by dotted key.

    A probe must have been made with equal ones only if the allocation uses its time of an exchange,
    or fills the memory, of which a strategy and a codec take a part.
    """
    return {
        "strategy.name": config.strategy.name,
        "strategy.algorithm": getattr(config.strategy, "algorithm", None),
        "compression.name": config.compression.name,
    }


def probed_of_split(config: RunConfig) -> dict[str, Any]:
    """Return the settings on which the measurements of a split model depend, as JSON values by
    dotted key: those of `probed_of`, and all of the strategy.
    """
    strategy = {f"strategy.{key}": value for key, value in asdict(config.strategy).items()}
    plain: dict[str, Any] = json.loads(json.dumps({**probed_of(config), **strategy}))
    return plain


def write_probe(config: RunConfig, found: dict[str, Any]) -> None:
    """Write the measurements of workers with the whole model, as plain values, into a run's probe
    file. Those of split models stay in it.

    Raises:
        ConfigError: See `kept_probe`.
    """
    splits = [asdict(one) for one in kept_probe(config).splits]
    _write(config, {**found, "splits": splits})


def write_split_probe(config: RunConfig, found: ProbedSplit) -> None:
    """Write the measurements of a split model into a run's probe file. All others stay in it,
    except those of the same configuration.

    Raises:
        ConfigError: See `kept_probe`.
    """
    kept = kept_probe(config)
    others = [one for one in kept.splits if one.probed != found.probed]
    _write(config, asdict(replace(kept, schema=PROBE_SCHEMA, splits=(*others, found))))


def kept_probe(config: RunConfig) -> Probe:
    """Return what a run's probe file holds; an empty probe if there is no file.

    Raises:
        ConfigError: If the file cannot be read, is no probe, or a newer bsweep wrote it.
    """
    path = probe_path(config)
    try:
        return read(path)
    except FileNotFoundError:
        return Probe(PROBE_SCHEMA)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} {reason(error)}: move or remove the file, in which the new probe has its "
            "place beside those of other ways of splitting a model."
        ) from None


def _write(config: RunConfig, found: dict[str, Any]) -> None:
    path = probe_path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, found)


def read_probe(config: RunConfig) -> Probe:
    """Return the results of `bsweep probe` for a run, read from its probe file.

    Raises:
        ConfigError: If the file is missing, has no workers with the whole model, is no probe, was
            written by a newer bsweep, or was measured with another configuration.
    """
    path = probe_path(config)
    remedy = "run `bsweep probe` with the same overrides"
    or_devices = (
        ", or name the GPUs in allocation.devices" if config.allocation.takes_devices else ""
    )
    try:
        probe = read(path)
    except FileNotFoundError:
        raise ConfigError(
            f"allocation={config.allocation.name} needs a probe, but there is no {path}: {remedy} "
            f"first{or_devices}."
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} {reason(error)}: remove the file, and {remedy} again.") from None
    if probe.splits and not probe.workers:
        raise ConfigError(
            f"allocation={config.allocation.name} needs a probe of workers that hold the whole "
            f"model, but {path} has only split models: {remedy} first{or_devices}."
        )
    ours = probed_of(config)
    is_asked = config.allocation.asks_exchange or config.allocation.fills_memory
    ignored = () if is_asked else _exchange_of(config)
    problems = [
        f"{key}={show(ours.get(key))}, but {path} was probed with {show(probe.probed.get(key))}: "
        f"{remedy} again."
        for key in sorted({*ours, *probe.probed})
        if key not in ignored and ours.get(key) != probe.probed.get(key)
    ]
    if problems:
        raise ConfigError(*problems)
    if len(probe.workers) != config.num_workers:
        raise ConfigError(
            f"{path} has {len(probe.workers)} workers, but num_workers={config.num_workers}: "
            f"{remedy} again."
        )
    return probe


def table(probe: Probe) -> str:
    """Return the results of a probe as a text table, with each worker's seconds per step at each
    local batch.
    """
    batches = sorted({batch.local_batch for one in probe.workers for batch in one.batches})
    rows = [
        ["worker", "host", "device", *(f"b={batch}" for batch in batches), "largest", "TFLOP/s"]
    ]
    for rank, one in enumerate(probe.workers):
        seconds = {batch.local_batch: f"{batch.step_seconds:.3g}" for batch in one.batches}
        largest = (
            f"{one.largest_batch}"
            if one.stopped_by == "out_of_memory"
            else f">={one.largest_batch}"
        )
        times = [seconds.get(batch, "-") for batch in batches]
        rows.append(
            [str(rank), one.host, one.device, *times, largest, f"{one.peak_flops / 1e12:.3g}"]
        )
    return "\n".join(
        [
            "seconds per step at local batches:",
            *_aligned(rows),
            f"one exchange: {probe.exchange_seconds:.3g} s",
        ]
    )


def split_table(config: RunConfig) -> str:
    """Return the results of all probes of split models in a run's probe file as a text table, with
    the seconds of a step and the peak memory at each local batch.
    """
    rows = [["strategy", "workers", "local batch", "s per step", "peak MiB", "largest"]]
    for one in kept_probe(config).splits:
        strategy = [
            f"{key.rpartition('.')[2]}={show(value)}"
            for key, value in one.probed.items()
            if key.startswith("strategy.") and key != "strategy.name" and value is not None
        ]
        name = " ".join([str(one.probed["strategy.name"]), *strategy])
        for batch in one.batches:
            is_largest = batch.local_batch == one.largest_batch
            peak = "-" if batch.peak_bytes is None else f"{batch.peak_bytes / 2**20:,.0f}"
            largest = "largest" if one.stopped_by == "out_of_memory" else "more may fit"
            numbers = [str(one.probed["num_workers"]), str(batch.local_batch)]
            times = [f"{batch.step_seconds:.3g}", peak, largest if is_largest else ""]
            rows.append([name, *numbers, *times])
            name = ""
    return "\n".join(_aligned(rows))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
