"""The settings by which the cells of a study differ, and the column `variant`: a short name that
tells apart the strategies, codecs, allocations and policies of a study's runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import pandas as pd

from bsweep.analysis.study import columns
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.numbers import setting_text

# These settings are not known for a run that failed before it started.
_FOUND_OUT = [
    column.name
    for column in columns.RUNS
    if column.source in ("start", "meta") and column.role in ("context", "setting")
] + ["channels_last"]
# The columns of a variant, or the first parts of their names, in order.
_EXCHANGE = ("strategy", "compression", "allocation", "batching", "slowdown")
ALLOCATION_LISTS = ("allocation.local_batches", "allocation.local_steps")
# The settings that decide the learning rate of a batch size.
RATES = ("lr", "lr_rule", "optimizer.reference_batch")
# These values are left out of a variant where a strategy was run with no other value.
_UNSAID = (
    "average", "native", "network", "synchronous", "examples", "fail", "uniform", "by_rule",
    "fp32", "forward", "blocks",
)  # fmt: skip


@cached
def cell_keys(runs: pd.DataFrame) -> list[str]:
    """Return the names of the columns that tell a study's cells apart: settings that differ between
    runs and do not follow from other settings, then `variant`, `num_workers` and `local_batch`.

    The variant stands for the settings of strategy, codec, allocation and policy; see `keyed`. Two
    kinds of settings are left out:

    - Settings that follow from others, such as `optimizer.momentum` from the optimizer or hardware
      from the strategy, because these others tell the cells apart already.
    - `entangled` settings, such as threads that are fewer for more workers. They would break a
      curve over batch sizes or workers into single points.

    Hardware that changes with the batch size or the workers is kept, so that no curve mixes
    hardware.

    Args:
        runs: The table `Study.runs`.

    Returns:
        The names of the columns.
    """
    kept, _ = _split_settings(runs)
    others = [name for name in kept if not _of_exchange(name)]
    return [*others, "variant", "num_workers", "local_batch"]


def entangled(runs: pd.DataFrame) -> list[str]:
    """Return the names of the `minor` and `placement` settings, such as the threads of a worker,
    that change only together with the batch size or the number of workers.

    A curve over batch sizes or workers shows the effect of such a setting, too.

    Args:
        runs: The table `Study.runs`.

    Returns:
        The names of the columns.
    """
    return _split_settings(runs)[1]


@cached
def keyed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of runs with missing settings filled in and an added column `variant`, a
    short name that tells apart strategies, codecs, allocations and policies.

    No setting that some run has is null, so that the runs can be grouped by their settings. The
    variant is the strategy, followed by those of the settings in `_EXCHANGE` that differ within the
    study and that `_part_of_name` names, such as `parameter_server layer` or `horovod topk 0.01`.
    It leaves out the strategy if all runs share it and each run has such a setting.
    """
    asked, filled = chosen(runs), _filled(runs)
    kept, mixed = _split_settings(runs)
    details = [""] * len(runs)
    exchanges = [
        name
        for name in settings(runs)
        if _of_exchange(name) and name not in mixed and filled[name].nunique() > 1
    ]
    # A policy comes before its settings.
    exchanges.sort(key=lambda name: (_EXCHANGE.index(name.partition(".")[0]), "." in name))
    for name in exchanges:
        values = filled.groupby("strategy")[name].transform("nunique")
        tells_apart = (values > 1) & (name in kept)
        parts = map(partial(_part_of_name, name), asked[name], tells_apart)
        details = [f"{detail} {part}".strip() for detail, part in zip(details, parts, strict=True)]
    is_shared = runs["strategy"].nunique() == 1 and all(details)
    pairs = zip(runs["strategy"], details, strict=True)
    return filled.assign(
        variant=[detail if is_shared else f"{name} {detail}".strip() for name, detail in pairs]
    )


