"""A study in memory: its tables, with fixed column types, and warnings for readers, such as one on
runs of different hardware.
"""

from __future__ import annotations

import html
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bsweep.analysis.study import columns
from bsweep.analysis.study.derived import (
    have_round_limits,
    with_derived,
    with_ends_of_epochs,
    with_energy,
)
from bsweep.analysis.study.mixture import in_words, mixture
from bsweep.analysis.study.numbers import setting_text
from bsweep.analysis.study.targets import with_own_targets
from bsweep.core.words import counted, first_of, joined


@dataclass(frozen=True)
class LargerClusters:
    """Clusters that are larger than those of a study, which predictions for the study simulate.

    `networks` are the links between workers, in words (see `bsweep.simulate`), and `workers` the
    numbers of workers, or None for all doublings up to 64. `measured_network` are the links on
    which the study was measured, and `speeds` the relative speeds of the simulated workers.
    """

    networks: tuple[str, ...]
    workers: tuple[int, ...] | None = None
    price_per_worker_hour: float | None = None
    measured_network: str | None = None
    speeds: tuple[float, ...] = ()

    def words(self) -> str:
        """Return the options of `bsweep report` for these clusters.

        Returns:
            The options, each after a space; empty without a network.
        """
        if not self.networks:
            return ""
        price = self.price_per_worker_hour
        options = [
            *(("--network", network) for network in self.networks),
            ("--workers", ",".join(map(str, self.workers or ()))),
            ("--price-per-worker-hour", "" if price is None else f"{price:.12g}"),
            ("--measured-network", self.measured_network or ""),
            ("--speeds", ",".join(f"{speed:.12g}" for speed in self.speeds)),
        ]
        return f" {shlex.join(word for option in options if option[1] for word in option)}"


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """The settings and measurements of a study's runs, in DataFrames. `columns` describes most of
    their columns.

    Tables:
        `runs`: One row for each run. Settings that `columns` does not describe have their names in
            the configuration, such as `optimizer.momentum`.
        `epochs`: One row for each run and epoch.
        `evaluations`: One row for each run and evaluation, with the steps, examples and seconds
            trained until then. If a run records none, the ends of its epochs are its evaluations.
        `noise_scales`: The two parts of the gradient noise scale, which is `variance` over
            `gradient_square`, where a run measured them. Each is a mean over the steps since the
            record before; see `bsweep.analysis.noise_scale`.
        `batches`: The global batch and the learning rate at each sampled step, for runs whose batch
            changed.
        `events`: What happened in each run, such as a warning or a changed batch, in the order in
            which it was recorded.
        `provenance`: One row for each run: `run_id` and the contents of its `meta.json` by dotted
            name.
        `servers`: One row for each run and parameter server, with bytes, pushes and seconds summed
            over epochs. `pushes` counts those of all workers. `max_lead` is the largest of all
            epochs, and `share` that of the last epoch. `load` is the busy part of the training
            time.
        `waits`: The seconds that each worker of a run waited for slower workers, summed over
            epochs.
        `memory`: The bytes of each worker's parts of the model and of its peak, the largest of all
            epochs; see `bsweep.runlog.records.WorkerMemory`.
        `stages`: One row for each run and worker that holds stages of a model: the sums of its
            seconds, its most activations and older weights, and its mean staleness; see
            `bsweep.runlog.records.StageLoad`.
        `rounds`: One row for each run, round and worker, with the seconds that
            `bsweep.runlog.records.Round` tells apart. `train_loss` and `num_examples` are those
            of the whole round.

    Some columns of `runs`:
        `train_loss`, `train_accuracy`: For runs that may end with a round, the last round's loss
            and NaN, because their last epoch may be a fragment.
        `placement`, `threads`: On how many nodes the workers ran, and with how many threads each.
        `learning_rate`: The first worker's rate after its rule, before warm-up and schedule.
        `local_batches`: The local batch of each worker, such as `8/8/32/16`, where not all took
            `local_batch`.
        `num_test`: The number of answers (for text: tokens) that a test accuracy is a mean over.
            Each answer is one of `num_classes`.
        `chance`: The accuracy of guessing: the share of the commonest class in the examples of the
            evaluations, or 1 / `num_classes` if that is not on record.
        `reached`, `is_bound`, `seconds_to_target`, `steps_to_target`, `epochs_to_target`,
            `examples_to_target`: Present if some run names a target (`target_accuracy`,
            `target_loss`), by the rule of `targets`. The amounts are NaN where the
            target was not reached.
        `branch_of`, `branch_steps`, `branch_seconds`: For a run that began at another run's
            checkpoint, that run's id and its steps and seconds until there. The records before the
            checkpoint are the other run's.

    `skipped` maps each run that could not be read to the reason. `larger` are the clusters that
    figures, tables and pages of the study simulate, see `with_networks`; None: none.
    """

    name: str
    folder: Path
    runs: pd.DataFrame
    epochs: pd.DataFrame
    evaluations: pd.DataFrame
    noise_scales: pd.DataFrame
    batches: pd.DataFrame
    events: pd.DataFrame
    warnings: tuple[str, ...]
    provenance: pd.DataFrame
    servers: pd.DataFrame
    waits: pd.DataFrame
    memory: pd.DataFrame
    stages: pd.DataFrame
    rounds: pd.DataFrame
    skipped: Mapping[str, str] = field(default_factory=dict)
    larger: LargerClusters | None = None

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self._in_short().items())

    def _repr_html_(self) -> str:
        texts = {name: html.escape(text) for name, text in self._in_short().items()}
        rows = (f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in texts.items())
        return f"<table>{''.join(rows)}</table>"

    def _in_short(self) -> dict[str, str]:
        """Return five short texts by heading that summarise the study: its name, its runs, its
        grid, its seeds, and its training time with the hardware.
        """
        runs, seconds = self.runs, self.runs["train_seconds"].dropna()
        statuses = Counter(runs["status"].str.replace("_", " ")).most_common()
        status = ", ".join(f"{count} {name}" for name, count in statuses)
        damaged = f"{len(self.skipped)} left out, damaged: {first_of([*self.skipped])}"
        workers = counted(_values(runs["num_workers"]), "worker")
        duration = f"{seconds.sum():,.0f} s in all, {seconds.min():,.0f} to {seconds.max():,.0f} s"
        return {
            "study": self.name,
            "runs": f"{len(runs)} ({status}){f'; {damaged}' if self.skipped else ''}",
            "grid": f"local batch {_values(runs['local_batch'])} on {workers}; "
            f"{_values(runs['strategy'])}",
            "seeds": _values(runs["seed"]),
            "training time": joined(
                (f"{duration} a run" if len(seconds) else "none measured", *_machines(runs)), "; "
            ),
        }


