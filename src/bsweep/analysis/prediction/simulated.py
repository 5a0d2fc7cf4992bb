"""Step times of cells on more workers than were timed, from a simulation in place of the formula.

What a worker computes comes from the fit; how much longer a step takes because of its exchange, and
of slower workers, comes from the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.forecast import Key, grid
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.selection import Observed
from bsweep.analysis.prediction.step_time import Cell, StepTimeFit
from bsweep.analysis.simulation import Constants, links_of
from bsweep.analysis.simulation.constants import NUM_DRAWS, of_study
from bsweep.analysis.simulation.network import Network, parse_network
from bsweep.analysis.simulation.strategies import Case, Outcome, outcome
from bsweep.analysis.simulation.words import Way, ways_of

_CODEC = "compression="
_NUM_STEPS = 2 * NUM_DRAWS
_DOUBLINGS = (1, 2, 4, 8, 16, 32, 64)


def with_simulated(
    step_time: StepTimeFit, seen: Observed, of: Sequence[Key], networks: Sequence[str],
    where: Mapping[str, str] | None,
) -> dict[str, StepTimeFit]:  # fmt: skip
    """Return for each network a fit of step times that takes cells on more workers than were timed
    from a simulation.

    Args:
        step_time: The fit.
        seen: The runs, from whose records the constants of the simulation come, too.
        of: The cells of the grid.
        networks: The links between workers, in words; see `links_and_codec`.
        where: Columns of the study's runs, and the value to select in each.

    Raises:
        ValueError: If the study has no constants for a simulation, or a word is unknown.
    """
    constants = of_study(seen.study, where)
    told = {network: links_and_codec(network) for network in networks}
    links = {one: links_of(constants, text, seen.study.name) for one, (text, _) in told.items()}
    own = {name: one for name in seen.ways if len((one := seen.of_way(name)).runs)}
    ways = {
        (network, name): _way(one, codec)
        for name, one in own.items()
        for network, (_, codec) in told.items()
    }
    found: dict[str, dict[Cell, Array]] = {network: {} for network in networks}
    for batch, workers, passes, name in of:
        timed = [one for one in step_time.passed if one.form.strategy in ("", name)]
        if name in own and timed and workers > max(one.num_workers for one in timed):
            cell = seen.ways[name].cell(batch, workers, passes)
            local = seen.ways[name].local_batch(batch, workers, passes)
            for network, link in links.items():
                way = ways[network, name]
                stretch = _stretch(constants, link, way, workers, local, passes)
                found[network][cell] = _log_seconds(step_time, cell, stretch)
    return {network: replace(step_time, simulated=cells) for network, cells in found.items()}


def larger_grid(
    seen: Observed, batches: Sequence[int] | None = None, workers: Sequence[int] | None = None
) -> list[Key]:
    """Return the cells of batch sizes and worker counts.

    Without `batches`, the sizes are those of the runs and their doublings up to the largest local
    batch on all workers. Without `workers`, the counts are those of the runs and all doublings up
    to 64.
    """
    if workers is None:
        workers = [*_DOUBLINGS, *(int(count) for count in seen.runs["num_workers"])]
    if batches is not None:
        return grid(seen, sorted(set(batches)), sorted(set(workers)))
    found = {int(batch) for batch in seen.runs["global_batch"]}
    batch, most = min(found), seen.runs["local_batch"].max() * max(workers)
    while batch <= most:
        found.add(batch)
        batch *= 2
    return grid(seen, sorted(found), sorted(set(workers)))


def check_networks(texts: Sequence[str]) -> None:
    """Raise ValueError if one of several texts is not what `links_and_codec` takes."""
    for text in texts:
        links, codec = links_and_codec(text)
        if links != "measured":
            parse_network(links)
        if codec:
            ways_of(f"horovod:compression={codec}", pd.DataFrame())


def links_and_codec(text: str) -> tuple[str, str]:
    """Return the words for links in a text such as `25gbit,10us,compression=fp16`, and the codec
    that such a text may name; empty for that of the runs.

    Raises:
        ValueError: If the text names two codecs.
    """
    words = text.split(",")
    codecs = [word for word in words if word.startswith(_CODEC)]
    if len(codecs) > 1:
        raise ValueError(f"--network {text}: {_CODEC} is there twice. Give it once.")
    links = ",".join(word for word in words if word not in codecs)
    return links, codecs[-1].removeprefix(_CODEC) if codecs else ""


def _way(of: Observed, codec: str) -> Way:
    """Return the way of the runs of one way of sharing the model, for a simulation, with another
    codec if one is given.
    """
    run = of.runs.iloc[0]
    codec = codec or str(run["compression"])
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