def chosen(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of runs without computed lists: lists of local batches and local steps are
    removed where the allocation is not `uniform`.

    The lists that an allocation computes may differ from probe to probe, and the allocation's name
    already says what was chosen. Runs that name no batching have the batching `fixed`.
    """
    if "batching" in runs:
        runs = runs.assign(batching=runs["batching"].mask(_is_missing(runs["batching"]), "fixed"))
    if "allocation" not in runs or runs["allocation"].isna().all():
        return runs
    allocation = runs["allocation"].mask(_is_missing(runs["allocation"]), "uniform")
    lists = [name for name in ALLOCATION_LISTS if name in runs]
    given = {name: runs[name].astype(object).where(allocation == "uniform") for name in lists}
    return runs.assign(allocation=allocation, **given)


Values = TypeVar("Values", pd.Series, pd.DataFrame)


def _is_missing(values: Values) -> Values:
    return values.isna() | (values == "")


def in_common(studies: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the tables of runs of several studies as one table, with a plain index, in which
    settings differ only if they tell cells apart within one of the studies.

    Every other setting, such as a learning rate that all runs of a study share, gets the value of
    the first run: it tells studies apart, and not cells.
    """
    kept = {name for runs in studies for name in _split_settings(runs)[0]}
    if max(runs["strategy"].nunique() for runs in studies) > 1:
        kept.add("strategy")
    together = pd.concat(studies, ignore_index=True)
    shared = [name for name in ("strategy", *settings(together)) if name not in kept]
    firsts = together[shared].iloc[[0] * len(together)].set_axis(together.index)
    return together.assign(**{name: firsts[name] for name in shared})


def levels(table: pd.DataFrame) -> list[str]:
    """Return the names of the index levels of a table of cells, which are the settings that tell
    the cells apart.

    Args:
        table: A table with named index levels.

    Returns:
        The names, outermost first.
    """
    return [str(name) for name in table.index.names]


def varying(table: pd.DataFrame) -> list[str]:
    """Return the names of a table's index levels that have more than one value.

    Args:
        table: A table with named index levels.

    Returns:
        The names, outermost first.
    """
    return [name for name in levels(table) if table.index.get_level_values(name).nunique() > 1]


@cached
def _split_settings(runs: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the settings that tell cells apart, and the `entangled` ones."""
    filled = _filled(runs)
    kept: list[str] = []
    mixed: list[str] = []
    # Placement and settings of a policy come last, because they follow from other settings.
    last = columns.names(columns.RUNS, "placement")
    names = settings(filled)
    names.sort(key=lambda name: (name in last, _of_exchange(name) and "." in name))

    def follows(name: str, others: list[str]) -> bool:
        """Return True if the values of the others determine that of a column in every row."""
        return bool(filled.groupby(others)[name].nunique().max() <= 1)

    for name in names:
        others = [*kept, "strategy"]
        if filled[name].nunique() < 2 or follows(name, others):
            continue
        may_follow = columns.role(name) in ("minor", "placement")
        is_mixed = may_follow and follows(name, [*others, "num_workers", "local_batch"])
        (mixed if is_mixed else kept).append(name)
    return kept, mixed


def _of_exchange(column: str) -> bool:
    return column.partition(".")[0] in _EXCHANGE


def _part_of_name(column: str, value: object, tells_apart: bool) -> str:
    """Return the part that one setting adds to the short name of a run, such as `topk`; "" if the
    name leaves the setting out. The column `variant` of a table holds these short names.

    Words stand alone; numbers, except a density, follow their setting's name. If `tells_apart` is
    False, because the setting follows from the strategy or others, numbers and flags are left out,
    and so are the words of `_UNSAID`. Other words are still shown: `allreduce ring` beside
    `horovod`.
    """
    text, name = setting_text(value).replace(", ", ","), column.rpartition(".")[2]
    if pd.isna(value) or text in ("", "none", "False"):  # type: ignore[call-overload]
        return ""
    if text[0].isalpha() or (text.isalnum() and not text.isdecimal()):  # such as 1f1b
        is_flag = text == "True"
        is_shown = tells_apart or not (is_flag or text in _UNSAID)
        return (name if is_flag else text) if is_shown else ""
    return (text if name == "density" else f"{name} {text}") if tells_apart else ""


def settings(runs: pd.DataFrame) -> list[str]:
    """Return the names of the columns of the table of runs that may tell cells apart, besides
    strategy, worker count and batch size. They are settings of the user and facts that a run
    recorded, such as its device.

    Args:
        runs: The table `Study.runs`.

    Returns:
        The names of the columns.
    """
    return [str(name) for name in runs if columns.role(str(name)) not in ("promised", "other")]


@cached
def _filled(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of runs with missing settings filled in: facts such as the device from other
    runs if these agree, else `unknown` or `none`.

    A value that a run never found out, such as its device, is taken from the other runs if all of
    them found the same one; else its text is `unknown`. Missing threads are first taken from a run
    with equal placement and workers. The text is `none` for a setting that was not given.
    """
    filled = chosen(runs).copy()
    if "threads" in runs:
        # On GPUs, the threads of the CPU compute nothing.
        is_on_gpus = ~_is_missing(runs["device"]) & (runs["device"] != "cpu")
        filled["threads"] = runs["threads"].mask(is_on_gpus)
        # Runs with equal placement and workers are taken to have equal threads.
        alike = filled.groupby(["placement", "num_workers"], dropna=False)["threads"]
        threads = filled["threads"].fillna(alike.transform("first"))
        filled["threads"] = threads.mask(is_on_gpus)
    is_missing = _is_missing(filled[settings(filled)])
    for column in is_missing.columns[is_missing.any() & ~is_missing.all()]:
        values, is_known = filled[column].astype(object), ~is_missing[column]
        different = values[is_known].unique()
        if column in _FOUND_OUT and len(different) == 1:
            filled[column] = values.where(is_known, different[0])
        else:
            default = "unknown" if column in _FOUND_OUT else "none"
            filled[column] = values.map(setting_text).where(is_known, default)
    return filled
