"""The figure of global batch, noise scale and learning rate by epoch, for runs whose batch size
changed.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep.analysis import Study
from bsweep.analysis.cell_tables.keys import keyed
from bsweep.analysis.study.naming import settings_in_words, words
from bsweep.plots import drawing, scales
from bsweep.plots.curves import LINES, MAX_LINES, handle, looks

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
    every = list(table.groupby(["variant", "num_workers", "local_batch"], sort=False))
    cells = every[:MAX_LINES]
    variants = [str(variant) for (variant, _, _), _ in cells]
    # The colour is that of the variant; dashes tell the cells of a variant apart.
    drawn: list[dict[str, Any]] = [
        {
            "color": looks(study)["variant", words("variant", variant)]["color"],
            "linestyle": LINES[variants[:place].count(variant) % len(LINES)],
        }
        for place, variant in enumerate(variants)
    ]
    has_noise = bool(table["noise_scale"].notna().any())
    labels = {name: _LABELS[name] for name in _LABELS if has_noise or name != "noise_scale"}
    figure, grid = drawing.grid(len(labels), 1, 1.7)
    for (axes,), (name, label) in zip(grid, labels.items(), strict=True):
        for look, (_, rows) in zip(drawn, cells, strict=True):
            (_draw_noise if name == "noise_scale" else _draw_runs)(axes, rows, name, look)
        axes.set(ylabel=label, xlim=(0, 1.02 * table["epochs_done"].max()))
        scales.epoch_axis(axes)
        axes.tick_params(labelbottom=axes is grid[-1][0])
        if name != "learning_rate":
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    grid[-1][0].set_xlabel("Epoch")
    varying = [name for name in ("local_batch", "num_workers") if table[name].nunique() > 1]
    names = ["variant", *varying]
    handles = [
        handle(look, settings_in_words(names, [rows[name].iloc[0] for name in names]))
        for look, (_, rows) in zip(drawn, cells, strict=True)
    ]
    drawing.add_legend(figure, handles)
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


def _draw_runs(axes: Axes, rows: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    steps: dict[str, Any] = {"drawstyle": "steps-pre", "linewidth": 1.1, "alpha": 0.85}
    for _, run in rows.groupby("run_id"):
        axes.plot(run["epochs_done"], run[name], **steps, **look)


def _draw_noise(axes: Axes, rows: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    width = rows["epochs_done"].max() / _PARTS
    part = (rows["epochs_done"] / width).apply(math.ceil) - 0.5
    scale = rows[name].groupby(part).median()
    axes.plot(scale.index * width, scale, **look)
