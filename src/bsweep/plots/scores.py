"""The figure of final accuracy and loss by batch size, beside those of a published study if they
are comparable.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.study.naming import length_of
from bsweep.plots.curves import handle
from bsweep.plots.epochs import PARTS, examples, part_name
from bsweep.plots.lines import PUBLISHED, SIZES, lines, measured_cells, size_of
from bsweep.plots.scales import has_learned
from bsweep.plots.times import published_cells


def final_scores(study: Study) -> pd.DataFrame:
    """Return the table of a study's cells with their final losses and accuracies.

    It has no rows if no loss or accuracy of a completed run is known, or if no cell has learned.
    """
    cells = measured_cells(study)
    scores = [f"{part}_{quantity}" for part in PARTS for quantity in ("accuracy", "loss")]
    is_known = cells[scores].notna().any(axis=None)
    return cells if is_known and has_learned(study) else cells[:0]


def accuracy_and_loss_by_batch(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw the final accuracy and loss, in training and on the test set (or the validation
    examples), by batch size, or by workers if the study has one batch size.

    Published training values are added if they are comparable.
    """
    along, trained = size_of(cells), length_of(study)
    labels = {
        f"{part}_{quantity}": f"{part_name(study, part)} {quantity}"
        for quantity in ("accuracy", "loss")
        for part in PARTS
        if cells[f"{part}_{quantity}"].notna().any()
    }
    has_published = along == "local_batch" and analysis.comparable(study)
    published = published_cells()[["train_accuracy", "train_loss"]] if has_published else None
    drawn = lines(
        study, cells, along, labels, "num_workers", height=2.1, is_alike=True, published=published
    )
    has_accuracy = any(metric.endswith("accuracy") for metric in labels)
    quantities, axes = ("Accuracy and loss", "losses on") if has_accuracy else ("Loss", "on")
    stars = handle(PUBLISHED, "published, 4 workers, 50 epochs, n = 1 (training only)")
    return drawn.finish(
        f"{quantities}{f' after {trained}' if trained else ''} "
        f"{f'by {SIZES[along]}' if along else 'of each cell'}, in training"
        f"{f' and on {examples(study)}' if 'test_loss' in labels else ''}, {axes} separate "
        "logarithmic axes.",
        more="The published training accuracy and loss after 50 epochs are grey." * has_published,
        entries=[stars] if has_published else [],
    )
