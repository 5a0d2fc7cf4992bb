"""A study's folder as tables: `runs` with one row a run, `epochs` with one row a run and epoch, and so on."""

from __future__ import annotations

import contextlib
import html
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from bsweep import config as schema
from bsweep import runlog
from bsweep.analysis.derived import of_rounds, placement, with_derived
from bsweep.runlog import Run, RunPaths, numbered, read_run

RUN_COLUMNS = (
    "run_id", "status", "strategy", "num_workers", "local_batch", "global_batch", "seed", "epochs", "num_steps",
    "train_seconds", "wall_seconds", "images_per_second", "train_loss", "train_accuracy", "test_loss",
    "test_accuracy", "sent_bytes",
)  # fmt: skip
EPOCH_COLUMNS = (
    "run_id", "epoch", "num_steps", "train_seconds", "train_loss", "train_accuracy", "test_loss", "test_accuracy",
    "images_per_second", "step_seconds_p50", "step_seconds_p95", "exchange_seconds", "wait_seconds", "sent_bytes",
    "learning_rate", "global_batch",
)  # fmt: skip
LATER_EPOCH_COLUMNS = ("exposed_exchange_seconds", "codec_seconds")  # not in tables of an older version
# What a run was told (by its configuration) or found out (by its `start` record and `meta.json`), in short names.
SETTING_COLUMNS = (
    "planned_epochs", "model", "stem", "data", "num_train", "optimizer", "lr", "lr_rule", "accumulation_steps",
    "device", "hardware", "precision", "compression", "allocation", "placement", "network_interface", "memory_limit",
    "threads",
)  # fmt: skip
PLACEMENT_COLUMNS = SETTING_COLUMNS[-4:]
SERVER_COLUMNS = (
    "run_id", "server", "share", "received_bytes", "sent_bytes", "pushes", "max_lead", "busy_seconds",
    "queue_seconds", "load",
)  # fmt: skip
WAIT_COLUMNS = ("run_id", "worker", "wait_seconds")
ROUND_COLUMNS = (
    "run_id", "epoch", "round", "worker", "local_batch", "local_steps", "began_seconds", "compute_seconds",
    "idle_seconds", "exchange_seconds", "train_loss", "num_examples", "is_whole",
)  # fmt: skip
OTHER_COLUMNS = (
    "message", "warnings", "is_cifar10", "start_seconds", "learning_rate", "local_batches", "num_classes", "num_test",
)  # fmt: skip

CIFAR10_CLASSES = frozenset(("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"))

