"""The tool bsweep: it measures with which batch size, worker count and gradient exchange a model
trains fastest.

    study = bsweep.load("results/quickstart")    # study.runs and study.epochs are DataFrames
    bsweep.analysis.cells(study.runs)            # a DataFrame: means over the seeds of each cell
    bsweep.plots.accuracy_by_epoch(study)        # a matplotlib Figure
    bsweep.report.write("results/quickstart")    # writes tables, figures and one HTML page
    bsweep.predict(study, target_accuracy=0.9)   # the predicted best batch size and worker count
    bsweep.simulate(study, network="25gbit,10us")    # steps on more workers than were measured
    bsweep.explore(study)                        # the interactive page, within a notebook
    bsweep.compare("results/a", "results/b")     # what differs, and which is faster in each cell
    bsweep.load_model("results/mine/RUN_ID")     # the trained model of a run with keep_weights=true
    bsweep.join()                                # the point that `bsweep run program=own` started
    bsweep.NoiseScale(model)                     # the gradient noise scale of your training loop

`predict` needs runs of only some cells of a grid.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bsweep import analysis, plots, report
    from bsweep.analysis import compare, load, predict, simulate
    from bsweep.external.client import join
    from bsweep.measure.noise_monitor import NoiseScale
    from bsweep.models.final_file import load_model
    from bsweep.report.exploring import explore

    __version__: str

__all__ = [
    "NoiseScale",
    "__version__",
    "analysis",
    "compare",
    "explore",
    "join",
    "load",
    "load_model",
    "plots",
    "predict",
    "report",
    "simulate",
]

_MODULES = {
    "compare": "bsweep.analysis",
    "explore": "bsweep.report.exploring",
    "join": "bsweep.external.client",
    "load": "bsweep.analysis",
    "load_model": "bsweep.models.final_file",
    "predict": "bsweep.analysis",
    "simulate": "bsweep.analysis",
    "NoiseScale": "bsweep.measure.noise_monitor",
}


def __getattr__(name: str) -> Any:
    # Modules are imported on first use: the worker processes import this package too, and need
    # neither pandas nor matplotlib.
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("bsweep")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name in __all__:
        return importlib.import_module(f"bsweep.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]


def _show_in_notebooks() -> None:
    """Let IPython, if it runs, show studies and predictions with their interactive page."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    html = shell.display_formatter.formatters["text/html"]
    for module, name in (("study.frames", "Study"), ("conclusions.prediction_texts", "Prediction")):
        html.for_type_by_name(
            f"bsweep.analysis.{module}",
            name,
            lambda shown: importlib.import_module("bsweep.report.exploring").as_html(shown),
        )


_show_in_notebooks()
