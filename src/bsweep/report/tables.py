"""The content of a report's tables: the numbers of the analysis as text, under headings in
words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from bsweep import analysis, plots
from bsweep.analysis import Study
from bsweep.analysis.cell_tables.split_models import kind_of_scaling
from bsweep.analysis.study import naming
from bsweep.analysis.study.columns import number_text, spoken
from bsweep.analysis.study.numbers import spread
from bsweep.core.words import joined
from bsweep.report.formats import Table, spreads
from bsweep.report.recommended import recommended

_MAX_NODES = 8  # nodes that have a column each


def tables(study: Study) -> Iterator[Table]:
    """Yield the tables of a report for which a study has the numbers, except that of runs that did
    not complete.
    """
    cells = analysis.cells(study.runs)
    yield _means(study, cells)
    yield from recommended(study)
    ratios = analysis.batch_ratios(cells).drop(columns="images_per_second_ratio")
    scaling, no_speedup = analysis.scaling(cells), analysis.unequal_threads(cells)
    speedups = scaling[scaling.index.get_level_values("num_workers") > scaling["base_workers"]]
    speedup = joined([_SPEEDUP.format(kind_of_scaling(study)), no_speedup])
    idle = analysis.idle_table(study)
    others: list[tuple[str, str, pd.DataFrame]] = [
        ("batch-ratios", _RATIO, ratios),
        ("speed-ups", speedup, speedups),
        ("fits", _FIT, _fits(study)),
        ("steps", _steps_caption(study), _steps(study)),
        ("servers", _SERVERS, analysis.server_loads(study)),
        ("equal-time", _EQUAL_TIME, _equal_time(study)),
    ]
    yield from (_table(study, name, caption, rows) for name, caption, rows in others if len(rows))
    if no_speedup and speedups.empty:
        yield Table(no_speedup, pd.DataFrame())
    if len(idle):
        yield idle_seconds(study, idle)
        yield _table(study, "rounds", _ROUNDS, idle[["rounds", "idle_share", "exchange_share"]])


def _means(study: Study, cells: pd.DataFrame) -> Table:
    """Return the table of each cell's results, such as times, losses and accuracies."""
    values = cells[["global_batch", "n"]].astype(object)
    if cells["learning_rate"].nunique() > 1:
        values.insert(1, "learning_rate", cells["learning_rate"])
    for metric in analysis.METRICS:
        if cells[metric].notna().any():
            values[metric] = spreads(cells, metric)
    medians, final = analysis.best_medians(study), analysis.measured_once(study)
    has_median = "test_accuracy" in values and bool(medians["best_median"].notna().any())
    if has_median:
        place = list(values).index("test_accuracy") + 1
        values.insert(place, "best_median", spreads(medians.reindex(cells.index), "best_median"))
    if final["final_test_accuracy"].notna().any():
        name = "final_test_accuracy"
        values[name] = spreads(final.reindex(cells.index), name)
    if not (learned := cells["has_learned"]).fillna(True).all():
        values["has_learned"] = learned.map({True: "yes", False: "no"}).fillna("-")
    if (cells["other_statuses"] != "").any():
        values["other_statuses"] = cells["other_statuses"]
    counts = set(cells["n"][cells["n"] > 0])
    caption = [
        "Results of each cell.",
        "Losses are those of the last round." * analysis.ends_in_rounds(study),
        _MEDIAN.format(naming.evaluated_part(study.runs).capitalize()) * has_median,
        _INTERVALS * (max(counts, default=0) >= analysis.MIN_SEEDS_FOR_INTERVAL),
        "For two seeds both values are shown, in the order of the seeds." * (2 in counts),
    ]
    return _table(study, "results", joined(caption), values)


_INTERVALS = f"± is the half-width of the {analysis.SEEDS_LEVEL} t-interval over seeds."
_RATIO = "Ratio to the next smaller local batch, with all other settings equal."
_ROUNDS = "Rounds, and the parts of the time that workers are idle or exchange data."
_MEDIAN = (
    "{} accuracy and loss are those of the last evaluation; the best median of three evaluations "
    "decides whether a target is reached."
)
_SPEEDUP = "Speed-up over workers at equal local batch, by examples per second ({})."
_FIT = (
    "Least-squares fit of training time, a + c / local batch. The misses are the largest "
    "deviations below and above the fit, in percent of the times."
)
_IDLE = (
    "Seconds that nodes are idle until the slowest one arrives to synchronise, summed over a run's "
    "rounds; node k is the worker of rank k - 1. Rounds that the end of an epoch cuts short do not "
    "count in a run that has whole ones."
)
_CHANGE = (
    "The change of the total of a round is relative to the uniform allocation without given lists, "
    "from runs of equal seeds if there are any."
)
_WITHIN = "The time that codecs compute is not separate: it is part of the exchange."
_RING = (
    "A ring's bytes are 2 (p - 1) / p n, for p workers and n bytes of gradient. The bytes of "
    "Horovod, DDP and the native all-reduce are computed by this formula, so a ratio of 1 is not a "
    "measurement there. Other exchanges count their messages."
)
_SERVERS = "Parameter servers: how evenly they share model and work."
_EQUAL_TIME = (
    "Training loss after equal time, half a round before the end of the shortest compared run, and "
    "the number of examples until then. A round's mean loss counts for its midpoint in time; "
    "between midpoints the loss is interpolated."
)


def _fits(study: Study) -> pd.DataFrame:
    fits = analysis.seconds_fits(study.runs)
    misses = zip(fits.pop("lowest_residual"), fits.pop("highest_residual"), strict=True)
    fits.insert(3, "misses", [f"{100 * low:+.0f} to {100 * high:+.0f}" for low, high in misses])
    return fits


