"""Conversion of one run's records to its rows in a study's tables."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bsweep.analysis.study import columns
from bsweep.analysis.study.derived import ONE_NODE, placement
from bsweep.analysis.study.numbers import setting_text
from bsweep.config.hosts import SLURM
from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.saved import read_config
from bsweep.config.values import ConfigError, flatten
from bsweep.core.words import escaped, minor
from bsweep.runlog.files import RunPaths
from bsweep.runlog.hardware import hardware_words
from bsweep.runlog.reading import (
    REMEDY,
    Damaged,
    Run,
    changes_batch,
    numbered,
    read_run,
    warnings_in,
)
from bsweep.runlog.records import StageLoad

Rows = Sequence[Mapping[str, Any]]

CIFAR10_CLASSES = frozenset(
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
)

# The short column names of settings, by their dotted names in the configuration.
_SHORT_NAMES = {
    column.source: column.name
    for column in columns.RUNS
    if column.source not in ("", "start", "meta")
}
_FROM_START = [column.name for column in columns.RUNS if column.source == "start"]
# Keys that are no settings: a run's place and start, and what its `start` record says better.
_NO_SETTINGS = (
    "study", "results_dir", "local_batch", "global_batch", "device", "precision", "graph",
    "log_every_steps",
    "checkpoint_every", "keep_weights", "resume_from", "launch.retries", "trackers",
    "data.download", "model.weights", "allocation.probe",
    "allocation.devices", "measure.noise_scale",
    *columns.names(columns.RUNS),
)  # fmt: skip
_FINAL = ("final_test_loss", "final_test_accuracy")  # of runs with validation examples
# Columns that hold the last part of a path: the name of the data, not its place on a machine.
PATHS = ("data.root", "data.path", "data.tokenizer", "model.weights")
_DIGEST = "model.weights_sha256"  # tells pretrained weights apart, wherever their file lies
_DIGITS = 8  # of a digest, for people to read

# The fields of an epoch's record that are no columns of `epochs`.
NO_COLUMNS = (
    "schema", "time", "type", "worker_wait_seconds", "worker_memory", "servers", "stage_loads",
)  # fmt: skip


def rows_of(run_folder: Path) -> dict[str, Rows]:
    """Read the records of a run, and return the rows that it adds to each table of its study, by
    the name of the table.

    Raises:
        Damaged: If the records are damaged, or nothing says how the run was configured.
        Newer: If a newer bsweep wrote them.
    """
    run = read_run(run_folder)
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in run.records:
        records[record["type"]].append(record)
    starts, events, epochs = records["start"], records["event"], numbered(records["epoch"], "epoch")
    by_table = {
        "evaluations": numbered(records["evaluation"], "evaluation"),
        "noise_scales": numbered(records["noise_scale"], "noise_scale"),
        "batches": numbered(records["step"], "step") if changes_batch(events) else [],
        "events": [
            {
                "since_start_seconds": event["time"] - run.records[0]["time"],
                **{name: escaped(event[name]) for name in ("event", "message")},
            }
            for event in events
        ],
    }
    return {
        "runs": [_shown(_run_row(run, starts, events, len(epochs)))],
        "epochs": [
            {name: value for name, value in epoch.items() if name not in NO_COLUMNS}
            for epoch in epochs
        ],
        **{
            table: [{name: row.get(name) for name in columns.names(columns.TABLES[table])}
                    for row in rows]
            for table, rows in by_table.items()
        },
        **_rows_by_worker(epochs),
        "rounds": _round_rows(numbered(records["round"], "round")),
        "provenance": [{"run_id": run.run_id} | _shown(_flat(_origin(run.meta, starts)))],
    }  # fmt: skip


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table with control characters in its texts and in its column names replaced
    by visible escapes.
    """
    return {
        escaped(name): escaped(value) if isinstance(value, str) else value
        for name, value in row.items()
    }


