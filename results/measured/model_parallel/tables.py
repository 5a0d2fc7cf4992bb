"""Seconds, memory and bubble of models split over workers, from the records alone.

    python results/measured/model_parallel/tables.py results/measured/model_parallel

The folder has `records.tar.gz` with one `metrics.jsonl` for each run, named `STUDY.RUN_ID.jsonl`.
A study is a model on a network. The script prints a table for each study.
Seconds are those of an epoch divided by its steps: the median over runs, and their extremes. The
ratio to copies (`horovod`) is the geometric mean over seeds, with a 95 % t-interval.
"""

from __future__ import annotations

import json
import math
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from scipy import stats

Runs = dict[tuple[int, str], dict[int, dict[str, Any]]]
"""The epoch of each run by workers and way, then by seed."""

HEAD = (
    "| workers | way | seconds of a step | against copies | state (MB) | peak (MB) | bubble "
    "| sent (MB) |"
)
LINE = "|---:|:---|---|---|---:|---:|---:|---:|"


def main(folder: Path) -> None:
    for study, runs in sorted(studies(folder).items()):
        print(f"\n{study}\n\n{HEAD}\n{LINE}")
        for cells in rows(runs):
            print(f"| {' | '.join(cells)} |")


def studies(folder: Path) -> Mapping[str, Runs]:
    found: dict[str, Runs] = defaultdict(lambda: defaultdict(dict))
    with tarfile.open(folder / "records.tar.gz") as archive:
        for name in sorted(archive.getnames()):
            records = [json.loads(line) for line in archive.extractfile(name) or ()]
            (start,) = (record for record in records if record["type"] == "start")
            (epoch,) = (record for record in records if record["type"] == "epoch")
            config = start["config"]
            key = config["num_workers"], way(config)
            found[name.partition(".")[0]][key][config["seed"]] = epoch
    return found


def way(config: Mapping[str, Any]) -> str:
    strategy, workers = config["strategy"], config["num_workers"]
    name = {"horovod": "copies", "single": "one worker"}.get(strategy["name"], strategy["name"])
    replicas = strategy.get("replicas", 1)
    return f"{name} {replicas}x{workers // replicas}" if replicas > 1 else name


def rows(runs: Runs) -> Iterator[list[str]]:
    """The cells of each row, as text."""
    for (workers, name), of_seeds in sorted(runs.items(), key=lambda run: (run[0][0], run[0][1])):
        epochs = [*of_seeds.values()]
        seconds = sorted(step_seconds(epoch) for epoch in epochs)
        yield [
            str(workers),
            name,
            f"{median(seconds):.2f} ({seconds[0]:.2f} to {seconds[-1]:.2f})",
            against(of_seeds, runs.get((workers, "copies"), {})) if name != "copies" else "1",
            f"{median(map(state_bytes, epochs)) / 1e6:.0f}",
            f"{median(map(peak_bytes, epochs)) / 1e6:,.0f}",
            share(epochs, "bubble") + share(epochs, "textbook_bubble", " ({})"),
            f"{median(epoch['sent_bytes'] / epoch['num_steps'] for epoch in epochs) / 1e6:.0f}",
        ]


def step_seconds(epoch: Mapping[str, Any]) -> float:
    return float(epoch["train_seconds"] / epoch["num_steps"])


def state_bytes(epoch: Mapping[str, Any]) -> int:
    """Of parameters, gradients and the optimizer's state, on the fullest worker."""
    kinds = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    return max(int(sum(worker[kind] for kind in kinds)) for worker in epoch["worker_memory"])


def peak_bytes(epoch: Mapping[str, Any]) -> int:
    return max(int(worker["peak_bytes"]) for worker in epoch["worker_memory"])


def share(epochs: list[dict[str, Any]], name: str, form: str = "{}") -> str:
    values = [epoch[name] for epoch in epochs if epoch.get(name) is not None]
    return form.format(f"{median(values):.2f}") if values else ""


def against(ours: Mapping[int, Any], copies: Mapping[int, Any]) -> str:
    logs = [
        math.log(step_seconds(ours[seed]) / step_seconds(copies[seed]))
        for seed in sorted(ours.keys() & copies.keys())
    ]
    if len(logs) < 2:
        return ""
    half = stats.t.ppf(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(mean(logs) + by) for by in (-half, 0, half))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
