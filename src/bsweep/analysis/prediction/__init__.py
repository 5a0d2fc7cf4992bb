"""The prediction of which batch size, on how many workers, reaches a target soonest or cheapest.

The time to the target is T(B, N) = S(B) t(B, N), for global batch B and N workers. S(B) is the
number of steps to the target (`steps`), and t(B, N) is the seconds of a step (`step_time`). Both
are fitted to some of a grid's cells and have a posterior. So every cell of the grid has a
prediction interval, measured or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from bsweep.analysis import mixture
from bsweep.analysis.beside_others import timed_beside
from bsweep.analysis.loaded import Study
from bsweep.analysis.loading import load
from bsweep.analysis.prediction import critical_batch, rates
from bsweep.analysis.prediction.fitting import ENOUGH_BATCHES, Fits, fit, leave_out
from bsweep.analysis.prediction.forecast import Forecast, Key, default_grid, forecast, grid
from bsweep.analysis.prediction.objectives import (
    Objective,
    choose_cell,
    parse_objective,
    with_probabilities,
)
from bsweep.analysis.prediction.selection import (
    Observed,
    bounded,
    exact_batches,
    observed,
    rate_rule,
)
from bsweep.analysis.prediction.step_time import Timing
from bsweep.analysis.prediction.texts import Prediction
from bsweep.analysis.prediction.ways import Probed, probed
from bsweep.config.target import Target, target_of
from bsweep.config.values import counts
from bsweep.core.words import counted, listed

# What a formula misses of a run by the medians of the priors: that of the cell and that of the run.
_NORMAL_STEPS, _NORMAL_SECONDS = 0.09, 0.07

__all__ = ["Fits", "Prediction", "fit", "leave_out", "on_networks", "predict", "predict_from"]


def predict(
    study: Study | str | Path,
    target_accuracy: float | None = None,
    target_loss: float | None = None,
    *,
    objective: str = "fastest",
    batches: int | str | Sequence[int] | None = None,
    workers: int | str | Sequence[int] | None = None,
    price_per_worker_hour: float | None = None,
    where: Mapping[str, str] | None = None,
    probe: str | Path | None = None,
    network: str | Sequence[str] | None = None,
    measured_network: str | None = None,
    speeds: Sequence[float] = (),
) -> Prediction:
    """Predict the time to a target for every cell of a grid, and recommend one cell.

    Args:
        study: A study or its folder.
        target_accuracy: The test accuracy to reach, a fraction.
        target_loss: The test loss to reach, in place of an accuracy. Without either, the one target
            that the study's runs name is taken.
        objective: `fastest`, `cheapest` (in worker-seconds, or in money if a price is given),
            `joules`, `deadline=2h`, `workers<=4`, or several of them joined by commas.
        batches: Global batch sizes of the grid, or a text such as `32,64,128`. None takes those of
            the runs, and doublings of the smallest up to the largest.
        workers: Worker counts of the grid, or a text such as `1,2,4` or `1..64`. None takes those
            of the runs and, with a network, all doublings up to 64.
        price_per_worker_hour: The price of an hour of one worker, in any currency.
        where: Columns of `study.runs` and the value to select in each. It is needed if runs differ
            in settings other than batch size, workers, way of splitting the model, learning rate
            and seed.
        probe: A `probe.json`. Its timings of steps and exchange count beside those of the runs.
        network: The links between workers, such as `25gbit,10us`, or `measured`. Steps on more
            workers than were timed are then simulated, see `bsweep.simulate`. A word such as
            `compression=fp16` among them simulates a codec. Several networks are compared: the
            prediction is that for the first one, `others` has the further ones, and `curves` the
            time on each number of workers with each.
        measured_network: The links on which the study was measured; see `bsweep.simulate`.
        speeds: Relative speeds of the workers on these networks; see `bsweep.simulate`.

    Returns:
        The cells of the grid with their predictions and intervals, the recommended cell, and
        warnings.

    Raises:
        ValueError: If an argument is wrong, no run reached the target, points are missing, the grid
            has fewer than two cells, or the runs do not compare. The message says what is wrong.
        FileNotFoundError: If there is no such folder of a study.
    """
    wanted = parse_objective(objective, price_per_worker_hour)
    batches = None if batches is None else counts("--batches", batches)
    workers = None if workers is None else counts("--workers", workers)
    known = (
        study if isinstance(study, Study) else load(study, mix=True)
    )  # `where` may select among the mixed runs
    seen = observed(known, _target(known, target_accuracy, target_loss), where)
    told = probed(probe, seen.ways, seen.runs) if probe else Probed((), seen.ways)
    seen = replace(seen, ways=told.ways)
    networks = [network] if isinstance(network, str) else [*dict.fromkeys(network or ())]
    fits, cells = fit(seen, told.timings), _grid(seen, batches, workers, bool(networks))
    if networks or measured_network is not None or speeds:
        found = on_networks(
            seen, fits, wanted, cells, networks, price_per_worker_hour, told.timings, where,
            measured_network, speeds,
        )  # fmt: skip
    else:
        found = predict_from(seen, fits, wanted, cells, price_per_worker_hour, told.timings)
    few, others = _without_cell(seen, batches, workers, cells)
    return replace(
        found,
        warnings=(*told.left_out, *others, *found.warnings),
        not_predicted=(*few, *found.not_predicted),
    )


def _without_cell(
    seen: Observed, batches: Sequence[int] | None, workers: Sequence[int] | None, of: Sequence[Key]
) -> tuple[list[str], list[str]]:
    """Return a sentence on the numbers of workers that have less than one example for each worker
    of any batch, and one on the others without a cell; each is left out if there are none.
    """
    lost = sorted(set(workers or ()) - {count for _, count, *_ in of})
    is_whole = all(way.card is None for way in seen.ways.values())
    most = max(batches) if batches and is_whole else max(lost, default=0)
    few, others = (
        [count for count in lost if (count > most) == is_few] for is_few in (True, False)
    )
    of_few = (
        f"batch {most} on {counted(listed(few), 'worker')} leaves less than one example for each: "
        f"use --workers up to {most}, or larger --batches."
    )
    of_others = (
        f"no batch size of the grid suits {counted(', '.join(map(str, others)), 'worker')}: it "
        "must be no larger than the training set, and divide evenly among the workers."
    )
    return [of_few] * bool(few), [of_others] * bool(others)


def on_networks(
    seen: Observed,
    fits: Fits,
    objective: Objective,
    of: Sequence[Key],
    networks: Sequence[str],
    price_per_worker_hour: float | None = None,
    timings: tuple[Timing, ...] = (),
    where: Mapping[str, str] | None = None,
    measured_network: str | None = None,
    speeds: Sequence[float] = (),
) -> Prediction:
    """Return what `predict_from` does for the first of several networks, with steps on more workers
    than were timed from a simulation, and with the predictions for the others.

    A network with which nothing can be simulated, or no cell keeps the objective's limits, is left
    out, and `Prediction.not_predicted` says why. So are cells that bsweep would refuse to
    train, with a warning.

    Args:
        seen: The runs.
        fits: The fits to them.
        objective: The objective.
        of: The cells of the grid.
        networks: The links between workers, in words.
        price_per_worker_hour: The price of an hour of one worker.
        timings: What was timed beside the runs.
        where: Columns of the study's runs, and the value to select in each.
        measured_network: The links on which the study was measured.
        speeds: Relative speeds of the workers on these networks; they repeat.

    Returns:
        The prediction.

    Raises:
        ValueError: If a word is unknown, the study has no constants for a simulation, or all
            networks are left out.
    """
    # A simulation needs other modules of this package.
    from bsweep.analysis.prediction import simulated
    from bsweep.analysis.simulation.constants import of_study, with_measured

    simulated.check_networks(networks, measured_network, speeds)
    constants = with_measured(of_study(seen.study, where), measured_network)
    constants = replace(constants, speeds=tuple(speeds) or constants.speeds)
    found, problems, left_out = [], [], []
    doubts: list[str] = []
    for network in networks:
        try:
            of_network = simulated.with_simulated(fits.step_time, seen, of, network, constants)
            own = replace(fits, step_time=of_network.step_time)
            one = predict_from(
                seen, own, objective, of_network.cells, price_per_worker_hour, timings
            )
        except ValueError as error:
            left_out.append((network, error.args[0]))
            continue
        problems += [(network, why) for why in of_network.refused]
        doubts += of_network.not_known
        found.append(replace(one, network=network))
    if not found:
        raise ValueError("--network {}: {}".format(*left_out[0]))
    warnings = [f"with {at}, {why}" for at, why in problems]
    codecs = dict.fromkeys(simulated.links_and_codec(one.network)[1] for one in found)
    warnings += _of_codecs(
        [one for one in codecs if one not in ("", "none")], constants.codec_seconds
    )
    told = dict.fromkeys((*warnings, *doubts, *found[0].warnings))
    lost = tuple(f"With {at}: {why}" for at, why in left_out)
    return replace(found[0], others=tuple(found[1:]), not_predicted=lost, warnings=tuple(told))


def _of_codecs(codecs: Sequence[str], codec_seconds: Mapping[str, float]) -> Iterator[str]:
    for codec in codecs:
        yield (
            f"{codec} is simulated only in steps on more workers than were timed. The number of "
            "steps to the target is that of the runs, although a codec may change it."
        )
        if codec not in codec_seconds:
            yield f"no run measured the seconds that {codec} takes, so it takes none here."


def predict_from(
    seen: Observed,
    fits: Fits,
    objective: Objective,
    of: Sequence[Key],
    price_per_worker_hour: float | None = None,
    timings: tuple[Timing, ...] = (),
) -> Prediction:
    """Return the predicted time of each cell of a grid and the recommended cell, given fits that
    were made before; see `predict`.
    """
    predicted = forecast(seen, fits.steps, fits.step_time, of, price_per_worker_hour)
    choice = choose_cell(predicted, objective)
    return Prediction(
        study=seen.study.name,
        target=seen.target,
        objective=objective,
        choice=choice,
        cells=with_probabilities(predicted, objective),
        rate_rule=rate_rule(seen),
        warnings=tuple(dict.fromkeys(_warnings(seen, fits, predicted, choice.place, timings))),
        seen=seen,
        timings=timings,
        forecast=predicted,
        fitted=fits,
    )


def _target(study: Study, accuracy: float | None, loss: float | None) -> Target:
    if accuracy is None and loss is None:
        of = {
            name: study.runs[name].dropna().unique()
            for name in ("target_accuracy", "target_loss")
            if name in study.runs and study.runs[name].notna().any()
        }
        if len(of) != 1 or any(len(values) != 1 for values in of.values()):
            raise ValueError(
                "give a target: --target-accuracy 0.9, or --target-loss, because the runs name "
                "no target, or several."
            )
        accuracy, loss = (
            float(of[name][0]) if name in of else None
            for name in ("target_accuracy", "target_loss")
        )
    return target_of(accuracy, loss)


def _grid(
    seen: Observed,
    batches: Sequence[int] | None,
    workers: Sequence[int] | None,
    is_simulated: bool = False,
) -> list[Key]:
    of = default_grid(seen)
    if is_simulated:
        from bsweep.analysis.prediction.simulated import larger_grid

        of = larger_grid(seen, batches, workers)
    elif batches is not None or workers is not None:
        of = grid(
            seen,
            sorted({cell[0] for cell in of}) if batches is None else sorted(set(batches)),
            None if workers is None else sorted(set(workers)),
        )
    if not of and (few := _without_cell(seen, batches, workers, of)[0]):
        raise ValueError(few[0])
    if len(of) < 2:
        raise ValueError(
            f"the grid has {'only one cell' if of else 'no cells'}: there is nothing to choose "
            "from. Give --batches (global, each a multiple of the workers times the passes of a "
            "step, and no larger than the training set) or --workers, as in --batches 32,64,128 "
            "--workers 1,2."
        )
    return of


def _warnings(
    seen: Observed, fits: Fits, predicted: Forecast, place: int, timings: Sequence[Timing]
) -> Iterator[str]:
    yield from rates.warnings(seen, float(np.median(fits.steps.sigma)))
    runs, cells = seen.runs, predicted.cells
    num_known = len(exact_batches(runs))
    if num_known < ENOUGH_BATCHES:
        yield (
            f"{counted(num_known, 'batch size')} reached the target after the first evaluation, "
            "but the formula for the steps, S_min + E_min / B, has two parameters: "
            f"{ENOUGH_BATCHES - num_known} more would test the formula. Until then, the intervals "
            "depend on what bsweep assumes of any study."
        )
    is_known = int(cells["global_batch"].iloc[place]) in exact_batches(runs)
    if (num_known < ENOUGH_BATCHES or not is_known) and (text := bounded(runs, seen.target)):
        yield text
    yield from _of_untimed_workers(seen, cells, timings)
    if runs.loc[runs["device"] == "cpu"].groupby("num_workers")["threads"].first().nunique() > 1:
        yield (
            "the threads of a worker change with the number of workers, but the formula for the "
            "time of a step assumes that each worker computes as fast as a worker alone. Give "
            "launch.threads_per_worker."
        )
    if cells["num_runs"].iloc[place] and not cells["num_reached"].iloc[place]:
        yield (
            "no run of the recommended cell reached the target. The prediction assumes that longer "
            "runs would have reached it, although a batch size may never reach it. Train this cell "
            "for longer first."
        )
    yield from _of_versions(seen)
    yield from _of_times_beside_others(seen)
    yield from _of_misfits(fits)
    if cells["is_simulated"].iloc[place]:
        yield (
            "the seconds of a step of the recommended cell are simulated, not measured. Time a few "
            "steps with so many workers before you rent them."
        )
    if beyond := cells["beyond"].iloc[place]:
        yield (
            f"the recommended cell lies beyond what was measured: {beyond}. Train this cell before "
            "you rely on it."
        )
    yield from critical_batch.disagreements(fits.critical_batches)


def _of_versions(seen: Observed) -> Iterator[str]:
    # Runs on different hardware were refused before.
    for name, values in mixture.mixture(seen.runs, seen.study.provenance).items():
        yield (
            f"the runs used different versions of {name}, so their times may differ: "
            f"{mixture.in_words(values)}."
        )


def _of_untimed_workers(
    seen: Observed, cells: pd.DataFrame, timings: Sequence[Timing]
) -> Iterator[str]:
    known = sorted({timing.cell.num_workers for timing in (*seen.timings(), *timings)})
    guessed = cells.loc[~cells["is_simulated"], "num_workers"]
    others = sorted(set(guessed) - {1, *known})
    if others and (len(known) < 2 or max(others) > max(known)):
        yield (
            f"steps were timed only on {counted(', '.join(map(str, known)), 'worker')}, so the "
            f"cost of an exchange on {counted(', '.join(map(str, others)), 'worker')} is a guess "
            "with a wide interval. Time a few steps with so many workers, or give bsweep predict "
            "the file of `bsweep probe` with --probe."
        )


def _of_misfits(fits: Fits) -> Iterator[str]:
    for name, fitted, normal in (
        ("steps to the target", fits.steps, _NORMAL_STEPS),
        ("seconds of a step", fits.step_time, _NORMAL_SECONDS),
    ):
        if (missed := float(np.median(np.hypot(fitted.sigma, fitted.tau)))) > 2 * normal:
            yield (
                f"the formula for the {name} misses the runs by about {missed:.0%}, but "
                f"{normal:.0%} is normal. Do not rely on cells that were not measured: a formula "
                "that does not hold can be far off there."
            )


def _of_times_beside_others(seen: Observed) -> Iterator[str]:
    is_left_out = (
        seen.runs["run_id"].isin(timed_beside(seen.study.provenance))
        & seen.runs["train_seconds"].isna()
    )
    if count := int(is_left_out.sum()):
        yield (
            f"{counted(count, 'run')} shared the machine with other runs (launch.parallel). The "
            "prediction uses their numbers of steps, but not their times."
        )
