"""Descriptions of the columns of a study's tables: name, type, heading, role, format and so on.

A table is a tuple of columns in the order of its CSV. Where a column means the same in several
tables, `_again` takes its description from another table. A new field of an epoch's record needs
one line here; the table, the CSV and its reader then have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import pandas as pd

from bsweep.analysis.numbers import number
from bsweep.core.words import plural

Type = Literal["text", "text_or_null", "count", "count_or_null", "number", "flag", "any"]
Role = Literal["promised", "context", "setting", "minor", "placement", "other"]


@dataclass(frozen=True)
class Column:
    """The description of one column of a study's tables: its name, type, heading, role and format.

    Args:
        name: The name in the CSV, which contains the unit if there is one.
        type: The type that its values are converted to; `any` leaves them as they are.
        heading: The heading in tables that people read; empty: the name in words.
        role: `promised` columns are in the tables of every version. Columns of all roles but
            `promised` and `other` are settings, which may tell cells apart. Cells that differ in a
            `context` column are no alternatives to each other. A `minor` or `placement` column does
            not tell cells apart if it changes only along with the batch size or the workers.
        digits: The format of a number; empty: the format of `number`. A format that ends in `%`
            prints no percent sign, because the heading has it.
        said: The template of the text of a value in a legend, in which `s` is a plural's ending.
            Empty: heading and value.
        source: Where the value of a run comes from: `start` (its start record), `meta` (its
            `meta.json`), or the name of a setting in the configuration. Empty: from elsewhere, such
            as from its summary.
        is_always: True if a table has the column even where nothing was measured.
    """

    name: str
    type: Type = "number"
    heading: str = ""
    _: KW_ONLY
    role: Role = "promised"
    digits: str = ""
    said: str = ""
    source: str = ""
    is_always: bool = True


def _again(table: Sequence[Column], *names: str) -> tuple[Column, ...]:
    """Return the descriptions of the named columns of `table` for use in another table, with the
    role `promised`. Such columns are in the tables of every version of bsweep.
    """
    said = {column.name: column for column in table}
    return tuple(replace(said[name], role="promised") for name in names)


def _rare(
    name: str, kind: Type = "number", heading: str = "", role: Role = "other", **more: Any
) -> Column:
    """Return the description of a column that a table has only where something was measured or set.
    The source of a setting is its name, unless `more` says another.
    """
    source = "" if role == "other" else name
    return Column(name, kind, heading, role=role, is_always=False, **{"source": source, **more})


RUNS = (
    Column("run_id", "text", "run"),
    Column("status", "text"),
    Column("strategy", "text", source="strategy.name"),
    Column("num_workers", "count", "workers", said="{value} worker{s}"),
    Column("local_batch", "count"),
    Column("global_batch", "count"),
    Column("seed", "count"),
    Column("epochs", "count"),
    Column("num_steps", "count_or_null"),
    Column("train_seconds", heading="time (s)"),
    Column("wall_seconds"),
    Column("images_per_second", heading="examples/s"),
    Column("train_loss"),
    Column("train_accuracy"),
    Column("test_loss"),
    Column("test_accuracy"),
    Column("sent_bytes", "count_or_null"),
    Column(
        "planned_epochs",
        "count_or_null",
        "epochs",
        role="context",
        source="epochs",
        said="{value} epoch{s}",
    ),
    Column("model", "text_or_null", role="context", source="model.name", said="{value}"),
    Column("stem", "text_or_null", role="context", source="model.stem", said="{value}"),
    _rare("model.weights_sha256", "text_or_null", "pretrained weights", "setting"),
    Column("data", "text_or_null", role="context", source="data.name", said="{value}"),
    Column("num_train", "count_or_null", "training examples", role="context", source="start"),
    Column("optimizer", "text_or_null", role="setting", source="optimizer.name", said="{value}"),
    Column(
        "lr",
        heading="base learning rate",
        role="minor",
        source="optimizer.lr",
        said="base learning rate: {value}",
    ),
    Column(
        "lr_rule", "text_or_null", "learning-rate rule", role="setting", source="optimizer.lr_rule"
    ),
    Column("accumulation_steps", "any", role="setting", source="accumulation_steps"),
    Column("device", "text", role="context", source="start", said="{value}"),
    Column("hardware", "text", role="context", source="meta", said="{value}"),
    _rare("torch", "text_or_null", role="context", source="meta", said="torch {value}"),
    _rare("gpu_software", "text_or_null", role="context", source="start", said="{value}"),
    Column("precision", "text", role="setting", source="start", said="{value}"),
    _rare("graph", "any", "CUDA graph", role="setting", source="start"),
    _rare("strategy.replicas", "any", "replicas", "setting"),
    _rare("strategy.schedule", "text_or_null", "pipeline schedule", "setting"),
    _rare("strategy.microbatches", "any", "micro-batches", "minor"),
    Column("compression", "text_or_null", role="setting", source="compression.name"),
    Column("allocation", "text_or_null", role="setting", source="allocation.name"),
    _rare("batching", "text_or_null", "batching", role="setting", source="batching.name"),
    Column("placement", "text_or_null", "where the workers ran", role="placement", said="{value}"),
    Column("network_interface", "text_or_null", role="placement"),
    Column("memory_limit", "text_or_null", role="placement"),
    Column("threads", "count_or_null", role="placement", source="start"),
    _rare("final_test_loss"),
    _rare("final_test_accuracy", heading="test accuracy, measured once"),
    Column("message", "text", role="other"),
    Column("warnings", "text", role="other"),
    Column("is_cifar10", "any", role="other"),
    Column("start_seconds", role="other", source="start"),
    Column("learning_rate", role="other", digits=".3g", source="start"),
    Column("local_batches", "text_or_null", role="other"),
    _rare("reached", "any", "target reached"),
    _rare("is_bound", "any", "at most"),
    _rare("seconds_to_target", heading="time to target (s)"),
    _rare("steps_to_target"),
    _rare("epochs_to_target"),
    _rare("examples_to_target"),
    _rare("energy_joules", heading="energy (J)"),
    _rare("branch_of", "text", "resumes from"),
    _rare("branch_steps"),
    _rare("branch_seconds"),
    Column("num_classes", "any", role="other"),
    Column("chance", role="other", source="start"),
    Column("num_test", "any", role="other"),
    _rare("num_parameters", "count_or_null", "parameters", source="start"),
    _rare("asked_precision", "text"),
    _rare("slowdown", "text", role="minor", source="launch.slowdown"),
)
EPOCHS = (
    *_again(RUNS, "run_id"),
    Column("epoch", "count"),
    *_again(
        RUNS,
        "num_steps",
        "train_seconds",
        "train_loss",
        "train_accuracy",
        "test_loss",
        "test_accuracy",
    ),
    *_again(RUNS, "images_per_second"),
    Column("step_seconds_p50"),
    Column("step_seconds_p95"),
    Column("exchange_seconds"),
    Column("wait_seconds", heading="waiting (s)"),
    *_again(RUNS, "sent_bytes", "learning_rate", "global_batch"),
    Column("exposed_exchange_seconds", heading="exchange not overlapped (s)", role="other"),
    Column("codec_seconds", heading="codec (s)", role="other"),
    _rare("tokens_per_second", heading="tokens/s"),
    _rare("received_bytes", "count_or_null"),
    _rare("exchange_steps", "count_or_null"),
    _rare("peak_memory_bytes", "count_or_null"),
    _rare("evaluation_peak_memory_bytes", "count_or_null"),
    _rare("bubble", heading="idle share"),
    _rare("textbook_bubble", heading="idle share by formula"),
    _rare("skipped_steps", "count_or_null"),
    _rare("checkpoint_seconds"),
    _rare("energy_joules", heading="energy (J)"),
)
EVALUATIONS = (
    *_again(EPOCHS, "run_id", "epoch"),
    Column("num_steps", "count_or_null"),
    Column("num_examples", "count_or_null", "examples"),
    Column("epochs_done"),
    *_again(EPOCHS, "train_seconds", "test_loss", "test_accuracy"),
)
NOISE_SCALES = (
    *_again(EVALUATIONS, "run_id", "epoch", "num_steps", "epochs_done", "num_examples"),
    Column("gradient_square", heading="squared norm of the gradient"),
    Column("variance", heading="variance of an example's gradient"),
    Column("num_gradients", "count_or_null"),
    Column("gradient_batch", heading="examples of a gradient"),
)
BATCHES = (
    *_again(EVALUATIONS, "run_id", "epochs_done"),
    *_again(EPOCHS, "global_batch", "learning_rate"),
)
EVENTS = (
    *_again(RUNS, "run_id"),
    Column("since_start_seconds", heading="after (s)"),
    Column("event", "text"),
    *_again(RUNS, "message"),
)
SERVERS = (
    *_again(RUNS, "run_id"),
    Column("server", "count"),
    Column("share"),
    Column("received_bytes", "count"),
    Column("sent_bytes", "count"),
    Column("pushes", "count"),
    Column("max_lead", "count", "largest lead (clocks)", digits="g"),
    Column("busy_seconds"),
    Column("queue_seconds", heading="queue of a push (s)"),
    Column("load"),
)
WAITS = (*_again(RUNS, "run_id"), Column("worker", "count"), *_again(EPOCHS, "wait_seconds"))
MEMORY = (
    *_again(WAITS, "run_id", "worker"),
    Column("parameter_bytes", "count_or_null"),
    Column("gradient_bytes", "count_or_null"),
    Column("optimizer_bytes", "count_or_null", "optimizer state"),
    Column("peak_bytes", "count_or_null"),
)
STAGES = (
    *_again(WAITS, "run_id", "worker"),
    *_again(SERVERS, "busy_seconds"),
    Column("idle_seconds", heading="total (s)"),
    *_again(EPOCHS, "exchange_seconds"),
    Column("peak_activation_bytes", "count_or_null", "activations"),
    Column("weight_versions", "count_or_null", "versions of weights"),
    Column("stashed_bytes", "count_or_null", "older weights"),
    Column("staleness", heading="updates that weights lacked"),
)
ROUNDS = (
    *_again(EPOCHS, "run_id", "epoch"),
    Column("round", "count"),
    *_again(WAITS, "worker"),
    *_again(RUNS, "local_batch"),
    Column("local_steps", "count"),
    Column("began_seconds"),
    Column("compute_seconds", heading="computing (s)"),
    *_again(STAGES, "idle_seconds"),
    *_again(EPOCHS, "exchange_seconds", "train_loss"),
    Column("num_examples", "count", "examples"),
    Column("is_whole", "flag"),
)
TABLES = {  # the tables of a study
    "runs": RUNS,
    "epochs": EPOCHS,
    "evaluations": EVALUATIONS,
    "noise_scales": NOISE_SCALES,
    "batches": BATCHES,
    "events": EVENTS,
    "servers": SERVERS,
    "waits": WAITS,
    "memory": MEMORY,
    "stages": STAGES,
    "rounds": ROUNDS,
}
COMPUTED = (  # the columns that the analysis computes from those of `TABLES`
    Column("best_median", heading="best median of three test accuracies"),
    Column("other_statuses", "text", "not completed"),
    Column("smaller_batch", heading="against batch"),
    Column("base_workers", heading="against workers"),
    Column("speedup", heading="speed-up"),
    Column("fixed_seconds", heading="a (s)"),
    Column("batch_seconds", heading="c (s)"),
    Column("r_squared", heading="R²"),
    Column("misses", heading="misses (%)"),
    Column("num_batches", heading="batch sizes"),
    Column("step_seconds", heading="fixed cost of a step (s)"),
    Column("image_seconds", heading="time per example of one worker (s)"),
    Column("total_seconds", heading="total (s)"),
    Column("sent_megabytes", heading="sent by a worker (MB)"),
    Column("sent_of_ring", heading="sent, of a ring's bytes"),
    Column("num_servers", heading="servers", digits="g"),
    Column("largest_share"),
    Column("busiest_load", heading="load of the busiest"),
    Column("elapsed_seconds", heading="training time (s)"),
    Column("rounds", digits="g"),
    Column("idle_seconds_per_round", heading="total of a round (s)"),
    Column("change", heading="change (%)"),
    Column("idle_share", heading="idle (% of time)", digits=".1%"),
    Column("exchange_share", heading="exchange (% of time)", digits=".1%"),
    Column("examples_per_second", heading="examples/s"),
)
_SAID = {
    column.name: column
    for column in (
        *COMPUTED,
        *ROUNDS,
        *STAGES,
        *MEMORY,
        *WAITS,
        *SERVERS,
        *NOISE_SCALES,
        *EVALUATIONS,
        *EPOCHS,
        *RUNS,
    )
}

_ROLES = {column.name: column.role for column in RUNS}
_CASTS: dict[Type, Callable[[pd.Series[Any]], pd.Series[Any]]] = {
    "text": lambda values: values.astype(object).where(values.notna(), "").astype(str),
    "text_or_null": lambda values: values,
    "count": lambda values: values.astype("int64"),
    "count_or_null": lambda values: pd.to_numeric(values).astype("Int64"),
    "number": lambda values: pd.to_numeric(values).astype(float),
    "flag": lambda values: values.astype(bool),
    "any": lambda values: values,
}


def names(table: Sequence[Column], *roles: Role) -> list[str]:
    """Return the names of a table's columns that have one of the given roles, or of all its columns
    if no role is given.
    """
    return [column.name for column in table if not roles or column.role in roles]


def role(name: str) -> Role:
    """Return the role of a column in the table of runs, such as `setting` or `other`. The role says
    whether the column is a setting that may tell cells apart.

    Most settings, such as `optimizer.momentum`, have no line in this module; their role is `minor`.
    """
    return _ROLES.get(name, "minor")


def of(name: str) -> Column:
    """Return the description of the column with the given name; a column that is not described in
    this module gets the role `minor`.
    """
    return _SAID.get(name) or Column(name, "any", role="minor")


def as_table(rows: pd.DataFrame, table: Sequence[Column]) -> pd.DataFrame:
    """Return rows as a table whose described columns have the types that `table` says, and whose
    first columns are those that every such table has (`is_always`).

    Of these, columns that the rows lack are added with missing values. Counts have an integer type,
    a missing count is NA, another missing number is NaN, and a missing text is empty.
    """
    always = [column.name for column in table if column.is_always]
    typed = rows.reindex(columns=list(dict.fromkeys([*always, *rows.columns])))
    for column in table:
        if column.name in typed:
            typed[column.name] = _CASTS[column.type](typed[column.name])
    return typed


def heading(name: str) -> str:
    """Return the heading of a column in words, given the column's name, with the unit if the
    heading has one.
    """
    if name.endswith("_ratio"):
        return heading(name.removesuffix("_ratio")).removesuffix(" (s)")
    return of(name).heading or name.rpartition(".")[2].replace("_", " ")


def said(name: str, text: str) -> str:
    """Return a setting in the words of a figure's legend, such as `4 workers`, given its column's
    name and its value as text.
    """
    template = of(name).said
    return template.format(value=text, s=plural(text)) if template else f"{heading(name)} {text}"


_USERS_OWN = ("target", "root", "path", "tokenizer", "architecture", "options")


def spoken(name: str, text: str) -> str:
    """Return a setting's value as a text for readers, such as `batch by flops` for
    `batch_by_flops`. `name` is the setting's column.

    Blanks replace underscores. Names from users or from other libraries stay as they are: files,
    functions, folders and architectures.
    """
    if not set(name.split(".")).isdisjoint(_USERS_OWN):
        return text
    words = text.split(" ")
    return " ".join(one if re.search(r"[.:/]", one) else one.replace("_", " ") for one in words)


def number_text(name: str, value: float) -> str:
    """Return a number as text in the format of its column; `-` for NaN, which marks a number that
    was not measured.
    """
    digits = of(name).digits
    return number(value) if value != value or not digits else f"{value:{digits}}".removesuffix("%")
