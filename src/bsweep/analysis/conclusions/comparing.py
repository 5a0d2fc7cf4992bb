"""The comparison of studies with a first one, the reference: what they differ in, and how times and
accuracies of their common cells differ.

A common cell has the same batch size, workers and settings in both studies, and runs that completed
in both. A setting tells cells apart only if it does so within one of the studies
(`keys.in_common`). A setting that a whole study shares is what the studies differ in.

There are three measures: the median time of a step, the training time to a common target, and the
final accuracy. Means over seeds are compared by Welch's t-test, those of times by their logarithms.
Holm's method corrects each measure for all cells that it tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.common_target import common_target
from bsweep.analysis.cell_tables.keys import cell_keys, in_common, keyed, settings
from bsweep.analysis.cell_tables.statistics import MIN_SEEDS_FOR_INTERVAL, compare_means, summarise
from bsweep.analysis.study.beside_others import left_out
from bsweep.analysis.study.folder import load
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.naming import evaluated_part, settings_in_words
from bsweep.analysis.study.numbers import different_texts, plain
from bsweep.analysis.study.targets import to_target
from bsweep.core.words import counted, first_of, joined

SAME, UNTESTED = "no difference told", "not tested"  # verdicts
LOST, RARER = "no longer reached", "reached less often"  # verdicts on the time to the target
TIMES = ("step_seconds", "seconds_to_target")  # compared by their ratios
_SENTENCES = {
    "step_seconds": "A step of {other} takes {value:.3f} times as long as one of {reference}",
    "seconds_to_target": "To {target}, {other} takes {value:.3f} times as long as {reference}",
    "accuracy": "The final accuracy of {other} differs from that of {reference} by {value:+.4f}",
}
KINDS = ("configuration", "code", "versions", "hardware")  # of what studies differ in, in order
_KINDS = {  # of provenance that tells studies apart; `versions.` are versions, too
    "commit": "code", "dirty": "code", "python": "versions", "platform": "versions",
    "cpu": "hardware", "cores": "hardware", "gpus": "hardware", "memory_bytes": "hardware",
    "host": "hardware", "hosts": "hardware",
}  # fmt: skip
_GRID = ("strategy", "num_workers", "local_batch", "global_batch", "seed")
_OF_SETTINGS = {"device": "hardware", "gpu_software": "versions"}
_TOLD_BY_PROVENANCE = ("hardware", "torch")
_MOST_VALUES = 6  # of a setting that varies within a study
_MOST_STUDIES = 3  # that have a line of their own in a terminal
_NO_DIFFERENCE = "Their records tell no difference in configuration, code, versions or hardware."
_MISSED = "a run did not reach it, or reached it at its first evaluation"


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The result of `bsweep.compare`: each study after the first compared with the first one, the
    reference.

    Tables:
        `differences`: One row for each setting and each fact of provenance whose values differ
            between the studies: `kind` (configuration, code, versions or hardware), `key`, and the
            value in each study, in a column with the study's name. Values that differ within a
            study begin with `varies`.
        `cells`: One row for each `measure` (`step_seconds`, `seconds_to_target`, `accuracy`), each
            study after the first and each cell that it has in common with the first: `study`; the
            settings that tell cells apart; `cell`, these settings in words; `is_across_hardware`;
            `target`, in words, None if the two studies have no common one; `reference` and
            `compared`, the mean over seeds (geometric for times) in the reference and in the study;
            `change`, the ratio of times, study over reference, or the difference of accuracies,
            study less reference; its interval `low` and `high` with Holm's correction, and the
            corrected p-value `p_holm`, NaN below three seeds; the values of the seeds,
            `points_reference` and `points`; and the shares of the runs that reached the target,
            `reached_reference` and `reached`.
            `verdict` says in a word how the cell differs: `faster`, `slower`, `higher`, `lower`,
            `no difference told`, `not tested` (too few seeds), or an empty text without this
            measure. A cell that has no time to the target is `no longer reached` if all of its runs
            reach the target in the reference and none in the study, and `reached less often` if a
            smaller share of them does.
        `missing`: One row for each study after the first and each cell of the reference that has no
            completed run in the study: `study`, and `cell` in words.

    `studies` are the names, the reference first. The object prints as its answer.
    """

    studies: tuple[str, ...]
    differences: pd.DataFrame
    cells: pd.DataFrame
    missing: pd.DataFrame
    warnings: tuple[str, ...]

    def slower(self, share: float) -> pd.DataFrame:
        """Return the times that are longer than in the reference by more than a share with
        certainty.

        The hypothesis of each test is a ratio of 1 + share. Otherwise the tests and Holm's
        correction are those of `cells`. A time is slower with certainty if the lower end of its
        corrected interval lies above 1 + share. A cell all of whose runs reach the target in the
        reference, and none in the study, is slower whatever the share; its ratio is infinite.

        Args:
            share: The share by which a time may be longer, such as 0.05.

        Returns:
            One row for each such time, with `study`, `cell`, `measure`, `ratio`, `low` and `high`.
        """
        tables = []
        for measure in TIMES:
            cells = self.cells[self.cells["measure"] == measure]
            times = cells[["study", "cell", "measure"]].join(_tested(cells, measure, share))
            tables.append(times[times["low"] > 1 + share])
        lost = self.cells[self.cells["verdict"] == LOST]
        tables.append(lost.assign(**dict.fromkeys(("change", "low", "high"), np.inf)))
        slower = pd.concat(tables, ignore_index=True).rename(columns={"change": "ratio"})
        return slower[["study", "cell", "measure", "ratio", "low", "high"]]

    def brief(self) -> list[str]:
        """Return the answer that a terminal shows.

        Returns:
            At most four lines: how much faster and how much more accurate the study is, in how many
            cells, which cells it lacks, and what differs. If there are several studies, each of at
            most three has a line.
        """
        others, keys = self.studies[1:], [*self.differences["key"]]
        last = [f"They differ in {first_of(keys, _MOST_VALUES)}." if keys else _NO_DIFFERENCE]
        if len(others) == 1:
            lines = [self._line(others[0], measure) for measure in _SENTENCES]
            last.insert(0, self._missing(others[0]))
        else:
            lines = [
                joined([*(self._line(other, time) for time in TIMES[::-1]), self._missing(other)])
                for other in others[:_MOST_STUDIES]
            ]
        if further := others[_MOST_STUDIES:]:
            last.append(f"--verbose also shows {first_of(further)}.")
        return [*filter(None, lines), joined(last)]

    def _line(self, other: str, measure: str) -> str:
        """Return a sentence that compares one measure of all common cells of a study with the
        reference; empty if no common cell has this measure.
        """
        compared = self.cells[self.cells["study"] == other]
        cells = compared[compared["measure"] == measure]
        values, target = cells["change"].dropna(), cells["target"].iat[0]
        refused = self._refused(cells, other) if measure == "step_seconds" else ""
        steps = compared.loc[compared["measure"] == "step_seconds", "compared"]
        left_out = _left_out(cells, steps.to_numpy()) if measure == "seconds_to_target" else []
        if values.empty:
            clauses = ", ".join(left_out)
            return f"Not compared by time to {target}: {clauses}." if left_out else refused
        verdicts = cells["verdict"][values.index]
        untested = int((verdicts == UNTESTED).sum())
        shown = (*_words(measure), SAME) if untested < len(values) else ()
        counts = [_counted(verdict, (verdicts == verdict).sum()) for verdict in shown]
        if untested:
            few = f"fewer than {MIN_SEEDS_FOR_INTERVAL} seeds"
            counts.append(_counted(UNTESTED, untested, few))
        mean = np.exp(np.log(values).mean()) if measure in TIMES else values.mean()
        sentence = _SENTENCES[measure].format(
            other=other, reference=self.studies[0], value=mean, target=target
        )
        common = counted(len(values), "common cell")
        return joined([f"{sentence} (mean of {common}): {', '.join(counts + left_out)}.", refused])

    def _missing(self, other: str) -> str:
        """Return a sentence that counts and names the cells of the reference that a study lacks;
        empty if it has them all.
        """
        cells = [*self.missing.loc[self.missing["study"] == other, "cell"]]
        if not cells:
            return ""
        return (
            f"{other} has no completed run of {counted(len(cells), 'cell')} of {self.studies[0]}: "
            f"{first_of(cells, comma='; ')}."
        )

    def _refused(self, cells: pd.DataFrame, other: str) -> str:
        """Return a sentence that says why times of a study are not compared; empty if they are."""
        count = int((cells["is_across_hardware"] & cells["compared"].isna()).sum())
        if not count:
            return ""
        hardware = self.differences[self.differences["kind"] == "hardware"]
        values = zip(hardware["key"], hardware[self.studies[0]], hardware[other], strict=True)
        return (
            f"Times of {other} are not compared in {counted(count, 'cell')}, because the hardware "
            f"differs ({'; '.join(f'{key} {before} / {now}' for key, before, now in values)}). To "
            "compare them all the same, use --across-hardware."
        )

    def __repr__(self) -> str:
        return "\n".join([*self.brief(), *self.warnings])

    def as_json(self) -> dict[str, Any]:
        """Return the whole comparison in plain values, with None for what is not known.

        Returns:
            Mappings, lists, numbers and texts that JSON can hold.
        """
        names = ("differences", "cells", "missing")
        tables = {name: getattr(self, name).to_dict("records") for name in names}
        contents = {"studies": self.studies, "sentences": self.brief(), "warnings": self.warnings}
        values: dict[str, Any] = plain(contents | tables)
        return values