def _steps_caption(study: Study) -> str:
    unit, steps = analysis.step_unit(study), analysis.step_times(study)
    has_codec = ~study.runs["compression"].isin(["", "none"]) & study.runs["compression"].notna()
    step = f"Training on {unit}, because workers take unequal steps"
    parts = (
        f"{'A training step' if unit == 'step' else step}: the parts of its time, and the bytes "
        "that a worker sends. Exchange is the part that did not overlap with computing."
    )
    is_within = bool(has_codec.any() and steps["codec_seconds"].isna().all())
    return joined([parts, _WITHIN * is_within, _RING * bool(steps["sent_of_ring"].notna().any())])


def _steps(study: Study) -> pd.DataFrame:
    steps = analysis.step_times(study)
    steps = steps.assign(sent_bytes=steps["sent_bytes"] / 1e6).rename(
        columns={"sent_bytes": "sent_megabytes"}
    )
    totals = zip(steps["total_seconds"], steps.pop("total_seconds_ci95"), strict=True)
    return steps.assign(total_seconds=[spread(*total) for total in totals])[
        steps["sent_megabytes"] != 0
    ]


def _equal_time(study: Study) -> pd.DataFrame:
    table = analysis.equal_time_losses(study)
    if len(table) < 2:
        return table[:0]
    texts = spreads(table, "train_loss")
    table = table.drop(columns=["train_loss_ci95", "train_loss_points"])
    return table.assign(train_loss=texts, num_examples=table["num_examples"].round().astype(int))


def idle_seconds(study: Study, table: pd.DataFrame) -> Table:
    """Return the table of the workers' idle seconds, with their total, the change of the total if
    there is a baseline, and the training speed.

    It has the form of table 3 of the paper on uneven GPUs. With more than eight nodes, their least,
    median and most idle seconds replace the columns of nodes.
    """
    decimals = max(1, 2 - math.floor(math.log10(max(table["idle_seconds"].max(), 1e-3))))
    nodes = table[analysis.node_columns(table)].rename(
        columns=lambda name: name.replace(": idle_seconds", " (s)")
    )
    if len(nodes.columns) > _MAX_NODES:
        nodes = nodes.agg(["min", "median", "max"], axis="columns")
        nodes.columns = pd.Index(["least idle node (s)", "median node (s)", "most idle node (s)"])
    cells = nodes.map(lambda seconds: spread(seconds, decimals=decimals))
    cells["idle_seconds"] = spreads(table, "idle_seconds", decimals)
    if table["change"].notna().any():
        changes = zip(100 * table["change"], 100 * table["change_ci95"], strict=True)
        cells["change"] = [spread(*change, decimals=1) for change in changes]
    if table["rounds"].nunique() > 1:
        cells["idle_seconds_per_round"] = [
            spread(value, decimals=decimals + 1) for value in table["idle_seconds_per_round"]
        ]
    rate = "examples_per_second" if table["tokens_per_second"].isna().any() else "tokens_per_second"
    shown = cells.assign(**{rate: table[rate]}, n=table["n"])
    return _table(study, "idle", _idle_caption(table), shown)


def _idle_caption(table: pd.DataFrame) -> str:
    is_compared = bool(table["change"].notna().any())
    has_intervals = bool(table["n"].max() >= analysis.MIN_SEEDS_FOR_INTERVAL)
    return joined([_IDLE, _CHANGE * is_compared, _INTERVALS * has_intervals])


def _table(study: Study, name: str, caption: str, rows: pd.DataFrame) -> Table:
    """Turn rows of numbers into a table of text for the report. The rows are indexed by cells or by
    series of cells.

    The worker count, the batch size and the number of seeds are named once, in the caption, if all
    rows share them.
    """
    rows = _with_realised_batches(
        study, plots.in_order(study, rows.dropna(axis="columns", how="all"))
    )
    varying, levels = analysis.varying(rows), analysis.levels(rows)
    shared = [name for name in ("num_workers", "local_batch") if name in {*levels} - {*varying}]
    facts = [naming.words(name, rows.index.get_level_values(name)[0]) for name in shared]
    facts = facts if varying else []
    counts = sorted(set(rows["n"]) - {0}) if "n" in rows else []
    if len(counts) == 1:
        facts.append("one run each" if counts == [1] else f"{counts[0]} seeds each")
        rows = rows.drop(columns="n")
    if len(rows) > 1 and "global_batch" in rows and rows["global_batch"].nunique() == 1:
        facts.append(naming.words("global_batch", rows["global_batch"].iloc[0]))
        rows = rows.drop(columns="global_batch")
    columns = [*(varying or shared), *rows.columns]
    flat = rows.reset_index()[columns]
    text = {
        naming.heading(study.runs, str(name)): [_text(str(name), value) for value in flat[name]]
        for name in columns
    }
    sentence = ", ".join(facts)
    sentence = f"{sentence[0].upper()}{sentence[1:]}." if facts else ""
    return Table(joined([caption, sentence]), pd.DataFrame(text), name)


def _with_realised_batches(study: Study, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table's rows in which the local batch of uneven workers is replaced by the list of
    all workers' batches, if the rows are indexed by cells.
    """
    cells = analysis.cells(study.runs)
    if analysis.levels(rows) != analysis.levels(cells):
        return rows
    index = rows.index.to_frame(index=False)
    lists = cells["local_batches"].reindex(rows.index).fillna("")
    index["local_batch"] = [
        text or batch for text, batch in zip(lists, index["local_batch"], strict=True)
    ]
    return rows.set_index(pd.MultiIndex.from_frame(index))


def _text(name: str, value: Any) -> str:
    if isinstance(value, float):
        return number_text(name, value)
    return naming.words(name, value) if name == "variant" else spoken(name, str(value))
