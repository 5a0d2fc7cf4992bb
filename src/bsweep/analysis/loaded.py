"""A study in memory: its tables, with the types and the order that readers may count on, and what
to know of them.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bsweep.analysis import columns
from bsweep.analysis.derived import of_rounds, with_derived, with_ends_of_epochs, with_energy
from bsweep.analysis.mixture import in_words, mixture
from bsweep.analysis.numbers import setting_text
from bsweep.analysis.targets import with_own_targets
from bsweep.core.words import counted, first_of


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """What was measured, in tables that have at least the columns that `bsweep.analysis.columns`
    says of each.

    `batches` has the global batch and the learning rate at each sampled step, of runs whose batch
    changed.

    `runs` has a row a run and goes on with every other setting by its dotted name, such as
    `optimizer.momentum`. Of runs that end with a round, `train_loss` is the last round's and
    `train_accuracy` NaN, for their last epoch is a fragment. `placement` says on how many nodes,
    and `threads` with how many each, workers ran. `learning_rate` is the rate after its rule,
    before warm-up and schedule, of the first worker; `local_batches` is what each worker took where
    not all took `local_batch`, such as `8/8/32/16`; `num_test` counts the answers that a test
    accuracy is a mean over (of a text its tokens), each one of `num_classes`. Where runs name a
    target (`target_accuracy`, `target_loss`), `reached`, `is_bound`, `seconds_to_target`,
    `steps_to_target`, `epochs_to_target` and `examples_to_target` are there, by the rule of
    `bsweep.analysis.targets`: NaN where it was not reached. A run that began at another one's
    checkpoint has that run's id as `branch_of`, and `branch_steps` and `branch_seconds` until
    there; its records before are the other run's. `epochs` has a row a run and epoch. `evaluations`
    has a row a run and evaluation, with the steps, examples and seconds trained until then; where a
    run does not say them, its epochs' ends are its evaluations. `noise_scales` has the parts of the
    gradient noise scale, `variance` over `gradient_square`, each a mean over the steps since the
    record before, and `noise_of_layers` those of each tensor of the model, where a run measured
    them: see `bsweep.analysis.noise_scale`. `provenance` has a row a run: `run_id` and what its
    `meta.json` says, by dotted names. `servers` has a row a run and parameter server, summed over
    epochs (the largest `max_lead`); `pushes` are all workers', `load` is the busy part of the
    training time. `waits` has the seconds that each worker of a run waited for slower ones.
    `rounds` has a row a run, round and worker, with the seconds that `bsweep.runlog.Round` tells
    apart; `train_loss` and `num_examples` are the whole round's. `skipped` says why of each run
    that could not be read.
    """

    name: str
    folder: Path
    runs: pd.DataFrame
    epochs: pd.DataFrame
    evaluations: pd.DataFrame
    noise_scales: pd.DataFrame
    batches: pd.DataFrame
    noise_of_layers: pd.DataFrame
    warnings: tuple[str, ...]
    provenance: pd.DataFrame
    servers: pd.DataFrame
    waits: pd.DataFrame
    rounds: pd.DataFrame
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self._in_short().items())

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>"
            for name, text in self._in_short().items()
        )
        return f"<table>{''.join(rows)}</table>"

    def _left_out(self) -> str:
        return (
            f"; {len(self.skipped)} left out, damaged: {first_of([*self.skipped])}"
            if self.skipped
            else ""
        )

    def _in_short(self) -> dict[str, str]:
        """Five lines: what the study is called, how its runs ended, its grid, its seeds, its time
        and hardware.
        """
        runs, seconds = self.runs, self.runs["train_seconds"].dropna()
        statuses = Counter(runs["status"].str.replace("_", " ")).most_common()
        batches, workers = _values(runs["local_batch"]), _values(runs["num_workers"])
        lasted = (
            f"{seconds.sum():,.0f} s in all, {seconds.min():,.0f} to {seconds.max():,.0f} s a run"
        )
        where = "; ".join(sorted(set(runs["hardware"]) - {""}))
        return {
            "study": self.name,
            "runs": f"{len(runs)} "
            f"({', '.join(f'{count} {status}' for status, count in statuses)}){self._left_out()}",
            "grid": f"local batch {batches} on {counted(workers, 'worker')}; "
            f"{_values(runs['strategy'])}",
            "seeds": _values(runs["seed"]),
            "training time": "; ".join(
                filter(None, (lasted if len(seconds) else "none measured", where))
            ),
        }


def study_of(
    folder: Path,
    provenance: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    skipped: Mapping[str, str] | None = None,
) -> Study:
    """A study of tables by name, those that are missing empty; `skipped` says why runs had to be
    left out.
    """
    typed = {
        name: columns.as_table(tables.get(name, pd.DataFrame()), of)
        for name, of in columns.TABLES.items()
    }
    runs = with_energy(with_derived(typed.pop("runs"), typed["rounds"]), typed["epochs"])
    typed["evaluations"] = with_ends_of_epochs(typed["evaluations"], typed["epochs"])
    runs = with_own_targets(runs, typed["evaluations"])
    runs = runs.sort_values(
        ["strategy", "num_workers", "local_batch", "seed", "run_id"], ignore_index=True
    )
    lost = [f"{run_id}: left out: {why}" for run_id, why in (skipped or {}).items()]
    warnings = (*lost, *_warnings(runs, provenance))
    name = folder.resolve().name
    known = {"runs": runs, "provenance": provenance, **typed}
    return Study(name, folder, warnings=warnings, skipped=skipped or {}, **known)


def ends_in_rounds(study: Study) -> bool:
    """Whether runs were to end with a round rather than an epoch, so that they differ in how much
    they train.
    """
    return bool(of_rounds(study.runs).any())


def _values(column: pd.Series[Any], most: int = 8) -> str:
    """The different values of a column, or of many the ends."""
    found = [setting_text(value) for value in sorted(column.unique())]
    return (
        ", ".join(found)
        if len(found) <= most
        else f"{found[0]} to {found[-1]} ({len(found)} values)"
    )


def _warnings(runs: pd.DataFrame, provenance: pd.DataFrame) -> Iterator[str]:
    """What a reader of the numbers should know, each thing once: of the whole study first, then of
    runs.
    """
    unfinished = list(runs.loc[runs["status"] == "unfinished", "run_id"])
    if unfinished:
        yield (
            f"{first_of(unfinished)}: unfinished (still training, killed with the launcher, or no "
            "space was left)."
        )
    hardware = sorted(set(runs["hardware"]) - {""})
    if len(hardware) > 1:
        names = "; ".join(hardware)
        yield (
            "Runs on different hardware are kept in separate curves, whose times do not compare: "
            f"{names}."
        )
    for what, values in mixture(runs, provenance).items():
        if what != "hardware":
            yield f"Runs of different {what} are shown together: {in_words(values)}."
    if "commit" in provenance and provenance["commit"].nunique() > 1:
        yield (
            f"The runs come from {provenance['commit'].nunique()} different commits: see the "
            "provenance."
        )
    said: dict[str, list[str]] = {}
    for run_id, text in zip(runs["run_id"], runs["warnings"], strict=True):
        for line in text.split("\n") if text else ():
            said.setdefault(line, []).append(run_id)
    yield from (f"{first_of(run_ids)}: {line}" for line, run_ids in said.items())