def _words(measure: str) -> tuple[str, str]:
    """Return the verdicts on a value that is larger than in the reference, and on a smaller one."""
    return ("slower", "faster") if measure in TIMES else ("higher", "lower")


def _counted(verdict: str, count: int, more: str = "") -> str:
    """Return a clause such as `slower in 2`, or `left out in 2 (why)`."""
    clause = f"{verdict} in {count}"
    return f"{clause} ({more})" if more else clause


def _left_out(cells: pd.DataFrame, step_seconds: np.ndarray) -> list[str]:
    """Return clauses that count the common cells of a study without a ratio of times to the target,
    and name those that no longer reach it or do so less often.
    """
    clauses = [
        _counted(verdict, len(names), first_of([*names]))
        for verdict in (LOST, RARER)
        if len(names := cells.loc[cells["verdict"] == verdict, "cell"])
    ]
    is_missed = cells["target"].notna() & ~np.isnan(step_seconds) & (cells["verdict"] == "")
    if missed := is_missed.sum():
        clauses.append(_counted("left out", missed, _MISSED))
    return clauses


def compare(
    study: Study | str | Path, *others: Study | str | Path, across_hardware: bool = False
) -> Comparison:
    """Compare studies with a first one: what they differ in, and the times and accuracies of their
    common cells.

    Args:
        study: The reference: a study or its folder.
        others: The studies to compare with it, or their folders; at least one.
        across_hardware: Compare times also where the hardware differs.

    Returns:
        The differences, the common cells with corrected intervals, and warnings.

    Raises:
        ValueError: If only one study is given, a folder holds no study, or two studies have no
            common cell.
        FileNotFoundError: If there is no such folder.
    """
    if not others:
        raise ValueError("give two studies or more: bsweep compare results/before results/after.")
    given = (study, *others)
    # `in_common` keeps runs of different hardware apart.
    loaded = [item if isinstance(item, Study) else load(item, mix=True) for item in given]
    studies = dict(zip(_names(loaded), loaded, strict=True))
    for name, compared in studies.items():
        if not (compared.runs["status"] == "completed").any():
            raise ValueError(f"{name}: no run has completed, so there is nothing to compare.")
    reference, *names = studies
    tables = []
    for name in names:
        cells = _cells((studies[reference], studies[name]), across_hardware)
        if cells["is_missing"].all():
            raise ValueError(
                f"{reference} and {name} have no common cell: no batch size, worker count and "
                "other setting that tells their cells apart has completed runs in both."
            )
        cells.insert(0, "study", name)
        tables.append(cells)
    cells = pd.concat(tables, ignore_index=True)
    is_missing = cells.pop("is_missing")
    missing = cells.loc[is_missing & (cells["measure"] == "accuracy"), ["study", "cell"]]
    common = cells[~is_missing].groupby("measure")
    rows = [_judged(common.get_group(measure), measure) for measure in _SENTENCES]
    return Comparison(
        tuple(studies),
        _differences(studies),
        pd.concat(rows, ignore_index=True),
        missing.reset_index(drop=True),
        tuple(_warnings(studies)),
    )


