"""Step times of cells on more workers than were timed, from a simulation in place of the formula.

What a worker computes comes from the fit; how much longer a step takes because of its exchange, and
of slower workers, comes from the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.forecast import Key, grid
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.seen_runs import Observed
from bsweep.analysis.prediction.step_time import Cell, StepTimeFit
from bsweep.analysis.simulation import DOUBLINGS, Constants, constant_warnings, links_of
from bsweep.analysis.simulation.cases import Case
from bsweep.analysis.simulation.choices import Choice, choice_of, choice_of_point
from bsweep.analysis.simulation.constants import NUM_DRAWS
from bsweep.analysis.simulation.network import FREE, Network, parse_network
from bsweep.analysis.simulation.strategies import outcome
from bsweep.analysis.study.cards import card_like
from bsweep.analysis.study.frames import LargerClusters
from bsweep.config.run import RunConfig
from bsweep.config.values import check_above_zero

_CODEC = "compression="
_NUM_STEPS = 2 * NUM_DRAWS
_NONE = (
    "no cell of the grid has more workers than were timed, so there is nothing to simulate. Give "
    "bsweep predict or report more workers, as in --workers 1..512."
)


def with_simulated(
    step_time: StepTimeFit, seen: Observed, grid: Sequence[Key], network: str,
    constants: Constants, measured_network: str | None,
) -> tuple[StepTimeFit, list[Key], list[str]]:  # fmt: skip
    """Return a fit that takes cells on more workers than were timed from a simulation, the cells of
    the grid but for those that bsweep would refuse to train so, and warnings on what is left out
    and what is simulated although nobody measured or gave it.

    Args:
        step_time: The fit.
        seen: The runs.
        grid: The cells of the grid.
        network: The links between workers, in words; see `links_and_codec`.
        constants: The constants of the simulation, from the records of the same runs.
        measured_network: The links on which the runs were measured, in words, or None.

    Raises:
        ValueError: If nothing can be simulated. The message says why, without the network.
    """
    words, codec = links_and_codec(network)
    links = links_of(constants, words, seen.study.name, measured_network)
    choices = {str(name): _choice(runs, codec) for name, runs in seen.runs.groupby("way")}
    log_seconds: dict[Cell, Array] = {}
    kept: list[Key] = []
    refused: dict[str, str] = {}
    simulated: dict[str, Choice] = {}
    for batch, workers, passes, name in grid:
        cell = seen.ways[name].cell(batch, workers, passes)
        if name in choices and workers > _most_timed(step_time, cell.form.strategy):
            local = seen.ways[name].local_batch(batch, workers, passes)
            case = Case(constants, links, choices[name], workers, local, _NUM_STEPS, passes=passes)
            if case.problem:
                refused.setdefault(name, case.problem)
                continue
            log_seconds[cell] = _log_seconds(step_time, cell, case)
            simulated[name] = choices[name]
        kept.append((batch, workers, passes, name))
    if not log_seconds:
        raise ValueError(next(iter(refused.values()), _NONE))
    warnings = [f"with {network}, {problem}" for problem in refused.values()]
    if codec not in ("", "none"):
        warnings.append(
            f"{codec} is simulated only in steps on more workers than were timed. The number of "
            "steps to the target is that of the runs, although a codec may change it."
        )
        if codec not in constants.codec_seconds:
            warnings.append(
                f"no run measured the seconds that {codec} takes, so it takes none here."
            )
    warnings += constant_warnings(constants, [*simulated.values()], [links])
    return replace(step_time, simulated=log_seconds), kept, warnings


def _most_timed(step_time: StepTimeFit, strategy: str) -> float:
    """Return the most workers whose steps with a strategy were timed; infinite if none were."""
    timed = [cell.num_workers for cell in step_time.passed if cell.form.strategy == strategy]
    return max(timed, default=np.inf)


def larger_grid(
    seen: Observed, batches: Sequence[int] | None = None, workers: Sequence[int] | None = None
) -> list[Key]:
    """Return the cells of batch sizes and worker counts.

    Without `batches`, the sizes are those of the runs and their doublings up to the largest local
    batch on all workers. Without `workers`, the counts are those of the runs and all doublings up
    to 64.
    """
    if workers is None:
        workers = [*DOUBLINGS, *(int(count) for count in seen.runs["num_workers"])]
    return grid(seen, batches, workers, int(seen.runs["local_batch"].max() * max(workers)))


def check_networks(larger: LargerClusters) -> None:
    """Raise ValueError if one of several networks is not what `links_and_codec` takes, if the
    network on which a study was measured has an unknown word or a speed is not above 0, or if
    either is given without networks.
    """
    if larger.measured_network is not None:
        parse_network(larger.measured_network, "--measured-network")
    for speed in larger.speeds:
        check_above_zero("speeds", speed, 0.5)
    given = {
        "--measured-network": larger.measured_network,
        "--speeds": ",".join(map("{:g}".format, larger.speeds)),
    }
    for option, value in given.items():
        if value and not larger.networks:
            raise ValueError(
                f"{option} {value} without a network to simulate: say which links the workers "
                "have, as in --network 25gbit,10us."
            )
    for text in larger.networks:
        links, codec = links_and_codec(text)
        if links != "measured":
            parse_network(links)
        try:
            card_like("compression", codec or "none")
        except ValueError as error:
            raise ValueError(f"--network {text}: {error}") from None


def check_points(configs: Sequence[RunConfig], networks: Sequence[str]) -> None:
    """Raise ValueError if, on one of several networks, no number of workers can train any of
    several points in steps that can be simulated.
    """
    points = {(config.strategy, config.compression.name): config for config in configs}
    for network in networks:
        problems = [_problem(config, network) for config in points.values()]
        if all(problems):
            raise ValueError(f"--network {network}: {problems[0]}")


def _problem(config: RunConfig, network: str) -> str:
    """Return why the steps of a point cannot be simulated on a network with any number of workers;
    empty if they can.
    """
    words, codec = links_and_codec(network)
    if codec:
        config = replace(config, compression=card_like("compression", codec))
    links = Network(FREE) if words == "measured" else parse_network(words)
    constants = Constants(np.ones(NUM_DRAWS), np.ones(NUM_DRAWS), 4e6, 1, "a trial")
    problem = ""
    for workers in DOUBLINGS[:0:-1]:
        try:
            choice = choice_of_point(config)
            case = Case(constants, links, choice, workers, config.examples_per_pass, NUM_DRAWS)
            problem = case.problem
            if not problem:
                outcome(choice.strategy, case)
                return ""
        except ValueError as error:
            problem = error.args[0]
    return problem


def links_and_codec(text: str) -> tuple[str, str]:
    """Return the words for links in a text such as `25gbit,10us,compression=fp16`, and the codec
    that such a text may name; empty for that of the runs.

    Raises:
        ValueError: If the text names no codec after `compression=`, or several.
    """
    words = [word.strip() for word in text.split(",")]
    codecs = [word.removeprefix(_CODEC) for word in words if word.startswith(_CODEC)]
    if "" in codecs:
        raise ValueError(f"--network {text}: name a codec, as in {_CODEC}fp16.")
    if len(codecs) > 1:
        raise ValueError(f"--network {text}: name one codec; each --network may have another.")
    links = ",".join(word for word in words if not word.startswith(_CODEC))
    return links, codecs[0] if codecs else ""


def _choice(runs: pd.DataFrame, codec: str) -> Choice:
    """Return the strategy of the runs of one way of sharing the model, for a simulation, with
    another codec if one is given.
    """
    codec = codec or str(runs["compression"].iloc[0])
    codec = "none" if codec in ("", "nan") else codec
    return choice_of(str(runs["strategy"].iloc[0]), runs, codec)


def _log_seconds(step_time: StepTimeFit, cell: Cell, case: Case) -> Array:
    """Return draws of the logarithm of a cell's seconds: those of the fit for a worker alone,
    without a pipeline's bubble, times what a simulated step is longer than the computing of a
    worker of speed 1, drawn between the sorted draws of the simulation.

    Exchanges that were not measured, and those of more workers, may be wrong by one factor in all
    draws.
    """
    steps = outcome(case.choice.strategy, case)
    alike = steps.mean_seconds / float(np.mean(1 / case.speeds))
    blocks = np.array_split(steps.step_seconds / alike, NUM_DRAWS)
    stretch = np.sort([block.mean() for block in blocks])
    alone = step_time.log_seconds(
        cell._replace(num_workers=1, form=cell.form._replace(sent_bytes=0.0, busy=1.0))
    )
    rng = np.random.default_rng([step_time.seed, 5, cell.num_workers, round(cell.local_batch)])
    places = rng.uniform(0, len(stretch) - 1, len(alone))
    error = case.log_error * rng.standard_normal(len(alone))
    return np.asarray(alone + np.log(np.interp(places, np.arange(len(stretch)), stretch)) + error)
