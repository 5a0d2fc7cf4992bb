"""Columns of a study's tables that are computed from other columns or tables, such as the local
batches or the energy of a run.

Some, such as the learning rate, can also be computed for published runs and for runs that have not
begun.
"""

from __future__ import annotations

from collections import Counter

import pandas as pd

from bsweep.analysis.study import columns
from bsweep.config.launch import hosts_of_ranks
from bsweep.config.optimizers import scaled_rate
from bsweep.core.words import counted

ONE_NODE = "1 node"
"""The `placement` of workers on one host."""

_CIFAR10_TEST, _DIGITS_TEST = 10_000, 360
_BYTES = 256  # classes of a text without a tokenizer


def with_derived(runs: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Fill in the columns of the table of runs that are computed, such as `learning_rate`, and
    return the table. They are computed from its other columns or from the table of rounds. `Study`
    describes these columns.
    """
    filled = runs.assign(local_batches=_local_batches(runs, rounds), num_classes=_num_classes(runs))
    in_rounds, last = have_round_limits(runs), rounds.drop_duplicates("run_id", keep="last")
    losses = runs["run_id"].map(last.set_index("run_id")["train_loss"])
    has_rounds = in_rounds & runs["run_id"].isin(last["run_id"])
    rates = _numbers(runs, "learning_rate").fillna(_learning_rate(filled))
    return filled.assign(
        train_loss=runs["train_loss"].mask(has_rounds, losses),
        train_accuracy=runs["train_accuracy"].mask(in_rounds),
        learning_rate=rates.astype(float),
        chance=_numbers(runs, "chance").fillna(1 / filled["num_classes"]),
        num_test=_num_test(runs),
    )


def with_ends_of_epochs(evaluations: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of evaluations with an added row for the end of each epoch of the runs that
    recorded no evaluations.

    An added row has the steps, examples and seconds that the run had trained until the end of the
    epoch.
    """
    others = epochs[~epochs["run_id"].isin(evaluations["run_id"])]
    examples = trained_examples(others).round()
    amounts = others[["num_steps", "train_seconds"]].assign(num_examples=examples).astype(float)
    ends = others[["run_id", "epoch", "test_loss", "test_accuracy"]].assign(
        epochs_done=others["epoch"].astype(float)
    )
    ends = ends.join(amounts.groupby(others["run_id"]).cumsum())
    rows = pd.concat([table for table in (evaluations, ends) if len(table)] or [evaluations])
    return columns.as_table(
        rows.sort_values("run_id", kind="stable", ignore_index=True),
        columns.TABLES["evaluations"],
    )


def trained_examples(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the examples on which runs or epochs trained, from their speeds and their seconds."""
    return rows["images_per_second"] * rows["train_seconds"]


def with_energy(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with an added column: the energy of all epochs of each run, in joules.

    The energy is NaN for a run with an epoch that does not record it. The runs are unchanged if no
    epoch records it, or if they have the column already.
    """
    energies = epochs.get("energy_joules", pd.Series(dtype=float)).astype(float)
    if "energy_joules" in runs or energies.isna().all():
        return runs
    sums = energies.groupby(epochs["run_id"]).agg(lambda values: values.sum(skipna=False))
    return runs.assign(energy_joules=runs["run_id"].map(sums))


def have_round_limits(runs: pd.DataFrame) -> pd.Series[bool]:
    """Return for each run True if it has a limit of its strategy (`max_rounds` or `max_seconds`),
    which may end the run after a round within an epoch.

    The last epoch of such a run may be a fragment.
    """
    limits = [name for name in ("strategy.max_rounds", "strategy.max_seconds") if name in runs]
    return runs[limits].notna().any(axis="columns")


def continues(runs: pd.DataFrame) -> pd.Series[bool]:
    """Return for each run True if it began at a checkpoint of another run, whether with the same
    global batch or another one.
    """
    return runs.get("branch_of", pd.Series("", runs.index)).fillna("") != ""


def placement(hosts: str | None, num_workers: int, num_servers: int) -> str:
    """Return a text such as `2 nodes`, which counts the hosts on which a run's workers and its
    parameter servers are.

    The text is `1 node`; `2 nodes`, each with equally many workers; `2 nodes and 1 of servers`; or,
    if nodes are uneven or hold workers and servers, a text such as `nodes of 3, 1 + 2 servers`.
    Names of hosts are left out because they change no measured number.

    Args:
        hosts: The hosts and their slots, such as `h1:4,h2:4`. None or an empty text: this machine.
        num_workers: The number of workers, which have the first ranks.
        num_servers: The number of processes of parameter servers, which have the ranks after them.

    Returns:
        The placement in words.
    """
    ranks = hosts_of_ranks(hosts, num_workers, num_servers) if hosts else []
    workers, servers = Counter(ranks[:num_workers]), Counter(ranks[num_workers:])
    used = list(dict.fromkeys(ranks))
    if len(used) < 2:
        return ONE_NODE
    counts = [workers[host] for host in used if workers[host]]
    if len(set(counts)) == 1 and not any(workers[host] and servers[host] for host in used):
        others = len(used) - len(counts)
        return counted(len(counts), "node") + (f" and {others} of servers" if others else "")
    parts = [
        f"{workers[host]}" + (f" + {servers[host]} servers" if servers[host] else "")
        for host in used
    ]
    return f"nodes of {', '.join(parts)}"


def _column(runs: pd.DataFrame, name: str) -> pd.Series:
    return runs.get(name, pd.Series(None, index=runs.index, dtype=object))


def _numbers(runs: pd.DataFrame, name: str) -> pd.Series[float]:
    return pd.to_numeric(_column(runs, name))


def _local_batches(runs: pd.DataFrame, rounds: pd.DataFrame) -> pd.Series[str]:
    """Return for each run the local batches of its workers as text, such as `8/8/32/16`; empty
    where all workers have the configured `local_batch`.

    The list is the most frequent one of the run's recorded rounds, or the given one if no rounds
    were recorded.
    """
    texts = _column(runs, "allocation.local_batches").astype(object).fillna("").astype(str)
    shown = texts.str.replace(", ", "/")
    if len(rounds):
        passes = runs.set_index("run_id")["accumulation_steps"].reindex(rounds["run_id"])
        batches = (rounds["local_batch"] // passes.fillna(1).to_numpy(int)).astype(str)
        lists = batches.groupby([rounds["run_id"], rounds["round"]]).agg("/".join)
        commonest = lists.groupby(level="run_id").agg(lambda texts: texts.mode()[0])
        shown = runs["run_id"].map(commonest).fillna(shown)
    pairs = zip(shown, runs["local_batch"], strict=True)
    return pd.Series(
        ["" if set(text.split("/")) <= {str(even)} else text for text, even in pairs], runs.index
    )


def _num_classes(runs: pd.DataFrame) -> pd.Series:
    """Return for each run the number of classes of its data set (256 for text that is read as
    bytes), or NaN where the number is not known.
    """
    data, tokenizer = _column(runs, "data"), _column(runs, "data.tokenizer")
    classes = _numbers(runs, "num_classes").fillna(_numbers(runs, "data.num_classes"))
    classes = classes.mask(classes.isna() & (runs["is_cifar10"].eq(True) | (data == "digits")), 10)
    is_bytes = (data == "text") & (tokenizer.isna() | (tokenizer == ""))
    return classes.mask(classes.isna() & is_bytes, _BYTES).astype(float)


def _num_test(runs: pd.DataFrame) -> pd.Series:
    """Return for each run the number of test examples (for text, of tokens) over which its test
    accuracy is a mean; NaN where unknown.
    """
    answers = _numbers(runs, "num_test").fillna(_numbers(runs, "data.num_test"))
    answers = answers.mask(answers.isna() & runs["is_cifar10"].eq(True), _CIFAR10_TEST)
    is_digits = _column(runs, "data") == "digits"
    return answers.mask(answers.isna() & is_digits, _DIGITS_TEST).astype(float)


def _learning_rate(runs: pd.DataFrame) -> pd.Series[float]:
    """Return for each run the learning rate that its learning-rate rule gives, computed from its
    settings.

    It stands in for a rate that was not recorded: in published runs, runs of early versions and
    runs that have not begun. In early versions the rate of local SGD followed the global batch, so
    the card, which now divides this by the workers, is not asked. The rate is that of the first
    worker, and NaN where a part of the rule is not known.
    """
    first = pd.to_numeric(runs["local_batches"].str.partition("/")[0], errors="coerce")
    batches = first.fillna(runs["local_batch"]) * _numbers(runs, "accumulation_steps").fillna(1)
    rules = runs["lr_rule"].astype(object).fillna("fixed")
    references = _numbers(runs, "optimizer.reference_batch").astype(float)
    examples = batches.where(runs["strategy"] == "diloco", runs["global_batch"]).astype(float)
    settings = zip(runs["lr"], rules, references, examples, runs["num_workers"], strict=True)
    rates = [
        scaled_rate(lr, rule, reference_batch=reference, rate_batch=size, num_workers=workers)
        for lr, rule, reference, size, workers in settings
    ]
    return pd.Series(rates, runs.index, dtype=float)
