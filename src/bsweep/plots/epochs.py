"""Figures over the course of training: loss and accuracy by epoch, accuracy by time."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.study.naming import evaluated_part
from bsweep.plots.lines import lines
from bsweep.plots.scales import has_learned

PARTS = ("train", "test")
_MIN_EPOCHS = 3  # The tables have two points of a course.


def part_name(study: Study, part: str) -> str:
    """Return the word for a part of the data in a label, such as `Validation` for the examples of
    the evaluations.
    """
    return "Training" if part == "train" else evaluated_part(study.runs).capitalize()


def examples(study: Study) -> str:
    """Return in words on which examples a study was evaluated, such as `the test set`."""
    names = {"test": "the test set", "validation": "the validation examples"}
    return names.get(evaluated_part(study.runs), "the test set or the validation examples")


def accuracies_by_time(study: Study) -> pd.DataFrame:
    table = analysis.accuracy_by_time(study)
    return table if _is_long(table) and has_learned(study) else table[:0]


def accuracy_by_time(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the test accuracy (or that on the validation examples) over the seconds of training, a
    line for each cell.
    """
    name = f"{part_name(study, 'test')} accuracy"
    by_time = table.reset_index("epoch").set_index("elapsed_seconds", append=True)
    drawn = lines(study, by_time, "elapsed_seconds", {"test_accuracy": name}, "local_batch")
    return drawn.finish(
        f"{name} at the end of each epoch against the training time until then, without "
        "evaluations."
    )


def losses(study: Study) -> pd.DataFrame:
    return _courses(study, "loss")


def accuracies(study: Study) -> pd.DataFrame:
    table = _courses(study, "accuracy")
    return table if has_learned(study) else table[:0]


def _courses(study: Study, quantity: str) -> pd.DataFrame:
    """Return the table of the loss or the accuracy by epoch.

    It has no rows if there are fewer than three epochs or if nothing was measured.
    """
    table = analysis.epoch_curves(study)
    is_known = table[[f"{part}_{quantity}" for part in PARTS]].notna().any(axis=None)
    return table if is_known and _is_long(table) else table[:0]


def _is_long(table: pd.DataFrame) -> bool:
    return bool(table.index.get_level_values("epoch").nunique() >= _MIN_EPOCHS)


def loss_by_epoch(study: Study, table: pd.DataFrame) -> Figure:
    """Draw training and test loss by epoch, a line for each cell; variants with equal values share
    one.

    The figure shows what figure 2 of the published batch-size study shows.
    """
    return _by_epoch(study, table, "loss", "each on its own logarithmic axis")


def accuracy_by_epoch(study: Study, table: pd.DataFrame) -> Figure:
    """Draw training and test accuracy by epoch, a line for each cell; variants with equal values
    share one.

    The figure shows what figure 3 of the published batch-size study shows.
    """
    return _by_epoch(study, table, "accuracy", "")


def _by_epoch(study: Study, table: pd.DataFrame, quantity: str, axes: str) -> Figure:
    """Draw the loss or the accuracy by epoch, with a panel for training and one for the test set
    (or the validation examples) in each row; a part without values has no panels.
    """
    labels = {
        f"{part}_{quantity}": f"{part_name(study, part)} {quantity}"
        for part in PARTS
        if table[f"{part}_{quantity}"].notna().any()
    }
    drawn = lines(
        study, table, "epoch", labels, "local_batch", height=2.1, is_apart=True, is_alike=True
    )
    is_tested = f"test_{quantity}" in labels
    on_test = f", and on {examples(study)}" if is_tested else ""
    return drawn.finish(
        f"{quantity.capitalize()} by epoch: mean over an epoch's training examples{on_test}"
        f"{f', {axes}' if axes and is_tested else ''}."
    )
