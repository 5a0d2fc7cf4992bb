"""The figure of global batch, noise scale and learning rate by epoch, for runs whose batch size
changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bsweep.analysis import Study
from bsweep.analysis.cell_tables.keys import keyed
from bsweep.analysis.study.naming import words
from bsweep.plots import drawing
from bsweep.plots.curves import LINES, MAX_LINES, handle, looks

_FORGETS = 0.1  # weight of a new record in the running mean, as in training
_PARTS = 40  # parts of the epochs, in each of which a cell has one noise scale


def batches(study: Study) -> pd.DataFrame:
    """Return the table of recorded steps of the runs whose batch size changed, with the noise scale
    that was known at each step.

    The columns also tell the runs' cells apart.
    """
    if study.batches.empty:
        return study.batches
    noise = dict(iter(noise_scales(study).groupby("run_id")))
    none = pd.DataFrame({"epochs_done": [0.0], "noise_scale": [math.nan]})
    parts = [
        pd.merge_asof(
            steps.sort_values("epochs_done"),
            noise.get(run_id, none)[["epochs_done", "noise_scale"]],
            on="epochs_done",
        )
        for run_id, steps in study.batches.groupby("run_id", sort=False)
    ]
    cells = keyed(study.runs)[["run_id", "variant", "num_workers", "local_batch"]]
    return pd.concat(parts, ignore_index=True).merge(cells, on="run_id")


def noise_scales(study: Study) -> pd.DataFrame:
    """Return for each record of a run's noise scale the ratio of running means; NaN where one of
    them is not positive.

    Columns: `run_id`, `num_steps`, `epochs_done`, `noise_scale` (in examples).
    """
    found = study.noise_scales.sort_values(["run_id", "epochs_done"], ignore_index=True)
    means = found.groupby("run_id")[["variance", "gradient_square"]]
    parts = means.ewm(alpha=_FORGETS).mean().reset_index("run_id", drop=True)
    scale = parts["variance"] / parts["gradient_square"]
    found["noise_scale"] = scale.where((parts > 0).all(axis="columns")).astype(float)
    return found[["run_id", "num_steps", "epochs_done", "noise_scale"]]


def batch_by_epoch(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the global batch, the gradient noise scale (if measured) and the learning rate over the
    epochs, for at most eight cells.

    Global batch and learning rate have a line for each run. The noise scale scatters too much for
    that: it has a line for each cell.
    """
    cells = list(table.groupby(["variant", "num_workers", "local_batch"], sort=False))
    drawn = _looks(study, [str(variant) for (variant, _, _), _ in cells[:MAX_LINES]])
    has_noise = bool(table["noise_scale"].notna().any())
    names = {
        "global_batch": "Global batch",
        "noise_scale": "Noise scale",
        "learning_rate": "Learning rate",
    }
    shown = [name for name in names if has_noise or name != "noise_scale"]
    figure, grid = drawing.grid(len(shown), 1, 1.7)
    for (axes,), name in zip(grid, shown, strict=True):
        draw = _draw_noise if name == "noise_scale" else _draw_runs
        for look, (_, rows) in zip(drawn, cells, strict=False):
            draw(axes, rows, name, look)
        axes.set_ylabel(f"{names[name]}\n(examples)" if name != "learning_rate" else names[name])
        axes.set_xlim(0, 1.02 * table["epochs_done"].max())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.tick_params(labelbottom=name == shown[-1])
        if name != "learning_rate":
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    grid[-1][0].set_xlabel("Epoch")
    varies = {name: table[name].nunique() > 1 for name in ("num_workers", "local_batch")}
    handles = []
    for look, ((variant, num_workers, local_batch), _) in zip(drawn, cells, strict=False):
        label: str = words("variant", variant)
        label += f", {words('local_batch', local_batch)}" if varies["local_batch"] else ""
        label += f", {words('num_workers', num_workers)}" if varies["num_workers"] else ""
        handles.append(handle(look, label))
    drawing.legends(figure, (handles, ""))
    left_out = len(cells) - len(drawn)
    return drawing.captioned(
        figure,
        "Global batch and learning rate at sampled steps of runs whose batch changed, with one "
        "line for each run.",
        "The noise scale is the ratio of running means, left out where it is not positive. Its "
        f"line is the median over a cell's runs in each of {_PARTS} equal parts of the epochs."
        if has_noise
        else "",
        f"{left_out} more cells are not shown." if left_out > 0 else "",
    )


def _draw_runs(axes: Axes, rows: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    for _, run in rows.groupby("run_id"):
        axes.plot(
            run["epochs_done"],
            run[name],
            drawstyle="steps-pre",
            **{"linewidth": 1.1, "alpha": 0.85, **look},
        )


def _draw_noise(axes: Axes, rows: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    width = rows["epochs_done"].max() / _PARTS
    part = (rows["epochs_done"] / width).apply(math.ceil) - 0.5
    scales = rows[name].groupby(part).median()
    axes.plot(scales.index * width, scales, **look)


def _looks(study: Study, variants: Sequence[str]) -> list[dict[str, Any]]:
    """Return the look of each of these cells: the colour of its variant, and dashes that tell the
    cells of a variant apart.
    """
    known = looks(study)
    return [
        {
            "color": known["variant", words("variant", variant)]["color"],
            "linestyle": LINES[variants[:place].count(variant) % len(LINES)],
        }
        for place, variant in enumerate(variants)
    ]
