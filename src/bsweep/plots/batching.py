"""The figure of global batch, noise scale and learning rate by epoch, for runs whose batch size
changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep.analysis import Study
from bsweep.analysis.cell_tables.keys import keyed
from bsweep.plots import drawing, scales
from bsweep.plots.curves import MAX_LINES, Curve, curves, handles, readable
from bsweep.plots.lines import BATCH_LABEL, X_LABELS

_FORGETS = 0.1  # weight of a new record in the running mean, as in training
_PARTS = 40  # parts of the epochs, in each of which a cell has one noise scale
_LABELS = {
    "global_batch": "Global batch\n(examples)",
    "noise_scale": "Noise scale\n(examples)",
    "learning_rate": "Learning rate",
}


def batches(study: Study) -> pd.DataFrame:
    """Return the table of recorded steps of the runs whose batch size changed, with the noise scale
    that was known at each step.

    The columns also tell the runs' cells apart.
    """
    if study.batches.empty:
        return study.batches
    steps = study.batches.reset_index(names="place").sort_values("epochs_done", kind="stable")
    scale = noise_scales(study).drop(columns="num_steps").sort_values("epochs_done", kind="stable")
    table = pd.merge_asof(steps, scale, on="epochs_done", by="run_id").sort_values("place")
    cells = keyed(study.runs)[["run_id", "variant", "num_workers", "local_batch"]]
    return table.drop(columns="place").merge(cells, on="run_id")


def noise_scales(study: Study) -> pd.DataFrame:
    """Return for each record of a run's noise scale the ratio of running means; NaN where one of
    them is not positive.

    Columns: `run_id`, `num_steps`, `epochs_done`, `noise_scale` (in examples).
    """
    records = study.noise_scales.sort_values(["run_id", "epochs_done"], ignore_index=True)
    groups = records.groupby("run_id")[["variance", "gradient_square"]]
    means = groups.ewm(alpha=_FORGETS).mean().reset_index("run_id", drop=True)
    scale = means["variance"] / means["gradient_square"]
    records["noise_scale"] = scale.where((means > 0).all(axis="columns")).astype(float)
    return records[["run_id", "num_steps", "epochs_done", "noise_scale"]]


def batch_by_epoch(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the global batch, the gradient noise scale (if measured) and the learning rate over the
    epochs, for at most eight cells.

    Global batch and learning rate have a line for each run. The noise scale scatters too much for
    that: it has a line for each cell.
    """
    levels = ["variant", "num_workers", "local_batch", "epochs_done"]
    every = curves(study, readable(study, table.set_index(levels)), "epochs_done", "variant")
    cells = [replace(curve, look={**curve.look, "marker": ""}) for curve in every[:MAX_LINES]]
    has_noise = bool(table["noise_scale"].notna().any())
    labels = {name: _LABELS[name] for name in _LABELS if has_noise or name != "noise_scale"}
    figure, grid = drawing.grid(len(labels), 1, 1.7)
    for (axes,), (name, label) in zip(grid, labels.items(), strict=True):
        for curve in cells:
            (_draw_noise if name == "noise_scale" else _draw_runs)(axes, curve, name)
        axes.set(ylabel=label, xlim=(0, 1.02 * table["epochs_done"].max()))
        scales.epoch_axis(axes)
        axes.tick_params(labelbottom=axes is grid[-1][0])
        if name != "learning_rate":
            scales.doublings_axis(axes)
    grid[-1][0].set_xlabel(X_LABELS["epoch"])
    is_by_batch = cells[0].colored_by == "local_batch"
    drawing.add_legend(figure, handles(cells), BATCH_LABEL if is_by_batch else "")
    left_out = len(every) - len(cells)
    return drawing.captioned(
        figure,
        "Global batch and learning rate at sampled steps of runs whose batch changed, with one "
        "line for each run.",
        "The noise scale is the ratio of running means, left out where it is not positive. Its "
        f"line is the median over a cell's runs in each of {_PARTS} equal parts of the epochs."
        if has_noise
        else "",
        f"{left_out} more cells are not shown." if left_out else "",
    )


def _draw_runs(axes: Axes, curve: Curve, name: str) -> None:
    steps: dict[str, Any] = {"drawstyle": "steps-pre", "linewidth": 1.1, "alpha": 0.85}
    for _, run in curve.cells.groupby("run_id"):
        axes.plot(run[name], **steps, **curve.look)


def _draw_noise(axes: Axes, curve: Curve, name: str) -> None:
    width = curve.cells.index.max() / _PARTS
    scale = curve.cells[name].groupby(np.ceil(curve.cells.index / width) - 0.5).median()
    axes.plot(scale.index * width, scale, **curve.look)
