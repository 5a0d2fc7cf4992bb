"""The probe file of a run: where it lies, for which configurations its measurements hold, and what
is added to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError, show
from bsweep.runlog import probe_file
from bsweep.runlog.files import write_json
from bsweep.runlog.probe_file import PROBE_SCHEMA, Probe, ProbedSplit

_KEYS = (
    "num_workers", "accumulation_steps", "device", "precision", "channels_last", "optimizer.name",
    "launch.slowdown", "launch.memory_limit_mb", "launch.threads_per_worker", "strategy.name",
    "compression.name",
)  # fmt: skip
# A probe must have been made with equal ones only if the allocation uses its time of an exchange,
# or fills the memory, of which a strategy and a codec take a part.
_EXCHANGE_KEYS = ("strategy.name", "strategy.algorithm", "compression.name")


def path_of(config: RunConfig) -> Path:
    """Return the path of the file in which `bsweep probe` keeps its results for a run."""
    given = config.allocation.probe
    return Path(given).expanduser() if given else config.study_dir / "probe.json"


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings on which the results of a probe depend, as JSON values by dotted key."""
    data, unused = asdict(config.data), config.data.of_no_example
    values = {
        **{key: attrgetter(key)(config) for key in _KEYS},
        **{f"model.{key}": value for key, value in asdict(config.model).items()},
        **{f"data.{key}": value for key, value in data.items() if key not in unused},
        "launch.hosts": config.launch.named_hosts,
        "strategy.algorithm": getattr(config.strategy, "algorithm", None),
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def settings_of_split(config: RunConfig) -> dict[str, Any]:
    """Return the settings on which the measurements of a split model depend, as JSON values by
    dotted key: those of `settings`, and all of the strategy.
    """
    strategy = {f"strategy.{key}": value for key, value in asdict(config.strategy).items()}
    plain: dict[str, Any] = json.loads(json.dumps({**settings(config), **strategy}))
    return plain


def write(config: RunConfig, measurements: Mapping[str, Any]) -> None:
    """Write measurements into a run's probe file. All others stay in it.

    Args:
        config: The configuration of the run.
        measurements: Fields of `Probe`, as plain values.

    Raises:
        ConfigError: See `read_or_empty`.
    """
    probe = {**asdict(read_or_empty(config)), "schema": PROBE_SCHEMA, **measurements}
    path_of(config).parent.mkdir(parents=True, exist_ok=True)
    write_json(path_of(config), probe)


def write_split(config: RunConfig, split: ProbedSplit) -> None:
    """Write the measurements of a split model into a run's probe file. All others stay in it,
    except those of the same configuration.

    Raises:
        ConfigError: See `read_or_empty`.
    """
    others = [other for other in read_or_empty(config).splits if other.probed != split.probed]
    write(config, {"splits": [*map(asdict, others), asdict(split)]})


def read_or_empty(config: RunConfig) -> Probe:
    """Return what a run's probe file holds; an empty probe if there is no file.

    Raises:
        ConfigError: If the file cannot be read, is no probe, or a newer bsweep wrote it.
    """
    path = path_of(config)
    try:
        return probe_file.read(path)
    except FileNotFoundError:
        return Probe(PROBE_SCHEMA)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} {probe_file.reason(error)}: move or remove the file, and run `bsweep probe` "
            "again."
        ) from None


def read(config: RunConfig) -> Probe:
    """Return the results of `bsweep probe` for a run, read from its probe file.

    Raises:
        ConfigError: If the file is missing, has no workers with the whole model, is no probe, was
            written by a newer bsweep, or was measured with another configuration.
    """
    path, probe, card = path_of(config), read_or_empty(config), config.allocation
    remedy = "run `bsweep probe` with the same overrides"
    has_only_splits = probe.splits and not probe.workers
    if has_only_splits or not path.exists():
        lack = f"{path} has only split models" if has_only_splits else f"there is no {path}"
        or_devices = ", or name the GPUs in allocation.devices" if card.takes_devices else ""
        raise ConfigError(
            f"allocation={card.name} needs a probe of workers that hold the whole model, but "
            f"{lack}: {remedy} first{or_devices}."
        )
    ours, theirs = settings(config), probe.probed
    compared = {*ours, *theirs}
    if not (card.asks_exchange or card.fills_memory):
        compared -= {*_EXCHANGE_KEYS}
    problems = [
        f"{key}={show(ours.get(key))}, but {path} was probed with {show(theirs.get(key))}: "
        f"{remedy} again."
        for key in sorted(compared)
        if ours.get(key) != theirs.get(key)
    ]
    if not problems and len(probe.workers) != config.num_workers:
        both = f"{len(probe.workers)} workers, but num_workers={config.num_workers}"
        problems = [f"{path} has {both}: {remedy} again."]
    if problems:
        raise ConfigError(*problems)
    return probe