def _names(studies: Sequence[Study]) -> list[str]:
    """Return a name for each study: that of its folder, or else its path; all are different."""
    names = [study.name for study in studies]
    if len({*names, "kind", "key"}) < len(names) + 2:  # as many as there are columns
        names = [str(Path(study.folder).resolve()) for study in studies]
    return [
        f"{name} ({place + 1})" if name in names[:place] else name
        for place, name in enumerate(names)
    ]


def _judged(cells: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return the cells of one measure with the results of the tests, and a verdict."""
    table = cells.join(_tested(cells, measure))
    now, before = table["reached"], table["reached_reference"]
    equal, (more, less) = float(measure in TIMES), _words(measure)
    verdicts = {
        LOST: (measure == "seconds_to_target") & (now == 0) & (before == 1),
        RARER: (measure == "seconds_to_target") & (now < before),
        "": table["change"].isna(),
        UNTESTED: table["low"].isna(),
        more: table["low"] > equal,
        less: table["high"] < equal,
    }
    return table.assign(verdict=np.select([*verdicts.values()], [*verdicts], SAME))


def _tested(cells: pd.DataFrame, measure: str, share: float = 0.0) -> pd.DataFrame:
    """Return for each cell the means of a measure in both studies, their ratio or difference, its
    interval and its corrected p-value. The hypothesis is that a time is longer by `share`, or that
    accuracies are equal.
    """
    forward, back = (np.log, np.exp) if measure in TIMES else (np.positive, np.positive)
    null = float(np.log(1 + share)) if measure in TIMES else 0.0
    points = cells[["points_reference", "points"]].set_axis(["reference", "compared"], axis=1)
    samples = points.map(lambda values: forward(np.array(values)))
    means = samples.map(lambda values: values.mean() if len(values) else np.nan)
    tests = compare_means(samples["reference"], samples["compared"], null)
    table = means.join(tests.rename(columns={"difference": "change"})).astype(float)
    return table.drop(columns="p_holm").transform(back).assign(p_holm=table["p_holm"])


def _cells(studies: Sequence[Study], across_hardware: bool) -> pd.DataFrame:
    """Return the cells of the first of two studies, with the values of the seeds by measure in both
    studies, and whether the second study lacks the cell.
    """
    completed = [study.runs[study.runs["status"] == "completed"] for study in studies]
    together = _together(studies, completed)
    settings = cell_keys(together.runs)
    keys = [*settings, "global_batch", "place"]  # `accumulation_steps` changes the global batch
    is_comparable = _have_same_examples(completed)
    target = common_target(together) if is_comparable else None
    runs = keyed(together.runs).assign(
        place=np.repeat([0, 1], [*map(len, completed)]),
        machine=pd.concat([runs["hardware"] for runs in completed]).to_numpy(),
        step_seconds=_median_step_seconds(together),
        seconds_to_target=np.nan,
        reached=np.nan,
        accuracy=_accuracy(together.runs) if is_comparable else np.nan,
    )
    if target:
        times = to_target(together, target[0]).reindex(runs["run_id"]).set_index(runs.index)
        seconds = times["seconds_to_target"].where(times["is_bound"].eq(False))
        # A mean without the runs that missed the target would be too short.
        is_whole = seconds.notna().groupby([runs[key] for key in keys]).transform("all")
        runs["seconds_to_target"] = seconds.where(is_whole)
        runs["reached"] = times["reached"].astype(float)
    values = runs.melt([*keys, "seed", "machine", "reached"], [*_SENTENCES], "measure")
    keys.append("measure")
    groups = values.groupby(keys)
    machines = groups["machine"].agg(lambda names: "; ".join(sorted({*names})))
    points = summarise(values, keys, ["value"])["value_points"].rename("points")
    both = pd.concat([points, machines, groups["reached"].mean()], axis="columns")
    reference, other = (both.xs(place, level="place") for place in (0, 1))
    cells = reference.add_suffix("_reference").join(other).reset_index()
    names = [settings_in_words(settings, row) for row in cells[settings].to_numpy()]
    cells.insert(len(settings) + 1, "cell", pd.Series(names, cells.index, dtype=object))
    before, now = cells.pop("machine_reference"), cells.pop("machine")
    is_across = before.ne("") & now.ne("") & before.ne(now) & now.notna()
    is_refused = is_across & cells["measure"].isin(TIMES) & (not across_hardware)
    for name in ("points_reference", "points"):
        cells[name] = cells[name].mask(is_refused, pd.Series([()] * len(cells), dtype=object))
    in_words = pd.Series(str(target[0]) if target else None, cells.index, dtype=object)
    return cells.assign(is_missing=now.isna(), is_across_hardware=is_across, target=in_words)


def _together(studies: Sequence[Study], completed: Sequence[pd.DataFrame]) -> Study:
    """Return one study of the completed runs of several, in which the id of each run begins with
    the place of its study.
    """

    def marked(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
        return [
            table.assign(run_id=[f"{place}:{run_id}" for run_id in table["run_id"]])
            for place, table in enumerate(tables)
        ]

    tables: dict[str, Any] = {
        name: pd.concat(marked([getattr(study, name) for study in studies]), ignore_index=True)
        for name in ("epochs", "evaluations", "batches")
    }
    return replace(studies[0], runs=in_common(marked(completed)), **tables)


def _median_step_seconds(study: Study) -> pd.Series[float]:
    """Return the median seconds of a step of each run, by the medians of its epochs; NaN for a run
    whose batch size changed.

    A few slow steps move a mean, and would look like a difference between two studies. The table of
    step times has means, whose parts add up to the time of training.
    """
    medians = study.epochs.groupby("run_id")["step_seconds_p50"].median()
    seconds = study.runs["run_id"].map(medians).astype(float)
    is_changing = study.runs["run_id"].isin(study.batches["run_id"])
    return seconds.where((seconds > 0) & ~is_changing)


def _accuracy(runs: pd.DataFrame) -> pd.Series[float]:
    """Return the accuracy of each run on the test set after training if all runs have one, else
    the one of the last evaluation.
    """
    final = runs.get("final_test_accuracy", pd.Series(np.nan, runs.index)).astype(float)
    return final if final.notna().all() else runs["test_accuracy"].astype(float)


def _have_same_examples(completed: Sequence[pd.DataFrame]) -> bool:
    """Return False if accuracies of the runs of two studies do not compare, because the data sets
    differ, or one is evaluated on validation examples.
    """
    data = [{*runs["data"].dropna()} for runs in completed]
    is_other = max(map(len, data)) == 1 and data[0] != data[1]
    return not is_other and len({*map(evaluated_part, completed)}) == 1


def _differences(studies: Mapping[str, Study]) -> pd.DataFrame:
    """Return the table `Comparison.differences` of studies by their names."""
    kinds: dict[str, str] = {}
    tables = {}
    for name, study in studies.items():
        runs = study.runs[study.runs["status"] == "completed"]
        kinds |= dict.fromkeys([*_GRID, *settings(runs)], "configuration") | _OF_SETTINGS
        tables[name] = runs.merge(study.provenance, how="left", on="run_id", suffixes=("", "_"))
    for key in dict.fromkeys(str(key) for study in studies.values() for key in study.provenance):
        if kind := "versions" if key.startswith("versions.") else _KINDS.get(key):
            kinds[key] = kind
    rows = []
    for key, kind in sorted(kinds.items(), key=lambda item: KINDS.index(item[1])):
        values = {name: _values(table, key) for name, table in tables.items()}
        if key not in _TOLD_BY_PROVENANCE and len({*values.values()}) > 1:
            texts = {name: _text(value) for name, value in values.items()}
            rows.append({"kind": kind, "key": key, **texts})
    return pd.DataFrame(rows, columns=["kind", "key", *studies], dtype=object)


def _values(table: pd.DataFrame, key: str) -> tuple[str, ...]:
    """Return the different values of a column as texts, in order; `-` stands for a missing one."""
    column = table[key].astype(object) if key in table else pd.Series([None], dtype=object)
    is_missing = column.isna() | (column == "")
    return (*different_texts(column), *["-"] * bool(is_missing.any()))


def _text(values: Sequence[str]) -> str:
    if len(values) == 1:
        return values[0]
    return f"varies: {first_of(values, _MOST_VALUES)}"


def _warnings(studies: Mapping[str, Study]) -> Iterator[str]:
    for name, study in studies.items():
        for run_id, why in study.skipped.items():
            yield f"{name}: {run_id} is left out: {why}"
        if count := int((study.runs["status"] != "completed").sum()):
            runs = counted(len(study.runs), "run")
            yield f"{name}: {count} of {runs} did not complete: left out."
        if text := left_out(study.provenance):
            yield f"{name}: {text}"
    reference, *others = studies
    for name in others:
        if not _have_same_examples([studies[reference].runs, studies[name].runs]):
            yield (
                f"{name}: accuracies and times to a target are not compared, because the data sets "
                "or the evaluated examples differ."
            )