def _run_row(run: Run, starts: Rows, events: Rows, num_epochs: int) -> dict[str, Any]:
    """Return the row of one run in the table of runs, with its settings, its status and its
    results.

    The settings come from the start record, or without one from the saved configuration. The status
    and the results come from the summary; a run without one is `unfinished`.
    """
    start = starts[-1] if starts else {}
    config = start["config"] if start else _saved_config(run.folder)
    settings = _settings(config)
    facts = _facts(start)
    unfinished = {**config, **start, **settings, "status": "unfinished", "epochs": num_epochs}
    summary = run.summary or unfinished
    warnings = [*run.warnings, *warnings_in(events)]
    version = (_origin(run.meta, starts).get("versions") or {}).get("torch")
    return {
        **settings,
        # What `auto` stands for is not known before the start.
        **({"channels_last": None} if settings.get("channels_last") == "auto" else {}),
        **({"compile": start.get("compile") or None} if "compile" in settings else {}),
        **_place(config, run.meta),
        **facts,
        **_beginning_at_checkpoint(events),
        **{key: summary.get(key) for key in columns.names(columns.RUNS, "promised")},
        **{key: summary[key] for key in _FINAL if summary.get(key) is not None},
        "run_id": run.run_id,
        "message": summary.get("message") or "",
        "hardware": hardware_words(run.meta),
        **({"torch": minor(version)} if version else {}),
        "asked_precision": config.get("precision"),
        "is_cifar10": settings.get("data") == "cifar10" or facts["is_cifar10"],
        "warnings": "\n".join(dict.fromkeys(warnings)),
    }


def _origin(meta: Mapping[str, Any], starts: Rows) -> Mapping[str, Any]:
    """Return a run's `meta.json`; of the user's own program, with the software that it used."""
    software = dict((starts[-1].get("software") if starts else None) or {})
    if not software:
        return meta
    python = {name: software.pop(name, None) for name in ("python", "interpreter")}
    bsweep = {"bsweep": (meta.get("versions") or {}).get("bsweep")}
    return {**meta, **python, "versions": {**bsweep, **software}}


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a run's configuration by their column in the table of runs.

    Settings without a column are left out.
    """
    settings = {_column(key): value for key, value in _flat(config).items() if _column(key)}
    paths = {key: Path(settings[key]).name for key in PATHS if settings.get(key)}
    digests = {_DIGEST: settings[_DIGEST][:_DIGITS]} if settings.get(_DIGEST) else {}
    return settings | paths | digests


def _facts(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts that a run recorded at its start, such as the device that it took."""
    classes, num_test, layout = map(start.get, ("classes", "num_test", "channels_last"))
    return {
        **{key: start[key] for key in _FROM_START if key in start},
        **({"channels_last": layout} if layout is not None else {}),
        "num_classes": start.get("num_classes") or len(classes or ()) or None,
        "num_test": num_test * (start.get("tokens_per_example") or 1) if num_test else None,
        "is_cifar10": set(classes or ()) == CIFAR10_CLASSES,
    }


def _beginning_at_checkpoint(events: Rows) -> dict[str, Any]:
    """Return, for a run that began at another run's checkpoint, the other run's id, and the steps
    and seconds trained until the checkpoint. Return an empty mapping for other runs.
    """
    for event in reversed(events):
        if "branch_of" in event:
            run, steps, seconds = map(event.get, ("branch_of", "num_steps", "train_seconds"))
            return {"branch_of": run, "branch_steps": steps, "branch_seconds": seconds}
    return {}