_SHORT_NAMES = {
    "epochs": "planned_epochs",
    "model.name": "model",
    "model.stem": "stem",
    "data.name": "data",
    "optimizer.name": "optimizer",
    "optimizer.lr": "lr",
    "optimizer.lr_rule": "lr_rule",
    "strategy.name": "strategy",
    "compression.name": "compression",
    "allocation.name": "allocation",
    "launch.slowdown": "slowdown",
}
# Where a run lies and how it was started; and what the `start` record says better.
_NO_SETTINGS = (
    "study", "results_dir", "local_batch", "global_batch", "device", "precision", "log_every_steps", "data.download",
    "allocation.probe", "allocation.devices",
)  # fmt: skip
_PATHS = ("data.root", "data.path", "data.tokenizer")
_TEXT = ("run_id", "status", "strategy", "slowdown", "message", "warnings", "device", "hardware", "precision")
_COUNTS = (
    "num_workers", "local_batch", "global_batch", "seed", "epochs", "epoch", "round", "worker", "local_steps",
    "num_examples",
)  # fmt: skip
_COUNTS_OR_NULL = (
    "num_steps", "sent_bytes", "received_bytes", "exchange_steps", "peak_memory_bytes", "planned_epochs", "num_train",
    "threads",
)  # fmt: skip
_NUMBERS = ("lr", "start_seconds", "tokens_per_second")
_OF_START = ("device", "precision", "num_train", "threads", "start_seconds", "learning_rate")


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """What was measured. `runs` and `epochs` have at least `RUN_COLUMNS` and `EPOCH_COLUMNS` of this module.

    `runs` goes on with `SETTING_COLUMNS`, `OTHER_COLUMNS` and every other setting by its dotted name, such as
    `optimizer.momentum`. Of runs that end with a round, `train_loss` is the last round's and `train_accuracy` NaN, for
    their last epoch is a fragment. `placement` says on how many nodes, and `threads` with how many each, workers ran.
    `learning_rate` is the rate after its rule, before warm-up and schedule, of the first worker; `local_batches` is
    what each worker took where not all took `local_batch`, such as `8/8/32/16`; `num_test` counts the answers that a
    test accuracy is a mean over (of a text its tokens), each one of `num_classes`. `epochs` goes on with
    `LATER_EPOCH_COLUMNS`. `provenance` has a row a run: `run_id` and what its `meta.json` says, by dotted names.
    `servers` has `SERVER_COLUMNS`, a row a run and parameter server, summed over epochs (the largest `max_lead`);
    `pushes` are all workers', `load` is the busy part of the training time. `waits` has `WAIT_COLUMNS`: the seconds
    that each worker of a run waited for slower ones. `rounds` has `ROUND_COLUMNS`, a row a run, round and worker, with
    the seconds that `bsweep.runlog.Round` tells apart; `train_loss` and `num_examples` are the whole round's.
    """

    name: str
    folder: Path
    runs: pd.DataFrame
    epochs: pd.DataFrame
    warnings: tuple[str, ...]
    provenance: pd.DataFrame
    servers: pd.DataFrame
    waits: pd.DataFrame
    rounds: pd.DataFrame

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self._in_short().items())

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self._in_short().items())
        return f"<table>{''.join(rows)}</table>"

    def _in_short(self) -> dict[str, str]:
        """Five lines: what the study is called, how its runs ended, its grid, its seeds, its time and hardware."""
        runs, seconds = self.runs, self.runs["train_seconds"].dropna()
        statuses = Counter(runs["status"].str.replace("_", " ")).most_common()
        batches, workers = _values(runs["local_batch"]), _values(runs["num_workers"])
        lasted = f"{seconds.sum():,.0f} s in all, {seconds.min():,.0f} to {seconds.max():,.0f} s a run"
        where = "; ".join(sorted(set(runs["hardware"]) - {""}))
        return {
            "study": self.name,
            "runs": f"{len(runs)} ({', '.join(f'{count} {status}' for status, count in statuses)})",
            "grid": f"local batch {batches} on {workers} worker{'s' * (workers != '1')}; {_values(runs['strategy'])}",
            "seeds": _values(runs["seed"]),
            "training time": "; ".join(filter(None, (lasted if len(seconds) else "none measured", where))),
        }


def load(study_dir: str | Path) -> Study:
    """Read a study: a folder of run folders, or one with the `runs.csv` and `epochs.csv` of a report.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it holds no study, or one that a newer bsweep wrote, or a damaged record.
    """
    folder = Path(study_dir).expanduser()
    if not folder.is_dir():
        near = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        raise FileNotFoundError(f"{folder}: no such study folder.{schema.did_you_mean(folder.name, near)}")
    if _is_run(folder):
        raise ValueError(f"{folder}: this is one run of a study. Give the study: {folder.parent}")
    folders = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and _is_run(path))
    if folders:
        return _from_runs(folder, folders)
    if all((folder / name).is_file() for name in ("runs.csv", "epochs.csv")):
        return _from_csv(folder)
    raise ValueError(
        f"{folder}: no runs here, nor the runs.csv and epochs.csv of a report. "
        "Give the folder of one study, such as results/paper."
    )


def study_of(
    folder: Path,
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    provenance: pd.DataFrame,
    servers: pd.DataFrame | None = None,
    waits: pd.DataFrame | None = None,
    rounds: pd.DataFrame | None = None,
) -> Study:
    """A study of tables, with the types and the order that readers may count on."""
    runs = _table(runs, (*RUN_COLUMNS, *SETTING_COLUMNS, *OTHER_COLUMNS))
    runs, epochs = _typed(runs), _typed(_table(epochs, (*EPOCH_COLUMNS, *LATER_EPOCH_COLUMNS)))
    rounds = _typed(pd.DataFrame(columns=[*ROUND_COLUMNS]) if rounds is None else rounds)
    runs = with_derived(runs, rounds)
    runs = runs.sort_values(["strategy", "num_workers", "local_batch", "seed", "run_id"], ignore_index=True)
    return Study(
        folder.resolve().name,
        folder,
        runs,
        epochs,
        tuple(_warnings(runs, provenance)),
        provenance,
        pd.DataFrame(columns=[*SERVER_COLUMNS]) if servers is None else servers,
        pd.DataFrame(columns=[*WAIT_COLUMNS]) if waits is None else waits,
        rounds,
    )


