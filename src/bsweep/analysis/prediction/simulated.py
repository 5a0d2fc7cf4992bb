"""Step times of cells on more workers than were timed, from a simulation in place of the formula.

What a worker computes comes from the fit; how much longer a step takes because of its exchange, and
of slower workers, comes from the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bsweep.analysis.prediction.forecast import Key, grid
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.selection import Observed
from bsweep.analysis.prediction.step_time import Cell, StepTimeFit
from bsweep.analysis.simulation import Constants, links_of
from bsweep.analysis.simulation.constants import NUM_DRAWS, of_study
from bsweep.analysis.simulation.network import Network
from bsweep.analysis.simulation.strategies import Case, Outcome, outcome
from bsweep.analysis.simulation.words import Way, ways_of

_NUM_STEPS = 2 * NUM_DRAWS


def with_simulated(
    step_time: StepTimeFit, seen: Observed, of: Sequence[Key], network: str,
    where: Mapping[str, str] | None,
) -> StepTimeFit:  # fmt: skip
    """Return a fit of step times that takes cells on more workers than were timed from a
    simulation.

    Args:
        step_time: The fit.
        seen: The runs, from whose records the constants of the simulation come, too.
        of: The cells of the grid.
        network: The links between workers, in words.
        where: Columns of the study's runs, and the value to select in each.

    Raises:
        ValueError: If the study has no constants for a simulation, or a word is unknown.
    """
    constants = of_study(seen.study, where)
    links = links_of(constants, network, seen.study.name)
    ways = {name: _way(seen.of_way(name)) for name in seen.ways}
    found = {}
    for batch, workers, passes, name in of:
        timed = [one for one in step_time.passed if one.form.strategy in ("", name)]
        cell = seen.ways[name].cell(batch, workers, passes)
        if timed and workers > max(one.num_workers for one in timed):
            local = seen.ways[name].local_batch(batch, workers, passes)
            found[cell] = _log_seconds(
                step_time, cell, _stretch(constants, links, ways[name], workers, local, passes)
            )
    return replace(step_time, simulated=found)


def larger_grid(seen: Observed, workers: Sequence[int]) -> list[Key]:
    """Return cells of the worker counts, with the batch sizes of the runs and their doublings up to
    the largest local batch on all workers.
    """
    batches = {int(batch) for batch in seen.runs["global_batch"]}
    batch, most = min(batches), seen.runs["local_batch"].max() * max(workers)
    while batch <= most:
        batches.add(batch)
        batch *= 2
    return grid(seen, sorted(batches), sorted(set(workers)))


def _way(of: Observed) -> Way:
    """Return the way of the runs of one way of sharing the model, for a simulation."""
    run = of.runs.iloc[0]
    codec = str(run["compression"])
    text = str(run["strategy"]) + f":compression={codec}" * (codec not in ("none", "", "nan"))
    return ways_of(text, of.runs)[0]


def _stretch(
    constants: Constants, links: Network, way: Way, workers: int, local: float, passes: int
) -> Array:
    """Return by what a simulated step is longer than a worker's computing, for each draw of the
    constants.
    """
    case = Case(constants, links, way, workers, local, _NUM_STEPS, passes=passes)
    steps: Outcome = outcome(way.card, case)
    blocks = np.array_split(steps.step_seconds / steps.mean_seconds, NUM_DRAWS)
    return np.sort([block.mean() for block in blocks])


def _log_seconds(step_time: StepTimeFit, cell: Cell, stretch: Array) -> Array:
    """Return draws of the logarithm of a cell's seconds: those of the fit for a worker alone,
    without a pipeline's bubble, times a stretch of the simulation, drawn between the sorted ones.
    """
    alone = step_time.log_seconds(
        cell._replace(num_workers=1, form=cell.form._replace(sent_bytes=0.0, busy=1.0))
    )
    rng = np.random.default_rng([step_time.seed, 5, cell.num_workers, round(cell.local_batch)])
    places = rng.uniform(0, len(stretch) - 1, len(alone))
    return np.asarray(alone + np.log(np.interp(places, np.arange(len(stretch)), stretch)))
