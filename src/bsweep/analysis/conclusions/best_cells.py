"""Sentences that summarise a study: which cells are best, which cells have a test accuracy no
better than chance, and how the study compares with a published one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from bsweep.analysis.cell_tables import means as tables
from bsweep.analysis.cell_tables.idle import equal_time_losses
from bsweep.analysis.cell_tables.keys import varying
from bsweep.analysis.cell_tables.learning import ACCURACY_MARGIN, fastest_accurate
from bsweep.analysis.cell_tables.statistics import MIN_SEEDS_FOR_INTERVAL, SEEDS_LEVEL
from bsweep.analysis.conclusions.published_study import comparable, differences
from bsweep.analysis.study import columns
from bsweep.analysis.study.frames import Study, ends_in_rounds
from bsweep.analysis.study.naming import evaluated_part, length_of, settings_in_words
from bsweep.analysis.study.numbers import number, spread
from bsweep.config.strategies import GPU_CYCLE_MS, HorovodConfig
from bsweep.config.target import score_name
from bsweep.core.words import counted, first_of, joined, listed

_MAX_NAMED = 3


def headlines(study: Study) -> list[str]:
    """Return sentences that summarise a study, such as those that name its best cells by training
    time, accuracy or loss.

    Cells that differ in data set, model or hardware are no alternatives to each other, so each such
    group has sentences of its own. Cells that have not learned are counted and never recommended.

    Args:
        study: The study.

    Returns:
        One or more sentences for each element. If no run has completed, one sentence says so.
    """
    measured = _measured(study)
    conclusions = [line for group in _groups(measured) for line in _conclusions(study, *group)]
    others = [*_on_cycle_time(study.runs), *_on_repeats(measured["n"])]
    return [*_on_pending(study, measured), *conclusions, *others]


def winner(study: Study) -> list[str]:
    """Return the lines that a terminal shows as the short answer of a study, above all the first
    conclusion on the largest group of comparable cells.

    Args:
        study: The study.

    Returns:
        At most three lines: the conclusion, how many runs may still finish, and whether to repeat
        runs with other seeds before trusting a difference.
    """
    measured = _measured(study)
    largest = sorted(_groups(measured), key=lambda group: -len(group[1]))[:1]
    best = [line for group in largest for line in _conclusions(study, *group)][:1]
    return [*best, *_on_pending(study, measured), *_on_repeats(measured["n"])]


def _measured(study: Study) -> pd.DataFrame:
    """Return the table of the cells that have a completed run, with their names in words and their
    best medians.
    """
    cells = tables.cells(study.runs)
    return _with_words(cells).join(tables.best_medians(study))[cells["n"] > 0]


def _on_pending(study: Study, measured: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the runs that may still finish, if there are any, and one if no run has
    completed.
    """
    pending = int(study.runs["status"].isin(["unfinished", "interrupted"]).sum())
    if pending:
        yield (
            f"{pending} of {counted(len(study.runs), 'run')} may still finish and change the "
            "conclusions."
        )
    if measured.empty:
        cells = len(tables.cells(study.runs))
        yield f"No run of {counted(cells, 'cell')} has completed, so nothing can be compared yet."


