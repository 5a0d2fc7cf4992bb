"""Conversion of one run's records to its rows in a study's tables."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bsweep.analysis import columns
from bsweep.analysis.derived import placement
from bsweep.analysis.numbers import setting_text
from bsweep.config.hosts import SLURM
from bsweep.config.saved import read_config
from bsweep.config.values import ConfigError, flatten
from bsweep.core.words import escaped, minor
from bsweep.runlog.files import RunPaths
from bsweep.runlog.hardware import hardware_words
from bsweep.runlog.reading import REMEDY, Damaged, Run, changes_batch, numbered, warnings_in
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
_COLUMNS = columns.names(columns.RUNS)
_PROMISED = columns.names(columns.RUNS, "promised")
_OF_START = [column.name for column in columns.RUNS if column.source == "start"]
# Keys that are no settings: a run's place and start, and what its `start` record says better.
_NO_SETTINGS = (
    "study", "results_dir", "local_batch", "global_batch", "device", "precision", "graph",
    "log_every_steps",
    "checkpoint_every", "keep_weights", "resume_from", "launch.retries", "trackers",
    "data.download", "model.weights", "allocation.probe",
    "allocation.devices", "measure.noise_scale",
)  # fmt: skip
_FINAL = ("final_test_loss", "final_test_accuracy")  # of runs with validation examples
# Columns that hold the last part of a path: the name of the data, not its place on a machine.
PATHS = ("data.root", "data.path", "data.tokenizer", "model.weights")
_DIGEST = "model.weights_sha256"  # tells pretrained weights apart, wherever their file lies
_DIGITS = 8  # of a digest, for people to read

# The fields of an epoch's record that are no columns of `epochs`.
NO_COLUMNS = (
    "schema",
    "time",
    "type",
    "worker_wait_seconds",
    "worker_memory",
    "servers",
    "stage_loads",
)


def rows_of(run: Run) -> dict[str, Rows]:
    """Return the rows that one run contributes to the tables of a study, by the name of the table.

    The rows of `epochs` are the records themselves, with the fields of `NO_COLUMNS`.

    Raises:
        Damaged: If nothing says how the run was configured.
    """
    of_type: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in run.records:
        of_type[record["type"]].append(record)
    epochs = numbered(of_type["epoch"], "epoch")
    noise = numbered(of_type["noise_scale"], "noise_scale")
    steps = numbered(of_type["step"], "step") if changes_batch(of_type["event"]) else []
    return {
        "runs": [_shown(_run_row(run, of_type["start"], of_type["event"], len(epochs)))],
        "epochs": epochs,
        "evaluations": _of_table(
            numbered(of_type["evaluation"], "evaluation"), columns.TABLES["evaluations"]
        ),
        "noise_scales": _of_table(noise, columns.TABLES["noise_scales"]),
        "batches": _of_table(steps, columns.TABLES["batches"]),
        "events": _event_rows(run.records),
        "servers": _server_rows(epochs),
        "waits": _wait_rows(epochs),
        "memory": _memory_rows(epochs),
        "stages": _stage_rows(epochs),
        "rounds": _round_rows(numbered(of_type["round"], "round")),
        "provenance": [_shown(_flat(_origin(run.meta, of_type["start"])))],
    }


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table with control characters in its texts and in its column names replaced
    by visible escapes.
    """
    return {
        escaped(name): escaped(value) if isinstance(value, str) else value
        for name, value in row.items()
    }


def _of_table(records: Rows, table: Sequence[columns.Column]) -> Rows:
    """Return the records of a run with exactly the fields that are columns of a given table; a
    field that a record lacks is None.
    """
    names = [name for name in columns.names(table) if name != "run_id"]
    return [{name: record.get(name) for name in names} for record in records]


def _event_rows(records: Rows) -> Rows:
    """Return a row for each event of a run, with the seconds since the run's first record."""
    return [
        {
            "since_start_seconds": record["time"] - records[0]["time"],
            "event": escaped(record["event"]),
            "message": escaped(record["message"]),
        }
        for record in records
        if record["type"] == "event"
    ]