def with_runs(study: Study, is_kept: pd.Series[bool]) -> Study:
    """Return a study that keeps only the given runs, in all tables that a prediction reads.

    Args:
        study: The study.
        is_kept: For each row of `study.runs`, True if the run is kept.
    """
    runs = study.runs[is_kept]
    names = ("epochs", "evaluations", "noise_scales", "batches", "rounds", "provenance")
    tables = {name: getattr(study, name) for name in names}
    kept = {name: table[table["run_id"].isin(runs["run_id"])] for name, table in tables.items()}
    return replace(study, runs=runs, **kept)


def study_of(
    folder: Path,
    provenance: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    skipped: Mapping[str, str] | None = None,
) -> Study:
    """Return a study built from its tables (of runs, epochs and so on), with computed columns and
    warnings added.

    A missing table becomes an empty one.

    Args:
        folder: The study's folder; its name becomes the study's name.
        provenance: The table `Study.provenance`, one row for each run.
        tables: The tables by their names in `columns.TABLES`, such as `runs`.
        skipped: The runs that were left out, each with the reason; None: none were.

    Returns:
        The study, its runs sorted by strategy, worker count, local batch, seed and id.
    """
    typed = {
        name: columns.as_table(tables.get(name, pd.DataFrame()), described)
        for name, described in columns.TABLES.items()
    }
    runs = with_energy(with_derived(typed.pop("runs"), typed["rounds"]), typed["epochs"])
    typed["evaluations"] = with_ends_of_epochs(typed["evaluations"], typed["epochs"])
    runs = with_own_targets(runs, typed["evaluations"])
    runs = runs.sort_values(
        ["strategy", "num_workers", "local_batch", "seed", "run_id"], ignore_index=True
    )
    lost = [f"{run_id} is left out: {why}" for run_id, why in (skipped or {}).items()]
    warnings = (*lost, *_warnings(runs, provenance))
    name = folder.resolve().name
    contents: dict[str, Any] = {"runs": runs, "provenance": provenance, **typed}
    return Study(name, folder, warnings=warnings, skipped=skipped or {}, **contents)


def ends_in_rounds(study: Study) -> bool:
    """Return True if any run of a study was configured so that it may end after a round
    (`max_rounds`, `max_seconds`) rather than after an epoch.

    Such runs may differ in how much they train.

    Args:
        study: The study.

    Returns:
        False if no run has such a limit.
    """
    return bool(have_round_limits(study.runs).any())


def _machines(runs: pd.DataFrame) -> list[str]:
    return sorted(set(runs["hardware"]) - {""})


def _values(column: pd.Series[Any], most: int = 8) -> str:
    """Return a text that lists the different values of a column, or only the smallest and the
    largest if there are more than `most` values.
    """
    values = [setting_text(value) for value in sorted(column.unique())]
    if len(values) <= most:
        return ", ".join(values)
    return f"{values[0]} to {values[-1]} ({len(values)} values)"


def _warnings(runs: pd.DataFrame, provenance: pd.DataFrame) -> Iterator[str]:
    """Yield warnings for readers of a study's numbers, such as unfinished runs or different
    hardware, each warning once.
    """
    if unfinished := list(runs.loc[runs["status"] == "unfinished", "run_id"]):
        yield (
            f"{first_of(unfinished)}: unfinished (still training, killed with the launcher, or "
            "out of disk space). If no sweep is at work, start the same sweep again."
        )
    if len(machines := _machines(runs)) > 1:
        yield (
            "Runs on different hardware have separate curves, and their times cannot be compared: "
            f"{'; '.join(machines)}."
        )
    for difference, values in mixture(runs, provenance).items():
        if difference == "torch" or difference.startswith("precision"):
            yield f"Runs of different {difference} have separate curves: {in_words(values)}."
        elif difference != "hardware":
            yield f"Runs of different {difference} are shown together: {in_words(values)}."
    if "commit" in provenance and (commits := provenance["commit"].nunique()) > 1:
        yield (
            f"The runs come from {commits} different commits of bsweep. The provenance table names "
            "them."
        )
    lines = runs[["run_id", "warnings"]].assign(warnings=runs["warnings"].str.split("\n"))
    lines = lines.explode("warnings").dropna()
    for line, group in lines[lines["warnings"] != ""].groupby("warnings", sort=False):
        yield f"{first_of([*group['run_id']])}: {line}"
