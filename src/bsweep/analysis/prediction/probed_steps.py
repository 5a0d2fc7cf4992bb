"""The measurements in a file of `bsweep probe`, as timings beside those of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from bsweep.analysis.prediction.seen_runs import Observed
from bsweep.analysis.prediction.step_time import Cell, Form, Timing
from bsweep.analysis.prediction.ways import Way, split_card, value_text
from bsweep.analysis.study import columns
from bsweep.core.words import counted
from bsweep.runlog import probe_file
from bsweep.runlog.probe_file import Probe, counts

# The columns of keys that have another name, or whose value a run finds out.
_FOUND_OUT = {
    "device": "device", "precision": "precision", "launch.threads_per_worker": "threads"
}  # fmt: skip
_RECORDED = {
    **{column.source: column.name for column in columns.RUNS if "." in column.source}, **_FOUND_OUT
}  # fmt: skip


def with_probe(seen: Observed, path: str | Path) -> tuple[Observed, list[str]]:
    """Return runs with the timings in a file of `bsweep probe` that belong to their ways, those of
    workers with the whole model and those of split models, and warnings on what belongs to none.

    Args:
        seen: The runs. What was probed must have their model, data and so on.
        path: The file.

    Raises:
        ValueError: If the file is no probe, or no batch was probed on all workers.
    """
    probe, kept = read_probe(path), dict(seen.ways)
    timings: list[Timing] = []
    unlike: dict[str, str] = {}  # why the runs have no use for what was probed
    if probe.workers and (difference := _unlike(probe.probed, seen.runs)):
        unlike["workers with the whole model"] = difference
    else:
        timings += _of_whole(probe_timings(path), str(probe.probed.get("strategy.name")), kept)
    for split in probe.splits:
        card, (workers, passes) = split_card(split.probed), counts(split.probed)
        equal = [way for way in kept.values() if way.card and way.card == card]
        difference = _unlike(split.probed, seen.runs) if equal else "the runs have no such strategy"
        if difference:
            name = f"strategy={split.probed.get('strategy.name')} on {counted(workers, 'worker')}"
            unlike[name] = difference
            continue
        for way in equal:
            examples = passes / way.local_batch(1, workers, 1)
            for batch in split.batches:
                cell = way.cell(batch.local_batch * examples, workers, passes)
                timings.append(Timing(cell, batch.step_seconds))
            if split.stopped_by == "out_of_memory":
                largest = {**way.largest, workers: split.largest_batch}
                kept[way.name] = replace(way, largest=largest)
    warnings = [
        f"the prediction leaves out what {path} has of {name}: {difference}."
        for name, difference in unlike.items()
    ]
    return replace(seen, ways=kept, probed=tuple(timings)), warnings


def _of_whole(
    timings: Sequence[Timing], strategy: str, ways: Mapping[str, Way]
) -> Iterator[Timing]:
    """Yield the timings of workers with the whole model as those of their own way, or else the
    seconds of their passes alone as those of another such way.
    """
    whole = [name for name, way in ways.items() if way.card is None]
    equal = [name for name in whole if name in ("", strategy)]
    for timing in timings:
        for name in (equal or whole)[:1]:
            if equal or timing.kind == "compute":
                yield timing._replace(cell=timing.cell._replace(form=Form(name)))


def _unlike(probed: Mapping[str, Any], runs: pd.DataFrame) -> str:
    """Return in words how the configuration of a probe differs from that of the runs in what the
    seconds of their steps depend on; empty if it does not.
    """
    for key, value in probed.items():
        group, _, name = key.partition(".")
        column = _RECORDED.get(key, group if name == "name" else key)
        counts_here = group in ("model", "data", "launch") or key in _FOUND_OUT
        is_chosen = key in _FOUND_OUT and value in (None, "auto")
        if not counts_here or column not in runs or is_chosen:
            continue
        texts = {value_text(setting) for setting in runs[column]}
        if key == "device":
            texts = {text if text == "cpu" else "cuda" for text in texts}
        if value_text(value) not in texts:
            return (
                f"it was probed with {key}={value_text(value)}, but runs have {' or '.join(texts)}"
            )
    return ""


def probe_timings(path: str | Path) -> tuple[Timing, ...]:
    """Return the timings of passes and of an exchange in the file `probe.json` that `bsweep probe`
    wrote.

    They are the passes of the slowest worker at each local batch that all workers timed, and an
    exchange alone, if one was timed; none if only split models were probed.

    Raises:
        ValueError: If the file is no probe, or no batch was probed on all workers.
    """
    probe = read_probe(path)
    if probe.splits and not probe.workers:
        return ()
    workers, passes = len(probe.workers), counts(probe.probed)[1]
    seconds = [
        {batch.local_batch: batch.step_seconds for batch in worker.batches}
        for worker in probe.workers
    ]
    shared = sorted(set.intersection(*map(set, seconds))) if seconds else []
    if not shared:
        raise ValueError(
            f"{path}: a prediction needs a local batch that was timed on every worker, and there "
            "is none. Run `bsweep probe` again, which times a batch of 1 on every worker."
        )
    cells = [Cell(float(size), workers, passes) for size in shared]
    slowest = [max(worker[size] for worker in seconds) for size in shared]
    timings = [Timing(*pair, "compute") for pair in zip(cells, slowest, strict=True)]
    if probe.exchange_seconds > 0:
        timings.append(Timing(cells[0], probe.exchange_seconds, "exchange"))
    return tuple(timings)


def read_probe(path: str | Path) -> Probe:
    """Return the measurements in a file of `bsweep probe`.

    Raises:
        ValueError: If the file is no probe.
    """
    try:
        probe = probe_file.read(Path(path))
        if not probe.workers and not probe.splits:
            raise ValueError("it has no measurements")
    except (OSError, ValueError) as error:
        reason = probe_file.reason(error)
        raise ValueError(f"{path} {reason}. Run `bsweep probe` first.") from None
    return probe
