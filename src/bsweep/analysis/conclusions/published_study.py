"""The numbers of the published study of batch sizes, and a comparison of another study with it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bsweep.analysis.cell_tables.keys import levels
from bsweep.analysis.study import columns
from bsweep.analysis.study.frames import Study, study_of
from bsweep.analysis.study.numbers import different_texts

# The model and data of the published study. Curves of others do not compare with its curves.
_MODEL = "resnet18"
_NUM_TRAIN = 50_000
_COMPARED = (
    "planned_epochs", "num_workers", "hardware", "optimizer", "lr", "lr_rule",
    "optimizer.warmup_epochs", "stem",
    "precision",
)  # fmt: skip


def published() -> Study:
    """Return the numbers of the published study of batch sizes, as a study without records of
    epochs.

    `results/published/README.md` names their source.

    Images per second are not published. They are derived as `epochs` x `num_train` (50,000) /
    `train_seconds`.

    Returns:
        The study, whose runs are all completed and have seed 0.
    """
    here = Path(__file__).resolve()
    # The folder in an installed wheel, then the one in a checkout.
    candidates = (here.parents[2] / "published", here.parents[4] / "results" / "published")
    folder = next(path for path in candidates if path.is_dir())
    runs = pd.read_csv(folder / "batch_size_horovod.csv")
    runs = runs.assign(
        status="completed",
        seed=0,
        planned_epochs=runs["epochs"],
        images_per_second=runs["epochs"] * runs["num_train"] / runs["train_seconds"],
        is_cifar10=True,
    )
    return study_of(folder, runs[["run_id"]], {"runs": runs})


def comparable(study: Study) -> bool:
    """Return True if all completed runs of a study trained ResNet-18 on all 50,000 training images
    of CIFAR-10, as those of the published study did.

    The published study itself does not count as comparable.

    Args:
        study: The study.

    Returns:
        False also if no run has completed.
    """
    runs = study.runs[study.runs["status"] == "completed"]
    same = (runs["model"] == _MODEL) & runs["is_cifar10"].eq(True)
    same &= runs["num_train"].eq(_NUM_TRAIN).fillna(False)
    is_itself = study.runs["run_id"].iloc[:1].isin(published().runs["run_id"]).any()
    return bool(len(runs) and same.all() and not is_itself)


def differences(study: Study) -> list[str]:
    """Return settings, among those in `_COMPARED`, in which the completed runs of a study differ
    from the published study of batch sizes, such as `epochs: 3 (published: 50)`.

    Args:
        study: The study.

    Returns:
        One text for each compared setting that differs; empty if none does.
    """
    tables = study.runs[study.runs["status"] == "completed"], published().runs
    lines = []
    for column in _COMPARED:
        ours, theirs = (", ".join(different_texts(runs.get(column, ()))) for runs in tables)
        if ours != theirs:
            given = f"{ours or 'not known'} (published: {theirs or 'not given'})"
            lines.append(f"{columns.heading(column)}: {given}")
    return lines


def relative_seconds(cells: pd.DataFrame, reference_batch: int) -> pd.Series[float]:
    """Return each cell's training time divided by the time at a reference batch, all other settings
    being equal.

    The ratio cancels what scales all times alike, such as the number of epochs. The result is
    indexed like `cells`, and NaN where the reference batch was not measured with the other settings
    of the cell.

    Args:
        cells: A table of `cells`.
        reference_batch: The local batch of the reference, in examples.

    Returns:
        The ratios, 1 at the reference batch.
    """
    series = levels(cells)[:-1]
    at_reference = cells["train_seconds"].where(
        cells.index.get_level_values("local_batch") == reference_batch
    )
    return cells["train_seconds"] / at_reference.groupby(level=series).transform("first")