def _place(config: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that say how the workers of a run were placed: on how many hosts, with
    which network interface, memory limit and threads.
    """
    launch, strategy = config.get("launch", {}), config.get("strategy", {})
    num_workers, hosts = config.get("num_workers", 1), launch.get("hosts")
    num_servers = 0
    if strategy.get("name") == "parameter_server":
        card = ParameterServerConfig(
            name="parameter_server",
            num_servers=strategy.get("num_servers"),
            colocated=strategy.get("colocated", False),
        )
        num_servers = card.num_server_processes(num_workers)
    nodes = placement(
        meta.get("hosts") if hosts in (None, SLURM) else hosts, num_workers, num_servers
    )
    limits = [setting_text(limit) for limit in launch.get("memory_limit_mb") or ()]
    different = limits if len(set(limits)) > 1 else limits[:1]
    return {
        "placement": nodes,
        "network_interface": None if nodes == ONE_NODE else launch.get("network_interface"),
        "memory_limit": f"{', '.join(different)} MB" if limits else None,
        "threads": launch.get("threads_per_worker"),
    }


def _saved_config(folder: Path) -> Mapping[str, Any]:
    """Return the configuration that a run without a start record saved in its folder, with the
    local and the global batch filled in.
    """
    try:
        config = read_config(RunPaths(folder).config)
    except ConfigError as error:
        raise Damaged(f"{error} {REMEDY}") from None
    return {
        **asdict(config),
        "local_batch": config.examples_per_pass,
        "global_batch": config.examples_per_step,
    }


def _rows_by_worker(epochs: Rows) -> dict[str, list[dict[str, Any]]]:
    """Return a row for each worker or server of a run, with its sums, largest values or means over
    the run's epochs, for the tables of servers, waits, memory and stages.
    """
    by_epoch: list[dict[str, Any]] = [
        {
            "servers": epoch.get("servers"),
            "waits": [{"wait_seconds": wait} for wait in epoch.get("worker_wait_seconds") or ()],
            "memory": epoch.get("worker_memory"),
            "stages": [
                load and asdict(StageLoad(**load)) for load in epoch.get("stage_loads") or ()
            ],
        }
        for epoch in epochs
    ]
    tables: dict[str, list[dict[str, Any]]] = {}
    for table in ("servers", "waits", "memory", "stages"):
        _, place, *others = columns.names(columns.TABLES[table])  # the first is `run_id`
        listed = [values[table] for values in by_epoch]
        tables[table] = [
            {place: number}
            | {
                name: _TOTALS.get(name, sum)([values.get(name) for values in by_worker if values])
                for name in others
                if name != "load"
            }
            for number, by_worker in enumerate(zip_longest(*filter(None, listed)))
        ]
    for row in tables["servers"]:
        seconds = sum(epoch["train_seconds"] for epoch in epochs)
        row["load"] = row["busy_seconds"] / seconds if seconds else None
    return tables


# How the values of all epochs become one, where they are not added up.
_TOTALS: Mapping[str, Callable[[list[Any]], Any]] = {
    **dict.fromkeys(
        ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "peak_bytes"),
        lambda values: max(filter(None, values), default=None),
    ),
    **dict.fromkeys(("max_lead", "peak_activation_bytes", "weight_versions", "stashed_bytes"), max),
    "share": lambda shares: shares[-1],
    "pushes": lambda pushes: sum(map(sum, pushes)),
    "staleness": lambda values: sum(values) / len(values),
}


_OF_ROUND = ("epoch", "round", "train_loss", "num_examples", "is_whole")
_BY_WORKER = {
    "worker": "workers",
    "local_batch": "worker_batches",
    **{name: name for name in ("local_steps", "began_seconds", "compute_seconds", "idle_seconds")},
    "exchange_seconds": "exposed_exchange_seconds",
}


def _round_rows(rounds: Sequence[Mapping[str, Any]]) -> Rows:
    """Return one row for each round and worker of a run, given the run's records of rounds."""
    rows = []
    for record in rounds:
        # Only some strategies record `exposed_exchange_seconds`.
        fields = {"exposed_exchange_seconds": record["exchange_seconds"], **record}
        shared = {name: fields[name] for name in _OF_ROUND}
        values = zip(*(fields[name] for name in _BY_WORKER.values()), strict=True)
        rows += [shared | dict(zip(_BY_WORKER, row, strict=True)) for row in values]
    return rows


@functools.cache
def _column(key: str) -> str:
    """Return the name of the column in the table of runs that a configuration key fills; empty if
    the key is no setting.
    """
    is_setting = key not in _NO_SETTINGS and not key.startswith("launch.")
    return _SHORT_NAMES.get(key, key if is_setting else "")


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a nested mapping, such as a configuration, by dotted keys, with lists as
    text.
    """
    return {
        key: setting_text(value) if isinstance(value, list | tuple) else value
        for key, value in flatten(tree).items()
    }