def _run_row(run: Run, starts: Rows, events: Rows, num_epochs: int) -> dict[str, Any]:
    """Return the row of one run in the table of runs, with its settings, its status and its
    results.

    The settings come from the start record, or without one from the saved configuration. The status
    and the results come from the summary; a run without one is `unfinished`.
    """
    start = starts[-1] if starts else {}
    config = start["config"] if start else _saved_config(run.folder)
    settings = _settings(config)
    found_out = _found_out(start)
    unfinished = {**config, **start, **settings, "status": "unfinished", "epochs": num_epochs}
    summary = run.summary or unfinished
    warnings = [*run.warnings, *warnings_in(events)]
    return {
        **settings,
        # What `auto` stands for is not known before the start.
        **({"channels_last": None} if settings.get("channels_last") == "auto" else {}),
        **({"compile": start.get("compile") or None} if "compile" in settings else {}),
        **_place(config, run.meta),
        **found_out,
        **_beginning_at_checkpoint(events),
        **{key: summary.get(key) for key in _PROMISED},
        **{key: summary[key] for key in _FINAL if summary.get(key) is not None},
        "run_id": run.run_id,
        "message": summary.get("message") or "",
        "hardware": hardware_words(run.meta),
        **_torch(_origin(run.meta, starts)),
        "asked_precision": config.get("precision"),
        "is_cifar10": settings.get("data") == "cifar10" or found_out["is_cifar10"],
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


def _torch(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the column `torch`, with the minor release of torch that a run's `meta.json` names,
    such as 2.13; empty if it names none.
    """
    version = (meta.get("versions") or {}).get("torch")
    return {"torch": minor(version)} if version else {}


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a run's configuration by their column in the table of runs.

    Settings without a column are left out.
    """
    told = ((_column(key), value) for key, value in _flat(config).items())
    settings = {column: value for column, value in told if column}
    for key in PATHS:
        if settings.get(key):
            settings[key] = Path(settings[key]).name
    if settings.get(_DIGEST):
        settings[_DIGEST] = settings[_DIGEST][:_DIGITS]
    return settings


def _found_out(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts that a run recorded at its start, such as the device that it took."""
    classes = start.get("classes", ())
    return {
        **{key: start[key] for key in _OF_START if key in start},
        **(
            {"channels_last": start["channels_last"]}
            if start.get("channels_last") is not None
            else {}
        ),
        "num_classes": start.get("num_classes") or len(classes) or None,
        "num_test": start["num_test"] * (start.get("tokens_per_example") or 1)
        if start.get("num_test")
        else None,
        "is_cifar10": set(classes) == CIFAR10_CLASSES,
    }


def _beginning_at_checkpoint(events: Rows) -> dict[str, Any]:
    """Return, for a run that began at another run's checkpoint, the other run's id, and the steps
    and seconds trained until the checkpoint. Return an empty mapping for other runs.
    """
    begun = next((one for one in reversed(events) if "branch_of" in one), None)
    if begun is None:
        return {}
    told = {"branch_steps": begun["num_steps"], "branch_seconds": begun["train_seconds"]}
    return {"branch_of": begun["branch_of"], **told}


def _place(config: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that say how the workers of a run were placed: on how many hosts, with
    which network interface, memory limit and threads.
    """
    launch, strategy, num_workers = (
        config.get("launch", {}),
        config.get("strategy", {}),
        config.get("num_workers", 1),
    )
    has_servers = strategy.get("name") == "parameter_server" and not strategy.get("colocated")
    num_servers = (strategy.get("num_servers") or max(1, num_workers // 2)) if has_servers else 0
    hosts = launch.get("hosts")
    nodes = placement(
        meta.get("hosts") if hosts in (None, SLURM) else hosts, num_workers, num_servers
    )
    limits = [setting_text(limit) for limit in launch.get("memory_limit_mb") or ()]
    return {
        "placement": nodes,
        "network_interface": None if nodes == "1 node" else launch.get("network_interface"),
        "memory_limit": f"{', '.join(limits if len(set(limits)) > 1 else limits[:1])} MB"
        if limits
        else None,
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


def _server_rows(epochs: Sequence[Mapping[str, Any]]) -> Rows:
    """Return one row for each parameter server of a run, with its bytes, pushes and seconds summed
    over the run's epochs.
    """
    rows = []
    told = [servers for epoch in epochs if (servers := epoch.get("servers"))]
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs) if told else 0.0
    for server, found in enumerate(zip_longest(*told)):
        loads = [load for load in found if load]
        sums = ("received_bytes", "sent_bytes", "busy_seconds", "queue_seconds")
        row = {name: sum(load[name] for load in loads) for name in sums}
        row |= {
            "server": server,
            "share": loads[-1]["share"],
            "pushes": sum(sum(load["pushes"]) for load in loads),
            "max_lead": max(load["max_lead"] for load in loads),
            "load": row["busy_seconds"] / train_seconds if train_seconds else None,
        }
        rows.append(row)
    return rows


def _wait_rows(epochs: Sequence[Mapping[str, Any]]) -> Rows:
    told = [waits for epoch in epochs if (waits := epoch.get("worker_wait_seconds"))]
    by_worker = enumerate(zip_longest(*told, fillvalue=0.0))
    return [{"worker": worker, "wait_seconds": sum(seconds)} for worker, seconds in by_worker]


def _memory_rows(epochs: Sequence[Mapping[str, Any]]) -> Rows:
    """Return one row for each worker of a run, with the largest values of all epochs."""
    told = [memory for epoch in epochs if (memory := epoch.get("worker_memory"))]
    names = [
        name for name in columns.names(columns.TABLES["memory"]) if name not in ("run_id", "worker")
    ]
    rows = []
    for worker, of_worker in enumerate(zip_longest(*told, fillvalue={})):
        values = {name: [one[name] for one in of_worker if one.get(name)] for name in names}
        largest = {name: max(found, default=None) for name, found in values.items()}
        rows.append({"worker": worker, **largest})
    return rows


def _stage_rows(epochs: Sequence[Mapping[str, Any]]) -> Rows:
    """Return one row for each worker that holds stages: the sums of its seconds over all epochs,
    its largest amounts, and the mean of its staleness.
    """
    told = [loads for epoch in epochs if (loads := epoch.get("stage_loads"))]
    rows = []
    for worker, of_worker in enumerate(zip_longest(*told)):
        loads = [asdict(StageLoad(**load)) for load in of_worker if load]
        sums = ("busy_seconds", "idle_seconds", "exchange_seconds")
        row = {name: sum(load[name] for load in loads) for name in sums}
        largest = ("peak_activation_bytes", "weight_versions", "stashed_bytes")
        row |= {name: max(load[name] for load in loads) for name in largest}
        staleness = sum(load["staleness"] for load in loads) / len(loads)
        rows.append({"worker": worker, **row, "staleness": staleness})
    return rows


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
        told = {
            "exposed_exchange_seconds": record["exchange_seconds"],
            **record,
        }
        of_all = {
            name: told[name]
            for name in ("epoch", "round", "train_loss", "num_examples", "is_whole")
        }
        values = zip(*(told[name] for name in _BY_WORKER.values()), strict=True)
        rows += [of_all | dict(zip(_BY_WORKER, of_worker, strict=True)) for of_worker in values]
    return rows


@functools.cache
def _column(key: str) -> str:
    """Return the name of the column in the table of runs that a configuration key fills; empty if
    the key is no setting.
    """
    is_setting = key in _SHORT_NAMES or not (
        key in (*_NO_SETTINGS, *_COLUMNS) or key.startswith("launch.")
    )
    return _SHORT_NAMES.get(key, key) if is_setting else ""


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a nested mapping, such as a configuration, by dotted keys, with lists as
    text.
    """
    leaves = flatten(tree)
    lists = {key: value for key, value in leaves.items() if isinstance(value, list | tuple)}
    return {**leaves, **{key: ", ".join(map(setting_text, value)) for key, value in lists.items()}}