def _on_cycle_time(runs: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence that says how Horovod's cycle time delays its exchanges, if the completed
    runs on several workers have such a cycle time and differ in strategy.
    """
    exchanging = runs[(runs["status"] == "completed") & (runs["num_workers"] > 1)]
    times = pd.to_numeric(exchanging.get("strategy.cycle_time_ms", pd.Series(dtype=float))).dropna()
    if len(times) and exchanging["strategy"].nunique() > 1:
        has_gpus = exchanging["device"].ne("cpu").any()
        is_short = has_gpus and times.eq(HorovodConfig.cycle_time_ms).any()
        values = " or ".join(map("{:g}".format, sorted(times.unique())))
        on_gpus = f"; {GPU_CYCLE_MS:g} ms on GPUs instead of the default" if is_short else ""
        yield (
            "Horovod's exchanges start late, because Horovod looks for new gradients only once in "
            f"strategy.cycle_time_ms ({values} ms{on_gpus}). Other strategies have no such cycle."
        )


def _on_repeats(n: pd.Series[int]) -> Iterator[str]:
    """Yield a sentence that asks the user to repeat runs with other seeds, if a cell has fewer than
    three seeds.

    Args:
        n: The number of seeds of each measured cell.
    """
    if n.min() < MIN_SEEDS_FOR_INTERVAL:
        few, runs = f"Some cells have only {counted(n.min(), 'seed')}.", "their runs"
        if n.max() == 1:
            few, runs = "Each cell has one seed.", "the runs"
        yield f"{few} Repeat {runs} with other seeds before you trust small differences."


def _groups(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Group cells by the settings that must be equal in a comparison, such as model and hardware,
    and yield the name and the cells of each group.

    The name says in words what distinguishes the group. It is empty if there is one group.
    """
    context = [name for name in varying(cells) if columns.role(name) == "context"]
    if context:
        for key, group in cells.groupby([cells.index.get_level_values(name) for name in context]):
            yield settings_in_words(context, key), group
    elif len(cells):
        yield "", cells


def _conclusions(study: Study, name: str, cells: pd.DataFrame) -> list[str]:
    """Return sentences that compare cells of equal model, data set and hardware, each after the
    group's name if it has one. They name the best cells and the speed-up from more workers, and
    count the cells whose test accuracy is not above chance.
    """
    has_learned = cells["has_learned"].fillna(True).astype(bool)
    learned, others = cells[has_learned], cells[~has_learned]
    not_above = f"({score_name('test_accuracy', evaluated_part(study.runs))} not above chance)"
    if learned.empty:
        which = "The only cell has not" if len(cells) == 1 else f"None of {len(cells)} cells has"
        lines = [f"{which} learned {not_above}, so no cell is recommended."]
        lines += [_times(study, cells)] * (len(cells) > 1)
    else:
        best = _after_equal_time if ends_in_rounds(study) else _fastest_and_most_accurate
        lines = [*best(study, learned), *_more_workers(cells)]
    if len(learned) and len(others):
        lines.append(
            f"{len(others)} of {counted(len(cells), 'cell')} did not learn {not_above}: "
            f"{_some(others['brief'])}."
        )
    return [f"{name}: {line}" if name else line for line in lines if line]


def _times(study: Study, cells: pd.DataFrame) -> str:
    """Return a sentence with the shortest and the longest mean training time of the given cells."""
    by_time = cells.dropna(subset="train_seconds").sort_values("train_seconds", kind="stable")
    if by_time.empty:
        return ""
    ends = [by_time.iloc[place] for place in (0, -1)]
    times = [f"{_shown(row, 'train_seconds')} s ({row['brief']})" for row in ends]
    return f"Training{_for(study)} took {' to '.join(times)}."


def _for(study: Study) -> str:
    """Return in words how long the runs of a study train; empty if their lengths differ."""
    trained = length_of(study)
    return f" for {trained}" if trained else ""


def _fastest_and_most_accurate(study: Study, learned: pd.DataFrame) -> Iterator[str]:
    """Yield sentences that name the fastest of the accurate cells, with its rivals, the most
    accurate cell, and the fastest one, as far as they differ.
    """
    accuracies = ("test_accuracy", "train_accuracy")
    metric = next((name for name in accuracies if learned[name].notna().any()), "")
    part = "training" if metric == "train_accuracy" else evaluated_part(study.runs)
    accuracy = score_name("test_accuracy", part)
    known = learned.dropna(subset=metric) if metric else learned
    by_time = known.sort_values("train_seconds", kind="stable")
    by_accuracy = by_time.sort_values(metric, ascending=False, kind="stable") if metric else by_time
    candidates = fastest_accurate(learned)
    # No cell has a time, no accurate cell has one, or all runs ended before their first epoch.
    if candidates.empty and metric:
        best = by_accuracy.iloc[0]
        scored = f"{best['words']}, with {accuracy} {_both(best, metric)}"
        yield f"Most accurate: {scored} ({_seeds(best['n'])})."
    if candidates.empty:
        return
    best = candidates.iloc[0]
    result = f"{_shown(best, 'train_seconds')} s of training{_for(study)}"
    result += f" and {accuracy} {_both(best, metric)}" if metric else ""
    named = f"{best['words']}, with {result} ({_seeds(best['n'])})."
    is_choice = bool(metric) and len(learned) > 1
    half_width = best[f"{metric}_ci95"] if metric else 0.0
    is_unsure = half_width > ACCURACY_MARGIN and len(learned) > len(candidates)
    is_best, is_fastest = (rows.index[0] == best.name for rows in (by_accuracy, by_time))
    within = f" within {ACCURACY_MARGIN:g} of the best {accuracy}" if is_choice else ""
    unsure = (
        f"Its accuracy is known only to ± {half_width:.2g}: less accurate cells may be as good."
    )
    best_of_all = "No cell is more accurate." if is_choice and is_best else ""
    first, rivals = f"Fastest{within}: {named}", _rivals(candidates, best)
    yield joined([first, rivals, unsure if is_unsure else "", best_of_all])
    if is_choice and not is_best:
        yield f"Most accurate: {_scored(by_accuracy.iloc[0], metric)}."
    if is_choice and not is_fastest:
        yield f"Faster, but less accurate: {_scored(by_time.iloc[0], metric)}."


def _scored(row: pd.Series[Any], metric: str) -> str:
    """Return a cell's name with its accuracy and, if it is known, its training time."""
    seconds = row["train_seconds"]
    time = "" if pd.isna(seconds) else f" in {_shown(row, 'train_seconds')} s"
    return f"{row['words']}, with {_both(row, metric)}{time}"


def _more_workers(cells: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on the speed-up that more workers bring at equal local batches. The last
    sentence names worker counts that are not compared, because their workers had unequal numbers of
    threads; it is empty if there are none.
    """
    table = tables.scaling(cells).reset_index()
    more = table[table["num_workers"] > table["base_workers"]]
    for (base, workers), rows in more.groupby(["base_workers", "num_workers"]):
        speedup, efficiency = (
            " to ".join(dict.fromkeys(f"{end:.{places}f}" for end in (values.min(), values.max())))
            for values, places in ((rows["speedup"], 2), (100 * rows["efficiency"], 0))
        )
        yield (
            f"At equal local batches {counted(workers, 'worker')} train {speedup} times as many "
            f"examples a second as {base}: an efficiency of {efficiency} %."
        )
    yield tables.unequal_threads(cells)


def _after_equal_time(study: Study, learned: pd.DataFrame) -> Iterator[str]:
    """Yield sentences that name the cell with the lowest training loss after equal training time,
    for studies with runs that may end after a round.
    """
    losses = equal_time_losses(study).dropna(subset="train_loss")
    named = losses.join(learned[["words", "brief"]], how="inner")
    for _, cells in named.groupby("elapsed_seconds"):
        if len(cells) < 2:
            continue
        best = cells.sort_values("train_loss", kind="stable").iloc[0]
        first = (
            f"Lowest training loss after {number(best['elapsed_seconds'])} s of training in each "
            f"cell: {best['words']}, with {_shown(best, 'train_loss')} ({_seeds(best['n'])})."
        )
        yield joined([first, _rivals(cells, best, "train_loss")])


def _shown(row: pd.Series[Any], metric: str) -> str:
    text = spread(row[metric], row[f"{metric}_ci95"], row[f"{metric}_points"])
    return text.replace(", ", " and ")


def _both(row: pd.Series[Any], metric: str) -> str:
    """Return a cell's accuracy in the last evaluation and, for a test accuracy, the best median of
    three evaluations, if it is another number. The median decides whether a target is reached.
    """
    last = _shown(row, metric)
    median = _shown(row, "best_median") if metric == "test_accuracy" else "-"
    if median in (last, "-"):
        return last
    return f"{last} in the last evaluation (best median of three evaluations: {median})"


def _seeds(n: int) -> str:
    return {1: "one seed", 2: "two seeds"}.get(n) or f"mean of {n} seeds, {SEEDS_LEVEL} interval"


def _rivals(cells: pd.DataFrame, best: pd.Series[Any], metric: str = "train_seconds") -> str:
    """Return a sentence that names cells whose 95 % interval of time or loss overlaps that of the
    best cell; empty if there are none.
    """
    widths = cells[f"{metric}_ci95"] + best[f"{metric}_ci95"]
    is_near = (cells[metric] - best[metric]).abs() <= widths
    rivals = cells[is_near & (cells.index != best.name)]
    if rivals.empty:
        return ""
    quantity = "time" if metric == "train_seconds" else "loss"
    return f"The interval of its {quantity} overlaps that of {_some(rivals['brief'])}."


def _some(names: pd.Series[str]) -> str:
    """Return a text that lists the names of the first three cells and counts the others, such as
    `A, B, C and 2 more`.

    Semicolons take the place of commas where names contain commas.
    """
    comma = "; " if any(", " in name for name in names[:_MAX_NAMED]) else ", "
    some = first_of([*names], _MAX_NAMED, comma)
    return some if len(names) > _MAX_NAMED else listed([*names], comma)


def _with_words(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the table of cells with two added columns: `words` is a cell's full name, and `brief`
    leaves out details such as the global batch.
    """
    settings = [name for name in varying(cells) if columns.role(name) != "context"]
    others = [name for name in settings if name not in ("num_workers", "local_batch")]
    names = []
    for row in cells.reset_index().to_dict("records"):
        lists, in_all = row["local_batches"], f"global batch {row['global_batch']}"
        batches = f"batches {lists}" if lists else f"batch {row['local_batch']}"
        first = f"local {batches} on {counted(row['num_workers'], 'worker')}"
        rest = settings_in_words(others, [row[name] for name in others])
        if rest and settings == others:  # there is no choice of batches and workers
            names.append((rest, f"{rest} ({first}, {in_all})"))
        else:
            brief = joined([first, rest], ", ")
            names.append((brief, f"{brief} ({in_all})"))
    return cells.assign(**dict(zip(("brief", "words"), zip(*names, strict=True), strict=True)))


def against_published(study: Study) -> str:
    """Return a text on how a study differs from the published study of batch sizes (ResNet-18 on
    CIFAR-10), or that the two cannot be compared.

    Args:
        study: The study.

    Returns:
        One or more sentences.
    """
    if not comparable(study):
        return (
            "Not drawn: the published study trained ResNet-18 on all 50,000 training images of "
            "CIFAR-10. These runs did not."
        )
    return (
        "The published study is drawn in grey. Its accuracy and loss are training accuracy and "
        "loss. With another number of workers, an equal local batch is a different global batch "
        "and, by most learning-rate rules, a different rate. Other differences: "
        f"{'; '.join(differences(study)) or 'none on record'}."
    )