def ends_in_rounds(study: Study) -> bool:
    """Whether runs were to end with a round rather than an epoch, so that they differ in how much they train."""
    return bool(of_rounds(study.runs).any())


def _is_run(folder: Path) -> bool:
    paths = RunPaths(folder)
    return paths.config.is_file() or paths.metrics.is_file() or paths.summary.is_file()


def _from_runs(folder: Path, run_folders: Sequence[Path]) -> Study:
    tables: tuple[list[dict[str, Any]], ...] = ([], [], [], [], [], [])
    runs, epochs, provenance, servers, waits, rounds = tables
    lost: list[str] = []
    for run_folder in run_folders:
        run = read_run(run_folder, with_steps=False)
        row = _run_row(run)
        if row["local_batch"] is None:
            lost.append(run.run_id)
            continue
        runs.append(row)
        provenance.append({"run_id": run.run_id, **_provenance(run.meta)})
        records = _epoch_records(run)
        servers += _server_rows(records)
        waits += _wait_rows(records)
        rounds += _round_rows(run)
        nested = ("schema", "time", "type", "worker_wait_seconds", "servers")
        epochs += [{key: value for key, value in record.items() if key not in nested} for record in records]
    if not runs:
        raise ValueError(f"{folder}: none of its {len(lost)} runs has a readable config.yaml.")
    study = study_of(
        folder,
        pd.DataFrame(runs),
        _table(epochs, EPOCH_COLUMNS),
        pd.DataFrame(provenance),
        pd.DataFrame(servers, columns=[*SERVER_COLUMNS]),
        pd.DataFrame(waits, columns=[*WAIT_COLUMNS]),
        pd.DataFrame(rounds, columns=[*ROUND_COLUMNS]),
    )
    left_out = (f"{_some(lost)}: left out, for want of a readable config.yaml.",) if lost else ()
    return replace(study, warnings=left_out + study.warnings)


def _server_rows(epochs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each parameter server of a run did over its epochs."""
    rows = []
    for server, loads in enumerate(zip(*(epoch.get("servers") or () for epoch in epochs), strict=True)):
        sums = ("received_bytes", "sent_bytes", "busy_seconds", "queue_seconds")
        row = {name: sum(load[name] for load in loads) for name in sums}
        row |= {
            "run_id": epochs[0]["run_id"],
            "server": server,
            "share": loads[-1]["share"],
            "pushes": sum(sum(load["pushes"]) for load in loads),
            "max_lead": max(load["max_lead"] for load in loads),
            "load": row["busy_seconds"] / sum(epoch["train_seconds"] for epoch in epochs),
        }
        rows.append(row)
    return rows


def _wait_rows(epochs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    waits = zip(*(epoch.get("worker_wait_seconds") or () for epoch in epochs), strict=True)
    return [
        {"run_id": epochs[0]["run_id"], "worker": worker, "wait_seconds": sum(seconds)}
        for worker, seconds in enumerate(waits)
    ]


def _table(rows: Sequence[Mapping[str, Any]] | pd.DataFrame, first_columns: Sequence[str]) -> pd.DataFrame:
    """Rows of unlike keys as a table; the columns that readers count on are there in any case, and first."""
    table = pd.DataFrame(rows)
    return table.reindex(columns=list(dict.fromkeys([*first_columns, *table.columns])))


def _from_csv(folder: Path) -> Study:
    runs, epochs = (pd.read_csv(folder / name) for name in ("runs.csv", "epochs.csv"))
    for table, columns, name in ((runs, RUN_COLUMNS, "runs.csv"), (epochs, EPOCH_COLUMNS, "epochs.csv")):
        missing = [column for column in columns if column not in table]
        if missing:
            raise ValueError(f"{folder / name}: lacks the columns {', '.join(missing)}. Write the report again.")
    path = folder / "provenance.csv"
    provenance = pd.read_csv(path, dtype=str) if path.is_file() else runs[["run_id"]]
    if "placement" not in runs and "hosts" in provenance:  # of an older version
        hosts = runs["run_id"].map(provenance.set_index("run_id")["hosts"].fillna(""))
        runs["placement"] = [placement(of_run, n, 0) for of_run, n in zip(hosts, runs["num_workers"], strict=True)]
    paths = (folder / name for name in ("servers.csv", "waits.csv", "rounds.csv"))  # of studies that have any
    return study_of(
        folder, runs, epochs, provenance, *(pd.read_csv(path) if path.is_file() else None for path in paths)
    )


def _run_row(run: Run) -> dict[str, Any]:
    """One row of `runs`: from the summary; without one from the start record; without that from the config."""
    start: dict[str, Any] = next((record for record in reversed(run.records) if record["type"] == "start"), {})
    warnings = [*run.warnings, *runlog.warnings(run.records)]
    config = start.get("config")
    if config is None:
        config, problem = _saved_config(run.folder)
        warnings += problem
    settings = {_SHORT_NAMES.get(key, key): value for key, value in _flatten(config) if _is_setting(key)}
    for key in _PATHS:
        if settings.get(key):
            settings[key] = Path(settings[key]).name  # which data, not where on which machine
    summary = run.summary or {
        "status": "unfinished",
        "local_batch": start.get("local_batch", config.get("local_batch")),
        "global_batch": start.get("global_batch", config.get("global_batch")),
        "seed": config.get("seed"),
        "num_workers": config.get("num_workers"),
        "epochs": len(_epoch_records(run)),
        "strategy": settings.get("strategy"),
    }
    return {
        **settings,
        **_place(config),
        **{key: start[key] for key in _OF_START if key in start},
        **{key: summary.get(key) for key in RUN_COLUMNS},
        "run_id": run.run_id,
        "message": summary.get("message") or "",
        "hardware": _hardware(run.meta),
        "num_classes": len(start.get("classes", ())) or None,
        "num_test": start["num_test"] * (start.get("tokens_per_example") or 1) if "num_test" in start else None,
        "is_cifar10": settings.get("data") == "cifar10" or set(start.get("classes", ())) == CIFAR10_CLASSES,
        "warnings": "\n".join(dict.fromkeys(warnings)),
    }


def _place(config: Mapping[str, Any]) -> dict[str, Any]:
    """`PLACEMENT_COLUMNS` as far as they were asked for."""
    launch, strategy, num_workers = config.get("launch", {}), config.get("strategy", {}), config.get("num_workers", 1)
    has_servers = strategy.get("name") == "parameter_server" and not strategy.get("colocated")
    num_servers = (strategy.get("num_servers") or max(1, num_workers // 2)) if has_servers else 0
    nodes = placement(launch.get("hosts"), num_workers, num_servers)
    limits = [setting_text(limit) for limit in launch.get("memory_limit_mb") or ()]
    return {
        "placement": nodes,
        "network_interface": None if nodes == "1 node" else launch.get("network_interface"),
        "memory_limit": f"{', '.join(limits if len(set(limits)) > 1 else limits[:1])} MB" if limits else None,
        "threads": launch.get("threads_per_worker"),
    }


def _saved_config(folder: Path) -> tuple[Mapping[str, Any], list[str]]:
    """The configuration that waits for its run, both batch sizes filled in, and what was wrong with it."""
    try:
        config = schema.read(RunPaths(folder).config)
    except (OSError, ValueError) as error:
        return {}, [f"config.yaml cannot be read: {error}"]
    batches = {"local_batch": config.examples_per_pass, "global_batch": config.examples_per_step}
    return {**asdict(config), **batches}, []


def _epoch_records(run: Run) -> list[dict[str, Any]]:
    return _numbered_records(run, "epoch")


def _numbered_records(run: Run, kind: Literal["epoch", "round"]) -> list[dict[str, Any]]:
    return [{**record, "run_id": run.run_id} for record in numbered(run.records, kind)]


_BY_WORKER = {
    "worker": "workers",
    "local_batch": "local_batches",
    **{name: name for name in ("local_steps", "began_seconds", "compute_seconds", "idle_seconds")},
    "exchange_seconds": "exposed_exchange_seconds",
}


def _round_rows(run: Run) -> list[dict[str, Any]]:
    """The rounds of a run by worker."""
    rows: list[dict[str, Any]] = []
    for record in _numbered_records(run, "round"):
        record.setdefault("exposed_exchange_seconds", record["exchange_seconds"])  # of records before it had that name
        of_all = {name: record[name] for name in ("run_id", "epoch", "round", "train_loss", "num_examples", "is_whole")}
        values = zip(*(record[name] for name in _BY_WORKER.values()), strict=True)
        rows += [of_all | dict(zip(_BY_WORKER, of_worker, strict=True)) for of_worker in values]
    return rows


def _hardware(meta: Mapping[str, Any]) -> str:
    """GPUs, CPU and cores, in words: what makes times differ. Drivers are in the provenance."""
    gpus = Counter(line.split(",")[0].strip() for line in meta.get("gpus") or ())
    parts = [f"{count} x {name}" for name, count in gpus.items()]
    parts += [str(meta["cpu"])] if meta.get("cpu") else []
    return ", ".join(parts + ([f"{meta['cores']} core{'s' * (meta['cores'] > 1)}"] if meta.get("cores") else []))


def _provenance(meta: Mapping[str, Any]) -> dict[str, Any]:
    """`meta.json` by dotted names; its command, as the settings, without where the data lie on which machine."""
    flat = dict(_flatten(meta))
    command = flat.get("command") or ""
    with contextlib.suppress(ValueError):  # an unbalanced quote
        for word in shlex.split(command):
            name, _, path = word.partition("=")
            if name in _PATHS and path:
                flat["command"] = flat["command"].replace(path, Path(path).name)
    return flat


def _is_setting(key: str) -> bool:
    return key in _SHORT_NAMES or (key not in _NO_SETTINGS and not key.startswith("launch."))


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            is_list = isinstance(value, list | tuple)
            yield f"{prefix}{key}", ", ".join(map(setting_text, value)) if is_list else value


def _values(column: pd.Series[Any], most: int = 8) -> str:
    """The different values of a column, or of many the ends."""
    found = [setting_text(value) for value in sorted(column.unique())]
    return ", ".join(found) if len(found) <= most else f"{found[0]} to {found[-1]} ({len(found)} values)"


def setting_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers as such, a missing metric as NaN, missing text as an empty one."""
    table = table.copy()
    for column in table.columns:
        if column in _TEXT:
            table[column] = table[column].astype(object).where(table[column].notna(), "").astype(str)
        elif column in _COUNTS:
            table[column] = table[column].astype("int64")
        elif column in _COUNTS_OR_NULL:
            table[column] = pd.to_numeric(table[column]).astype("Int64")
        elif column == "is_whole":
            table[column] = table[column].astype(bool)
        elif column in (*RUN_COLUMNS, *EPOCH_COLUMNS, *LATER_EPOCH_COLUMNS, *ROUND_COLUMNS, *_NUMBERS):
            table[column] = pd.to_numeric(table[column]).astype(float)
    return table


def _warnings(runs: pd.DataFrame, provenance: pd.DataFrame) -> Iterator[str]:
    """What a reader of the numbers should know, each thing once: of the whole study first, then of runs."""
    unfinished = list(runs.loc[runs["status"] == "unfinished", "run_id"])
    if unfinished:
        yield f"{_some(unfinished)}: unfinished (still training, or ended together with the launcher)."
    hardware = sorted(set(runs["hardware"]) - {""})
    if len(hardware) > 1:
        names = "; ".join(hardware)
        yield f"Runs on different hardware are kept in separate curves, whose times do not compare: {names}."
    if "commit" in provenance and provenance["commit"].nunique() > 1:
        yield f"The runs come from {provenance['commit'].nunique()} different commits: see the provenance."
    said: dict[str, list[str]] = {}
    for run_id, text in zip(runs["run_id"], runs["warnings"], strict=True):
        for line in text.split("\n") if text else ():
            said.setdefault(line, []).append(run_id)
    yield from (f"{_some(run_ids)}: {line}" for line, run_ids in said.items())


def _some(run_ids: Sequence[str]) -> str:
    shown = ", ".join(run_ids[:3])
    return f"{shown} and {len(run_ids) - 3} more" if len(run_ids) > 3 else shown
